#include "joined.h"

#include "base/error.h"
#include "base/log.h"
#include "events/gate.h"

/* The call that follows faults if this fails: then the line says why. */
static void leave(homes *h, uintptr_t address, bool on_host) {
    castor_status status = gate_close(GATE_PATIENCE_NS);
    if (status == CASTOR_OK) {
        status = home_leave(h, address, on_host);
        gate_open();
    }
    if (status != CASTOR_OK)
        LOG_E("a parameter whose memory the ranks of this node share is written to, and gets none of its "
              "own: %s",
              error_text());
}

void joined_leave_homes(uintptr_t address, size_t bytes, bool on_host) {
    uintptr_t end = address + (bytes ? bytes : 1);
    home found;
    while (address < end && joined_matter()) {
        homes *h = devices_homes(devices_find(address));
        if (!h || (!bytes && !home_is_joined(h, address)) || !home_find(h, address, &found))
            return;
        if (home_is_joined(h, found.address))
            leave(h, found.address, on_host);
        address = found.address + found.bytes;
    }
}

void joined_leave_all(void) {
    for (int device = 0; device < DEVICES_MAX && joined_matter(); device++) {
        homes *h = devices_homes(device);
        uintptr_t first = 0, end = 0;
        if (h)
            homes_range(h, &first, &end);
        for (home at; first < end && joined_matter(); first = at.address + at.bytes)
            if (!home_next(h, first, &at))
                break;
            else if (home_is_joined(h, at.address))
                leave(h, at.address, false);
    }
}

void joined_announced(effect_writes writes, const observe_facts *facts) {
    if (!joined_matter())
        return;
    if (writes == EFFECT_WRITES_ALL)
        joined_leave_all();
    else if (writes != EFFECT_WRITES_NOTHING && facts->bytes)
        joined_leave((const void *)facts->object, writes == EFFECT_WRITES_ROWS ? 0 : facts->bytes);
}
