/* The exported functions about what this process waits for: thin, over the trace. */
#include "castor.h"

#include "trace/live.h"

void castor_process_group_announce(const char *name, const int32_t *ranks, size_t count) {
    live_process_group_announce(name, ranks, count);
}

void castor_stack_teller_set(void (*tell)(const char *path)) {
    live_stack_teller_set(tell);
}
