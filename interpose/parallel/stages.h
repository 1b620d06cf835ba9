/* Divides the layers of a model into the stages of a pipeline. */
#ifndef CASTOR_PARALLEL_STAGES_H
#define CASTOR_PARALLEL_STAGES_H

#include <stdint.h>
#include "base/status.h"

/* Divides layers of these costs (NULL: 1 each), in order, into `stages` stages, none of them empty, so that the largest stage is as
 * small as any division makes it. Among such divisions a stage ends as soon as it has its share of the layers left, if the rest
 * allows it. ends[i]: the first layer after stage i; *largest: the cost of the largest. CASTOR_ERR_ARGUMENT: fewer layers
 * than stages, no stage, or costs beyond 64 bits. */
castor_status stages_divide(const uint64_t *costs, uint32_t layers, uint32_t stages, uint32_t *ends,
                            uint64_t *largest);

#endif
