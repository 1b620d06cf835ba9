#include "mesh.h"

#include <stddef.h>
#include "base/error.h"
#include "rank_lists.h"

static bool usable(double value) {
    return value >= 0 && value <= 1.7976931348623157e308;
}

castor_status mesh_make(mesh *m, const int32_t *ranks, int32_t count, const int32_t *shape, int32_t axes,
                        const double *alpha, const double *beta) {
    if (axes < 1 || axes > MESH_AXES)
        return error_set(CASTOR_ERR_ARGUMENT, "a mesh of %d axes: expected 1 to %d", axes, (int)MESH_AXES);
    mesh made = {.ranks = ranks, .axes = axes, .count = count};
    int64_t cells = 1;
    for (int32_t i = 0; i < axes; i++) {
        if (shape[i] < 1 || cells * shape[i] > RANKS_MOST)
            return error_set(
                CASTOR_ERR_ARGUMENT,
                "axis %d of a mesh has length %d: expected 1 or more, and at most %d ranks in all", i,
                shape[i], (int)RANKS_MOST);
        cells *= shape[i];
        made.shape[i] = shape[i];
        made.alpha[i] = alpha ? alpha[i] : 1;
        made.beta[i] = beta ? beta[i] : 1;
        if (!usable(made.alpha[i]) || !usable(made.beta[i]))
            return error_set(CASTOR_ERR_ARGUMENT, "alpha %g and beta %g of axis %d: expected 0 or more",
                             made.alpha[i], made.beta[i], i);
    }
    if (cells != count)
        return error_set(CASTOR_ERR_ARGUMENT, "a mesh of %ld cells for %d ranks: expected one for each",
                         (long)cells, count);
    if (ranks) {
        castor_status status = rank_list_sort(ranks, count, NULL);
        if (status)
            return status;
    }
    *m = made;
    return CASTOR_OK;
}

static int32_t rank_at(const mesh *m, int32_t cell) {
    return m->ranks ? m->ranks[cell] : cell;
}

/* The cell of a rank; -1: none. */
static int32_t cell_of(const mesh *m, int32_t rank) {
    if (!m->ranks)
        return rank >= 0 && rank < m->count ? rank : -1;
    for (int32_t cell = 0; cell < m->count; cell++)
        if (m->ranks[cell] == rank)
            return cell;
    return -1;
}

static int32_t cell_at(const mesh *m, const int32_t *coordinates) {
    int32_t cell = 0;
    for (int32_t axis = 0; axis < m->axes; axis++)
        cell = cell * m->shape[axis] + coordinates[axis];
    return cell;
}

bool mesh_coordinates(const mesh *m, int32_t rank, int32_t *coordinates) {
    int32_t cell = cell_of(m, rank);
    if (cell < 0)
        return false;
    for (int32_t axis = m->axes - 1; axis >= 0; axis--) {
        coordinates[axis] = cell % m->shape[axis];
        cell /= m->shape[axis];
    }
    return true;
}

castor_status mesh_rank(const mesh *m, const int32_t *coordinates, int32_t *rank) {
    for (int32_t axis = 0; axis < m->axes; axis++)
        if (coordinates[axis] < 0 || coordinates[axis] >= m->shape[axis])
            return error_set(CASTOR_ERR_ARGUMENT, "coordinate %d on axis %d of a mesh: expected 0 to %d",
                             coordinates[axis], axis, m->shape[axis] - 1);
    *rank = rank_at(m, cell_at(m, coordinates));
    return CASTOR_OK;
}

/* The axes of a line, in their order, and the others, in the mesh's. */
typedef struct line_axes {
    int32_t along[MESH_AXES], others[MESH_AXES];
    int32_t along_count, others_count;
    int32_t length, lines;
} line_axes;

static castor_status line_axes_make(const mesh *m, const int32_t *axes, int32_t count, line_axes *out) {
    *out = (line_axes){.length = 1, .lines = 1};
    uint32_t taken = 0;
    for (int32_t i = 0; i < count; i++) {
        if (axes[i] < 0 || axes[i] >= m->axes || taken & 1u << axes[i])
            return error_set(CASTOR_ERR_ARGUMENT,
                             "a line along axis %d of a mesh of %d axes: expected axes from 0 on, each once",
                             axes[i], m->axes);
        taken |= 1u << axes[i];
        out->along[out->along_count++] = axes[i];
        out->length *= m->shape[axes[i]];
    }
    for (int32_t axis = 0; axis < m->axes; axis++)
        if (!(taken & 1u << axis)) {
            out->others[out->others_count++] = axis;
            out->lines *= m->shape[axis];
        }
    return CASTOR_OK;
}

/* Sets the coordinates on these axes from an index over them, the last of them fastest. */
static void coordinates_set(const mesh *m, const int32_t *axes, int32_t count, int32_t index,
                            int32_t *coordinates) {
    for (int32_t i = count - 1; i >= 0; i--) {
        coordinates[axes[i]] = index % m->shape[axes[i]];
        index /= m->shape[axes[i]];
    }
}

static int32_t index_of(const mesh *m, const int32_t *axes, int32_t count, const int32_t *coordinates) {
    int32_t index = 0;
    for (int32_t i = 0; i < count; i++)
        index = index * m->shape[axes[i]] + coordinates[axes[i]];
    return index;
}

castor_status mesh_line(const mesh *m, const int32_t *axes, int32_t count, int32_t index, int32_t *out,
                        int32_t *lines, int32_t *length) {
    line_axes l;
    castor_status status = line_axes_make(m, axes, count, &l);
    if (status)
        return status;
    if (index < 0 || index >= l.lines)
        return error_set(CASTOR_ERR_ARGUMENT, "line %d of a mesh that has %d along these axes", index,
                         l.lines);
    *lines = l.lines;
    *length = l.length;
    int32_t coordinates[MESH_AXES] = {0};
    coordinates_set(m, l.others, l.others_count, index, coordinates);
    for (int32_t place = 0; out && place < l.length; place++) {
        coordinates_set(m, l.along, l.along_count, place, coordinates);
        out[place] = rank_at(m, cell_at(m, coordinates));
    }
    return CASTOR_OK;
}

castor_status mesh_line_of(const mesh *m, const int32_t *axes, int32_t count, int32_t rank, int32_t *index,
                           int32_t *place) {
    line_axes l;
    castor_status status = line_axes_make(m, axes, count, &l);
    if (status)
        return status;
    int32_t coordinates[MESH_AXES] = {0};
    if (!mesh_coordinates(m, rank, coordinates))
        return error_set(CASTOR_ERR_ARGUMENT, "rank %d is not in this mesh of %d ranks", rank, m->count);
    *index = index_of(m, l.others, l.others_count, coordinates);
    *place = index_of(m, l.along, l.along_count, coordinates);
    return CASTOR_OK;
}

static double largest(const double *values, int32_t count) {
    double found = values[0];
    for (int32_t i = 1; i < count; i++)
        found = values[i] > found ? values[i] : found;
    return found;
}

static double smallest(const double *values, int32_t count) {
    double found = values[0];
    for (int32_t i = 1; i < count; i++)
        found = values[i] < found ? values[i] : found;
    return found;
}

/* The same ranks on one axis, which has the largest alpha and the largest beta. */
static void mesh_flatten(const mesh *m, mesh *flat) {
    mesh made = {.ranks = m->ranks, .axes = 1, .count = m->count, .shape = {m->count}};
    made.alpha[0] = largest(m->alpha, m->axes);
    made.beta[0] = largest(m->beta, m->axes);
    *flat = made;
}

castor_status mesh_cost(const mesh *m, mesh_collective collective, double size, int32_t axis, double *cost) {
    mesh flat;
    if (axis == MESH_ALL_AXES) {
        mesh_flatten(m, &flat);
        m = &flat;
        axis = 0;
    }
    if (axis < 0 || axis >= m->axes)
        return error_set(CASTOR_ERR_ARGUMENT, "a collective along axis %d of a mesh that has %d", axis,
                         m->axes);
    double alpha = m->alpha[axis], beta = m->beta[axis], n = m->shape[axis];
    switch (collective) {
    case MESH_ALL_GATHER:
        *cost = alpha + beta * (n - 1) / n * size + 0.1;
        return CASTOR_OK;
    case MESH_ALL_REDUCE:
        *cost = alpha + beta * 2 * (n - 1) / n * size + 0.01;
        return CASTOR_OK;
    case MESH_REDUCE_SCATTER:
        *cost = alpha + beta * (n - 1) / n * size + 0.001;
        return CASTOR_OK;
    case MESH_ALL_TO_ALL:
        *cost = alpha + beta * (n - 1) / n / n * size * (n / 2) + 0.001;
        return CASTOR_OK;
    }
    return error_set(CASTOR_ERR_ARGUMENT, "collective %d: expected 0 to %d", (int)collective,
                     (int)MESH_ALL_TO_ALL);
}

double mesh_mixed_gather_cost(const mesh *m, double size) {
    double n = m->count;
    return largest(m->alpha, m->axes) + smallest(m->beta, m->axes) * (n - 1) / n * size + 0.1;
}
