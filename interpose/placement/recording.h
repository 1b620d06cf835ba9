/* Saves a rank's recording of its training step as a file that can be replayed (bench/policy). */
#ifndef CASTOR_PLACEMENT_RECORDING_H
#define CASTOR_PLACEMENT_RECORDING_H

#include "chunk_manager.h"

/* Writes DIRECTORY/moments.RANK, over an earlier one, in the format of moments.h. Warns where it cannot be written, or where no step
 * was recorded. */
void recording_keep(chunk_manager *m, const char *directory, int rank);

#endif
