"""PyTorch's blocks come from the arena where it is on, from the system where it is off; nobody else's do."""
import unittest

import runner
import trace_files
from preload import LIBRARY, PreloadTest

# Prints how many of the tensors' blocks lie in one common range of page-aligned addresses, apart from the heap.
BLOCKS = """
import ctypes, torch
libc = ctypes.CDLL(None)
libc.malloc_usable_size.argtypes = [ctypes.c_void_p]
tensors = [torch.ones(n) for n in (1024, 1500, 5000, 70000, 3000000)]
for t in tensors:
    usable = libc.malloc_usable_size(t.data_ptr())
    assert usable >= t.numel() * 4, (usable, t.numel())
    print(int(t.data_ptr() % 4096 == 0), int(usable == (t.numel() * 4 + 4095) // 4096 * 4096))
small = torch.ones(10)
for _ in range(100):
    x = [torch.full((n * 991,), n) for n in range(1, 40)]
    assert all((v == n + 1).all() for n, v in enumerate(x))
"""

LIBC = """
import ctypes, torch
libc = ctypes.CDLL(None)
for name, result, arguments in [
    ("malloc", ctypes.c_void_p, [ctypes.c_size_t]), ("free", None, [ctypes.c_void_p]),
    ("realloc", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]),
    ("posix_memalign", ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]),
    ("malloc_usable_size", ctypes.c_size_t, [ctypes.c_void_p])]:
    getattr(libc, name).restype, getattr(libc, name).argtypes = result, arguments
# The C functions on PyTorch's own block: resized, it moves to the system's allocator with what it holds.
t = torch.arange(4096, dtype=torch.int64)
block = ctypes.c_void_p()
c10 = ctypes.CDLL("libc10.so")
alloc = c10._ZN3c109alloc_cpuEm
alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
own = alloc(8192)
ctypes.memset(own, 7, 8192)
assert own % 4096 == 0 and libc.malloc_usable_size(own) == 8192
larger = libc.realloc(own, 100000)
assert ctypes.string_at(larger, 8192) == b"\\7" * 8192 and larger != own
libc.free(larger)
own = alloc(8192)
assert libc.realloc(own, 0) is None
# Others' blocks, of the same functions.
assert libc.posix_memalign(ctypes.byref(block), 64, 100000) == 0
assert libc.malloc_usable_size(block) >= 100000
moved = libc.realloc(block, 200000)
libc.free(moved)
assert libc.posix_memalign(ctypes.byref(block), 3, 100) == 22
assert libc.malloc_usable_size(None) == 0
libc.free(None)
print("good")
"""

FORK = """
import os, torch, threading
x = torch.arange(100000)
stop = threading.Event()
def churn():
    while not stop.is_set():
        [torch.ones(n * 3000) for n in range(1, 20)]
threads = [threading.Thread(target=churn) for _ in range(3)]
[t.start() for t in threads]
for _ in range(20):
    child = os.fork()
    if child == 0:
        y = [torch.ones(n * 3000) for n in range(1, 20)]
        os._exit(0 if int(x.sum()) == 4999950000 and all(v.sum() == v.numel() for v in y) else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
[t.join() for t in threads]
print("good")
"""

# Frees 64 MiB, lets that peak pass, and prints how many freed MiB the arena still has resident.
RETAIN = """
import ctypes, os, torch
block = torch.empty(16 << 20).fill_(1)
del block
for _ in range(4000):
    torch.empty(1 << 18)
info = (ctypes.c_uint64 * 4)()
ctypes.CDLL(os.environ["LD_PRELOAD"]).castor_arena_get(info)
print(info[2] >> 20)
"""

WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        data = DataLoader(TensorDataset(torch.arange(64.)), batch_size=8, num_workers=2, multiprocessing_context=method)
        assert sum(float(x.sum()) for x, in data) == 2016, method
    print("good")
"""


class AllocationTest(PreloadTest):
    def blocks(self, **environment):
        out, errors = self.python(BLOCKS, **environment)
        self.assertEqual(errors, "")
        return out.split("\n")[:5]

    def test_blocks_are_whole_pages_of_the_arena(self):
        self.assertEqual(self.blocks(CASTOR_ARENA=1), ["1 1"] * 5)

    def test_observing_leaves_the_allocator_alone(self):
        self.assertNotIn("1 1", self.blocks())
        (process,) = self.counters()
        self.assertGreater(process.calls["posix_memalign"].count, 3900)
        self.assertGreater(process.calls["posix_memalign"].bytes, 12000000)
        # One in 64 of the small ones is timed.
        sample = process.file.counters[trace_files.SAMPLE_SLOT]
        self.assertAlmostEqual(sample.count / process.calls["posix_memalign"].count, 1 / 64, delta=1 / 640)
        self.assertGreater(sample.ns, 0)

    def test_a_plugin_has_the_arena(self):
        self.assertEqual(self.blocks(CASTOR_PLUGIN="gemini"), ["1 1"] * 5)

    def test_and_can_go_without(self):
        self.assertNotIn("1 1", self.blocks(CASTOR_PLUGIN="gemini", CASTOR_ARENA=0))

    def test_freed_memory_stays_as_far_as_the_option_says(self):
        for retain, least, most in (("0", 0, 4), ("32M", 28, 36)):
            with self.subTest(retain=retain):
                out, _ = self.python(RETAIN, CASTOR_ARENA=1, CASTOR_ARENA_RETAIN=retain)
                self.assertTrue(least <= int(out) <= most, out)

    def test_libc_functions_on_own_and_foreign_blocks(self):
        self.assertEqual(self.python(LIBC, CASTOR_ARENA=1), ("good\n", ""))

    @runner.long
    def test_beside_another_allocator(self):
        for name in ("jemalloc", "mimalloc"):
            other = runner.library(name)
            for preload in ((LIBRARY, other), (other, LIBRARY)):
                with self.subTest(preload=preload):
                    out, _ = self.python(BLOCKS + "print('good')", preload=preload, CASTOR_ARENA=1)
                    self.assertTrue(out.endswith("good\n"))

    def test_threads_and_forks(self):
        self.assertEqual(self.python(FORK, CASTOR_ARENA=1), ("good\n", ""))

    def test_data_loader_workers(self):
        path = self.folder + "/workers.py"
        with open(path, "w") as file:
            file.write(WORKERS)
        out, errors = self.run_program(__import__("sys").executable, path, CASTOR_ARENA=1)
        self.assertEqual((out, errors), ("good\n", ""))

    def test_without_address_space_the_system_serves(self):
        text = """
import resource, ctypes
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import torch
x = torch.ones(1000000)
assert x.sum() == 1000000
print("good")
"""
        # PyTorch itself may not fit into a small limit: the limit leaves it room, and the arena none of 1 TiB.
        out, _ = self.python(text.replace("3 << 30", "12 << 30"), CASTOR_ARENA=1)
        self.assertEqual(out, "good\n")


if __name__ == "__main__":
    unittest.main()
