#include "throw.h"

#include <string.h>
#include "hooks/lookup/wrapper.h"

typedef void (*throw_function)(const char *text); /* does not return */
static throw_function throw_runtime_error;

void gloo_throw_resolve(void) {
    void *library = loader_library("libstdc++.so"), *found = NULL;
    if (library)
        found = loader_symbol(library, "_ZSt21__throw_runtime_errorPKc");
    memcpy(&throw_runtime_error, &found, sizeof found);
}

bool gloo_throw_found(void) {
    return throw_runtime_error != NULL;
}

void gloo_throw(const char *text) {
    throw_runtime_error(text);
}
