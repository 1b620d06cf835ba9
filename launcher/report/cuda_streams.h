/* Work on CUDA streams, from the records of CUDA and NCCL. */
#ifndef CASTOR_LAUNCHER_REPORT_CUDA_STREAMS_H
#define CASTOR_LAUNCHER_REPORT_CUDA_STREAMS_H

#include "report.h"

/* A process's name for a stream. Handles below 3 mean the default stream of a device. */
typedef struct report_stream {
    uint64_t handle;
    uint32_t device; /* UINT32_MAX: the handle alone identifies the stream */
} report_stream;

/* For one process at a time: which of its hooks put work on streams. Zeroed at first. */
typedef struct report_stream_hooks {
    const report_process *process;
    uint8_t known[1024]; /* by hook id */
} report_stream_hooks;

/* The stream that a CALL or COLLECTIVE has put its work on. False: on none, or unknown. */
bool report_stream_of(report_stream_hooks *hooks, const report_process *process, const trace_record *record,
                      report_stream *out);
/* "stream 0x55d0c8a0", "default stream of device 0". */
void report_stream_name(const report_stream *stream, char *out, size_t out_size);

#endif
