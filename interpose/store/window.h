/* Windows: the memory of p.grad after a backward.
 *
 * A window is a view of a tensor's sum. It has a lease on the sum of one generation, from the end of that backward until the script
 * frees the gradient (window_return, called by the storage's deleter), or until this rank's next gradient of the tensor is
 * ready. Then the window gets pages of its own (window_detach_all) and keeps its values. The mapping of a returned window is
 * reused in the next generation; a forgotten tensor's mappings end. */
#ifndef CASTOR_STORE_WINDOW_H
#define CASTOR_STORE_WINDOW_H

#include "tensor.h"

typedef struct window {
    tensor *tensor;
    char *address;
    bool live;    /* a script's tensor uses it */
    bool current; /* it shows the sum of the tensor's generation, and has the lease */
    bool zeroed;  /* anonymous memory stands in its place (window_zero) */
    struct window *next;
} window;

/* A window on the sum that the last backward completed. Shared tensors only. */
castor_status window_take(tensor *t, window **out);
/* The script freed the gradient. From any thread. */
void window_return(window *w);
/* Ends the mappings that no later generation will use. Callers hold the store's lock; the tensor is forgotten. */
void window_unmap_returned(tensor *t);
/* Makes every live window of the tensor independent of the store, and releases the sum. */
castor_status window_detach_all(tensor *t);
/* This rank's next gradient is ready and is added to the present sum: `w` ends its lease without a copy, and shows the sum again
 * after window_refresh; until then it may show parts of both. Other live windows (all, when `w` is NULL) become independent. */
castor_status window_carry(tensor *t, window *w);
/* The window shows the current sum again; what this rank wrote into it is dropped. */
castor_status window_refresh(window *w);
/* The window's values become zero at no cost, and its lease ends. */
castor_status window_zero(window *w);
/* This rank no longer reads the sum of the tensor's last generation. */
castor_status window_release_sum(tensor *t);

/* The owner of a sum that can be lent holds a lease from the start. Before the barrier that ends the registration. */
void window_lease_begin(tensor *t);
/* These sums, as far as the rank holds such a lease, become loans of its arena, in the model's order: until its first gradient, and from
 * the time when the script drops a gradient until its next one, its blocks may lie on the sum once all other ranks have released it. */
castor_status window_loans_add(tensor *const *tensors, uint32_t count);
/* All of this rank's leases that go on for its blocks end now. From any thread. */
castor_status window_loans_recall(store *s);
/* The tensor is forgotten, and no window of it is live. */
void window_loan_end(tensor *t);

#endif
