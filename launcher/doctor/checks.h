/* What `castor doctor` has found, as a list: rows are added, and shown as text or JSON. */
#ifndef CASTOR_LAUNCHER_CHECKS_H
#define CASTOR_LAUNCHER_CHECKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define DOCTOR_FORMAT_VERSION  1
#define DOCTOR_SECTION_DEVICES "Devices"

typedef enum doctor_state {
    DOCTOR_OK,
    DOCTOR_NOTE, /* worth knowing; nothing is wrong */
    DOCTOR_WARN, /* something works worse than it could */
    DOCTOR_FAIL, /* Castor cannot work */
} doctor_state;

typedef struct doctor_check {
    const char *section, *name; /* constants, but for names of hook families and devices */
    doctor_state state;
    char *value, *advice; /* advice "": none */
} doctor_check;

typedef struct doctor_checks {
    doctor_check *rows;
    size_t count, capacity;
    bool failed; /* memory is out */
} doctor_checks;

/* Adds a check; `format` gives the value. Texts are made safe to print. */
__attribute__((format(printf, 5, 6))) doctor_check *doctor_add(doctor_checks *checks, const char *section,
                                                               const char *name, doctor_state state,
                                                               const char *format, ...);
/* The advice of the check that was added last. */
__attribute__((format(printf, 2, 3))) void doctor_advise(doctor_checks *checks, const char *format, ...);

size_t doctor_checks_count(const doctor_checks *checks, doctor_state state);
void doctor_checks_text(const doctor_checks *checks, FILE *out);
void doctor_checks_json(const doctor_checks *checks, FILE *out);
void doctor_checks_free(doctor_checks *checks);

#endif
