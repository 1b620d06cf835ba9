/* The wheels carry CUDA's headers without this one, which belongs to the compiler. C needs only these words of it. */
#ifndef SIM_CRT_HOST_DEFINES_H
#define SIM_CRT_HOST_DEFINES_H

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n)         __attribute__((aligned(n)))
#define __forceinline__      __inline__ __attribute__((always_inline))
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB

#endif
