/* The line between `castor run --nproc N` and rank 0, which it starts alone at first: one question and one answer. SOCK_SEQPACKET;
 * whoever holds rank 0's end can see castor's process id on it (SO_PEERCRED).
 *
 * Rank 0 asks when it has imported PyTorch: either it has forked the other ranks, which wait for the answer, or it says
 * why it must not, and castor starts them as it has started rank 0. castor starts them, too, when nobody asks for long. */
#ifndef CASTOR_JOB_FORK_LINE_H
#define CASTOR_JOB_FORK_LINE_H

#include <stdint.h>

enum {
    LINE_RANKS_MAX = 1024,
    LINE_REASON_MAX = 256,
    /* Outputs of ranks other than 0, and where their log lines go: scripts count their files from 3 on. */
    LINE_FILE_MIN = 200,
};

typedef struct line_question {
    int32_t made; /* how many ranks wait for the answer; 0: `reason` says why there are none */
    int32_t pids[LINE_RANKS_MAX]; /* of ranks 1, 2, ... */
    char reason[LINE_REASON_MAX];
} line_question;

typedef struct line_answer {
    int32_t go;           /* 0: the ranks must end: others are started, or the job ends */
    int32_t outputs_pass; /* all ranks write where castor does */
} line_answer;

/* A rank's files in the log directory. */
#define LINE_OUTPUT_NAME "rank%d.out"
#define LINE_ERRORS_NAME "rank%d.err"

#endif
