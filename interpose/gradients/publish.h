/* Publication: how a tensor's owner shows new bytes to every rank.
 *
 * Between publish_begin and publish_end only owners write, and only through the aliases. publish_begin is a barrier: after it
 * nobody reads the old bytes. publish_end is one too: after it every rank sees what the owners wrote; what a rank had edited in
 * its own view of a published tensor is gone. */
#ifndef CASTOR_GRADIENTS_PUBLISH_H
#define CASTOR_GRADIENTS_PUBLISH_H

#include "store/tensor.h"
#include "store/wait.h"

/* The agreed values must be the same on every rank; `every` takes what each says (ranks_agree). */
castor_status publish_begin(store *s, const ranks_values *agreed, const void *said, size_t bytes,
                            void *every);
/* What this rank edited in its views of the tensors that it owns, and that no other node keeps, goes to the store: the aliases hold what
 * it sees. */
void publish_push(tensor *const *tensors, uint32_t count);
/* The owner wrote the alias. */
void publish_mark(tensor *t);
/* changed[i]: the tensor was published since this rank's last publish_end. */
castor_status publish_end(store *s, tensor *const *tensors, uint32_t count, uint8_t *changed);

/* Every rank has changed the tensors in its own view. The owners' bytes go to the store, and every rank drops its own copies of pages
 * that are equal now; pages that differ stay its own. What another node keeps waits for that node's owners: */
castor_status publish_deduplicate(store *s, tensor *const *tensors, uint32_t count, const char *what);
/* After the owners of all nodes have done so, and this node has dropped what it had of theirs: the same for what others keep. */
castor_status publish_deduplicate_elsewhere(store *s, tensor *const *tensors, uint32_t count);

#endif
