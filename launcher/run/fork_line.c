/* castor's end of the line to rank 0, which may fork the other ranks (job/fork_line.h). */
#include "job/fork_line.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "job/options.h"
#include "ranks.h"

/* Rank 0 may read data before it imports PyTorch. The others, started so late, must find it where it waits for them. */
enum { PATIENCE_MS = 60000, TIMEOUT_PARTS = 4, CLOSED_MS = 500 };

static int64_t patience_ms(void) {
    int64_t part = (int64_t)(options()->timeout * 1000) / TIMEOUT_PARTS;
    return part < PATIENCE_MS ? part : PATIENCE_MS;
}

/* NULL: nothing that castor knows. */
static const char *why_not(const rank_set *s) {
    return options()->fork == CASTOR_FORK_OFF ? "CASTOR_FORK=off"
           : s->count > LINE_RANKS_MAX        ? "there are too many"
           : run_command_becomes_python(s->job->request->command, s->job->command)
               ? NULL
               : "the command does not become Python";
}

/* For the report. */
static void tell(const rank_set *s, const char *why) {
    char text[LINE_REASON_MAX + 32];
    log_format(text, sizeof text, "one by one: %s", why);
    run_about_add_ranks(s->job, text);
}

int forking_open(rank_set *s) {
    int ends[2];
    s->line = -1;
    if (s->count == 1)
        return -1;
    const char *why = why_not(s);
    if (!why && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        why = strerror(errno);
    if (why) {
        tell(s, why);
        return -1;
    }
    int far = fcntl(ends[1], F_DUPFD_CLOEXEC, LINE_FILE_MIN);
    close(ends[1]);
    /* A question comes as a signal, as everything that castor waits for: as that of a child that ends, which may have asked. */
    if (far < 0 || fcntl(ends[0], F_SETOWN, getpid()) != 0 || fcntl(ends[0], F_SETSIG, SIGCHLD) != 0 ||
        fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK) != 0) {
        close(ends[0]);
        if (far >= 0)
            close(far);
        return -1;
    }
    s->line = ends[0];
    s->line_until_ms = run_now_ms() + patience_ms();
    return far;
}

void forking_close(rank_set *s) {
    if (s->line >= 0)
        close(s->line);
    s->line = -1;
}

static void start_others(rank_set *s, const char *why) {
    tell(s, why);
    ranks_start_others(s);
}

static void take_over(rank_set *s, const line_question *question) {
    for (int rank = 1; rank < s->count; rank++) {
        s->ranks[rank].pid = question->pids[rank - 1];
        s->running++;
        ranks_join_group(s, rank, question->pids[rank - 1]);
    }
    run_about_add_ranks(s->job, "forked from one import of PyTorch");
}

void forking_answer(rank_set *s) {
    static line_question question;
    if (s->line < 0)
        return;
    ssize_t length = recv(s->line, &question, sizeof question, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (length == 0) { /* it has ended, or has closed all files */
        if (s->line_until_ms > run_now_ms() + CLOSED_MS)
            s->line_until_ms = run_now_ms() + CLOSED_MS;
        return;
    }
    bool asked = length == sizeof question, ends = s->told_to_end || s->end_ms;
    line_answer answer = {.go = asked && question.made == s->count - 1 && !ends,
                          .outputs_pass = s->job->request->all_output};
    if (answer.go)
        take_over(s, &question);
    if (asked)
        send(s->line, &answer, sizeof answer, MSG_NOSIGNAL);
    forking_close(s);
    question.reason[sizeof question.reason - 1] = '\0';
    if (asked && !answer.go && !ends)
        start_others(s, question.reason);
}

void forking_check(rank_set *s) {
    if (s->line < 0 || s->told_to_end || s->end_ms || run_now_ms() < s->line_until_ms)
        return;
    forking_close(s);
    start_others(s, "PyTorch was not imported for long");
}
