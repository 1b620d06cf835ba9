#include "placement.h"

#include "base/error.h"
#include "moments.h"

#define KEY_UNKNOWN (UINT64_C(1) << 63)

placement_settings placement_defaults(placement_policy policy) {
    return (placement_settings){.policy = policy,
                                .shard_param_frac = 1.0,
                                .warmup_non_model_data_ratio = 0.8,
                                .steady_cap_ratio = 0.9};
}

static castor_status share_check(const char *name, double share) {
    if (share >= 0 && share <= 1)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT, "%s must be between 0 and 1", name);
}

castor_status placement_settings_check(const placement_settings *settings) {
    const struct {
        const char *name;
        double share;
    } shares[] = {{"shard_param_frac", settings->shard_param_frac},
                  {"offload_optim_frac", settings->offload_optim_frac},
                  {"offload_param_frac", settings->offload_param_frac},
                  {"warmup_non_model_data_ratio", settings->warmup_non_model_data_ratio},
                  {"steady_cap_ratio", settings->steady_cap_ratio}};
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < sizeof shares / sizeof *shares && status == CASTOR_OK; i++)
        status = share_check(shares[i].name, shares[i].share);
    return status;
}

bool placement_offloads(const placement_settings *settings) {
    return settings->policy == PLACEMENT_STATIC &&
           (settings->offload_optim_frac > 0 || settings->offload_param_frac > 0);
}

static bool parameters_may_leave(const placement_settings *settings) {
    return settings->shard_param_frac == 1 && settings->offload_optim_frac == 1;
}

bool placement_moves_parameters(const placement_settings *settings) {
    return settings->policy != PLACEMENT_STATIC ||
           (settings->offload_param_frac > 0 && parameters_may_leave(settings));
}

bool placement_ignores_parameters(const placement_settings *settings) {
    return settings->policy == PLACEMENT_STATIC && settings->offload_param_frac > 0 &&
           !parameters_may_leave(settings);
}

bool placement_offloads_next(const placement_settings *settings, chunk_kind kind, uint64_t offloaded,
                             uint64_t all) {
    double share = kind == CHUNK_OPTIM              ? settings->offload_optim_frac
                   : parameters_may_leave(settings) ? settings->offload_param_frac
                                                    : 0;
    return settings->policy == PLACEMENT_STATIC && (double)offloaded < share * (double)all;
}

static uint64_t share_of(uint64_t capacity, double share) {
    return share >= 1 ? capacity : (uint64_t)((double)capacity * share);
}

uint64_t placement_limit(const placement_settings *settings, bool warmup, uint64_t capacity,
                         uint64_t non_model) {
    if (capacity == UINT64_MAX)
        return capacity;
    uint64_t most = capacity;
    if (settings->policy == PLACEMENT_AUTO) {
        if (warmup)
            return capacity - share_of(capacity, settings->warmup_non_model_data_ratio);
        most = share_of(capacity, settings->steady_cap_ratio);
    }
    return most > non_model ? most - non_model : 0;
}

uint64_t placement_headroom(const placement_settings *settings, uint64_t capacity) {
    if (settings->policy == PLACEMENT_STATIC || capacity == UINT64_MAX)
        return UINT64_MAX;
    return capacity - share_of(capacity, settings->steady_cap_ratio);
}

uint64_t placement_key(uint64_t next_use, uint64_t last_use) {
    if (next_use == MOMENT_NEVER)
        return UINT64_MAX - (last_use < KEY_UNKNOWN ? last_use : KEY_UNKNOWN - 1);
    return 1 + (next_use < KEY_UNKNOWN - 1 ? next_use : KEY_UNKNOWN - 2);
}
