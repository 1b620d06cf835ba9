#include "joining.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "base/machine.h"
#include "files/calls.h"
#include "files/overlay.h"
#include "job/begin.h"
#include "job/cluster.h"
#include "job/fork_line.h"
#include "job/options.h"
#include "job/plugin.h"
#include "job/words.h"
#include "outputs.h"

enum { ENTRIES_MAX = 8192, PATH_BYTES = OPTION_STRING_MAX, SHORT_DIGITS = 16, ATTEMPTS_MAX = 1000 };

/* What a rank finds the others by: the token of its node's ranks, a folder for what they change of files, and where nodes meet. */
typedef struct meeting_point {
    char token[JOB_TOKEN_DIGITS + 1];
    char directory[PATH_BYTES]; /* this rank's log directory */
    char files[PATH_BYTES];
    char meeting[CLUSTER_HOST_MAX + 64]; /* of the ranks of several nodes; "": they are on one */
    unsigned attempt;                    /* of the launcher's; those before have ended */
} meeting_point;

static const char *variable(const void *context, const char *name) {
    size_t length = strlen(name);
    (void)context;
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
            return *entry + length + 1;
    return NULL;
}

/* ---- the meeting point ---- */

static bool path_write(char out[PATH_BYTES], const char *format, const char *folder, const char *name) {
    return log_format(out, PATH_BYTES, format, folder, name) + 1 < PATH_BYTES;
}

/* NAME of a folder beside the log directory. */
static bool path_write_beside(char out[PATH_BYTES], const char *name) {
    const char *slash = strrchr(options()->log_dir, '/');
    int length = slash ? (int)(slash - options()->log_dir) : 1;
    size_t used = log_format(out, PATH_BYTES, "%.*s/" JOB_FILES_NAME "-%s", length,
                             slash ? options()->log_dir : ".", name);
    return used + 1 < PATH_BYTES;
}

/* All ranks of a node have the token of the launcher around them, which begins them anew when one has failed: those that were there
 * before must not be met. On several nodes the log directories differ, and their parent may be on a file system that they share. */
static bool point_from_launcher(const cluster *place, meeting_point *out) {
    char what[64], everywhere[JOB_TOKEN_DIGITS + 1], name[SHORT_DIGITS + 1];
    log_format(what, sizeof what, "attempt %u", out->attempt);
    job_token_derive(options()->job, what, out->token);
    if (!path_write(out->directory, "%s%s", options()->log_dir, ""))
        return false;
    if (out->meeting[0]) {
        const char *run = variable(NULL, "TORCHELASTIC_RUN_ID");
        job_token_derive(out->meeting, run ? run : place->launcher, everywhere);
        log_format(name, sizeof name, "%.*s", SHORT_DIGITS, everywhere);
        return path_write_beside(out->files, name);
    }
    log_format(what, sizeof what, JOB_FILES_NAME "/%u", out->attempt);
    return path_write(out->files, "%s/%s", options()->log_dir, what);
}

/* Each rank comes alone. What the launcher tells of the job is no secret, but the ranks' sockets ask for the user as well. */
static bool point_from_cluster(const cluster *place, meeting_point *out) {
    char what[32], name[SHORT_DIGITS + 1];
    log_format(what, sizeof what, "user %u", (unsigned)geteuid());
    job_token_derive(place->job, what, out->token);
    log_format(name, sizeof name, "%.*s", SHORT_DIGITS, out->token);
    if (options()->begun != CASTOR_BEGUN_RUNS) /* castor env */
        return path_write(out->directory, "%s/job-%s", options()->log_parent, name) &&
               path_write(out->files, "%s/%s", out->directory, JOB_FILES_NAME "/0");
    return path_write(out->directory, "%s%s", options()->log_dir, "") && path_write_beside(out->files, name);
}

/* Where ranks of several nodes meet: what nodes/whole.py reads. False: the launcher does not tell. */
static bool meeting_write(const cluster *place, meeting_point *out) {
    const char *host = variable(NULL, "MASTER_ADDR"), *port = variable(NULL, "MASTER_PORT");
    const char *kept = variable(NULL, "TORCHELASTIC_USE_AGENT_STORE");
    char number[16];
    log_format(number, sizeof number, "%u", place->port);
    if (!host || !host[0])
        host = place->master;
    if (!port || !port[0])
        port = place->port ? number : "";
    if (!host[0] || !port[0] || strpbrk(host, " \t") || strpbrk(port, " \t"))
        return false;
    size_t used = log_format(out->meeting, sizeof out->meeting, "%s %s %s %u", host, port,
                             kept && strcmp(kept, "True") == 0 ? "by-torchrun" : "by-rank-0", out->attempt);
    return used + 1 < sizeof out->meeting;
}

static castor_status point_find(const cluster *place, meeting_point *out, char *message, size_t size) {
    cluster own;
    const char *attempt = variable(NULL, "TORCHELASTIC_RESTART_COUNT");
    *out = (meeting_point){.attempt = attempt ? (unsigned)strtoul(attempt, NULL, 10) : 0};
    bool shared = options()->job[0] && options()->begun != CASTOR_BEGUN_RUNS;
    bool alone = !shared && cluster_find(variable, NULL, &own);
    const char *launcher = alone ? own.launcher : place->launcher;
    if (place->local_world != place->world && !meeting_write(place, out)) {
        log_format(message, size,
                   "CASTOR_NPROC=auto: %s has started %ld ranks on several nodes, and does not tell where "
                   "they meet: set MASTER_ADDR and MASTER_PORT, as torchrun does",
                   launcher, place->world);
        return CASTOR_ERR_ARGUMENT;
    }
    if (!shared && (!alone || !own.job[0])) {
        log_format(message, size,
                   "CASTOR_NPROC=auto: nothing tells the ranks of %s from those of another job: start the "
                   "launcher itself by castor run: castor run --plugin %s --nproc auto -- COMMAND",
                   launcher, plugin()->name);
        return CASTOR_ERR_UNSUPPORTED;
    }
    if (!options()->log_dir[0] && (shared || !options()->log_parent[0])) {
        log_format(message, size,
                   "CASTOR_NPROC=auto: the ranks need a folder for their own copies of files: name one by "
                   "castor env --log-dir DIR");
        return CASTOR_ERR_ARGUMENT;
    }
    if (shared ? point_from_launcher(place, out) : point_from_cluster(&own, out))
        return CASTOR_OK;
    log_format(message, size, "CASTOR_NPROC=auto: the name of the log directory is too long");
    return CASTOR_ERR_ARGUMENT;
}

/* ---- the environment ---- */

static struct {
    char *entries[ENTRIES_MAX + 1];
    size_t count;
    char texts[4 * PATH_BYTES];
    size_t used;
} block;

static void block_unset(const char *name) {
    size_t length = strlen(name), kept = 0;
    for (size_t i = 0; i < block.count; i++)
        if (strncmp(block.entries[i], name, length) != 0 || block.entries[i][length] != '=')
            block.entries[kept++] = block.entries[i];
    block.count = kept;
}

static void block_set(const char *name, const char *value) {
    block_unset(name);
    char *entry = block.texts + block.used;
    block.used += log_format(entry, sizeof block.texts - block.used, "%s=%s", name, value) + 1;
    block.entries[block.count++] = entry;
}

static void block_set_number(const char *name, unsigned long value) {
    char text[24];
    log_format(text, sizeof text, "%lu", value);
    block_set(name, text);
}

static bool is_set(const char *name) {
    const char *value = variable(NULL, name);
    return value && value[0];
}

/* As run_environment_build's of a rank (launcher/run/environment.c). */
static void environment_change(const cluster *place, const meeting_point *point, int log_file) {
    static const char *const gone[] = {"CASTOR_RANK_PROCESS", "CASTOR_FORK_SERVER", "CASTOR_FORK_LINE"};
    const char *temporary = variable(NULL, "TMPDIR");
    block.count = block.used = 0;
    for (char **entry = environ; *entry; entry++)
        block.entries[block.count++] = *entry;
    for (size_t i = 0; cluster_variables[i]; i++)
        block_unset(cluster_variables[i]);
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        block_unset(gone[i]);
    block_set_number("CASTOR_RANK", (unsigned long)place->rank);
    block_set_number("CASTOR_WORLD_SIZE", (unsigned long)place->world);
    if (!options()->job[0])
        block_set("CASTOR_BEGUN", "process");
    block_set("CASTOR_JOB", point->token);
    block_set("CASTOR_LOG_DIR", point->directory);
    block_set("CASTOR_FILES", point->files);
    block_set("CASTOR_TEMPORARY_DIR", temporary && strlen(temporary) < PATH_BYTES ? temporary : "");
    if (point->meeting[0])
        block_set("CASTOR_MEETING", point->meeting);
    if (log_file >= 0)
        block_set_number("CASTOR_LOG_FILE", (unsigned long)log_file);
    if (!is_set("PYTHONHASHSEED"))
        block_set("PYTHONHASHSEED", JOB_JOINED_HASH_SEED);
    unsigned long here = (unsigned long)(place->local_world ? place->local_world : place->world);
    unsigned long threads = machine_cores_usable() / here;
    if (!is_set("OMP_NUM_THREADS"))
        block_set_number("OMP_NUM_THREADS", threads ? threads : 1);
    block.entries[block.count] = NULL;
    environ = block.entries;
}

/* ---- the folder of the ranks' files ----
 *
 * Each rank holds a lock on it, shared with the others' (also when it becomes another program). Who can have it alone is the only
 * one: the first, who removes what a job that was killed has left under the same name, or the last, who removes all. What killed
 * ranks of an earlier attempt have left the next one removes. Without locks (some network file systems) the folder stays. */

static char files_folder[PATH_BYTES];
static int files_lock = -1;
static pid_t files_user;

/* Removes what earlier attempts have left. */
static void files_sweep(const char *log_dir, unsigned attempts) {
    char folder[PATH_BYTES];
    for (unsigned attempt = 0; attempt < attempts && attempt < ATTEMPTS_MAX; attempt++) {
        log_format(folder, sizeof folder, "%s/" JOB_FILES_NAME "/%u", log_dir, attempt);
        int file = call_open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0)
            files_clear(folder, false);
        if (file >= 0)
            close(file);
    }
}

static bool files_begin(const meeting_point *point) {
    const char *folder = point->files;
    size_t made_from;
    files_sweep(options()->log_dir, point->meeting[0] ? 0 : point->attempt);
    if (!job_folders_make(folder, &made_from))
        return false;
    chmod(folder, 0700);
    int file = call_open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    files_lock = file >= 0 ? fcntl(file, F_DUPFD, LINE_FILE_MIN) : -1;
    if (file >= 0)
        close(file);
    if (files_lock < 0)
        return false;
    if (flock(files_lock, LOCK_EX | LOCK_NB) == 0)
        files_clear(folder, true);
    flock(files_lock, LOCK_SH);
    files_user = getpid();
    log_format(files_folder, sizeof files_folder, "%s", folder);
    return true;
}

void joining_end(void) {
    static const char within[] = "/" JOB_FILES_NAME "/";
    if (files_user != getpid() || flock(files_lock, LOCK_EX | LOCK_NB) != 0)
        return;
    files_clear(files_folder, false);
    char *slash = strrchr(files_folder, '/');
    if (slash && strncmp(slash - (sizeof within - 2), within, sizeof within - 1) == 0) {
        *slash = '\0';
        call_unlink(files_folder, AT_REMOVEDIR); /* unless other attempts have left theirs */
    }
}

/* ---- a rank ---- */

static castor_status check(const cluster *place, char *message, size_t size) {
    if (!plugin()->engine) {
        log_format(message, size,
                   "CASTOR_NPROC=auto: plugin %s would leave %ld copies that train apart; choose another "
                   "(CASTOR_PLUGIN=gemini), or leave CASTOR_NPROC=auto out",
                   plugin()->name, place->world);
        return CASTOR_ERR_ARGUMENT;
    }
    size_t entries = 0;
    while (environ[entries])
        entries++;
    if (entries + sizeof block.texts / 256 > ENTRIES_MAX) {
        log_format(message, size, "CASTOR_NPROC=auto: there are too many environment variables, %zu",
                   entries);
        return CASTOR_ERR_UNSUPPORTED;
    }
    return CASTOR_OK;
}

static bool is_candidate(char *const *words) {
    return !words || (words[0] && words_is_python(words[0]) && !words_python_line(words + 1).launcher);
}

castor_status joining_begin(char *const *words, char *message, size_t size) {
    static meeting_point point;
    cluster place;
    int log_file = -1;
    if (options()->nproc != CASTOR_NPROC_AUTO || options()->rank >= 0 || !is_candidate(words) ||
        (!cluster_find_torch(variable, NULL, &place) && !cluster_find(variable, NULL, &place)))
        return CASTOR_OK;
    castor_status status = check(&place, message, size);
    if (status == CASTOR_OK)
        status = point_find(&place, &point, message, size);
    if (status != CASTOR_OK)
        return status;
    size_t made_from;
    if (!job_folders_make(point.directory, &made_from) || !files_begin(&point) ||
        (place.rank > 0 &&
         (!outputs_take_input() || !outputs_take((int)place.rank, point.directory, &log_file)))) {
        log_format(message, size, "CASTOR_NPROC=auto: the log directory %s cannot be written: error %d",
                   point.directory, errno);
        return CASTOR_ERR_SYSTEM;
    }
    if (place.rank == 0 && !options()->job[0])
        job_begin_claim();
    environment_change(&place, &point, log_file);
    return options_load(environ, message, size);
}
