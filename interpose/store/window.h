/* Windows: what p.grad is made of after a backward.
 *
 * A window is a view of a tensor's sum. It holds a lease on the sum of one epoch from the end of that backward until
 * the script lets the tensor go (window_return, called by the storage's deleter) or until this rank's next gradient
 * of the same tensor is ready, when the window gets pages of its own (window_detach_all) and keeps its values for as
 * long as the script likes. A returned window's mapping is kept for the next epoch, if the tensor has one: those of a
 * forgotten tensor end. */
#ifndef CASTOR_STORE_WINDOW_H
#define CASTOR_STORE_WINDOW_H

#include "tensor.h"

typedef struct window {
    tensor *tensor;
    char *address;
    bool live;    /* a script's tensor uses it */
    bool current; /* it shows the sum of the tensor's epoch, and holds the lease */
    bool zeroed;  /* anonymous memory stands in its place (window_zero) */
    struct window *next;
} window;

/* A window on the sum that the last backward completed. Shared tensors only. */
castor_status window_take(tensor *t, window **out);
/* The script dropped the tensor. From any thread. */
void window_return(window *w);
/* Ends the mappings that no later epoch will use. Callers hold the store's lock; the tensor is forgotten. */
void window_unmap_returned(tensor *t);
/* Makes every live window of the tensor independent of the store, and releases the sum. */
castor_status window_detach_all(tensor *t);
/* This rank's next gradient is ready and goes into the sum that stands there: `w` lets go of it without a copy and shows it
 * again with window_refresh; until then it may show parts of both. Other live windows (all, when `w` is NULL) become
 * independent. */
castor_status window_carry(tensor *t, window *w);
/* The window shows the current sum again; what this rank wrote into it is dropped. */
castor_status window_refresh(window *w);
/* The window's values become zero at no cost; it lets go of the sum. */
castor_status window_zero(window *w);
/* Nothing of this rank looks at the sum of the tensor's last epoch any more. */
void window_release_sum(tensor *t);

#endif
