#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "launcher/common/array.h"
#include "launcher/common/command_line.h"
#include "launcher/common/json.h"
#include "launcher/common/trace_read.h"
#include "launcher/run/run.h"

#define LIMIT_SECONDS     180 /* a first import of PyTorch from a slow disk takes a minute */
#define LIMIT_MAX_SECONDS 86400

/* ---- checks ---- */

static char *clean_text(const char *format, va_list arguments) {
    char *text;
    if (vasprintf(&text, format, arguments) < 0)
        return NULL;
    trace_read_clean(text, strlen(text) + 1);
    return text;
}

doctor_check *doctor_add(doctor_checks *checks, const char *group, const char *name, doctor_state state,
                         const char *format, ...) {
    if (!array_grow(&checks->rows, &checks->capacity, checks->count, sizeof *checks->rows)) {
        checks->failed = true;
        return NULL;
    }
    va_list arguments;
    va_start(arguments, format);
    char *value = clean_text(format, arguments);
    va_end(arguments);
    if (value == NULL) {
        checks->failed = true;
        return NULL;
    }
    doctor_check *check = &checks->rows[checks->count++];
    *check = (doctor_check){.group = group, .name = name, .state = state, .value = value};
    return check;
}

void doctor_advise(doctor_checks *checks, const char *format, ...) {
    if (checks->failed || checks->count == 0)
        return;
    doctor_check *check = &checks->rows[checks->count - 1];
    va_list arguments;
    va_start(arguments, format);
    free(check->advice);
    check->advice = clean_text(format, arguments);
    va_end(arguments);
    checks->failed |= check->advice == NULL;
}

static void checks_free(doctor_checks *checks) {
    for (size_t i = 0; i < checks->count; i++) {
        free(checks->rows[i].value);
        free(checks->rows[i].advice);
    }
    free(checks->rows);
}

static size_t count_of(const doctor_checks *checks, doctor_state state) {
    size_t count = 0;
    for (size_t i = 0; i < checks->count; i++)
        count += checks->rows[i].state == state;
    return count;
}

/* ---- output ---- */

static void write_text(const doctor_checks *checks, FILE *out) {
    static const char *const marks[] = {
        [DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "-", [DOCTOR_WARN] = "warn", [DOCTOR_FAIL] = "FAIL"};
    size_t width = 0;
    for (size_t i = 0; i < checks->count; i++)
        if (strlen(checks->rows[i].name) > width)
            width = strlen(checks->rows[i].name);
    const char *group = "";
    for (size_t i = 0; i < checks->count; i++) {
        const doctor_check *check = &checks->rows[i];
        if (strcmp(group, check->group) != 0)
            fprintf(out, "%s%s\n", i == 0 ? "" : "\n", check->group);
        group = check->group;
        fprintf(out, "  %-4s  %-*s  %s\n", marks[check->state], (int)width, check->name, check->value);
        if (check->advice != NULL)
            fprintf(out, "        %-*s  %s\n", (int)width, "", check->advice);
    }
    size_t failed = count_of(checks, DOCTOR_FAIL), warned = count_of(checks, DOCTOR_WARN);
    if (failed > 0)
        fprintf(out, "\nCastor cannot work here: see FAIL above.\n");
    else if (warned > 0)
        fprintf(out, "\nCastor works here; %zu %s above could be better.\n", warned,
                warned == 1 ? "thing" : "things");
    else
        fprintf(out, "\nCastor works here.\n");
}

static void write_json(const doctor_checks *checks, FILE *out) {
    static const char *const states[] = {
        [DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "note", [DOCTOR_WARN] = "warn", [DOCTOR_FAIL] = "fail"};
    json_writer json = {.out = out};
    json_object_begin(&json, NULL);
    json_unsigned(&json, "doctor_version", DOCTOR_FORMAT_VERSION);
    json_bool(&json, "works", count_of(checks, DOCTOR_FAIL) == 0);
    json_array_begin(&json, "checks");
    for (size_t i = 0; i < checks->count; i++) {
        const doctor_check *check = &checks->rows[i];
        json_object_begin(&json, NULL);
        json_string(&json, "group", check->group);
        json_string(&json, "name", check->name);
        json_string(&json, "state", states[check->state]);
        json_string(&json, "value", check->value);
        json_string(&json, "advice", check->advice != NULL ? check->advice : "");
        json_object_end(&json);
    }
    json_array_end(&json);
    json_object_end(&json);
}

int doctor_main(int argc, char **argv) {
    void (*write_checks)(const doctor_checks *, FILE *) = write_text;
    char *const *command = NULL;
    double limit_seconds = LIMIT_SECONDS;
    command_line line = {SUBCOMMAND_doctor, argc, argv, 1, NULL};
    for (bool more = true; more;) {
        char *end;
        switch (command_line_next(&line)) {
        case ARGUMENT_doctor_format:
            write_checks = strcmp(line.value, "json") == 0 ? write_json : write_text;
            break;
        case ARGUMENT_doctor_timeout:
            limit_seconds = strtod(line.value, &end);
            if (end == line.value || *end != '\0' || !(limit_seconds > 0) ||
                limit_seconds > LIMIT_MAX_SECONDS) {
                LOG_E("doctor: --timeout `%s`: must be seconds, up to %d", line.value, LIMIT_MAX_SECONDS);
                return RUN_EXIT_USAGE;
            }
            break;
        case COMMAND_LINE_HELP:
            command_help_write(line.command, stdout);
            return 0;
        case COMMAND_LINE_REST:
            if (line.next >= argc) {
                LOG_E("doctor: a Python is missing after --: castor doctor -- PYTHON");
                return RUN_EXIT_USAGE;
            }
            command = argv + line.next;
            more = false;
            break;
        case COMMAND_LINE_WORD:
            LOG_E("doctor: %s: unknown argument; put -- before a Python: castor doctor -- PYTHON",
                  line.value);
            return RUN_EXIT_USAGE;
        case COMMAND_LINE_WRONG:
            return RUN_EXIT_USAGE;
        default:
            more = false;
        }
    }
    doctor_checks checks = {0};
    doctor_machine(&checks);
    doctor_python(&checks, command, limit_seconds);
    int status = count_of(&checks, DOCTOR_FAIL) > 0;
    if (checks.failed) {
        LOG_E("out of memory");
        status = RUN_EXIT_SYSTEM;
    } else {
        write_checks(&checks, stdout);
        if (fflush(stdout) != 0) {
            LOG_E("standard output cannot be written");
            status = RUN_EXIT_SYSTEM;
        }
    }
    checks_free(&checks);
    return status;
}
