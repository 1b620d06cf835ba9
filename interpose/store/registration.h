/* Registration: parameters become tensors of the store, with ranges in its chunks, and rank 0's values become everybody's. */
#ifndef CASTOR_STORE_REGISTRATION_H
#define CASTOR_STORE_REGISTRATION_H

#include "declarations.h"

/* Registers parameters, on every rank together, and adopts those that all ranks can (rank 0's bytes win). ids[i]
 * is the id of description i. Errors: the ranks' parameters differ (all of them get the same text). */
castor_status tensor_register(store *s, const tensor_description *descriptions, uint32_t count,
                              uint32_t *ids);

#endif
