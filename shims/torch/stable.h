/* The functions of libtorch's stable C ABI that this project calls, declared for C (PyTorch's own headers are
 * C++).
 *
 * They are exported by libtorch_cpu.so and looked up at run time. A tensor handle is an `at::Tensor *`: the
 * address of a C++ tensor object serves as one, without a conversion and without a change of its reference
 * count. */
#ifndef CASTOR_SHIMS_TORCH_STABLE_H
#define CASTOR_SHIMS_TORCH_STABLE_H

#include <stddef.h>
#include <stdint.h>

#define TORCH_CPU_LIBRARY  "libtorch_cpu.so"
#define TORCH_CUDA_LIBRARY "libtorch_cuda.so"

typedef struct AtenTensorOpaque *AtenTensorHandle;
typedef int32_t AOTITorchError; /* 0: success */

typedef AOTITorchError aoti_torch_get_numel_function(AtenTensorHandle tensor, int64_t *numel);
typedef AOTITorchError aoti_torch_get_dtype_function(AtenTensorHandle tensor, int32_t *dtype);
typedef size_t aoti_torch_dtype_element_size_function(int32_t dtype);

#endif
