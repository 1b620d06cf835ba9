/* Functions that start a program. It may use any file by its name, and does not know of saves in the background: it is started
 * when they are written. (Their own look for files, in folders of PATH, is libc's.) */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "file_wrappers.h"

/* libc's headers have names of their own for these parameters. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */
#define PROGRAM(result, symbol, parameters, arguments)                                                       \
    result wrap_##symbol parameters {                                                                        \
        FILES_AWAIT(AT_FDCWD, NULL, PENDING_FILE);                                                           \
        return REAL(symbol) arguments;                                                                       \
    }                                                                                                        \
    HOOK_LIBC(symbol);
PROGRAM(int, system, (const char *command), (command))
PROGRAM(FILE *, popen, (const char *command, const char *mode), (command, mode))
PROGRAM(int, posix_spawn,
        (pid_t * process, const char *path, const posix_spawn_file_actions_t *actions,
         const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]),
        (process, path, actions, attributes, arguments, environment))
PROGRAM(int, posix_spawnp,
        (pid_t * process, const char *path, const posix_spawn_file_actions_t *actions,
         const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]),
        (process, path, actions, attributes, arguments, environment))
PROGRAM(int, execvp, (const char *path, char *const arguments[]), (path, arguments))
PROGRAM(int, execvpe, (const char *path, char *const arguments[], char *const environment[]),
        (path, arguments, environment))
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
