#include "effect.h"

const effect effects[EFFECT_COUNT] = {
#define EFFECT(name, action, memory, writes, reads) [EFFECT_##name] = {action, memory, writes},
#include "effect.def"
};

const uint8_t effect_ids[HOOK_COUNT] = {
#define RUNTIME(function, effect, ...)                 [HOOK_##function] = EFFECT_##effect,
#define RUNTIME_PER_THREAD(function, effect, ...)      [HOOK_##function] = EFFECT_##effect,
#define DRIVER(version, function, symbol, effect, ...) [HOOK_##symbol] = EFFECT_##effect,
#define DRIVER_PER_THREAD(version, function, symbol, variant, effect, ...)                                   \
    [HOOK_##symbol##variant] = EFFECT_##effect,
#include "cuda_runtime.def"
#include "cuda_driver.def"
};
