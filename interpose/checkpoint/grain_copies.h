/* Memory for copies of grains, of large pages where there are some: a new small page costs the system more than the copy of its
 * bytes. It is given back as soon as no copy is left in 16 neighbours. */
#ifndef CASTOR_CHECKPOINT_GRAIN_COPIES_H
#define CASTOR_CHECKPOINT_GRAIN_COPIES_H

#include <stdint.h>

#define GRAIN_BYTES (2ul << 20)

/* Room for a grain; NULL: none. Neither allocates by malloc. */
char *copies_take(void);
void copies_give(char *copy);
/* Bytes of copies, now and at most so far. */
void copies_bytes(uint64_t *now, uint64_t *most);
/* The parent's copies are not the child's. */
void copies_fork_child(void);

#endif
