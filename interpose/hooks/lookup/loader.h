/* The real dlsym, dlvsym and dlopen, for the library's own look-ups: its own definitions hide them.
 * Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_LOADER_H
#define CASTOR_HOOKS_LOOKUP_LOADER_H

/* As dlsym, without wrappers; RTLD_NEXT searches the objects after this library. */
void *loader_symbol(void *handle, const char *name);

/* The handle of a library that is loaded already, by its file name or the beginning of it ("libcuda.so" for
 * "libcuda.so.1"); NULL: it is not. The library is never unloaded afterwards. */
void *loader_library(const char *library);

/* A library's handle by its path, if it is loaded; loader_close releases it. */
void *loader_open(const char *path);
void loader_close(void *handle);
/* Loads a library by its name. */
void *loader_load(const char *name);

/* The real function of libc. */
void *loader_real(const char *name);

#endif
