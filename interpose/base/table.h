/* Tables that grow by doubling. */
#ifndef CASTOR_BASE_TABLE_H
#define CASTOR_BASE_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* Makes room for one more entry after the first `count`. Returns the entries' new address, which replaces `entries`; NULL
 * without memory, and nothing has changed. Entries after `count` are undefined. */
void *table_room(void *entries, uint32_t *capacity, uint32_t count, size_t entry_bytes);

#endif
