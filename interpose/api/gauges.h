/* What this process tells the trace of its memory, at each sample. */
#ifndef CASTOR_API_GAUGES_H
#define CASTOR_API_GAUGES_H

#include <stdbool.h>
#include <stdint.h>
#include "device/driver.h"
#include "placement/chunk.h"

/* Starts telling. Called when the agent attaches: what the process takes until then is not the script's. */
void gauges_start(void);
/* Model data on the CPU outside the store, counted by the agent. */
void gauges_model_data_set(uint64_t param_bytes, uint64_t grad_bytes, uint64_t optim_bytes);
/* A step has ended: takes the node's gauges, if it is time. */
void gauges_step(void);
/* The first backward has ended: a script that steps without an optimizer tells of no step. */
void gauges_backward(void);
/* Takes the gauges now. */
void gauges_sample(void);

#endif
