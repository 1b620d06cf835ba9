/* libffi 3, found at run time: the used part of its ABI, declared for C. The tests compare it with libffi's header
 * where that is installed. */
#ifndef CASTOR_SHIMS_FFI_H
#define CASTOR_SHIMS_FFI_H

#include <stddef.h>

typedef struct ffi_type {
    size_t size;
    unsigned short alignment, type;
    struct ffi_type **elements; /* of a struct, ended by NULL */
} ffi_type;

enum { FFI_TYPE_STRUCT = 13, FFI_OK = 0 };

#if defined(__x86_64__)
enum { FFI_DEFAULT_ABI = 2 };
#elif defined(__aarch64__)
enum { FFI_DEFAULT_ABI = 1 };
#endif

/* Larger than libffi's own in any version; only libffi reads it. */
typedef struct ffi_cif {
    _Alignas(16) char opaque[128];
} ffi_cif;
#define FFI_CLOSURE_SIZE 128

typedef void ffi_closure_function(ffi_cif *cif, void *result, void **arguments, void *data);

typedef int ffi_prep_cif_function(ffi_cif *cif, int abi, unsigned count, ffi_type *result,
                                  ffi_type **parameters);
typedef void ffi_call_function(ffi_cif *cif, void (*function)(void), void *result, void **arguments);
typedef void *ffi_closure_alloc_function(size_t size, void **code);
typedef int ffi_prep_closure_loc_function(void *closure, ffi_cif *cif, ffi_closure_function *function,
                                          void *data, void *code);

#endif
