/* PyTorch's import, recognized by the look-up of its extension module's entry function. Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_TORCH_IMPORT_H
#define CASTOR_HOOKS_LOOKUP_TORCH_IMPORT_H

#include <stdbool.h>

/* Whether a look-up of `name` in `handle` is the import of a PyTorch that the plugin of this process refuses. The
 * first refusal is logged. */
bool torch_import_is_refused(void *handle, const char *name);

/* Sets Python's exception SystemExit, with status 1. The caller holds Python's lock. */
void torch_import_exit(void);

/* The function that such a look-up returns in place of the module's entry function. */
void *torch_import_refused(void);

#endif
