"""Runs a program of this folder; from the beginning of CUDA calls of one rank fail or take long: faulty.py RANK FAIL LATENCY PROGRAM ARGUMENTS, as SIM_FAIL and
SIM_LATENCY say (tests/sim/README.md)."""
import os
import runpy
import sys

rank, fail, latency, *sys.argv = sys.argv[1:]
if os.environ["RANK"] == rank:
    os.environ.update(SIM_FAIL=fail, SIM_LATENCY=latency)  # the simulation reads them with the first call
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
