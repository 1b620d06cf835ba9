/* The layouts of kernels' parameters, as the driver tells them, kept by the kernel's address.
 *
 * A table of fixed size, mapped when it is first needed, in open addressing. Entries are read and written without a lock: one that
 * changes while it is read counts as absent. When a library is unloaded all are forgotten, since its kernels' addresses may be given
 * to others. Private to hooks/cuda. */
#ifndef CASTOR_HOOKS_CUDA_LAYOUTS_H
#define CASTOR_HOOKS_CUDA_LAYOUTS_H

#include "arguments.h"

#define LAYOUTS_MAX 8192 /* kernels; the layouts of others are asked for at each launch */

/* Asks for the layout of a kernel that is not in the table. False: it cannot be had now, and the next launch asks again. */
typedef bool layouts_ask(const void *kernel, arguments_layout *layout);

/* The layout of a kernel, whose address is not 0. `layout->count` is ARGUMENTS_UNKNOWN if it is unknown. */
void layouts_get(const void *kernel, layouts_ask *ask, arguments_layout *layout);
/* To be called before the kernels' addresses are free for others. */
void layouts_forget(void);

#endif
