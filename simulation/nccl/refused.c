/* What later versions of NCCL have as well: windows and their signals, communicators that grow, sleep or are revoked.
 * PyTorch imports the functions; they exist and do nothing. */

#define NCCL_INVALID_USAGE 5 /* ncclInvalidUsage; the headers would declare what follows otherwise */

#define REFUSED(function)                                                                                    \
    int function(void);                                                                                      \
    int function(void) {                                                                                     \
        return NCCL_INVALID_USAGE;                                                                           \
    }

REFUSED(ncclCommGetUniqueId)
REFUSED(ncclCommGrow)
REFUSED(ncclCommMemStats)
REFUSED(ncclCommResume)
REFUSED(ncclCommRevoke)
REFUSED(ncclCommSuspend)
REFUSED(ncclGetLsaMultimemDevicePointer)
REFUSED(ncclGetPeerDevicePointer)
REFUSED(ncclPutSignal)
REFUSED(ncclSignal)
REFUSED(ncclWaitSignal)
REFUSED(ncclWinGetUserPtr)
