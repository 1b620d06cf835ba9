/* The memory sampler: a thread (`castor-sample`) that reads this process's proportional set size and has the
 * modules set their gauges, each as often as its cost allows: together less than 0.2% of one core. Gauges of memory.def that
 * have changed become records. */
#ifndef CASTOR_TRACE_SAMPLE_H
#define CASTOR_TRACE_SAMPLE_H

#include <stdint.h>
#include "core/status.h"

/* `callback` is called at each sample, from the sampler's thread, to set gauges. At most 16; register before
 * sample_start. */
castor_status sample_register(void (*callback)(void));
/* The same, several times a second: for gauges that cost microseconds. The others are set when the set size is read. */
castor_status sample_register_often(void (*callback)(void));
/* Starts the thread. Once per process; further calls do nothing. */
castor_status sample_start(void);
/* Takes a last sample of the set size, ends the thread and waits for it, for a second at most. */
void sample_stop(void);
void sample_fork_child(void); /* the child has no sampler (trace_fork_child calls it) */

/* Pss of this process in bytes, 0 when the kernel does not report it. */
uint64_t sample_read_pss(void);
/* The sampler's last reading, at no cost; 0 before the first. */
uint64_t sample_last_pss(void);

#endif
