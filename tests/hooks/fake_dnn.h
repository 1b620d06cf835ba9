/* What the fake libcudnn (fake_dnn.c) was called with, and what it shall do. */
#ifndef CASTOR_TESTS_HOOKS_FAKE_DNN_H
#define CASTOR_TESTS_HOOKS_FAKE_DNN_H

#include <cudnn.h>
#include <stdbool.h>

#define FAKE_POINTERS 16
#define FAKE_FLOATS   4096

extern struct fake_dnn {
    /* of the last execution, or of the last call with pointers */
    int count;
    int64_t ids[FAKE_POINTERS];
    void *pointers[FAKE_POINTERS], *workspace;
    float seen[FAKE_POINTERS][FAKE_FLOATS]; /* what lay there in the stream's order, if `reads` says so */

    bool reads[FAKE_POINTERS];
    int writes;          /* the pointer at which 1s are written, so that nobody sees it; -1: none */
    int fail_finalize;   /* of variant packs, from now on */
    size_t tensor_bytes; /* of a descriptor of calls with pointers; 0: unknown */
    int descriptors;     /* that exist */
} fake_dnn;

#endif
