/* Tables that grow by doubling. */
#ifndef CASTOR_CORE_TABLE_H
#define CASTOR_CORE_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* Room for one more entry behind the first `count`. Returns where the entries lie now, which replaces `entries`; NULL without
 * memory, with all as it was. What lies behind `count` is undefined. */
void *table_room(void *entries, uint32_t *capacity, uint32_t count, size_t entry_bytes);

#endif
