/* castor_status: the result of every function that can fail. The function that first decides that something is
 * wrong logs it, once; callers only pass the status on. */
#ifndef CASTOR_BASE_STATUS_H
#define CASTOR_BASE_STATUS_H

/* A macro, since the agent reads the names from the library (api/api.c). */
/* clang-format off */
#define CASTOR_STATUSES {                                                                                     \
    CASTOR_OK = 0,                                                                                            \
    CASTOR_ERR_ARGUMENT = 1,    /* the caller's value cannot be used */                                       \
    CASTOR_ERR_MEMORY = 2,      /* memory, address space or a memory limit is exhausted */                    \
    CASTOR_ERR_SYSTEM = 3,      /* a system call failed */                                                    \
    CASTOR_ERR_PEER = 4,        /* another rank died or left */                                               \
    CASTOR_ERR_TIMEOUT = 5,     /* CASTOR_TIMEOUT passed */                                                   \
    CASTOR_ERR_MISMATCH = 6,    /* values that must agree between ranks do not */                             \
    CASTOR_ERR_UNSUPPORTED = 7, /* cannot be done here; nothing was changed */                                \
    CASTOR_ERR_INTERRUPTED = 8, /* a signal handler of the script ended a wait by an exception */             \
    CASTOR_ERR_PARTED = 9,      /* the ranks reached different barriers: the script decided differently on them */ \
}
/* clang-format on */
typedef enum castor_status CASTOR_STATUSES castor_status;

#endif
