#include "checks.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "launcher/common/array.h"
#include "launcher/common/json.h"
#include "launcher/common/trace_read.h"

static char *clean_text(const char *format, va_list arguments) {
    char *text;
    if (vasprintf(&text, format, arguments) < 0)
        return NULL;
    trace_read_clean(text, strlen(text) + 1);
    return text;
}

doctor_check *doctor_add(doctor_checks *checks, const char *section, const char *name, doctor_state state,
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
    *check = (doctor_check){.section = section, .name = name, .state = state, .value = value};
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

void doctor_checks_free(doctor_checks *checks) {
    for (size_t i = 0; i < checks->count; i++) {
        free(checks->rows[i].value);
        free(checks->rows[i].advice);
    }
    free(checks->rows);
}

size_t doctor_checks_count(const doctor_checks *checks, doctor_state state) {
    size_t count = 0;
    for (size_t i = 0; i < checks->count; i++)
        count += checks->rows[i].state == state;
    return count;
}

/* ---- output ---- */

void doctor_checks_text(const doctor_checks *checks, FILE *out) {
    static const char *const marks[] = {
        [DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "-", [DOCTOR_WARN] = "warn", [DOCTOR_FAIL] = "FAIL"};
    size_t width = 0;
    for (size_t i = 0; i < checks->count; i++)
        if (strlen(checks->rows[i].name) > width)
            width = strlen(checks->rows[i].name);
    const char *section = "";
    for (size_t i = 0; i < checks->count; i++) {
        const doctor_check *check = &checks->rows[i];
        if (strcmp(section, check->section) != 0)
            fprintf(out, "%s%s\n", i == 0 ? "" : "\n", check->section);
        section = check->section;
        fprintf(out, "  %-4s  %-*s  %s\n", marks[check->state], (int)width, check->name, check->value);
        if (check->advice != NULL)
            fprintf(out, "        %-*s  %s\n", (int)width, "", check->advice);
    }
    size_t failed = doctor_checks_count(checks, DOCTOR_FAIL),
           warned = doctor_checks_count(checks, DOCTOR_WARN);
    if (failed > 0)
        fprintf(out, "\nCastor cannot work here: see FAIL above.\n");
    else if (warned > 0)
        fprintf(out, "\nCastor works here; %zu %s above could be better.\n", warned,
                warned == 1 ? "thing" : "things");
    else
        fprintf(out, "\nCastor works here.\n");
}

void doctor_checks_json(const doctor_checks *checks, FILE *out) {
    static const char *const states[] = {
        [DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "note", [DOCTOR_WARN] = "warn", [DOCTOR_FAIL] = "fail"};
    json_writer json = {.out = out};
    json_object_begin(&json, NULL);
    json_unsigned(&json, "doctor_version", DOCTOR_FORMAT_VERSION);
    json_bool(&json, "works", doctor_checks_count(checks, DOCTOR_FAIL) == 0);
    json_array_begin(&json, "checks");
    for (size_t i = 0; i < checks->count; i++) {
        const doctor_check *check = &checks->rows[i];
        json_object_begin(&json, NULL);
        json_string(&json, "group", check->section);
        json_string(&json, "name", check->name);
        json_string(&json, "state", states[check->state]);
        json_string(&json, "value", check->value);
        json_string(&json, "advice", check->advice != NULL ? check->advice : "");
        json_object_end(&json);
    }
    json_array_end(&json);
    json_object_end(&json);
}
