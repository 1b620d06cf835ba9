#include "env.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "job/options.h"
#include "launcher/common/command_line.h"
#include "launcher/common/json.h"
#include "launcher/common/utf8.h"
#include "launcher/run/run.h"

/* ---- formats ---- */

/* For a shell: nothing means anything between single quotes, but their end. */
static void write_shell(FILE *out, const char *name, const char *value) {
    fprintf(out, "export %s='", name);
    for (; *value; value++) {
        if (*value == '\'')
            fputs("'\\''", out);
        else
            fputc(*value, out);
    }
    fputs("'\n", out);
}

/* For `docker run --env-file`, which takes the rest of a line as it stands. */
static void write_dotenv(FILE *out, const char *name, const char *value) {
    fprintf(out, "%s=%s\n", name, value);
}

/* For a container of Kubernetes, which replaces $(NAME) in values, and two dollars by one. A string of JSON is one of YAML. */
static void write_yaml(FILE *out, const char *name, const char *value) {
    char *text = malloc(2 * strlen(value) + 1), *end = text;
    if (!text)
        return;
    for (; *value; value++) {
        if (*value == '$')
            *end++ = '$';
        *end++ = *value;
    }
    *end = '\0';
    json_writer json = {.out = out, .compact = true};
    fprintf(out, "- name: %s\n  value: ", name);
    json_string(&json, NULL, text);
    fputc('\n', out);
    free(text);
}

typedef struct env_format {
    const char *name;
    void (*write)(FILE *out, const char *name, const char *value); /* NULL: an object of JSON */
    bool any_bytes, any_lines;                                     /* what a value may hold */
} env_format;

static const env_format formats[] = {
    {"shell", write_shell, true, true},
    {"dotenv", write_dotenv, false, false},
    {"json", NULL, false, true},
    {"yaml", write_yaml, false, true},
};

/* ---- the command line ---- */

typedef struct env_request {
    run_request run; /* its settings */
    const env_format *format;
} env_request;

static int add_logs(env_request *request, const char *folder) {
    char path[2 * PATH_MAX], here[PATH_MAX] = "";
    if (!folder[0]) {
        LOG_E("--log-dir: an empty name; leave it out to keep no trace");
        return RUN_EXIT_USAGE;
    }
    if (folder[0] != '/' && !getcwd(here, sizeof here)) {
        LOG_E("--log-dir %s: the working directory has no name: %s", folder, strerror(errno));
        return RUN_EXIT_SYSTEM;
    }
    snprintf(path, sizeof path, "%s%s%s", here, here[0] ? "/" : "", folder);
    return run_request_set(&request->run, "--log-dir", "CASTOR_LOG_PARENT", path);
}

static int parse(int argc, char **argv, env_request *out) {
    *out = (env_request){.format = formats};
    command_line line = {SUBCOMMAND_env, argc, argv, 1, NULL};
    int status = run_request_begin(argc, &out->run);
    while (!status) {
        switch (command_line_next(&line)) {
        case ARGUMENT_env_plugin:
            status = run_request_set(&out->run, "--plugin", "CASTOR_PLUGIN", line.value);
            break;
        case ARGUMENT_env_set:
            status = run_request_assign(&out->run, line.value);
            break;
        case ARGUMENT_env_log_dir:
            status = add_logs(out, line.value);
            break;
        case ARGUMENT_env_format:
            for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
                if (strcmp(formats[i].name, line.value) == 0)
                    out->format = &formats[i];
            break;
        case COMMAND_LINE_HELP:
            out->run.help = true;
            return 0;
        case COMMAND_LINE_WORD:
            LOG_E("env: %s: no argument is taken; it prints the environment, castor run starts a command",
                  line.value);
            return RUN_EXIT_USAGE;
        case COMMAND_LINE_WRONG:
            return RUN_EXIT_USAGE;
        default:
            return 0;
        }
    }
    return status;
}

/* ---- the environment ---- */

static int check_value(const env_format *format, const char *name, const char *value) {
    bool is_text = true;
    for (const char *at = value; is_text && *at;) {
        size_t length = utf8_length(at, strlen(at));
        is_text = length > 0;
        at += length;
    }
    if (!is_text && !format->any_bytes) {
        LOG_E("%s holds bytes that are not UTF-8, which %s cannot hold; use --format shell", name,
              format->name);
        return RUN_EXIT_USAGE;
    }
    if (strpbrk(value, "\r\n") && !format->any_lines) {
        LOG_E("%s holds a line break, which %s cannot hold; use --format json", name, format->name);
        return RUN_EXIT_USAGE;
    }
    return 0;
}

/* The environment's part that `castor env` prints, one after another, NULL after the last. */
static const char *part_name(int index) {
    static const char *const loaders[] = {"LD_PRELOAD", "PYTHONPATH"};
    enum { LOADERS = sizeof loaders / sizeof *loaders };
    if (index < LOADERS)
        return loaders[index];
    return index - LOADERS < OPTION_COUNT ? option_table[index - LOADERS].env : NULL;
}

static int write_environment(const env_format *format, const run_environment *environment, FILE *out) {
    json_writer json = {.out = out};
    const char *value;
    for (int i = 0; part_name(i); i++)
        if ((value = run_environment_get(environment, part_name(i))) &&
            check_value(format, part_name(i), value) != 0)
            return RUN_EXIT_USAGE;
    if (!format->write)
        json_object_begin(&json, NULL);
    for (int i = 0; part_name(i); i++) {
        value = run_environment_get(environment, part_name(i));
        if (value && format->write)
            format->write(out, part_name(i), value);
        else if (value)
            json_string(&json, part_name(i), value);
    }
    if (!format->write)
        json_object_end(&json);
    if (fflush(out) != 0) {
        LOG_E("standard output cannot be written: %s", strerror(errno));
        return RUN_EXIT_SYSTEM;
    }
    return 0;
}

/* Processes of this shell belong to the job around it until its variables are gone. */
static void write_unset(const run_environment *environment, FILE *out) {
    for (int id = 0; id < OPTION_COUNT; id++) {
        const option_info *row = &option_table[id];
        for (char **entry = environ; *entry; entry++)
            if (strncmp(*entry, row->env, strlen(row->env)) == 0 && (*entry)[strlen(row->env)] == '=' &&
                !run_environment_get(environment, row->env))
                fprintf(out, "unset %s\n", row->env);
    }
}

static int print(const env_request *request) {
    run_install install;
    run_environment environment = {0};
    int status = run_options_check(&request->run, environ);
    if (!status && options()->log_dir[0]) {
        LOG_E("CASTOR_LOG_DIR=%s is the directory of one job, and this environment serves many: unset it, "
              "and name "
              "a folder for theirs by --log-dir",
              options()->log_dir);
        status = RUN_EXIT_USAGE;
    }
    if (!status && options()->nproc == CASTOR_NPROC_AUTO && !options()->log_parent[0]) {
        LOG_E("CASTOR_NPROC=auto: the ranks need a folder for their own copies of files; name one by "
              "--log-dir");
        status = RUN_EXIT_USAGE;
    }
    if (!status)
        status = run_install_find(&install);
    if (!status && (!run_environment_settle(&request->run, environ, &environment) ||
                    !run_environment_preload(&install, &environment))) {
        LOG_E("out of memory");
        status = RUN_EXIT_SYSTEM;
    }
    if (!status && request->format->write == write_shell)
        write_unset(&environment, stdout);
    if (!status)
        status = write_environment(request->format, &environment, stdout);
    run_environment_free(&environment);
    return status;
}

int env_main(int argc, char **argv) {
    env_request request;
    int status = parse(argc, argv, &request);
    if (!status && request.run.help)
        command_help_write(SUBCOMMAND_env, stdout);
    else if (!status)
        status = print(&request);
    run_request_free(&request.run);
    return status;
}
