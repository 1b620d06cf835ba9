#include "returns.h"

#include "capture.h"
#include "base/error.h"
#include "base/log.h"
#include "device/devices.h"
#include "events/gate.h"

#define GATE_NS UINT64_C(1000000000) /* nobody needs the return: threads that are inside longer prevent it */

void cuda_homes_step_end(int device) {
    homes *h = devices_homes(device);
    if (!h || !homes_step_end(h) || capture_runs())
        return;
    if (gate_close(GATE_NS) != CASTOR_OK) {
        homes_short(h); /* not at each step */
        return;
    }
    /* One may have begun meanwhile. */
    castor_status status = capture_runs() ? CASTOR_OK : homes_return(h);
    gate_open();
    if (status != CASTOR_OK)
        LOG_W("model data does not come back to device %d: %s", device, error_text());
}
