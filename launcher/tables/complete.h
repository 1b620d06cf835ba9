/* `castor complete LINE`: what the word at the end of a command line can become. The completions of bash, zsh and fish
 * (completion/) ask it. */
#ifndef CASTOR_LAUNCHER_TABLES_COMPLETE_H
#define CASTOR_LAUNCHER_TABLES_COMPLETE_H

#include <stdio.h>

int complete_main(int argc, char **argv); /* argv[0] is "complete" */

/* `line` is what stands before the cursor, from "castor" on. Each line that is written is a word, a tab and what it means.
 * Nothing is written for what the shell knows better: names of files, and the command of `castor run`. */
void complete_write(const char *line, FILE *out);

#endif
