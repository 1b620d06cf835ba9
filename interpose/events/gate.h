/* The gate: every call that may give a device work, or look at its memory, passes it; a flip closes it.
 *
 *   gate_enter(); ... the real call ...; gate_leave();
 *
 * While it is closed, calls of other threads wait before they begin, and those that had begun are over. A thread that has closed the
 * gate, or is inside, passes freely. An open gate costs a call a few instructions and no shared cache line is written: the thread
 * that closes it orders memory for all of them (membarrier). What must hold: a thread that is inside waits for nothing that another call of CUDA would have to bring about.
 *
 * Where nobody can ever close it (gate_arm was not called) gate_enter is one load. */
#ifndef CASTOR_EVENTS_GATE_H
#define CASTOR_EVENTS_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

#define GATE_PATIENCE_NS UINT64_C(60000000000) /* for a flip that somebody needs */

/* From now on the gate may be closed. Once per process, before another thread could be inside; CASTOR_ERR_SYSTEM: the kernel lacks
 * membarrier. */
castor_status gate_arm(void);
/* Waits until no other thread is inside, `timeout_ns` at most; CASTOR_ERR_TIMEOUT: the gate is open again. One thread at a time:
 * others wait for it. May be called inside of gate_enter, but not within the real call, since the caller counts as outside while it
 * waits for another closer. Not twice. CASTOR_ERR_UNSUPPORTED: it is not armed. */
castor_status gate_close(uint64_t timeout_ns);
void gate_open(void); /* by the thread that has closed it; nothing happens by another's */
/* In a forked child: nobody else is inside, and the gate is open. */
void gate_reset(void);

/* ---- private to gate_enter and gate_leave ---- */

extern bool gate_armed;
void gate_pass_in(void);
void gate_pass_out(void);

static inline void gate_enter(void) {
    if (__builtin_expect(__atomic_load_n(&gate_armed, __ATOMIC_RELAXED), 0))
        gate_pass_in();
}

static inline void gate_leave(void) {
    if (__builtin_expect(__atomic_load_n(&gate_armed, __ATOMIC_RELAXED), 0))
        gate_pass_out();
}

#endif
