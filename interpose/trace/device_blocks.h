/* The blocks of devices' memory that PyTorch's allocator has given out, and what they held when there were most bytes of them.
 *
 *   block     a range of a segment that cudaMalloc gave to PyTorch's allocator, with the bytes that PyTorch counts for it
 *   peak      the moment at which a device's blocks had most bytes. A block was part of it if it was given out before and freed
 *             after. Only the last peak is known: a higher one forgets the earlier
 *   part      of device_part.def: what the peak's blocks held, by what the agent has said of each while it was there; the rest is
 *             `other`. Beside these the highest bytes of segments, and what a block without room would have needed
 *
 * The parts are counters of the kind PEAK, with the id device_part_id(device, part), in bytes. Of devices beyond the first eight nothing
 * is known. */
#ifndef CASTOR_TRACE_DEVICE_BLOCKS_H
#define CASTOR_TRACE_DEVICE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>
#include "device_part.h"

/* A block was given out (`bytes` > 0) or freed. `reserved`: the bytes of all segments. Takes a lock that nothing is waited for under. */
void device_blocks_note(int device, uint64_t address, int64_t bytes, uint64_t reserved);
/* A block of so many bytes had no room, and there was none for one more segment beside the `reserved` bytes of the others. */
void device_blocks_note_shortage(int device, uint64_t bytes, uint64_t reserved);
/* A rehearsal knows how much of a device was ever used. */
void device_blocks_note_used(int device, uint64_t bytes);
/* What is at an address: DEVICE_PART_PARAM, DEVICE_PART_GRAD or DEVICE_PART_OPTIM, from its block's first byte to its last. */
void device_blocks_tell(uint64_t address, device_part part);
/* Whether a peak has come since the last call. */
bool device_blocks_risen(void);
/* Sets the counters. */
void device_blocks_write(void);
void device_blocks_reset(void); /* in a forked child: it has no device */

#endif
