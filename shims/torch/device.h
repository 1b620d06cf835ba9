/* c10::Device and std::optional<c10::DeviceType> as they lie in memory, in every version of PyTorch that Castor knows. */
#ifndef CASTOR_SHIMS_TORCH_DEVICE_H
#define CASTOR_SHIMS_TORCH_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#define C10_LIBRARY          "libc10.so"
#define TORCH_PYTHON_LIBRARY "libtorch_python.so"

#define C10_CPU      0
#define C10_CUDA     1
#define C10_NO_INDEX (-1)

typedef struct c10_device {
    int8_t type, index;
} c10_device;

typedef struct c10_device_type {
    int8_t type;
    bool known;
} c10_device_type;

#endif
