#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "core/nearest.h"
#include "core/options.h"

enum { RANKS_MAX = 65536 }; /* the bound of CASTOR_WORLD_SIZE */

typedef enum argument_id {
    ARGUMENT_PLUGIN,
    ARGUMENT_NPROC,
    ARGUMENT_SET,
    ARGUMENT_LOG_DIR,
    ARGUMENT_ALL_OUTPUT,
    ARGUMENT_HELP,
    ARGUMENT_COUNT
} argument_id;

static const struct argument {
    const char *name, *value, *doc;
} arguments[ARGUMENT_COUNT] = {
    [ARGUMENT_PLUGIN] = {"--plugin", "P",
                         "what to do with the script: " CASTOR_PLUGIN_NAMES " (default: none)"},
    [ARGUMENT_NPROC] = {"--nproc", "N",
                        "start N ranks of a script that knows nothing of ranks; needs a plugin"},
    [ARGUMENT_SET] = {"--set", "NAME=VALUE", "set an option; `castor options` lists them"},
    [ARGUMENT_LOG_DIR] = {"--log-dir", "DIR", "where the trace goes (default: castor-logs/TIME)"},
    [ARGUMENT_ALL_OUTPUT] = {"--all-output", NULL,
                             "pass on the standard output of all ranks, not only rank 0's"},
    [ARGUMENT_HELP] = {"--help", NULL, "this text"},
};

void run_usage_print(void) {
    printf("castor run [OPTION]... [--] COMMAND [ARGUMENT]...\n\n"
           "Runs COMMAND with Castor in its Python processes.\n\n");
    for (int i = 0; i < ARGUMENT_COUNT; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", arguments[i].name, arguments[i].value ? arguments[i].value : "");
        printf("  %-20s %s\n", left, arguments[i].doc);
    }
    printf("\n  castor run --plugin gemini -- torchrun --nproc-per-node 2 train_ddp.py\n"
           "  castor run --plugin gemini --nproc 2 -- python train.py\n\n"
           "The exit status is the command's own: of the first rank that failed; 128 + N after signal N.\n");
}

/* The argument that `word` names, as NAME or NAME=VALUE; -1: none. */
static int find_argument(const char *word, const char **value) {
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    *value = equals ? equals + 1 : NULL;
    if (strcmp(word, "-h") == 0)
        return ARGUMENT_HELP;
    for (int i = 0; i < ARGUMENT_COUNT; i++)
        if (strlen(arguments[i].name) == length && memcmp(arguments[i].name, word, length) == 0)
            return i;
    return -1;
}

static int refuse_unknown(const char *word) {
    const char *names[ARGUMENT_COUNT];
    for (int i = 0; i < ARGUMENT_COUNT; i++)
        names[i] = arguments[i].name;
    const char *near = nearest_name(word, names, ARGUMENT_COUNT);
    if (near)
        LOG_E("%s: unknown option; did you mean %s? (`castor run --help` lists all; put -- before a command "
              "that "
              "starts with a dash)",
              word, near);
    else
        LOG_E("%s: unknown option; `castor run --help` lists all; put -- before a command that starts with a "
              "dash",
              word);
    return RUN_EXIT_USAGE;
}

static int parse_ranks(const char *text, int *out) {
    char *end;
    long value = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : 0;
    if (value < 1 || value > RANKS_MAX || *end) {
        LOG_E("--nproc %s: must be a whole number of ranks from 1 to %d", text, RANKS_MAX);
        return RUN_EXIT_USAGE;
    }
    *out = (int)value;
    return 0;
}

/* Checks a setting and appends it. `origin` is the option that the user wrote it with. */
static int add_setting(run_request *request, const char *origin, const char *name, const char *value) {
    char message[512];
    if (option_check(name, value, message, sizeof message) != CASTOR_OK) {
        LOG_E("%s: %s", origin, message);
        return RUN_EXIT_USAGE;
    }
    for (int id = 0; id < OPTION_COUNT; id++)
        if (option_table[id].internal && strcmp(option_table[id].env, name) == 0) {
            LOG_E("%s: %s is set by `castor run` itself", origin, name);
            return RUN_EXIT_USAGE;
        }
    size_t size = strlen(name) + strlen(value) + 2;
    char *setting = malloc(size);
    if (!setting) {
        LOG_E("out of memory");
        return RUN_EXIT_SYSTEM;
    }
    snprintf(setting, size, "%s=%s", name, value);
    request->settings[request->setting_count++] = setting;
    return 0;
}

static int add_assignment(run_request *request, const char *text) {
    char name[128];
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) {
        LOG_E("--set %s: write it as --set NAME=VALUE; `castor options` lists the names", text);
        return RUN_EXIT_USAGE;
    }
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    return add_setting(request, "--set", name, equals + 1);
}

static int take_argument(argument_id id, const char *value, run_request *out) {
    switch (id) {
    case ARGUMENT_PLUGIN:
        return add_setting(out, "--plugin", "CASTOR_PLUGIN", value);
    case ARGUMENT_NPROC:
        return parse_ranks(value, &out->ranks);
    case ARGUMENT_SET:
        return add_assignment(out, value);
    case ARGUMENT_LOG_DIR:
        if (value[0])
            return add_setting(out, "--log-dir", "CASTOR_LOG_DIR", value);
        LOG_E("--log-dir: an empty name; leave it out for castor-logs/TIME");
        return RUN_EXIT_USAGE;
    case ARGUMENT_ALL_OUTPUT:
        out->all_output = true;
        break;
    case ARGUMENT_HELP:
        out->help = true;
        break;
    case ARGUMENT_COUNT:
        break;
    }
    return 0;
}

int run_arguments_parse(int argc, char *const *argv, run_request *out) {
    *out = (run_request){.ranks = 1};
    out->settings = calloc((size_t)argc + 1, sizeof *out->settings);
    if (!out->settings) {
        LOG_E("out of memory");
        return RUN_EXIT_SYSTEM;
    }
    int at = 1;
    while (at < argc && argv[at][0] == '-') {
        const char *word = argv[at++], *value;
        if (strcmp(word, "--") == 0)
            break;
        int id = find_argument(word, &value);
        if (id < 0)
            return refuse_unknown(word);
        if (arguments[id].value && !value) {
            if (at >= argc || strcmp(argv[at], "--") == 0) {
                LOG_E("%s: a value is missing: %s %s", word, word, arguments[id].value);
                return RUN_EXIT_USAGE;
            }
            value = argv[at++];
        } else if (!arguments[id].value && value) {
            LOG_E("%s: takes no value", word);
            return RUN_EXIT_USAGE;
        }
        int status = take_argument((argument_id)id, value, out);
        if (status || out->help)
            return status;
    }
    out->command = argv + at;
    if (at >= argc || !argv[at][0]) {
        LOG_E("the command is missing: castor run [OPTION]... -- COMMAND [ARGUMENT]...");
        return RUN_EXIT_USAGE;
    }
    return 0;
}

void run_request_free(run_request *request) {
    for (size_t i = 0; i < request->setting_count; i++)
        free(request->settings[i]);
    free(request->settings);
    *request = (run_request){0};
}
