/* PyTorch's import, seen by the look-up of the entry function of its extension module. Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_TORCH_IMPORT_H
#define CASTOR_HOOKS_LOOKUP_TORCH_IMPORT_H

#include <stdbool.h>

/* Whether a look-up of `name` in `handle` is the import of a PyTorch that the plugin of this process refuses. The
 * first time it says so. */
bool torch_import_is_refused(void *handle, const char *name);

/* What such a look-up answers with in place of the module's entry function. */
void *torch_import_refused(void);

#endif
