/* The command `castor`: finds the subcommand. */
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "core/nearest.h"
#include "core/version.h"
#include "launcher/doctor/doctor.h"
#include "launcher/report/report.h"
#include "launcher/run/run.h"
#include "launcher/top/top.h"
#include "tables.h"

static int help_main(int argc, char **argv);

static int version_main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    puts("castor " CASTOR_VERSION);
    return 0;
}

static const struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage, *doc;
} subcommands[] = {
    {"run", run_main, "[OPTION]... [--] COMMAND...", "run a command with Castor in its Python processes"},
    {"report", report_main, "DIR [--format FORMAT]", "show what a run did"},
    {"top", top_main, "[DIR]", "watch a running job; without DIR the newest run in castor-logs"},
    {"doctor", doctor_main, "[-- PYTHON]", "what works here, what is missing, how to mend it"},
    {"options", options_main, "[--markdown]", "the options, their values and where these come from"},
    {"hooks", hooks_main, "[--markdown]", "the functions that are intercepted"},
    {"help", help_main, "", "this text; `castor run --help` says more about run"},
    {"version", version_main, "", "the version"},
};

enum { SUBCOMMAND_COUNT = sizeof subcommands / sizeof *subcommands };

static int help_main(int argc, char **argv) {
    (void)argc;
    (void)argv;
    puts("castor trains PyTorch models that do not fit, from training scripts that nobody edits.\n");
    for (int i = 0; i < SUBCOMMAND_COUNT; i++)
        printf("  castor %-8s%-30s%s\n", subcommands[i].name, subcommands[i].usage, subcommands[i].doc);
    puts("\n  castor run --plugin gemini -- torchrun --nproc-per-node 2 train_ddp.py\n"
         "  castor run --plugin gemini --nproc 2 -- python train.py");
    return 0;
}

static int refuse_unknown(const char *word) {
    const char *names[SUBCOMMAND_COUNT];
    for (int i = 0; i < SUBCOMMAND_COUNT; i++)
        names[i] = subcommands[i].name;
    const char *near = nearest_name(word, names, SUBCOMMAND_COUNT);
    if (near)
        LOG_E("%s: unknown command; did you mean castor %s? (`castor help` lists all)", word, near);
    else
        LOG_E("%s: unknown command; `castor help` lists all", word);
    return RUN_EXIT_USAGE;
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
    for (int i = 0; i < SUBCOMMAND_COUNT; i++)
        if (strcmp(subcommands[i].name, word) == 0)
            return subcommands[i].run(argc - 1, argv + 1);
    return refuse_unknown(word);
}
