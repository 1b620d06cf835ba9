/* The Python stack of a process that others wait for: requested through its live file, and written by a thread of that process
 * to a text file of the log directory (interpose/trace/live.h). */
#ifndef CASTOR_LAUNCHER_RUN_STACK_H
#define CASTOR_LAUNCHER_RUN_STACK_H

#include "launcher/job/reading.h"

typedef struct run_stack {
    uint64_t uid;
    uint32_t number;    /* of the request */
    bool asked;         /* false: the process cannot answer */
    uint64_t old_bytes; /* of its file, before */
} run_stack;

void run_stack_ask(run_stack *stack, const job_process *process, const char *directory);
bool run_stack_arrived(const run_stack *stack, const job_reading *reading);
/* "train.py, line 15": the innermost line of the script's own in the main thread. False: it is not known. */
bool run_stack_place(const run_stack *stack, const job_reading *reading, const char *directory, char *out,
                     size_t out_size);
/* Logs the process's place in the script, as far as it is known. */
void run_stack_tell(const run_stack *stack, const job_reading *reading, const char *directory);

#endif
