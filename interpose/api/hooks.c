/* The exported function about the table of intercepted functions. */
#include "castor.h"

#include <dlfcn.h>
#include "hooks/hooks.h"

int castor_hook_get(uint32_t index, const char **layer, const char **name, int *found) {
    if (index >= HOOK_COUNT)
        return 0;
    *layer = hook_layer_name[hook_table[index].layer];
    *name = hook_table[index].name;
    /* Some of libc's are looked up at their first call. */
    *found = hooks_real((hook_id)index) || dlsym(RTLD_NEXT, hook_table[index].symbol);
    return 1;
}
