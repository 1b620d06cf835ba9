/* The exported function about the table of intercepted functions. */
#include "castor.h"

#include <dlfcn.h>
#include "hooks/lookup/wrapper.h"

int castor_hook_get(uint32_t index, const char **layer, const char **name, int *found) {
    if (index >= HOOK_COUNT)
        return 0;
    *layer = hook_layer_name[hook_table[index].layer];
    *name = hook_table[index].name;
    hook_id id = (hook_id)index, other = hook_other_name(id);
    /* Some of libc's are looked up at their first call. */
    if (hooks_real(id) || dlsym(RTLD_NEXT, hook_table[id].symbol))
        *found = 1;
    else
        *found = hook_is_later(id) || (other != id && hooks_real(other)) ? -1 : 0;
    return 1;
}
