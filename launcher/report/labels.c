/* What the report calls things: ids and gauges of traces, operations of whatever library, classes of sizes, symbols; and the lines
 * of text that it collects. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "collective_statistics.h"

static bool add_line(char ***lines, size_t *count, const char *format, va_list arguments) {
    char *line;
    if (vasprintf(&line, format, arguments) < 0)
        return false;
    char **larger = realloc(*lines, (*count + 1) * sizeof *larger);
    if (larger == NULL) {
        free(line);
        return false;
    }
    *lines = larger;
    (*lines)[(*count)++] = line;
    return true;
}

bool report_add_note(report *report, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    bool added = add_line(&report->notes, &report->note_count, format, arguments);
    va_end(arguments);
    return added;
}

bool report_add_problem(report *report, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    bool added = add_line(&report->problems, &report->problem_count, format, arguments);
    va_end(arguments);
    return added;
}

static const struct {
    const char *label;
    report_memory_role role;
    trace_gauge gauge;
} memory_kinds[] = {
#define MEMORY(gauge, label, role, doc) {label, REPORT_MEMORY_##role, GAUGE_##gauge},
#include "trace/memory.def"
};

const char *report_memory_label(report_memory_kind kind) {
    return memory_kinds[kind].label;
}
report_memory_role report_memory_role_of(report_memory_kind kind) {
    return memory_kinds[kind].role;
}
trace_gauge report_memory_gauge(report_memory_kind kind) {
    return memory_kinds[kind].gauge;
}

const char *report_id_name(const trace_counters *counters, uint32_t kind, uint32_t id, char fallback[32]) {
    static const char *const kind_names[] = {
#define RECORD(id, name, id_holds, ids, a, b, c, doc) name,
#include "trace/record.def"
    };
    const char *name = trace_read_name(counters, kind, id);
    if (name != NULL)
        return name;
    snprintf(fallback, 32, "%s-%u", kind_names[kind], id);
    return fallback;
}

typedef enum traffic {
    TRAFFIC_NONE,
    TRAFFIC_ONCE,         /* the buffer crosses the bus once */
    TRAFFIC_ALL_REDUCE,   /* reduced and spread: 2(n-1)/n of the buffer */
    TRAFFIC_OTHERS_PARTS, /* the payload is one part; n-1 others move */
    TRAFFIC_OWN_PARTS,    /* the payload is all parts; (n-1)/n of them move */
} traffic;

/* The first row whose word the name holds decides. */
static const struct {
    const char *word; /* lower-case letters only */
    traffic traffic;
    bool synchronous;
} operations[] = {
    {"barrier", TRAFFIC_NONE, true},         {"reducescatter", TRAFFIC_OWN_PARTS, true},
    {"allreduce", TRAFFIC_ALL_REDUCE, true}, {"allgather", TRAFFIC_OTHERS_PARTS, true},
    {"alltoall", TRAFFIC_OWN_PARTS, true},   {"broadcast", TRAFFIC_ONCE, false},
    {"bcast", TRAFFIC_ONCE, false},          {"gather", TRAFFIC_OTHERS_PARTS, false},
    {"scatter", TRAFFIC_NONE, false}, /* the root contributes all parts, the others receive one */
    {"reduce", TRAFFIC_ONCE, false},         {"send", TRAFFIC_ONCE, false},
    {"recv", TRAFFIC_ONCE, false},
};

static int find_operation(const char *name) {
    char letters[64];
    size_t length = 0;
    for (; *name != '\0' && length < sizeof letters - 1; name++)
        if (isalpha((unsigned char)*name))
            letters[length++] = (char)tolower((unsigned char)*name);
    letters[length] = '\0';
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strstr(letters, operations[i].word) != NULL)
            return (int)i;
    return -1;
}

double report_bus_factor(const char *operation, uint32_t ranks) {
    int found = find_operation(operation);
    double n = ranks;
    if (found < 0 || ranks < 2)
        return 0;
    switch (operations[found].traffic) {
    case TRAFFIC_ONCE:
        return 1;
    case TRAFFIC_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case TRAFFIC_OTHERS_PARTS:
        return n - 1;
    case TRAFFIC_OWN_PARTS:
        return (n - 1) / n;
    default:
        return 0;
    }
}

bool report_is_synchronous(const char *operation) {
    int found = find_operation(operation);
    return found >= 0 && operations[found].synchronous;
}

/* Steps of 16; the last one is open. */
static const struct {
    uint64_t begin;
    const char *label;
} size_classes[REPORT_SIZE_CLASSES] = {
    {0, "none"},
    {1, "below 1 KiB"},
    {UINT64_C(1) << 10, "1 to 16 KiB"},
    {UINT64_C(1) << 14, "16 to 256 KiB"},
    {UINT64_C(1) << 18, "256 KiB to 4 MiB"},
    {UINT64_C(1) << 22, "4 to 64 MiB"},
    {UINT64_C(1) << 26, "64 MiB to 1 GiB"},
    {UINT64_C(1) << 30, "1 GiB and more"},
};

uint32_t report_size_class(uint64_t bytes) {
    uint32_t found = 0;
    while (found + 1 < REPORT_SIZE_CLASSES && bytes >= size_classes[found + 1].begin)
        found++;
    return found;
}
const char *report_size_class_label(uint32_t size_class) {
    return size_classes[size_class].label;
}
uint64_t report_size_class_begin(uint32_t size_class) {
    return size_classes[size_class].begin;
}

void report_shorten_symbol(char *out, size_t out_size, const char *symbol) {
    size_t length = 0;
    const char *at = symbol;
    if (strncmp(symbol, "_ZN", 3) == 0) {
        at += 3;
        while (*at == 'K' || *at == 'V' || *at == 'r')
            at++;
        while (*at >= '1' && *at <= '9') {
            size_t part = 0;
            while (*at >= '0' && *at <= '9' && part < 4096)
                part = part * 10 + (size_t)(*at++ - '0');
            if (part > strlen(at) || length + part + 3 > out_size)
                break;
            length += (size_t)snprintf(out + length, out_size - length, "%s%.*s", length > 0 ? "::" : "",
                                       (int)part, at);
            at += part;
        }
        if (*at == 'E' && length > 0)
            return;
    }
    snprintf(out, out_size, "%s", symbol);
}
