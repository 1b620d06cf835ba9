/* Which node a process is on, as the node store sees it. No malloc, no stdio. */
#ifndef CASTOR_CORE_NODE_H
#define CASTOR_CORE_NODE_H

#include <stdint.h>

/* The same for processes that can share a store, and for no others: those of one running kernel that see each other's
 * abstract sockets (network namespace) and processes (process namespace), and are of one user. Never 0. */
uint64_t node_identity(void);

#endif
