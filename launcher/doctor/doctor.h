/* `castor doctor [-- PYTHON]`: what works here, what is missing, how to mend it.
 *
 * doctor.c checks the machine, and shows everything. python_findings.c runs small programs under the Python in question, with the library and
 * the agent as under `castor run`, and judges their facts. */
#ifndef CASTOR_LAUNCHER_DOCTOR_H
#define CASTOR_LAUNCHER_DOCTOR_H

#include "checks.h"

/* argv[0] is "doctor". 0: Castor can work here; 1: it cannot, or the answer could not be written; 2: bad arguments. */
int doctor_main(int argc, char **argv);

/* `command`: NULL-terminated; NULL: python3 of PATH. It gets `limit_seconds` to answer. */
void doctor_python(doctor_checks *checks, char *const *command, double limit_seconds);

#endif
