/* PyTorch's import, recognized by the look-up of its extension module's entry function. Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_LOADER_H
#define CASTOR_HOOKS_LOOKUP_LOADER_H

#include <stdbool.h>

/* Sets Python's exception SystemExit, with status 1. The caller holds Python's lock. */
void torch_import_exit(void);

#endif
