/* What each observed call of CUDA does to a device, by its row. Private to hooks/. */
#ifndef CASTOR_HOOKS_TABLE_EFFECT_H
#define CASTOR_HOOKS_TABLE_EFFECT_H

#include "hooks.h"
#include "trace/device_waits.h"
#include "trace/device_memory.h"

typedef enum effect_writes {
    EFFECT_WRITES_NOTHING, /* or what its own wrapper notes: a kernel by its arguments, a list of copies */
    EFFECT_WRITES_FACTS, /* `bytes` at `object`. Arrays for textures and variables of modules are no homes */
    EFFECT_WRITES_ROWS,  /* rows or boxes from `object` on, of which `bytes` are written */
    EFFECT_WRITES_ALL,   /* any address */
} effect_writes;

typedef enum effect_reads {
    EFFECT_READS_NOTHING, /* or what its own wrapper looks at */
    EFFECT_READS_SOURCE,  /* `bytes` at `source`; any address where the row names none */
    EFFECT_READS_ALL,     /* any address */
} effect_reads;

enum {
#define EFFECT(name, ...) EFFECT_##name,
#include "effect.def"
#undef EFFECT
    EFFECT_COUNT
};

/* The columns `writes` and `reads` of each, as constants. */
enum {
#define EFFECT(name, action, memory, writes, reads) EFFECT_##name##_WRITES = writes,
#include "effect.def"
#undef EFFECT
};
enum {
#define EFFECT(name, action, memory, writes, reads) EFFECT_##name##_READS = reads,
#include "effect.def"
#undef EFFECT
};

typedef struct effect {
    device_action action;
    device_memory_action memory;
    effect_writes writes;
} effect;

extern const uint8_t effect_ids[HOOK_COUNT]; /* EFFECT_NOTHING, but for calls of the runtime and the driver */
extern const effect effects[EFFECT_COUNT];

static inline const effect *effect_of(hook_id id) {
    return &effects[effect_ids[id]];
}

#endif
