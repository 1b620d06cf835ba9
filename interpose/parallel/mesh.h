/* Device meshes: ranks in the cells of a grid, and what collectives along its axes cost.
 *
 *   axis         a dimension of the grid, counted from 0
 *   coordinates  a rank's position on each axis
 *   line         the ranks whose coordinates differ on the given axes only; a collective runs among them
 *   alpha, beta  of an axis: the time before the first element, and the time for each
 *
 * Cells are in row-major order: the last axis changes fastest. A mesh is a value; it holds a pointer to its caller's ranks. */
#ifndef CASTOR_PARALLEL_MESH_H
#define CASTOR_PARALLEL_MESH_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

enum { MESH_AXES = 8, MESH_ALL_AXES = -1 };

typedef enum mesh_collective {
    MESH_ALL_GATHER,
    MESH_ALL_REDUCE,
    MESH_REDUCE_SCATTER,
    MESH_ALL_TO_ALL
} mesh_collective;

typedef struct mesh {
    const int32_t *ranks; /* of the cells; NULL: 0, 1, 2 and so on */
    int32_t axes, count;  /* of axes, of ranks */
    int32_t shape[MESH_AXES];
    double alpha[MESH_AXES], beta[MESH_AXES];
} mesh;

/* `count` ranks (NULL: 0 to count - 1) in a grid of `axes` axes; alpha, beta: NULL for 1 on each. CASTOR_ERR_ARGUMENT: the shape does
 * not have `count` cells, a rank is twice there, an alpha or a beta is negative or no number. */
castor_status mesh_make(mesh *m, const int32_t *ranks, int32_t count, const int32_t *shape, int32_t axes,
                        const double *alpha, const double *beta);

/* False: the rank is not in the mesh. */
bool mesh_coordinates(const mesh *m, int32_t rank, int32_t *coordinates);
/* CASTOR_ERR_ARGUMENT: a coordinate is outside the mesh. */
castor_status mesh_rank(const mesh *m, const int32_t *coordinates, int32_t *rank);

/* Lines along `count` different axes. *lines: how many there are, *length: the ranks of each. Line `index`: lines are in the order of
 * the other axes, the last of them fastest; the ranks of a line in the order of `axes`, the last of them fastest. out: NULL,
 * or room for them. CASTOR_ERR_ARGUMENT: there is no such line or axis. */
castor_status mesh_line(const mesh *m, const int32_t *axes, int32_t count, int32_t index, int32_t *out,
                        int32_t *lines, int32_t *length);
/* The line of these axes that `rank` is on, and its position there. CASTOR_ERR_ARGUMENT: it is not in the mesh. */
castor_status mesh_line_of(const mesh *m, const int32_t *axes, int32_t count, int32_t rank, int32_t *index,
                           int32_t *place);

/* The time of a collective of `size` elements along an axis; MESH_ALL_AXES: of the flattened mesh. With n ranks there:
 *
 *   all-gather      alpha + beta (n-1)/n size + 0.1
 *   all-reduce      alpha + 2 beta (n-1)/n size + 0.01
 *   reduce-scatter  alpha + beta (n-1)/n size + 0.001
 *   all-to-all      alpha + beta (n-1)/n^2 size n/2 + 0.001
 *
 * The constants put collectives of equal bytes in an order. */
castor_status mesh_cost(const mesh *m, mesh_collective collective, double size, int32_t axis, double *cost);
/* An all-gather over all axes at once, each at its speed: largest alpha + smallest beta (n-1)/n size + 0.1 for all n ranks. */
double mesh_mixed_gather_cost(const mesh *m, double size);

#endif
