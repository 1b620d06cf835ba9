/* What begins and forks the records of this process, for lifetime.c. */
#ifndef CASTOR_TRACE_RECORDER_H
#define CASTOR_TRACE_RECORDER_H

#include "trace.h"

/* `most`: bytes of records of the whole job. */
void recorder_start(uint64_t most);
/* The threads so far, and their segments, are the parent's. */
void recorder_fork_child(void);

#endif
