#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "job/options.h"
#include "launcher/common/command_line.h"

enum { RANKS_MAX = 65536 }; /* the bound of CASTOR_WORLD_SIZE */

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

int run_arguments_parse(int argc, char *const *argv, run_request *out) {
    *out = (run_request){.ranks = 1};
    out->settings = calloc((size_t)argc + 1, sizeof *out->settings);
    if (!out->settings) {
        LOG_E("out of memory");
        return RUN_EXIT_SYSTEM;
    }
    command_line line = {SUBCOMMAND_run, argc, argv, 1, NULL};
    int status = 0;
    for (bool options = true; options && !status;) {
        switch (command_line_next(&line)) {
        case ARGUMENT_run_plugin:
            status = add_setting(out, "--plugin", "CASTOR_PLUGIN", line.value);
            break;
        case ARGUMENT_run_nproc:
            status = parse_ranks(line.value, &out->ranks);
            break;
        case ARGUMENT_run_set:
            status = add_assignment(out, line.value);
            break;
        case ARGUMENT_run_log_dir:
            if (!line.value[0]) {
                LOG_E("--log-dir: an empty name; leave it out for castor-logs/TIME");
                return RUN_EXIT_USAGE;
            }
            status = add_setting(out, "--log-dir", "CASTOR_LOG_DIR", line.value);
            break;
        case ARGUMENT_run_all_output:
            out->all_output = true;
            break;
        case COMMAND_LINE_HELP:
            out->help = true;
            return 0;
        case COMMAND_LINE_WRONG:
            return RUN_EXIT_USAGE;
        case COMMAND_LINE_WORD: /* the command begins here */
            line.next--;
            options = false;
            break;
        default:
            options = false;
        }
    }
    if (status)
        return status;
    out->command = argv + line.next;
    if (line.next >= argc || !out->command[0][0]) {
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
