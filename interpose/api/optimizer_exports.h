/* What optimizer steps have in common, wherever their tensors lie. Private to api/. */
#ifndef CASTOR_API_OPTIMIZER_EXPORTS_H
#define CASTOR_API_OPTIMIZER_EXPORTS_H

#include <stdbool.h>
#include "castor.h"
#include "kernels/root.h"

/* CASTOR_ERR_ARGUMENT, with the text: a step that no kernel does. */
castor_status optimizer_check_adam(const castor_adam *adam, const castor_step_range *ranges, uint32_t count);
castor_status optimizer_check_sgd(const castor_sgd *sgd, const castor_step_range *ranges, uint32_t count);
/* PyTorch's square roots; false: the processor's are. */
bool optimizer_roots(kernel_roots *roots);

#endif
