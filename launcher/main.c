/* The command `castor`: finds the subcommand. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "base/nearest.h"
#include "base/version.h"
#include "launcher/common/command_line.h"
#include "launcher/doctor/doctor.h"
#include "launcher/env/env.h"
#include "launcher/logs/logs.h"
#include "launcher/plan/plan.h"
#include "launcher/rehearse/rehearse.h"
#include "launcher/report/report.h"
#include "launcher/run/run.h"
#include "launcher/tables/complete.h"
#include "launcher/tables/manual.h"
#include "launcher/tables/tables.h"
#include "launcher/top/top.h"

static int help_main(int argc, char **argv);

static int version_main(int argc, char **argv) {
    if (argc > 1) {
        LOG_E("version: %s: unknown argument; it takes none", argv[1]);
        return RUN_EXIT_USAGE;
    }
    puts("castor " CASTOR_VERSION);
    return 0;
}

static int (*const main_of[SUBCOMMAND_COUNT])(int argc, char **argv) = {
#define COMMAND(id, usage, doc, text) [SUBCOMMAND_##id] = id##_main,
#define INTERNAL_COMMAND(id, usage)   [SUBCOMMAND_##id] = id##_main,
#include "launcher/common/commands.def"
};

/* What users call; the rest is for programs. */
static bool is_listed(int id) {
    return subcommand_table[id].doc != NULL;
}

static int find(const char *word) {
    for (int id = 0; id < SUBCOMMAND_COUNT; id++)
        if (strcmp(subcommand_table[id].name, word) == 0)
            return id;
    return -1;
}

static int refuse_unknown(const char *word) {
    const char *names[SUBCOMMAND_COUNT];
    size_t count = 0;
    for (int id = 0; id < SUBCOMMAND_COUNT; id++)
        if (is_listed(id))
            names[count++] = subcommand_table[id].name;
    const char *near = nearest_name(word, names, count);
    if (near)
        LOG_E("%s: unknown command; did you mean castor %s? (`castor help` lists all)", word, near);
    else
        LOG_E("%s: unknown command; `castor help` lists all", word);
    return RUN_EXIT_USAGE;
}

static int help_main(int argc, char **argv) {
    if (argc > 1) {
        int id = find(argv[1]);
        if (id < 0 || !is_listed(id))
            return refuse_unknown(argv[1]);
        command_help_write((subcommand_id)id, stdout);
        return 0;
    }
    puts("castor trains PyTorch models that do not fit, from training scripts that nobody edits.\n");
    for (int id = 0; id < SUBCOMMAND_COUNT; id++)
        if (is_listed(id))
            printf("  castor %-10s%-30s%s\n", subcommand_table[id].name, subcommand_table[id].usage,
                   subcommand_table[id].doc);
    fputs("\n" COMMAND_EXAMPLES, stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        LOG_E("a command is missing: castor run -- COMMAND; `castor help` lists all");
        return RUN_EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        word = "help";
    if (strcmp(word, "--version") == 0)
        word = "version";
    int id = find(word);
    return id < 0 ? refuse_unknown(word) : main_of[id](argc - 1, argv + 1);
}
