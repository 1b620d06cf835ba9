#include "spec.h"

#include <string.h>
#include "base/error.h"

static castor_status dims_check(int32_t dims) {
    if (dims >= 0 && dims <= SPEC_DIMS)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT, "a tensor of %d dimensions: a sharding spec has at most %d", dims,
                     (int)SPEC_DIMS);
}

static castor_status axes_check(int32_t count, int32_t dim) {
    if (count >= 0 && count <= MESH_AXES)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT, "%d axes divide dimension %d: a mesh has at most %d", count, dim,
                     (int)MESH_AXES);
}

/* The dimension that a partition means. */
static castor_status dim_of(int32_t dims, const partition *p, int32_t *dim) {
    if (p->dim < -dims || p->dim >= dims)
        return error_set(CASTOR_ERR_ARGUMENT, "dimension %d of a tensor that has %d", p->dim, dims);
    *dim = p->dim < 0 ? p->dim + dims : p->dim;
    return axes_check(p->count, p->dim);
}

static partition *find(partition *partitions, uint32_t count, int32_t dim) {
    for (uint32_t i = 0; i < count; i++)
        if (partitions[i].dim == dim)
            return &partitions[i];
    return NULL;
}

castor_status partition_convert(int32_t dims, const partition *in, uint32_t count, partition *out) {
    castor_status status = dims_check(dims);
    for (uint32_t i = 0; i < count && !status; i++) {
        int32_t dim = 0;
        status = dim_of(dims, &in[i], &dim);
        if (status)
            break;
        if (find(out, i, dim))
            return error_set(CASTOR_ERR_ARGUMENT,
                             "dimension %d of a tensor of %d dimensions is named twice (%d is the same): "
                             "merge_same_dim_mesh_list puts both together",
                             dim, dims, dim - dims);
        out[i] = in[i];
        out[i].dim = dim;
    }
    return status;
}

castor_status partition_merge(int32_t dims, const partition *in, uint32_t count, partition *out,
                              uint32_t *merged) {
    castor_status status = dims_check(dims);
    uint32_t made = 0;
    for (uint32_t i = 0; i < count && !status; i++) {
        int32_t dim = 0;
        status = dim_of(dims, &in[i], &dim);
        if (status)
            break;
        partition *p = find(out, made, dim);
        if (!p) {
            out[made] = in[i];
            out[made++].dim = dim;
            continue;
        }
        if ((status = axes_check(p->count + in[i].count, dim)) != CASTOR_OK)
            break;
        memcpy(p->axes + p->count, in[i].axes, (size_t)in[i].count);
        p->count += in[i].count;
    }
    *merged = made;
    return status;
}

static castor_status whole(const int64_t *shape, int32_t dims, spec *s) {
    castor_status status = dims_check(dims);
    if (status)
        return status;
    *s = (spec){.dims = dims};
    for (int32_t dim = 0; dim < dims; dim++) {
        if (shape[dim] < 0)
            return error_set(CASTOR_ERR_ARGUMENT, "dimension %d has length %ld: expected 0 or more", dim,
                             (long)shape[dim]);
        s->shape[dim] = shape[dim];
    }
    return CASTOR_OK;
}

castor_status spec_make(const int64_t *shape, int32_t dims, const partition *partitions, uint32_t count,
                        spec *s) {
    spec made;
    castor_status status = whole(shape, dims, &made);
    for (uint32_t i = 0; i < count && !status; i++) {
        int32_t dim = 0;
        status = dim_of(dims, &partitions[i], &dim);
        if (status)
            break;
        int32_t before = made.counts[dim], more = partitions[i].count;
        if ((status = axes_check(before + more, dim)) != CASTOR_OK)
            break;
        memcpy(made.axes[dim] + before, partitions[i].axes, (size_t)more);
        made.counts[dim] = (uint8_t)(before + more);
    }
    if (!status)
        *s = made;
    return status;
}

/* Whether counts and axes are numbers that a text can show. */
static castor_status form_check(const spec *s) {
    castor_status status = dims_check(s->dims);
    for (int32_t dim = 0; dim < s->dims && !status; dim++) {
        status = axes_check(s->counts[dim], dim);
        for (int32_t i = 0; !status && i < s->counts[dim]; i++)
            if (s->axes[dim][i] >= MESH_AXES)
                return error_set(CASTOR_ERR_ARGUMENT, "axis %d divides dimension %d: a mesh has axes 0 to %d",
                                 s->axes[dim][i], dim, MESH_AXES - 1);
    }
    return status;
}

castor_status spec_print(const spec *s, char *text, size_t size) {
    castor_status status = form_check(s);
    if (status)
        return status;
    char made[SPEC_TEXT];
    size_t length = 0;
    made[length++] = '[';
    for (int32_t dim = 0; dim < s->dims; dim++) {
        if (dim) {
            made[length++] = ',';
            made[length++] = ' ';
        }
        made[length++] = s->counts[dim] ? 'S' : 'R';
        for (int32_t i = 0; i < s->counts[dim]; i++)
            made[length++] = (char)('0' + s->axes[dim][i]);
    }
    made[length++] = ']';
    made[length++] = 0;
    if (length > size)
        return error_set(CASTOR_ERR_ARGUMENT, "the text of a sharding spec needs %zu bytes, there are %zu",
                         length, size);
    memcpy(text, made, length);
    return CASTOR_OK;
}

typedef enum misfit { FITS, NO_AXIS, AXIS_TWICE, INDIVISIBLE } misfit;

/* Whether a spec of the right form fits the mesh; *dim and *axis: where it does not. `out`: NULL or the part's shape. */
static misfit misfit_of(const mesh *m, const spec *s, int64_t *out, int32_t *dim, int32_t *axis) {
    uint32_t taken = 0;
    for (*dim = 0; *dim < s->dims; ++*dim) {
        int64_t shards = 1;
        for (int32_t i = 0; i < s->counts[*dim]; i++) {
            *axis = s->axes[*dim][i];
            if (*axis >= m->axes)
                return NO_AXIS;
            if (taken & 1u << *axis)
                return AXIS_TWICE;
            taken |= 1u << *axis;
            shards *= m->shape[*axis];
        }
        if (s->shape[*dim] % shards)
            return INDIVISIBLE;
        if (out)
            out[*dim] = s->shape[*dim] / shards;
    }
    return FITS;
}

bool spec_fits(const mesh *m, const spec *s) {
    int32_t dim, axis;
    return misfit_of(m, s, NULL, &dim, &axis) == FITS;
}

castor_status spec_shape(const mesh *m, const spec *s, int64_t *out) {
    char text[SPEC_TEXT];
    castor_status status = spec_print(s, text, sizeof text);
    if (status)
        return status;
    int64_t shard[SPEC_DIMS];
    int32_t dim, axis;
    switch (misfit_of(m, s, shard, &dim, &axis)) {
    case FITS:
        break;
    case NO_AXIS:
        return error_set(CASTOR_ERR_ARGUMENT, "sharding spec %s: axis %d of a mesh that has %d", text, axis,
                         m->axes);
    case AXIS_TWICE:
        return error_set(CASTOR_ERR_ARGUMENT,
                         "sharding spec %s: axis %d divides twice; an axis divides one dimension, once", text,
                         axis);
    case INDIVISIBLE:
        return error_set(
            CASTOR_ERR_ARGUMENT,
            "sharding spec %s: dimension %d has length %ld, which its axes do not divide into equal "
            "parts",
            text, dim, (long)s->shape[dim]);
    }
    if (out)
        memcpy(out, shard, (size_t)s->dims * sizeof *out);
    return CASTOR_OK;
}
