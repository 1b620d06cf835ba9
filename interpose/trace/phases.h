/* What the time of the script's thread goes to: the phases of phase.def, as counters of the kind PHASE.
 *
 * Two kinds of phases:
 *   - those that begin and end: later imports, data, backward, optimizer, saving. They may nest; each moment counts for the innermost;
 *   - gaps between them, which the event at their end decides: what a backward pass ends was a forward. Until then their time counts
 *     for the likeliest phase, so that the counters add up after SIGKILL, too.
 *
 * Invariant: the times of all phases add up to the time from the start of the process to the gauge PHASE_BEGAN_NS; since then the
 * thread is in the phase of the gauge PHASE.
 *
 * Events of other threads than the script's do not count. The script's thread is the one that imported PyTorch, until another
 * one makes the first backward pass or step. No lock, no malloc; an event costs a reading of the clock and a few stores. */
#ifndef CASTOR_TRACE_PHASES_H
#define CASTOR_TRACE_PHASES_H

#include <stdbool.h>
#include "trace.h"

typedef enum trace_phase {
#define PHASE(id, key, label, doc) TRACE_PHASE_##id,
#include "phase.def"
    TRACE_PHASE_COUNT
} trace_phase;

void phases_start(void);  /* the process begins */
void phases_attach(void); /* PyTorch is imported: from now on there are phases */
/* A phase that begins and ends begins, or the script has ended (EXIT). Returns the time. */
uint64_t phases_begin(trace_phase phase);
/* The innermost phase ends. `batch`: the DataLoader gave one. */
void phases_end(bool batch);
void phases_flush(void);      /* at exit: counts the time up to now */
void phases_fork_child(void); /* the child begins with its start-up */

#endif
