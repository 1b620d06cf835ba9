/* What a rank has recorded of its training step, kept as a file that can be replayed (bench/policy). */
#ifndef CASTOR_PLACEMENT_RECORDING_H
#define CASTOR_PLACEMENT_RECORDING_H

#include "chunk_manager.h"

/* Writes DIRECTORY/moments.RANK, anew where there is one; the text is that of moments.h. A warning where it cannot be written, or
 * where no step was recorded. */
void recording_keep(chunk_manager *m, const char *directory, int rank);

#endif
