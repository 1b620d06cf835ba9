/* What the descriptors of cuDNN's backend say: which tensors, by their unique ids, an execution plan only reads.
 *
 * Vocabulary
 *   operand  of an operation: a tensor's id, how far it goes, and whether the operation may write it. Only what is known to be read
 *            is read: the inputs of convolutions and of operations by element
 *   known    of a descriptor: all that was said of it has been followed, from its birth on
 *
 * A descriptor is followed by value when an attribute is set, since those that it is made of may end before it: tensors make
 * operations, these a graph, the graph engines and heuristics, these configurations, and one of them a plan. Each has the operands of what
 * it was made of. What is unknown only takes slots away.
 *
 * A table of fixed size, mapped when it is first needed, under one lock. A descriptor that finds no place is unknown. Private to
 * hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_PLANS_H
#define CASTOR_HOOKS_CUDA_PLANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "shims/cuda/dnn.h"

#define PLANS_MAX      16384 /* descriptors */
#define PLANS_OPERANDS 12    /* of one plan, and pointers of one variant pack */

#define PLANS_UNKNOWN SIZE_MAX /* bytes of a tensor: nobody can say */

typedef struct plans_operand {
    int64_t id;
    size_t bytes;
    bool written;
} plans_operand;

/* One execution: the pointers of its variant pack. */
typedef struct plans_execution {
    uint32_t count;
    int64_t ids[PLANS_OPERANDS];
    void *pointers[PLANS_OPERANDS];
    size_t bytes
        [PLANS_OPERANDS]; /* how many it reads there, and writes none; PLANS_UNKNOWN: it may write, or read any number */
    bool written[PLANS_OPERANDS]; /* it may */
    void *workspace;
} plans_execution;

/* After the call has succeeded; `plans_destroyed` before it. */
void plans_created(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type);
void plans_destroyed(cudnnBackendDescriptor_t descriptor);
void plans_set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute,
               cudnnBackendAttributeType_t type, int64_t count, const void *elements);
/* `count` descriptors, which now say what they were asked for. */
void plans_got(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t attribute, int64_t count,
               const cudnnBackendDescriptor_t *elements);
/* False: the variant pack is unknown, and so are the pointers. If the plan is unknown, it may write all of them. */
bool plans_execution_get(cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack, plans_execution *out);

#endif
