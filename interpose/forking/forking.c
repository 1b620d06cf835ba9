#include "forking.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "job/fork_line.h"
#include "base/log.h"
#include "base/process.h"
#include "job/options.h"
#include "files/calls.h"
#include "files/overlay.h"
#include "fitness.h"
#include "trace/phases.h"

/* What a new rank writes to `up`. */
typedef struct birth {
    int32_t rank, pid;
} birth;

static int up[2] = {-1, -1}; /* from the ranks to rank 0 */
static int go[2] = {-1, -1}; /* from rank 0 to the ranks: castor's answer once for each, or nothing */

static pid_t castor; /* its process id */

static void close_file(int *file) {
    if (*file >= 0)
        close(*file);
    *file = -1;
}

void forking_start(void) {
    if (options()->fork_line > 0 || options()->fork_server)
        fitness_start();
}

/* castor's process id; 0: the line does not lead there, since this process was started without it. */
static pid_t castor_pid(int line) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    int type = 0;
    socklen_t type_size = sizeof type;
    if (line <= 0 || getsockopt(line, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 ||
        type != SOCK_SEQPACKET || getsockopt(line, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return 0;
    return peer.pid;
}

/* False: castor does not let the ranks go on. */
static bool ask(const line_question *question, line_answer *answer) {
    int line = options()->fork_line;
    ssize_t length;
    *answer = (line_answer){0};
    do {
        length = send(line, question, sizeof *question, MSG_NOSIGNAL);
    } while (length < 0 && errno == EINTR);
    bool asked = length > 0;
    while (asked && (length = recv(line, answer, sizeof *answer, 0)) < 0 && errno == EINTR)
        ;
    close(line);
    return asked && length == sizeof *answer && answer->go;
}

int forking_ready(void) {
    line_question question = {0};
    line_answer answer;
    int ranks = options()->world_size;
    castor = castor_pid(options()->fork_line);
    if (!castor || ranks < 2 || ranks > LINE_RANKS_MAX)
        return 0;
    bool fit = fitness_check(castor, question.reason, sizeof question.reason);
    if (fit && (pipe2(up, O_CLOEXEC) != 0 || pipe2(go, O_CLOEXEC) != 0)) {
        log_format(question.reason, sizeof question.reason, "no pipe: error %d", errno);
        fit = false;
    }
    if (!fit) {
        ask(&question, &answer);
        return 0;
    }
    fflush(NULL); /* what is kept would be written by each rank */
    return ranks;
}

/* ---- a rank ---- */

static bool take_place(int file, int number) {
    if (file == number)
        return fcntl(file, F_SETFD, 0) == 0;
    bool done = file >= 0 && dup2(file, number) >= 0;
    if (file >= 0)
        close(file);
    return done;
}

/* As castor does for ranks that it starts. */
static bool take_outputs(int rank, int *log_file) {
    static const char *const names[] = {LINE_OUTPUT_NAME, LINE_ERRORS_NAME};
    char path[OPTION_STRING_MAX + 32], name[24];
    *log_file = fcntl(STDERR_FILENO, F_DUPFD, LINE_FILE_MIN);
    for (int i = 0; i < 2; i++) {
        log_format(name, sizeof name, names[i], rank);
        log_format(path, sizeof path, "%s/%s", options()->log_dir, name);
        int file = call_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
        if (!take_place(file, STDOUT_FILENO + i))
            return false;
    }
    return true;
}

static bool take_answer(line_answer *answer) {
    ssize_t length;
    do {
        length = read(go[0], answer, sizeof *answer);
    } while (length < 0 && errno == EINTR);
    return length == sizeof *answer && answer->go;
}

int forking_become(int rank, int *log_file) {
    line_answer answer;
    birth own = {rank, (int32_t)getpid()};
    close_file(&up[0]);
    close_file(&go[1]);
    close(options()->fork_line);
    *log_file = -1;
    bool told = fitness_part_files() && write(up[1], &own, sizeof own) == sizeof own;
    close_file(&up[1]);
    bool goes = told && take_answer(&answer);
    close_file(&go[0]);
    if (!goes)
        return 0;                     /* rank 0 sees that one is missing, or castor has refused */
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* castor is the parent now, the helper has ended */
    if (!take_place(call_open("/dev/null", O_RDONLY, 0), STDIN_FILENO) ||
        (!answer.outputs_pass && !take_outputs(rank, log_file))) {
        LOG_E("rank %d cannot open its outputs in %s: error %d", rank, options()->log_dir, errno);
        return 1;
    }
    return getppid() == castor ? -1 : 1;
}

/* ---- rank 0 ---- */

/* How many have said their process ids. */
static int collect(int ranks, line_question *question) {
    int count = 0;
    birth found;
    close_file(&up[1]);
    close_file(&go[0]);
    for (;;) {
        ssize_t length = read(up[0], &found, sizeof found);
        if (length < 0 && errno == EINTR)
            continue;
        if (length != sizeof found)
            break;
        if (found.rank > 0 && found.rank < ranks) {
            question->pids[found.rank - 1] = found.pid;
            count++;
        }
    }
    close_file(&up[0]);
    return count;
}

bool forking_finish(pid_t helper) {
    static line_question question;
    line_answer answer;
    int status = -1, ranks = options()->world_size;
    while (helper > 0 && waitpid(helper, &status, 0) < 0 && errno == EINTR)
        ;
    int made = collect(ranks, &question);
    if (helper > 0 && status == 0 && made == ranks - 1)
        question.made = made;
    else
        log_format(question.reason, sizeof question.reason, "%d of %d ranks could be forked", made,
                   ranks - 1);
    bool together = ask(&question, &answer) && question.made;
    if (together)
        files_forget_notes(); /* the ranks begin here, with all that rank 0 has done */
    for (int rank = 1; together && rank < ranks; rank++)
        if (write(go[1], &answer, sizeof answer) != sizeof answer)
            LOG_W("a forked rank is gone");
    close_file(&go[1]);
    return together;
}

/* ---- ranks of another launcher ---- */

static char how[LINE_REASON_MAX + 32]; /* for the report */

const char *serving_why_not(void) {
    return how;
}

bool serving_ready(void) {
    char reason[LINE_REASON_MAX];
    if (!options()->fork_server)
        return false;
    if (!fitness_check(getppid(), reason, sizeof reason)) {
        log_format(how, sizeof how, "one by one: %s", reason);
        return false;
    }
    fflush(NULL);
    return true;
}

void serving_begin_launcher(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void serving_begin_server(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "castor-ranks");
}

/* What ps and /proc/PID/cmdline show: as much as the launcher's own words have room for. */
static void take_words(const char *words, size_t bytes) {
    size_t room;
    char *begin = process_words(&room);
    if (!begin)
        return;
    memset(begin, 0, room);
    memcpy(begin, words, bytes < room ? bytes : room - 1);
}

bool serving_become(pid_t launcher, const char *name, const char *words, size_t bytes) {
    enum { PARENT_MS = 10000 };
    phases_start();
    prctl(PR_SET_NAME, name);
    take_words(words, bytes);
    for (int waited = 0; getppid() != launcher && waited < PARENT_MS; waited++) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    return getppid() == launcher && fitness_part_files();
}
