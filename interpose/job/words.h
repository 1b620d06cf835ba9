/* The words of a command line: whether they start Python, or a launcher that starts ranks of its own. No malloc. */
#ifndef CASTOR_JOB_WORDS_H
#define CASTOR_JOB_WORDS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct known_launcher {
    const char *name,
        *fix;     /* `fix`: the option that sets its number of ranks; NULL: a notebook, which has no ranks */
    bool command; /* starts the command among its arguments as it stands, not a script */
} known_launcher;

typedef struct python_line {
    const char *launcher; /* that it runs; NULL: none */
    const char *fix;
    char alone;      /* the option with which Python ignores its environment ('E' or 'I'), 0 for none */
    bool from_input; /* the script comes by standard input */
} python_line;

const char *words_base_name(const char *path);
/* The launcher that this word names, by its path or without; NULL: none. */
const known_launcher *words_launcher_of(const char *word);
/* Its name alone, and its `fix`. */
const char *words_find_launcher(const char *word, const char **fix);
/* python, python3, python3.12, pypy3 */
bool words_is_python(const char *word);
/* Reads the words behind Python's name up to the first of -m MODULE, -c CODE or a script. */
python_line words_python_line(char *const *arguments);

#endif
