/* cuDNN: tensors that a call only reads, and whose home is on the host, are read from a slot (device/slots.h); what it writes is noted
 * (writers.h). Private to hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_DNN_H
#define CASTOR_HOOKS_CUDA_DNN_H

#include "base/status.h"

/* From now on, for the rows of cudnn.def. Plans that were made before are unknown. More than one call is one. */
castor_status dnn_install(void);

#endif
