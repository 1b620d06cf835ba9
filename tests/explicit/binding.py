"""What the agent makes of the library's table, and what it says of one that it would read wrongly."""
import ctypes

from castor.agent import core

core.require()
print(core.gather.argtypes == [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p])
print(core.option_get.argtypes == [ctypes.c_uint32, ctypes.POINTER(core.Option)], core.failure_cause.restype is ctypes.c_uint64)
print(core.Memory.bytes.offset, core.Memory.bytes.size, core.StepRange().states[:], core.Adam().step.clip)
print(core.GRADIENT_COMPLETE, core.MODE_LOCAL, core.DTYPE_BF16, core.ERR_PARTED)
print(core.options.plugin, core.options.accumulate, core.options.chunk_size, core.options.timeout, core.options.debug)
try:
    core.nodes_find((ctypes.c_int32 * 1)(), 1, 0, None, None, None)
except ctypes.ArgumentError:
    print("identities have 64 bits")
try:
    core._declare(None, "struct castor_wrong { int32_t first; double second; }", 12)
except core.Error as error:
    print(error)
