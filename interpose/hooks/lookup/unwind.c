/* C++ exceptions pass through the wrappers, and their clean-up must run then (they are compiled with
 * -fexceptions). The compiler's references to the unwinder would make this library need libgcc_s.so.1 in
 * every process; they go to these functions instead, which pass on to the unwinder that threw the exception:
 * it is loaded wherever C++ is. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define UNWINDER        "libgcc_s.so.1"
#define CONTINUE_UNWIND 8 /* _URC_CONTINUE_UNWIND: no clean-up here */

typedef int personality_function(int version, int actions, uint64_t exception_class, void *exception,
                                 void *context);
typedef void resume_function(void *exception);

personality_function __gcc_personality_v0;
void _Unwind_Resume(void *exception);

static void *unwinder_find(const char *name) {
    void *library = dlopen(UNWINDER, RTLD_NOLOAD | RTLD_LAZY);
    return library ? dlsym(library, name) : NULL;
}

int __gcc_personality_v0(int version, int actions, uint64_t exception_class, void *exception, void *context) {
    personality_function *real = unwinder_find("__gcc_personality_v0");
    /* Only a frame whose clean-up can be resumed from is stopped at. */
    if (!real || !unwinder_find("_Unwind_Resume"))
        return CONTINUE_UNWIND;
    return real(version, actions, exception_class, exception, context);
}

void _Unwind_Resume(void *exception) {
    resume_function *real = unwinder_find("_Unwind_Resume");
    real(exception);
    __builtin_unreachable();
}
