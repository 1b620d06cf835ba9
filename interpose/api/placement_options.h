/* The placement that the user asks for. Private to api/. */
#ifndef CASTOR_API_PLACEMENT_OPTIONS_H
#define CASTOR_API_PLACEMENT_OPTIONS_H

#include "job/options.h"
#include "placement/placement.h"

static inline placement_settings placement_of(const castor_options *o) {
    return (placement_settings){.policy = o->placement == CASTOR_PLACEMENT_STATIC ? PLACEMENT_STATIC
                                                                                  : PLACEMENT_AUTO,
                                .shard_param_frac = o->shard_param_frac,
                                .offload_optim_frac = o->offload_optim_frac,
                                .offload_param_frac = o->offload_param_frac,
                                .warmup_non_model_data_ratio = o->warmup_non_model_data_ratio,
                                .steady_cap_ratio = o->steady_cap_ratio};
}

#endif
