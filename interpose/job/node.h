/* The node of a process, in the sense of the node store. No malloc, no stdio. */
#ifndef CASTOR_JOB_NODE_H
#define CASTOR_JOB_NODE_H

#include <stdint.h>

/* The same number for processes that can share a store, and for no others: they run on one kernel, see each other's abstract
 * sockets (network namespace) and processes (process namespace), and belong to one user. Never 0. */
uint64_t node_identity(void);

#endif
