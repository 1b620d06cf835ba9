/* cuBLAS's functions that are not simulated. */
#include "refused.h"

#include "refused.def"
