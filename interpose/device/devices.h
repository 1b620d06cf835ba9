/* The homes and slots of each device of this process. A device is started once and never ends before the process. */
#ifndef CASTOR_DEVICE_DEVICES_H
#define CASTOR_DEVICE_DEVICES_H

#include "homes.h"
#include "slots.h"
#include "updates.h"

#define DEVICES_MAX             64
#define DEVICES_PARTS_AT_A_TIME 3 /* that are on a device while an optimizer steps in parts */

typedef struct devices_settings {
    uint64_t reserved_bytes; /* of addresses for homes; 0: of all that could ever lie there */
    uint64_t
        budget_bytes; /* of the device's memory for homes, slots and parts together; UINT64_MAX: what there is */
    placement_settings placement;
} devices_settings;

/* CASTOR_ERR_ARGUMENT: no such device, or it was started. CASTOR_ERR_UNSUPPORTED: it cannot map memory. */
castor_status devices_start(const device_driver *with, int device, const devices_settings *settings);
/* home_create for a device that was started: the range below holds the home before anybody knows it. */
castor_status devices_home_create(int device, chunk_kind kind, size_t bytes, home *out);
/* NULL: it was not started. Lock-free. */
homes *devices_homes(int device);
slots *devices_slots(int device);
copies *devices_copies(int device);
updates *devices_updates(int device); /* NULL as well: none was ever made */
/* The device's updates, made by the first call. The status of updates_create. */
castor_status devices_updates_make(int device, updates **out);
/* Bytes of the copies of one part, with which an optimizer steps what lies on the host. */
uint64_t devices_part_bytes(int device);
/* The bytes of slots, and of the parts that are on the device at a time. */
void devices_shares(int device, uint64_t *slots_bytes, uint64_t *parts_bytes);
/* The least budget that gives these so many bytes; 0: none of this device does. */
uint64_t devices_budget_for(int device, uint64_t slots_bytes, uint64_t parts_bytes);
/* Whether the device's memory is short: it has a budget, or homes of fixed shares, something has found no memory there, or what is free
 * would not do for model data of `outside_bytes` that comes to be trained, and whose gradients and states are to come. */
bool devices_short(int device, uint64_t outside_bytes);
/* The budget is another one from now on. Homes that take more stay until homes_evict moves them, and slots until slots_region_give. Does
 * nothing for a device that was started without one. */
void devices_budget_set(int device, uint64_t budget_bytes);
/* Model data that has no home and never will, of the budget: homes that come take less. Does nothing without a budget. */
void devices_outside_set(int device, uint64_t bytes);
/* The driver of all; NULL before the first start. */
const device_driver *devices_driver(void);

/* All homes of all devices lie in [devices_first, devices_first + devices_bytes): one subtraction and comparison say that an address
 * is none. 0 bytes before the first start. A start widens the range, and so does a home that lies elsewhere: the bytes are stored before the first address, and read after
 * it, so that no reader ever misses a home. */
extern uintptr_t devices_first; /* atomic */
extern uint64_t devices_bytes;  /* atomic */
static inline bool devices_may_hold(uintptr_t address) {
    uintptr_t first = __atomic_load_n(&devices_first, __ATOMIC_ACQUIRE);
    return address - first < __atomic_load_n(&devices_bytes, __ATOMIC_RELAXED);
}
/* The device whose range holds an address; -1: none's. Lock-free. */
int devices_find(uintptr_t address);

#endif
