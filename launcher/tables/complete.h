/* `castor complete LINE`: the completions of the last word of a command line. The completions of bash, zsh and fish
 * (completion/) call it. */
#ifndef CASTOR_LAUNCHER_TABLES_COMPLETE_H
#define CASTOR_LAUNCHER_TABLES_COMPLETE_H

#include <stdio.h>

int complete_main(int argc, char **argv); /* argv[0] is "complete" */

/* `line` is the text before the cursor, from "castor" on. Writes a line for each completion: a word, a tab and its meaning.
 * Writes nothing where the shell knows better: names of files, and the command of `castor run`. */
void complete_write(const char *line, FILE *out);

#endif
