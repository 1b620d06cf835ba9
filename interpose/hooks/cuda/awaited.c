#include "awaited.h"

#include "base/error.h"
#include "base/log.h"

void awaited_homes(uintptr_t address, size_t bytes, uint64_t stream) {
    updates *u = devices_updates(devices_find(address));
    if (u)
        updates_wait(u, address, bytes, observe_thread.device, stream);
}

void awaited_all(uint64_t stream) {
    for (int device = 0; device < DEVICES_MAX && updates_matter(); device++) {
        updates *u = devices_updates(device);
        if (u)
            updates_wait_all(u, observe_thread.device, stream);
    }
}

void awaited_by_host(void) {
    for (int device = 0; device < DEVICES_MAX && updates_matter(); device++) {
        updates *u = devices_updates(device);
        if (u && updates_settle(u))
            LOG_E("%s", error_text());
    }
}

void awaited_announced(effect_writes writes, effect_reads reads, const observe_facts *facts) {
    if (!updates_matter())
        return;
    if (writes == EFFECT_WRITES_ALL || reads == EFFECT_READS_ALL ||
        (reads == EFFECT_READS_SOURCE && facts->source == OBSERVE_ANYWHERE)) {
        awaited_all(facts->stream);
        return;
    }
    if (reads == EFFECT_READS_SOURCE)
        awaited((const void *)facts->source, facts->bytes, facts->stream);
    if (writes != EFFECT_WRITES_NOTHING)
        awaited((const void *)facts->object, writes == EFFECT_WRITES_ROWS ? 0 : facts->bytes, facts->stream);
}
