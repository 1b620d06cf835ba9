/* Where chunks belong, and how much of tier 0 they may have: Gemini's two policies, as arithmetic.
 *
 *   static  fixed shares: of each kind whole chunks, in the order of their numbers, until the share is reached
 *   auto    during warm-up model data has a fixed share of the capacity; afterwards it has what other data leaves until the next
 *           moment, by the recording
 *
 * Both evict in the same order: first the chunk whose next use is farthest; among chunks without a known next use, the one that was
 * used longest ago; among equals the lowest number. Never by an address, a hash or a time, so that every rank decides alike. */
#ifndef CASTOR_PLACEMENT_H
#define CASTOR_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"
#include "chunk.h"

typedef enum placement_policy { PLACEMENT_STATIC, PLACEMENT_AUTO } placement_policy;

typedef struct placement_settings {
    placement_policy policy;
    double shard_param_frac, offload_optim_frac, offload_param_frac; /* static */
    double warmup_non_model_data_ratio, steady_cap_ratio;            /* auto */
} placement_settings;

/* Gemini's defaults, with that policy. */
placement_settings placement_defaults(placement_policy policy);
/* CASTOR_ERR_ARGUMENT: a share that is not between 0 and 1. */
castor_status placement_settings_check(const placement_settings *settings);

/* Whether chunks lie on slower tiers whatever the budget. */
bool placement_offloads(const placement_settings *settings);
/* Whether parameters and gradients may leave the first tier, and not only states. */
bool placement_moves_parameters(const placement_settings *settings);

/* offload_param_frac counts only where the two other shares are 1. True: it was given and does not count: tell the user. */
bool placement_ignores_parameters(const placement_settings *settings);

/* The static policy: whether the next chunk of a kind belongs on a slower tier, as `offloaded` bytes of those before it do; `all`: bytes of
 * the kind. Gradients lie where their parameters' share says. */
bool placement_offloads_next(const placement_settings *settings, chunk_kind kind, uint64_t offloaded,
                             uint64_t all);

/* Bytes of chunks that tier 0 should hold at most. `non_model`: the peak until the next moment, as far as is known. */
uint64_t placement_limit(const placement_settings *settings, bool warmup, uint64_t capacity,
                         uint64_t non_model);
/* Non-model data may exceed what was recorded by this much: the limit leaves it free. */
uint64_t placement_headroom(const placement_settings *settings, uint64_t capacity);

/* Order of victims (victims.h): never 0. `next_use`: a moment, MOMENT_NEVER if none is known; `last_use`: in any unit that
 * grows. */
uint64_t placement_key(uint64_t next_use, uint64_t last_use);

#endif
