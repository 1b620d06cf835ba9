#include "run.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "job/options.h"
#include "job/plugin.h"
#include "launcher/common/command_line.h"

enum {
    RANKS_MAX = 65536,
    DEVICES_MAX = 16
}; /* the bounds of CASTOR_WORLD_SIZE and CASTOR_REHEARSE_DEVICES */

static int parse_count(const char *option, const char *of, const char *text, int most, int *out) {
    char *end;
    long value = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : 0;
    if (value < 1 || value > most || *end) {
        LOG_E("%s %s: must be a whole number of %s from 1 to %d", option, text, of, most);
        return RUN_EXIT_USAGE;
    }
    *out = (int)value;
    return 0;
}

int run_request_set(run_request *request, const char *origin, const char *name, const char *value) {
    char message[512];
    if (option_check(name, value, message, sizeof message) != CASTOR_OK) {
        LOG_E("%s: %s", origin, message);
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

int run_request_assign(run_request *request, const char *text) {
    char name[128];
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) {
        LOG_E("--set %s: write it as --set NAME=VALUE; `castor options` lists the names", text);
        return RUN_EXIT_USAGE;
    }
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    for (int id = 0; id < OPTION_COUNT; id++)
        if (option_table[id].internal && strcmp(option_table[id].env, name) == 0) {
            LOG_E("--set: %s is set by `castor run` itself", name);
            return RUN_EXIT_USAGE;
        }
    return run_request_set(request, "--set", name, equals + 1);
}

int run_request_begin(int argc, run_request *out) {
    *out = (run_request){.ranks = 1};
    out->settings = calloc((size_t)argc + 1, sizeof *out->settings);
    if (out->settings)
        return 0;
    LOG_E("out of memory");
    return RUN_EXIT_SYSTEM;
}

int run_arguments_parse(subcommand_id command, int argc, char *const *argv, run_request *out) {
    command_line line = {command, argc, argv, 1, NULL};
    int devices;
    int status = run_request_begin(argc + 1, out);
    if (!status && command == SUBCOMMAND_rehearse)
        status = run_request_set(out, "--devices", "CASTOR_REHEARSE_DEVICES", "1");
    for (bool options = true; options && !status;) {
        switch (command_line_next(&line)) {
        case ARGUMENT_rehearse_devices:
            status = parse_count("--devices", "devices", line.value, DEVICES_MAX, &devices);
            if (!status)
                status = run_request_set(out, "--devices", "CASTOR_REHEARSE_DEVICES", line.value);
            break;
        case ARGUMENT_rehearse_memory:
            status = run_request_set(out, "--memory", "CASTOR_REHEARSE_MEMORY", line.value);
            break;
        case ARGUMENT_rehearse_no_numbers:
            status = run_request_set(out, "--no-numbers", "CASTOR_REHEARSE_NUMBERS", "0");
            break;
        case ARGUMENT_run_plugin:
        case ARGUMENT_rehearse_plugin:
            status = run_request_set(out, "--plugin", "CASTOR_PLUGIN", line.value);
            break;
        case ARGUMENT_run_nproc:
        case ARGUMENT_rehearse_nproc:
            if (strcmp(line.value, "auto") == 0)
                status = run_request_set(out, "--nproc", "CASTOR_NPROC", "auto");
            else
                status = parse_count("--nproc", "ranks", line.value, RANKS_MAX, &out->ranks);
            break;
        case ARGUMENT_run_set:
        case ARGUMENT_rehearse_set:
            status = run_request_assign(out, line.value);
            break;
        case ARGUMENT_run_log_dir:
        case ARGUMENT_rehearse_log_dir:
            if (!line.value[0]) {
                LOG_E("--log-dir: an empty name; leave it out for castor-logs/TIME");
                return RUN_EXIT_USAGE;
            }
            status = run_request_set(out, "--log-dir", "CASTOR_LOG_DIR", line.value);
            break;
        case ARGUMENT_run_all_output:
        case ARGUMENT_rehearse_all_output:
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
        LOG_E("the command is missing: castor %s [OPTION]... -- COMMAND [ARGUMENT]...",
              subcommand_table[command].name);
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

static int check_accumulation(void) {
    if (options()->accumulate == 1 || plugin()->engine)
        return 0;
    LOG_E("CASTOR_ACCUMULATE=%d: plugin %s changes nothing in the script; use --plugin ddp (or another), or "
          "leave it out",
          options()->accumulate, plugin()->name);
    return RUN_EXIT_USAGE;
}

static int check_auto(void) {
    if (options()->nproc == CASTOR_NPROC_OFF || plugin()->engine)
        return 0;
    LOG_E("CASTOR_NPROC=auto: plugin %s would leave copies that train apart; choose another (--plugin "
          "gemini), or leave it out",
          plugin()->name);
    return RUN_EXIT_USAGE;
}

int run_options_check(const run_request *request, char *const *base) {
    char message[512];
    run_environment settled;
    if (!run_environment_settle(request, base, &settled)) {
        LOG_E("out of memory");
        return RUN_EXIT_SYSTEM;
    }
    castor_status status = options_load(settled.entries, message, sizeof message);
    run_environment_free(&settled);
    if (status != CASTOR_OK) {
        LOG_E("in the environment: %s", message);
        return RUN_EXIT_USAGE;
    }
    log_set_level((log_level)options()->log_level);
    int wrong = check_accumulation();
    return wrong ? wrong : check_auto();
}

static int check_ranks(const run_request *request) {
    const char *fix, *launcher = run_command_launcher(request->command, &fix);
    if (request->ranks == 1)
        return 0;
    if (launcher && !fix) {
        LOG_E("--nproc %d: %s is one session, in which you write; leave --nproc out, or run a script: "
              "castor run --plugin gemini --nproc %d -- python SCRIPT",
              request->ranks, launcher, request->ranks);
        return RUN_EXIT_USAGE;
    }
    if (launcher) {
        LOG_E("--nproc %d: %s starts its own ranks; leave --nproc out and pass %s %d to %s", request->ranks,
              launcher, fix, request->ranks, launcher);
        return RUN_EXIT_USAGE;
    }
    if (!plugin()->engine) {
        LOG_E(
            "--nproc %d: plugin %s would start %d copies that train apart; choose another (--plugin gemini), "
            "leave --nproc out, or start a DDP script by: castor run -- torchrun --nproc-per-node %d SCRIPT",
            request->ranks, plugin()->name, request->ranks, request->ranks);
        return RUN_EXIT_USAGE;
    }
    if (run_command_is_input(request->command)) {
        LOG_E("--nproc %d: python reads its script from standard input, which rank 0 alone gets; put the "
              "script into "
              "a file: castor run --nproc %d -- python FILE.py",
              request->ranks, request->ranks);
        return RUN_EXIT_USAGE;
    }
    return 0;
}

static int check_reach(const run_job *job, const run_environment *settled) {
    char what[1024];
    if (!plugin()->engine || options()->on_error != CASTOR_ON_ERROR_ABORT ||
        !run_command_is_apart(job->request->command, job->command,
                              run_environment_get(settled, "TORCH_DEVICE_BACKEND_AUTOLOAD"), what,
                              sizeof what))
        return 0;
    LOG_E("plugin %s cannot be applied: %s keeps PyTorch from loading Castor's agent; leave it out "
          "(CASTOR_ON_ERROR=passthrough trains without the plugin)",
          plugin()->name, what);
    return RUN_EXIT_USAGE;
}

/* The ranks of a cluster's launcher have a `castor run` each: of a directory that is named for all of them each takes a part
 * of its own. */
static int prepare_directory(const run_request *request, const run_environment *settled,
                             run_directory *directory) {
    char wanted[PATH_MAX];
    cluster place;
    bool of_cluster = run_environment_cluster(request, settled, &place);
    if (of_cluster && !place.master[0] && !run_environment_get(settled, "MASTER_ADDR"))
        LOG_W("rank %d of %d, started by %s: set MASTER_ADDR to the address of rank 0's node, which is not "
              "told",
              (int)place.rank, (int)place.world, place.launcher);
    size_t length = options()->log_dir[0] && of_cluster
                        ? log_format(wanted, sizeof wanted, "%s/rank%d", options()->log_dir, (int)place.rank)
                        : log_format(wanted, sizeof wanted, "%s", options()->log_dir);
    if (length + 1 >= sizeof wanted) {
        LOG_E("--log-dir: the name is too long");
        return RUN_EXIT_USAGE;
    }
    return run_directory_prepare(wanted, directory);
}

static int check_rehearsal(const run_job *job) {
    if (options()->rehearse_devices == 0 || job->install.simulation[0])
        return 0;
    LOG_E("this castor has no simulated devices: it was built without the CUDA wheel of torch; build it "
          "again, by "
          "`make setup-tests` and `make`, or `make PYTHON=...` with a Python that has it");
    return RUN_EXIT_SYSTEM;
}

static int make_token(char *token) {
    if (job_token_draw(token))
        return 0;
    LOG_E("no random numbers: %s", strerror(errno));
    return RUN_EXIT_SYSTEM;
}

static int run_job_do(run_job *job, char *const *base) {
    const run_request *request = job->request;
    run_environment settled = {0};
    int status = run_options_check(request, base);
    if (!status)
        status = check_ranks(request);
    if (!status && !run_environment_settle(request, base, &settled))
        status = RUN_EXIT_SYSTEM;
    if (!status)
        status = run_command_find(request->command[0], run_environment_get(&settled, "PATH"), job->command,
                                  sizeof job->command);
    if (!status)
        status = check_reach(job, &settled);
    if (!status)
        status = run_install_find(&job->install);
    if (!status)
        status = check_rehearsal(job);
    if (!status)
        status = make_token(job->token);
    if (!status)
        status = prepare_directory(request, &settled, &job->directory);
    if (!status) {
        bool started;
        run_directory_clear(&job->directory);
        run_about_write(job);
        status = run_ranks(job, base, &started);
        if (started) {
            run_outcome_report(job, &settled, status);
        } else {
            run_about_remove(job);
            run_directory_abandon(&job->directory);
        }
    }
    run_environment_free(&settled);
    return status;
}

int run_main(int argc, char **argv) {
    return run_main_as(SUBCOMMAND_run, NULL, argc, argv);
}

int run_main_as(subcommand_id command, run_summary *summarize, int argc, char **argv) {
    run_request request;
    int status = run_arguments_parse(command, argc, argv, &request);
    if (!status && request.help) {
        command_help_write(command, stdout);
    } else if (!status) {
        run_job job = {.request = &request, .summarize = summarize};
        status = run_job_do(&job, environ);
    }
    run_request_free(&request);
    return status;
}
