"""A device that runs out of memory: homes move to the host, and the allocation succeeds (interpose/hooks/cuda/rescue.c). On simulated
devices of 160 MiB; ctypes calls the functions as PyTorch does, by their exported names."""
import os
import sys
import unittest

from cuda_rows import ROOT
from preload import LIBRARY, PreloadTest

sys.path.insert(0, os.path.join(ROOT, "tests", "sim"))
import simulated  # noqa: E402

START = """
import ctypes, threading
lib = ctypes.CDLL(None)
MIB, OUT_OF_MEMORY = 1 << 20, 2
vp, size_t = ctypes.c_void_p, ctypes.c_size_t
lib.cudaFree.argtypes = [vp]
for kind in ("parameter", "gradient", "state"):
    function = getattr(lib, "castor_home_of_" + kind)
    function.restype, function.argtypes = vp, [ctypes.c_int64, ctypes.c_int, vp]
lib.castor_home_free.argtypes = [vp, ctypes.c_int64, ctypes.c_int, vp]

class Homes(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64 * 2 * 3), ("peak_bytes", ctypes.c_uint64 * 2 * 3), ("budget_bytes", ctypes.c_uint64),
                ("flips", ctypes.c_uint64 * 2), ("flipped_bytes", ctypes.c_uint64 * 2), ("flip_ns", ctypes.c_uint64),
                ("rescues", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 14)]

def home(kind, mib, byte=1):
    address = getattr(lib, "castor_home_of_" + kind)(mib * MIB, 0, None)
    assert address, kind
    ctypes.memset(address, byte, mib * MIB)  # the simulation lets the processor
    return address

def holds(address, mib, byte):
    return ctypes.string_at(address, mib * MIB) == bytes([byte]) * (mib * MIB)

def homes():
    out = Homes()
    lib.castor_homes_get(0, ctypes.byref(out))
    assert lib.castor_device_check(0) == 0
    return out

def on_host():  # MiB of parameters, gradients and states
    return [kind[1] // MIB for kind in homes().bytes]

def malloc(mib, function="cudaMalloc", *more):
    pointer = vp()
    return getattr(lib, function)(ctypes.byref(pointer), size_t(mib * MIB), *more), pointer.value

def free_mib(function="cudaMemGetInfo"):
    free, total = size_t(), size_t()
    assert getattr(lib, function)(ctypes.byref(free), ctypes.byref(total)) == 0
    assert total.value == 160 * MIB
    return free.value // MIB

assert lib.cudaSetDevice(0) == 0
assert lib.castor_device_start(0) == 0
"""


class RescueTest(PreloadTest):
    @classmethod
    def setUpClass(cls):
        simulated.need()

    def run_text(self, text, start=START, **settings):
        libraries = tuple(simulated.preload().split(":"))
        settings = {"SIM_DEVICES": 2, "SIM_MEMORY": "160M", **settings}
        return self.python(start + text, preload=(LIBRARY, *libraries), agent=False, **settings)

    def test_an_allocation_that_does_not_fit(self):
        out, errors = self.run_text("""
parameters, gradients, states = home("parameter", 32, 1), home("gradient", 32, 2), [home("state", 32, 3 + i) for i in range(2)]
status, small = malloc(8)
print(status, homes().rescues, on_host())
status, block = malloc(64)
print(status, lib.cudaGetLastError(), homes().rescues, on_host())
assert lib.cudaMemset(vp(block), 9, size_t(64 * MIB)) == 0
print(holds(parameters, 32, 1), holds(gradients, 32, 2), holds(states[0], 32, 3), holds(states[1], 32, 4))
status, more = malloc(60)
print(status, on_host())
status, none = malloc(200)
print(status, none, lib.cudaGetLastError(), lib.cudaGetLastError(), on_host())
assert lib.cudaFree(block) == 0 and lib.cudaFree(more) == 0 and lib.cudaFree(small) == 0
""")
        self.assertEqual(out.splitlines(), [
            "0 0 [0, 0, 0]",
            "0 0 1 [0, 0, 64]",  # the youngest first, and another one for the slack
            "True True True True",
            "0 [32, 32, 64]",
            "2 None 2 0 [32, 32, 64]",
        ])
        self.assertEqual(errors, "castor: device 0 was out of memory: 64.0 MiB of optimizer states moved to host memory\n")
        (process,) = self.counters()
        self.assertEqual(process.calls["cudaMalloc"].count, 4)  # however often it was tried
        self.assertEqual(process.calls["cudaMalloc"].bytes, 132 << 20)
        self.assertNotIn("cuMemCreate", process.calls)  # those of the homes

    def test_all_that_allocate(self):
        text = """
class Property(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handles", "location", "id")] + [("rest", ctypes.c_uint64 * 2)]

def create(mib, location, id=0):
    handle = ctypes.c_uint64()
    return lib.cuMemCreate(ctypes.byref(handle), size_t(mib * MIB), ctypes.byref(Property(1, 0, location, id)), ctypes.c_uint64(0))

state = home("state", 100)
print(CALL, on_host()[2], holds(state, 100, 1))
"""
        for call, rescued in (
            ('malloc(100, "cudaMallocAsync", None)[0]', True),
            ('malloc(100, "cudaMallocAsync_ptsz", None)[0]', True),
            ('malloc(100, "cuMemAlloc_v2")[0]', True),
            ("create(100, 1)", True),
            ("create(200, 1)", False),  # no device has so much: nothing moves in vain
            ("malloc(50)[0] or create(150, 1)", False),  # nor where all that moves is not enough
            ("create(200, 3)", False),  # host memory is missing
            ("create(200, 1, 1)", False),  # another device's, which has no homes
            ("lib.cudaSetDevice(1) or malloc(200)[0]", False),
            ('malloc(100, "cudaMallocManaged", 1)[0]', False),
        ):
            with self.subTest(call=call):
                out, errors = self.run_text(text.replace("CALL", call), SIM_HOST_MEMORY="150M")
                status = 2 if "200" in call or "150" in call else 0
                self.assertEqual(out, f"{status} {100 if rescued else 0} True\n")
                self.assertEqual(errors != "", rescued)

    def test_one_line_for_a_device(self):
        out, errors = self.run_text("""
home("parameter", 20), home("gradient", 20), home("state", 20), home("state", 20)
for mib in (110, 20, 20, 20):
    print(malloc(mib)[0], on_host())
""", SIM_HOST_MEMORY="70M")
        self.assertEqual(out, "0 [0, 0, 40]\n0 [0, 20, 40]\n2 [0, 20, 40]\n2 [0, 20, 40]\n")
        moved, stays, advice = errors.splitlines()
        self.assertRegex(advice, "^castor: device 0 is out of memory: with CASTOR_OVERFLOW=")
        self.assertEqual(moved, "castor: device 0 was out of memory: 40.0 MiB of optimizer states moved to host memory")
        self.assertRegex(stays, "^castor: device 0 is out of memory, and model data stays on it: ")

    def test_a_driver_that_maps_no_pages_of_the_host(self):
        """What does not fit is born on the host. Nothing moves, and an allocation that fails is PyTorch's affair, after one line."""
        out, errors = self.run_text("""
homes_of = [home("state", 64, 2), home("parameter", 64, 3), home("parameter", 64, 4)]
print(on_host(), [kind[0] // MIB for kind in homes().bytes], free_mib())
for mib in (24, 40, 40, 40, 40):
    print(malloc(mib)[0], lib.cudaGetLastError(), on_host())
print([holds(address, 64, 2 + i) for i, address in enumerate(homes_of)])
attributes = (ctypes.c_uint64 * 4)()
print([lib.cudaPointerGetAttributes(attributes, vp(address)) for address in homes_of])
for address in homes_of:
    lib.castor_home_free(address, 64 * MIB, 0, None)
print(on_host(), free_mib())
""", SIM_REFUSES="host-pages", CASTOR_OVERFLOW="1G")
        self.assertEqual(out.splitlines(), ["[64, 0, 0] [64, 0, 64] 32", "0 0 [64, 0, 0]", *["2 2 [64, 0, 0]"] * 4, "[True, True, True]", "[0, 0, 0]", "[0, 0, 0] 136"])
        level, *lines = errors.splitlines()
        self.assertRegex(level, r"^castor: device 0 maps no memory of the host at its addresses: .* \(error 801\)\. What is on the host stays there, and nothing is "
                                r"moved when memory runs out: give CASTOR_DEVICE_BUDGET; CASTOR_OVERFLOW has no effect$")
        self.assertEqual(lines, ["castor: device 0 is out of memory: its driver moves no model data, of which it has 128.0 MiB; give a smaller "
                                 "CASTOR_DEVICE_BUDGET"])

    def test_a_host_without_memory_for_homes(self):
        for refuses in ("", "host-pages"):
            with self.subTest(refuses=refuses):
                out, errors = self.run_text("""
home("parameter", 120)
print([lib.castor_home_of_parameter(64 * MIB, 0, None) for _ in range(2)], on_host())
""", SIM_HOST_MEMORY="32M", SIM_REFUSES=refuses)
                self.assertEqual(out, "[None, None] [0, 0, 0]\n")
                lines = [line for line in errors.splitlines() if "maps no memory of the host" not in line]
                self.assertEqual(len(set(lines)), 1, errors)
                self.assertRegex(lines[0], r"^castor: no room for a home of 64\.0 MiB \(param\w*\): homes have 120\.0 MiB of device 0 .* Give the device a larger budget")

    def test_drivers_without_homes(self):
        """Each says in one line what is missing; nothing has changed."""
        start = START.replace("assert lib.castor_device_start(0) == 0", "lib.castor_error.restype = ctypes.c_char_p\nprint(lib.castor_device_start(0), lib.castor_error().decode())")
        for says, settings in (
            (r"device 0 maps no memory of the host at its addresses: .* \(error 801\); cuMemHostAlloc of 2\.0 MiB on device 0: .* \(error 801\)", {"SIM_REFUSES": "host-pages,host-alloc"}),
            (r"cuMemGetAllocationGranularity on device 0: .* \(error 801\)", {"SIM_FAIL": "cuMemGetAllocationGranularity:1*:801"}),  # as a driver that is older
            (r"device 0 cannot map memory \(no virtual memory management\)", {"SIM_FAIL": "cuDeviceGetAttribute:1*:1"}),
            (r"cuDevicePrimaryCtxRetain on device 0: .* \(error 46\)", {"SIM_FAIL": "cuDevicePrimaryCtxRetain:1*:46"}),  # of which a part is somebody else's
        ):
            with self.subTest(says=says):
                out, errors = self.run_text("print(malloc(8)[0])", start, **settings)
                self.assertRegex(out, rf"^[1-9]\d* {says}\n0\n$")
                self.assertEqual(errors, "")

    def test_free_memory_counts_what_could_move(self):
        out, errors = self.run_text("""
state = home("state", 64)
print(free_mib(), free_mib("cuMemGetInfo_v2"), malloc(96)[0], free_mib(), malloc(60)[0], free_mib(), on_host())
lib.castor_home_free(state, 64 * MIB, 0, None)
print(free_mib())
assert lib.cudaSetDevice(1) == 0
print(free_mib())
""")
        self.assertEqual(out, "160 160 0 64 0 4 [0, 0, 64]\n4\n160\n")

    def test_never_while_a_stream_is_captured(self):
        out, errors = self.run_text("""
state, stream, graph, mode = home("state", 100), vp(), vp(), ctypes.c_int(2)
assert lib.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0

def elsewhere():
    assert lib.cudaThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(2))) == 0
    print(malloc(100)[0], on_host())

for _ in range(2):
    assert lib.cudaStreamBeginCapture(stream, 0) == 0
    assert lib.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0  # as PyTorch does to allocate
    print(malloc(100)[0], lib.cudaGetLastError(), on_host())
    other = threading.Thread(target=elsewhere)
    other.start(), other.join()
    assert lib.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
    assert lib.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0 and graph.value
print(malloc(100)[0], on_host())
""")
        self.assertEqual(out, "2 2 [0, 0, 0]\n2 [0, 0, 0]\n" * 2 + "0 [0, 0, 100]\n")

    def test_calls_of_other_threads_wait(self):
        """A copy that meets a home between its two places ends the simulated device with an error, and a set would be lost."""
        out, errors = self.run_text("""
import random, time
lib.cudaMemcpyAsync.argtypes = [vp, vp, size_t, ctypes.c_int, vp]
lib.cudaMemsetAsync.argtypes = [vp, ctypes.c_int, size_t, vp]
PART, COUNT, ROUNDS = 64 << 10, 16, 10
states, block, over, sets, wrong = [home("state", 8) for _ in range(COUNT)], malloc(4)[1], [], [0] * 4, []

def work(number):
    stream = vp()
    assert lib.cudaSetDevice(0) == 0 and lib.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    mine, pick = block + number * MIB, random.Random(number)
    while not over:
        byte, at = sets[number] % 251, states[pick.randrange(COUNT)] + number * MIB + pick.randrange(8) * PART
        status = (lib.cudaMemsetAsync(at, byte, PART, stream), lib.cudaMemcpyAsync(mine, at, PART, 4, stream),
                  lib.cudaStreamSynchronize(stream))
        if any(status) or ctypes.string_at(mine, PART) != bytes([byte]) * PART:
            wrong.append((status, number, sets[number]))
            return
        sets[number] += 1

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
failed = [malloc(26)[0]]
for _ in range(ROUNDS):
    before = sum(sets)
    failed.append(malloc(8)[0])
    while sum(sets) < before + 50 and not wrong:
        time.sleep(0.001)
over.append(True)
[thread.join() for thread in threads]
print(wrong, any(failed), homes().rescues >= ROUNDS // 2, on_host()[2] >= 8 * ROUNDS // 2)
""")
        self.assertEqual(out, "[] False True True\n")


if __name__ == "__main__":
    unittest.main()
