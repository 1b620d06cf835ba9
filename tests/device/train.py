"""Trains on a CUDA device, and prints all that there is to see of it, for run.py.

    train.py [--optimizer adamw] [--seed 1] [--deterministic] CASE[:OPTIMIZER][@SIM_FAIL]...
    train.py --list

Each case is a program of its own (cases/): it begins with the same random numbers and with an empty device, whatever came before it.
A case that raises says so, and the next one runs. The simulated devices have no numbers for graphs of CUDA, kernels of Triton
(torch.compile), sparse gradients, SyncBatchNorm and quantized tensors: these are no cases.
"""
import argparse
import ctypes
import gc
import sys
import tempfile
import traceback
import warnings

import torch

from cases import CASES
from cases.optimizers import OPTIMIZERS
from shown import Log


def simulation():
    """The library of the simulated devices; None: the device is a real one."""
    try:
        return ctypes.CDLL("libcastor-sim.so")
    except OSError:
        return None


def fail(faults):
    """From here on these calls of the simulated device fail, as SIM_FAIL says."""
    simulation().sim_fault_set(faults.encode(), None)


def called():
    """Since then: `NAME CALLS FAILED`, a line for each function."""
    text = ctypes.create_string_buffer(1 << 16)
    simulation().sim_fault_calls(text, ctypes.c_size_t(len(text)))
    return text.value.decode().splitlines()


def most_used():
    """Bytes of the first device since the last call, of a simulated one; else of PyTorch's allocator."""
    if not simulation():
        return torch.cuda.max_memory_reserved()
    peak = simulation().sim_memory_peak
    peak.restype = ctypes.c_size_t
    return peak(0)


def run(name, optimizer, faults, seed):
    """Returns whether the case ended well."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # one for each stream that was used
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(seed)
    before = torch.cuda.memory_allocated()
    most_used()
    print(f"== {name}:{optimizer}{'@' * bool(faults)}{faults}", flush=True)
    try:
        if faults:
            fail(faults)
        with tempfile.TemporaryDirectory(prefix="castor-device-") as folder:
            CASES[name][0](Log(folder, optimizer), OPTIMIZERS[optimizer])
        torch.cuda.synchronize()
    except Exception as error:
        print(f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
        traceback.print_exc()
        return False
    finally:
        if faults:
            for line in called():
                print(f"# called {line}", flush=True)
            fail("")
    print(f"# used {most_used()}")
    print(f"# memory {torch.cuda.max_memory_allocated()} reserved {torch.cuda.max_memory_reserved()} at first {before}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deterministic", action="store_true", help="PyTorch's kernels that give the same bits twice, where it has some")
    parser.add_argument("--list", action="store_true", help="the cases, and the optimizers that each may be run with")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    if args.list:
        for name, (_, optimizers) in CASES.items():
            print(name, *optimizers)
        return
    words = [word.partition("@") for word in args.cases]
    chosen = [(*case.partition(":")[::2], faults) for case, _, faults in words]
    chosen = [(name, optimizer or args.optimizer, faults) for name, optimizer, faults in chosen]
    wrong = [f"{name}:{optimizer}" for name, optimizer, _ in chosen if name not in CASES or optimizer not in CASES[name][1]]
    if wrong or not chosen:
        parser.error(f"no such case: {' '.join(wrong)}" if wrong else "name a case")
    torch.set_num_threads(1)
    if args.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        warnings.filterwarnings("ignore", message=".* does not have a deterministic implementation")
    sys.exit(0 if all([run(*one, args.seed) for one in chosen]) else 1)


if __name__ == "__main__":
    main()
