/* `castor run`: starts a command, as one process or as N ranks, with the library and the agent in it.
 *
 * Vocabulary
 *   request    the command line, parsed
 *   install    the places of the library and the Python package of this castor
 *   job        one run: its token, its directory, its ranks
 *   rank       one process of the command, started by castor; its descendants belong to the job too
 *
 * Everything is checked before anything is started or written. Files and folders of a run that is then refused
 * are removed again. Functions that return an int return the exit status to end with, 0 to go on; the function
 * that finds an error reports it. */
#ifndef CASTOR_LAUNCHER_RUN_H
#define CASTOR_LAUNCHER_RUN_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "job/begin.h"
#include "job/cluster.h"
#include "launcher/common/command_line.h"

enum run_exit {
    RUN_EXIT_SYSTEM = 1, /* an error outside the command line */
    RUN_EXIT_USAGE = 2,
    RUN_EXIT_NOT_EXECUTABLE = 126,
    RUN_EXIT_NOT_FOUND = 127,
};

int run_main(int argc, char **argv); /* argv[0] is "run" */

struct run_job;
/* Says what a job came to that ended with `status`, before the line that names the report. */
typedef void run_summary(const struct run_job *job, int status);
/* The same for another command that runs one. `summarize`: or NULL. */
int run_main_as(subcommand_id command, run_summary *summarize, int argc, char **argv);

typedef struct run_request {
    int ranks;
    bool all_output, help;
    char **
        settings; /* NAME=VALUE of --set and of options that are settings, checked; the last of a name counts */
    size_t setting_count;
    char *const *command; /* NULL-terminated */
} run_request;

int run_arguments_parse(subcommand_id command, int argc, char *const *argv, run_request *out);
int run_request_begin(int argc, run_request *out); /* room for the settings of as many arguments */
/* Checks a setting and appends it. `origin` is the option that the user wrote it with. */
int run_request_set(run_request *request, const char *origin, const char *name, const char *value);
int run_request_assign(run_request *request, const char *text); /* --set */
/* Loads the options that a job with these settings gets, wherever they come from, and checks them. */
int run_options_check(const run_request *request, char *const *base);
void run_request_free(run_request *request);

/* ---- command.c ---- */

/* Finds the file that `name` stands for, as a shell would. `search` is the value of PATH, or NULL. */
int run_command_find(const char *name, const char *search, char *path, size_t path_size);

/* The name of the launcher that `command` runs, if that starts ranks of its own (torchrun, python -m
 * torch.distributed.run, ...) or is a notebook; `fix` gets the option that sets its number of ranks, NULL for a notebook. NULL for
 * anything else. */
const char *run_command_launcher(char *const *command, const char **fix);

/* Whether Python reads the script of `command` from its standard input: `python`, `python -`. */
bool run_command_is_input(char *const *command);

/* Whether the command keeps PyTorch from loading the agent, as far as its words and the first line of its file, `path`, tell; `what`
 * gets what the user should leave out. `autoload`: the value of TORCH_DEVICE_BACKEND_AUTOLOAD that it finds, or NULL. */
bool run_command_is_apart(char *const *command, const char *path, const char *autoload, char *what,
                          size_t what_size);

/* Whether the command is a launcher whose Python ranks a server in it may fork (docs/forking.md). */
bool run_command_serves(char *const *command);
/* Whether castor's own child will be Python, as far as the words and the first line of the file, `path`, tell. */
bool run_command_becomes_python(char *const *command, const char *path);

/* ---- python.c ---- */

typedef enum run_torch { RUN_TORCH_UNKNOWN, RUN_TORCH_MISSING, RUN_TORCH_HERE } run_torch;

/* Whether the Python at `path` has torch, by the folders beside it and those of the user, `home` (NULL: unknown). */
run_torch run_python_torch(const char *path, const char *home);
/* Another Python than `except` that has torch: a virtual environment of the working directory, or one in the list of folders
 * `search`. False: none. */
bool run_python_other(const char *search, const char *except, char *out, size_t out_size);

/* ---- install.c ---- */

typedef struct run_install {
    char library[PATH_MAX];    /* the file itself, without links */
    char python[PATH_MAX];     /* the directory that holds the package `castor` and its entry point */
    char simulation[PATH_MAX]; /* the directory of the simulated devices; "": they were not built */
} run_install;

/* Finds both from the place of the running binary. */
int run_install_find(run_install *out);
/* The same from any `binary`. */
int run_install_find_from(const char *binary, run_install *out);

/* ---- directory.c ---- */

typedef struct run_directory {
    char path[PATH_MAX];  /* absolute */
    char shown[PATH_MAX]; /* as the user wrote it */
    size_t made_from;     /* directories of `shown` from this length on were made by this run; 0: none */
    int lock;             /* open while this run has the directory; -1: none */
} run_directory;

/* Makes the directory `wanted` ("": castor-logs/TIME), makes sure that it can be written to, and locks it. */
int run_directory_prepare(const char *wanted, run_directory *out);
/* Removes the trace of an earlier run. */
void run_directory_clear(const run_directory *directory);
/* Whether the directory takes a file of `bytes`: it has room, and no limit forbids it. */
bool run_directory_takes(const run_directory *directory, size_t bytes);
/* Removes what run_directory_prepare made. */
void run_directory_abandon(run_directory *directory);

/* ---- about_begin.c ---- */

/* Writes what is known of the run into its directory, as far as that can be done. */
void run_about_write(const struct run_job *job);
void run_about_remove(const struct run_job *job);
/* How the ranks were started. */
void run_about_add_ranks(const struct run_job *job, const char *how);

/* ---- rank_files.c ---- */

/* The folder for the ranks' changes of files. */
void run_files_path(const run_directory *directory, char *out, size_t out_size);
/* Logs an error if the folder's disk is full. */
void run_files_tell_full(const char *path);
/* Removes the folder and everything in it, if it exists. */
void run_files_remove(const char *path);

/* ---- environment.c ----
 *
 * Of ranks that a cluster's launcher starts, each with a `castor run` of its own (srun, mpirun), the variables of PyTorch's scripts
 * (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are set from the launcher's; those that are set already stay. */

typedef struct run_job {
    const run_request *request;
    run_install install;
    run_directory directory;
    char token[JOB_TOKEN_DIGITS + 1];
    char command[PATH_MAX]; /* the file to execute */
    run_summary *summarize; /* or NULL */
} run_job;

/* A NULL-terminated block of owned NAME=VALUE strings. */
typedef struct run_environment {
    char **entries;
    size_t count, capacity;
} run_environment;

/* The options that the job runs with: `base` and the settings, without those of an outer `castor run`.
 * False when memory is out. */
bool run_environment_settle(const run_request *request, char *const *base, run_environment *out);
/* What makes any later Python process Castor's, whichever job it belongs to. False when memory is out. */
bool run_environment_preload(const run_install *install, run_environment *out);
/* Everything that `castor run` sets for one rank (0 when there is one process only), whose log lines go to the descriptor
 * `log_file` (-1: to its standard error), and who may ask castor by `line` whether to fork the others (-1: may not). */
bool run_environment_build(const run_job *job, char *const *base, int rank, int log_file, int line,
                           run_environment *out);
/* Whether a cluster's launcher has started this `castor run` as one of several ranks, and the command is a rank. */
bool run_environment_cluster(const run_request *request, const run_environment *environment, cluster *out);
const char *run_environment_get(const run_environment *environment, const char *name);
void run_environment_free(run_environment *environment);

/* ---- ranks.c ---- */

/* Starts the ranks and waits for them; the signals that castor gets go to them. When one fails, the others
 * are ended. `started` tells whether the command ran at all. Returns the exit status of the job. */
int run_ranks(const run_job *job, char *const *base, bool *started);

/* ---- guard.c ---- */

/* A process that ends the job's processes when castor is killed before it can do so. */
typedef struct run_guard {
    pid_t pid; /* 0: none */
    int line;  /* castor's end of a socket pair, which closes when castor dies */
} run_guard;

/* `files`: a folder that is removed then. */
bool run_guard_start(const run_job *job, const char *files, run_guard *out);
void run_guard_dismiss(run_guard *guard);

/* ---- processes.c ---- */

/* Sends `signal` to each child of this process other than `except`, of this process's session only when
 * `same_session`. Returns how many there were. */
size_t run_children_signal(pid_t except, bool same_session, int signal);

/* ---- outcome.c ---- */

/* Prints remarks about a job that has finished with that status, and the line that names the report. `settled`: its environment,
 * without what castor adds. */
void run_outcome_report(const run_job *job, const run_environment *settled, int status);
/* Whether a process of the job has refused PyTorch, and said why. */
bool run_outcome_refused(const run_job *job);
/* `path` for a shell: quoted if necessary. */
void run_path_quote(const char *path, char *out, size_t out_size);

#endif
