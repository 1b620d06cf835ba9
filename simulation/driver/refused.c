/* The driver's functions that are not simulated: they exist, and say so. Older forms of functions that are (cuMemAlloc
 * beside cuMemAlloc_v2) do not exist. */
#define NOT_SUPPORTED 801 /* CUDA_ERROR_NOT_SUPPORTED; the headers would declare what follows otherwise */

int sim_fault_look(const char *function); /* of the engine */

static int refuse(const char *function) {
    int fault = sim_fault_look(function);

    return fault ? fault : NOT_SUPPORTED;
}

#define REFUSED(name)                                                                                        \
    int name(void);                                                                                          \
    int name(void) {                                                                                         \
        return refuse(#name);                                                                                \
    }
#include "refused.def"
