/* Sharding specs: which axes of a mesh divide which dimension of a tensor.
 *
 *   partition  a dimension with the axes that divide it; the first axis divides into the largest parts
 *   spec       the whole tensor's shape with the partition of each dimension
 *   text       of a spec: [S01, R, R] is divided on dimension 0 by axis 0 and then axis 1, and whole (replicated) on 1 and 2
 *
 * Axes of a spec are digits in its text, and so at most MESH_AXES. A spec is a value; it fits a mesh or not (spec_shape). */
#ifndef CASTOR_PARALLEL_SPEC_H
#define CASTOR_PARALLEL_SPEC_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"
#include "mesh.h"

enum { SPEC_DIMS = 16, SPEC_TEXT = 192 };

typedef struct partition {
    int32_t dim, count; /* count: of axes */
    uint8_t axes[MESH_AXES];
} partition;

typedef struct spec {
    int32_t dims;
    uint8_t counts[SPEC_DIMS]; /* of axes that divide each dimension; 0: it is whole */
    uint8_t axes[SPEC_DIMS][MESH_AXES];
    int64_t shape[SPEC_DIMS]; /* of the whole tensor */
} spec;

/* Makes negative dimensions of a tensor of `dims` dimensions positive; `out` has room for `count`, may not be `in`, and keeps the
 * order. CASTOR_ERR_ARGUMENT: no such dimension, one twice (partition_merge takes that), more axes than a mesh has. */
castor_status partition_convert(int32_t dims, const partition *in, uint32_t count, partition *out);
/* The same, but puts partitions of one dimension together: their axes in the order of appearance. *merged: how many are left. */
castor_status partition_merge(int32_t dims, const partition *in, uint32_t count, partition *out,
                              uint32_t *merged);

/* From merged partitions; dimensions without one are whole. */
castor_status spec_make(const int64_t *shape, int32_t dims, const partition *partitions, uint32_t count,
                        spec *s);
/* SPEC_TEXT bytes are enough for any spec. */
castor_status spec_print(const spec *s, char *text, size_t size);

/* The shape of one rank's part. out: NULL, or `dims` numbers. CASTOR_ERR_ARGUMENT: the spec does not fit the mesh, since it has no
 * such axis, an axis divides twice, or a dimension is not divisible. */
castor_status spec_shape(const mesh *m, const spec *s, int64_t *out);
/* The same as true or false, without an error's text. */
bool spec_fits(const mesh *m, const spec *s);

#endif
