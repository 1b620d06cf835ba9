/* The figures of a device's peak, for those who write and who read them. */
#ifndef CASTOR_TRACE_DEVICE_PART_H
#define CASTOR_TRACE_DEVICE_PART_H

typedef enum device_part {
#define PART(id, key, label, doc) DEVICE_PART_##id,
#include "device_part.def"
    DEVICE_PART_COUNT
} device_part;

enum { DEVICE_PARTS_DEVICES = 8, DEVICE_PARTS_OF_PEAK = DEVICE_PART_OTHER + 1 };

static inline unsigned device_part_id(int device, device_part part) {
    return (unsigned)device * 8 + (unsigned)part;
}

#endif
