/* cuBLASLt's: algorithms are chosen by the heuristic alone. */
#include "refused.h"

REFUSED(cublasLtMatmulAlgoCheck)
REFUSED(cublasLtMatmulAlgoConfigGetAttribute)
REFUSED(cublasLtMatmulAlgoConfigSetAttribute)
REFUSED(cublasLtMatmulAlgoInit)
