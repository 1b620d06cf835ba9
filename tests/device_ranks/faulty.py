"""Runs a program of this folder; from the beginning of CUDA calls of one rank fail or take long: faulty.py RANK FAIL LATENCY PROGRAM ARGUMENTS, as SIM_FAIL and
SIM_LATENCY say (docs/rehearse.md). With FAIL `count` none fails, and standard error tells at the end `calls NAME COUNT` of each function that was called."""
import atexit
import ctypes
import os
import runpy
import sys

TEXT_BYTES = 1 << 16


def tell():
    text = ctypes.create_string_buffer(TEXT_BYTES)
    ctypes.CDLL(None).sim_fault_calls(text, ctypes.c_size_t(len(text)))
    for line in text.value.decode().splitlines():
        print("calls", *line.split()[:2], file=sys.stderr)


rank, fail, latency, *sys.argv = sys.argv[1:]
if os.environ["RANK"] == rank:
    if fail == "count":
        fail = "none:0:0"
        atexit.register(tell)  # the last to run: what is registered later runs before it
    os.environ.update(SIM_FAIL=fail, SIM_LATENCY=latency)  # the simulation reads them with the first call
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
