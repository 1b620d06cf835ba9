/* c10::Device, std::optional<c10::DeviceType> and std::string as they lie in memory, in every version of PyTorch that Castor knows. */
#ifndef CASTOR_SHIMS_TORCH_DEVICE_H
#define CASTOR_SHIMS_TORCH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
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

/* The beginning of a std::string of libstdc++. */
typedef struct std_string {
    const char *text;
    size_t size;
} std_string;

#endif
