/* What the report knows about kinds of collectives, whatever library they come from. */
#include <ctype.h>
#include <string.h>
#include "collective_statistics.h"

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
