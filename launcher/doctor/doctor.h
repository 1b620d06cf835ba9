/* `castor doctor [-- PYTHON]`: what works here, what is missing, how to mend it.
 *
 * machine_findings.c checks the machine. probe_run.c runs a small program under the Python in question, with the library and the agent as
 * under `castor run`. python_findings.c judges the program's facts, device_levels.c those of a second program about devices, doctor.c shows everything. */
#ifndef CASTOR_LAUNCHER_DOCTOR_H
#define CASTOR_LAUNCHER_DOCTOR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOCTOR_FORMAT_VERSION 1
#define DOCTOR_GROUP_DEVICES  "Devices"

/* argv[0] is "doctor". 0: Castor can work here; 1: it cannot, or the answer could not be written; 2: bad arguments. */
int doctor_main(int argc, char **argv);

typedef enum doctor_state {
    DOCTOR_OK,
    DOCTOR_NOTE, /* worth knowing; nothing is wrong */
    DOCTOR_WARN, /* something works worse than it could */
    DOCTOR_FAIL, /* Castor cannot work */
} doctor_state;

typedef struct doctor_check {
    const char *group, *name; /* constants, but for names of hook families and devices */
    doctor_state state;
    char *value, *advice; /* advice "": none */
} doctor_check;

typedef struct doctor_checks {
    doctor_check *rows;
    size_t count, capacity;
    bool failed; /* memory is out */
} doctor_checks;

/* Adds a check; `format` gives the value. Texts are made safe to print. */
__attribute__((format(printf, 5, 6))) doctor_check *doctor_add(doctor_checks *checks, const char *group,
                                                               const char *name, doctor_state state,
                                                               const char *format, ...);
/* The advice of the check that was added last. */
__attribute__((format(printf, 2, 3))) void doctor_advise(doctor_checks *checks, const char *format, ...);

void doctor_machine(doctor_checks *checks);
/* `command`: NULL-terminated; NULL: python3 of PATH. It gets `limit_seconds` to answer. */
/* What each device can do. Called by doctor_python where there are devices; the program gets as long again. */
void doctor_devices(doctor_checks *checks, char *const *command, double limit_seconds);
void doctor_python(doctor_checks *checks, char *const *command, double limit_seconds);

/* ---- the program under Python ---- */

#define DOCTOR_FIELDS_MAX 6

/* One fact from the program: a key and up to five values, "" where there is none. */
typedef struct doctor_fact {
    char *fields[DOCTOR_FIELDS_MAX];
} doctor_fact;

typedef struct doctor_probe {
    doctor_fact *facts;
    size_t count;
    char *text;             /* holds the facts' fields */
    char error[512];        /* the last line of its standard error */
    char command[PATH_MAX]; /* the file that was executed */
    bool started, timed_out;
    int status; /* of waitpid */
} doctor_probe;

typedef enum doctor_program_id { DOCTOR_PROGRAM_PYTHON, DOCTOR_PROGRAM_DEVICES } doctor_program_id;

/* Runs `command` -c PROGRAM as `castor run` would, for `limit_seconds` at most. False: nothing could be run, and `probe->error`
 * says why. */
bool doctor_probe_run(char *const *command, doctor_program_id program, double limit_seconds,
                      doctor_probe *probe);
/* The next fact of that key after `after` (NULL: the first), or NULL. */
const doctor_fact *doctor_probe_fact(const doctor_probe *probe, const char *key, const doctor_fact *after);
void doctor_probe_free(doctor_probe *probe);

#endif
