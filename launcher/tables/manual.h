/* `castor manual`: the man page castor(1), made from the tables of commands and options. */
#ifndef CASTOR_LAUNCHER_TABLES_MANUAL_H
#define CASTOR_LAUNCHER_TABLES_MANUAL_H

#include <stdio.h>

int manual_main(int argc, char **argv); /* argv[0] is "manual" */

void manual_write(FILE *out);

#endif
