/* A process that another launcher has started (torchrun, srun, mpirun) becomes a rank of a single-process script, where CASTOR_NPROC=auto
 * asks for it: with the environment and outputs that `castor run --nproc` gives its ranks. The launcher's variables say which one, and
 * are hidden from the script from then on. What a rank starts finds CASTOR_RANK, and is none. No malloc. */
#ifndef CASTOR_FORKING_JOINING_H
#define CASTOR_FORKING_JOINING_H

#include <stddef.h>
#include "base/status.h"

/* After options_load, which it repeats with what it has changed in the environment. `words`: of the process, of which only Python, and
 * no launcher, becomes a rank; NULL: it is known to be one. An error's text goes to `message`; nothing was changed then. */
castor_status joining_begin(char *const *words, char *message, size_t size);

/* At the end of a process. Once the last rank of a job ends, the files that they kept for themselves go. */
void joining_end(void);

#endif
