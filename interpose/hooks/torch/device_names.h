/* Names and numbers of CUDA devices that mean the CPU. */
#ifndef CASTOR_HOOKS_TORCH_DEVICE_NAMES_H
#define CASTOR_HOOKS_TORCH_DEVICE_NAMES_H

/* From now on every device of CUDA that this process's PyTorch is asked for is the CPU. It says so at the first one, once per
 * job. Only for a process that has no GPU: tensors that are on one already stay there, and could not be named any more. */
void device_names_replace(void);
/* The same line, where Python code met the first device. */
void device_names_say(void);

#endif
