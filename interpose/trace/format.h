/* The trace format, shared by the recorder and the reader. Everything is little-endian, naturally aligned.
 *
 * A job's directory holds, per process, one counter file and, per thread, numbered segment files. */
#ifndef CASTOR_TRACE_FORMAT_H
#define CASTOR_TRACE_FORMAT_H

#include <stdint.h>

#define TRACE_VERSION 1u

typedef enum trace_record_kind {
#define RECORD(id, name, id_holds, a, b, c, doc) TRACE_##id,
#include "record.def"
    TRACE_RECORD_KIND_COUNT
} trace_record_kind;

typedef enum trace_gauge {
#define GAUGE(id, name, doc) GAUGE_##id,
#include "gauge.def"
    GAUGE_COUNT
} trace_gauge;

/* One record, 64 bytes. */
typedef struct trace_record {
    uint64_t begin_ns, end_ns;
    uint32_t kind, id;
    uint64_t bytes, a, b, c;
    uint64_t reserved;
} trace_record;

#endif
