/* The CUDA kernels, as one fat binary (Makefile). Names are stable: the host looks kernels up by them, and the tests' simulated
 * devices give bodies to them. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "arguments.h"
#include "step_math.h"

#include "elements.cuh"
#include "steps.cuh"
