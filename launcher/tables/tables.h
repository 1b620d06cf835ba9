/* `castor options` and `castor hooks`: the tables of options.def and hooks.def, for people and for docs/. */
#ifndef CASTOR_LAUNCHER_TABLES_TABLES_H
#define CASTOR_LAUNCHER_TABLES_TABLES_H

#include <stdio.h>
#include "job/options.h"

int options_main(int argc, char **argv); /* argv[0] is "options" */
int hooks_main(int argc, char **argv);

void options_write_text(FILE *out);
void options_write_markdown(FILE *out);
void hooks_write_text(FILE *out);
void hooks_write_markdown(FILE *out);

/* "none, gemini", "64K to 16G", "auto, or 64K to 16G"; `quote` before and after each value. */
void option_write_allowed(FILE *out, const option_info *row, const char *quote);

#endif
