/* The Python stack of a process that others wait for: asked for through its live file, answered by a thread of that process
 * in a text file of the log directory (interpose/trace/live.h). */
#ifndef CASTOR_LAUNCHER_RUN_STACK_H
#define CASTOR_LAUNCHER_RUN_STACK_H

#include "launcher/job/look.h"

typedef struct run_stack {
    uint64_t uid;
    uint32_t number;    /* of the question */
    bool asked;         /* false: there is nobody to answer */
    uint64_t old_bytes; /* of its file, before */
} run_stack;

void run_stack_ask(run_stack *stack, const job_process *process, const char *directory);
bool run_stack_arrived(const run_stack *stack, const job_look *look);
/* "train.py, line 15": the innermost line of the script's own in the main thread. False: it is not known. */
bool run_stack_place(const run_stack *stack, const job_look *look, const char *directory, char *out,
                     size_t out_size);
/* Writes where the process is to the log, as far as that is known. */
void run_stack_tell(const run_stack *stack, const job_look *look, const char *directory);

#endif
