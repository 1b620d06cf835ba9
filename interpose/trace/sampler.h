/* The memory sampler: a thread (`castor-sample`) that reads this process's proportional set size and has the
 * modules set their gauges, each as often as its cost allows: together less than 0.2% of one core. Gauges of memory.def that
 * have changed become records. */
#ifndef CASTOR_TRACE_SAMPLER_H
#define CASTOR_TRACE_SAMPLER_H

#include <stdint.h>
#include "base/status.h"

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

/* The set size of this process in bytes; all 0 when the kernel does not report it. A page that k processes have counts 1/k in the
 * proportional figures. */
typedef struct sample_set {
    uint64_t pss, pss_file, pss_anonymous;
    uint64_t anonymous; /* each page whole */
} sample_set;
sample_set sample_read_set(void);
/* Pss of the sampler's last reading, at no cost; 0 before the first. */
uint64_t sample_last_pss(void);
/* `callback` gets each reading of the sampler's, from its thread. Before sample_start. */
void sample_set_observe(void (*callback)(const sample_set *set));

#endif
