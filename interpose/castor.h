/* castor.h: the functions that libcastor.so exports.
 *
 * The Python agent calls them over ctypes; scripts and programs may, too. Sizes are in bytes, times in seconds unless
 * a name says otherwise; elements are counted in `numel`. A function that returns castor_status gives CASTOR_OK (0) or
 * an error, whose text castor_error() holds for the calling thread until its next failing call. Ranks count within
 * the group of the store. Everything is safe to call from any thread unless it says "on every rank": such a call waits
 * for the same call on the other ranks, and ends with an error within seconds when one of them is gone.
 *
 * A forked child is no rank: it sees its parent's tensors as they were at the fork, and calls that would change the store
 * or wait for other ranks give it CASTOR_ERR_UNSUPPORTED and do nothing.
 */
#ifndef CASTOR_H
#define CASTOR_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CASTOR_API __attribute__((visibility("default")))

typedef struct store castor_store;     /* the memory of one group of ranks on this node */
typedef struct tensor castor_tensor;   /* one registered parameter: its place, its gradient's sum */
typedef struct node_group castor_node; /* the memory of one process group's collectives */
typedef struct job castor_checkpoint;  /* files that are written together */
typedef struct window castor_window;   /* a lease on a sum: what p.grad shows */

/* The table declares and describes them. The header that is installed holds its rows written out (scripts/header). */
#define FUNCTION(result, name, parameters) CASTOR_API result name parameters;
#define CALLBACK(result, name, parameters) typedef result name parameters;
#define STRUCT(name, ...)                  typedef struct name __VA_ARGS__ name;
#define ENUM(...)                          enum __VA_ARGS__;
#include "api/api.def"

#ifdef __cplusplus
}
#endif
#endif
