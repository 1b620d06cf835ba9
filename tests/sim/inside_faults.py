"""Failures of devices under PyTorch: a launch with a dangling pointer, with SIM_CHECK=fault; started by run.py."""
import ctypes
import os

import torch

import inside


def test_injected_by_the_environment():
    # SIM_FAIL=cudaHostAlloc:2:2: the second call fails, the others do not
    torch.empty(1 << 20, pin_memory=True)
    try:
        torch.empty(64 << 20, pin_memory=True)
        raise AssertionError("the second host allocation works")
    except RuntimeError as error:
        assert "out of memory" in str(error), error
    torch.empty(64 << 20, pin_memory=True)


def test_log_of_launches():
    torch.empty(10, device="cuda").fill_(1)
    torch.cuda.synchronize()
    with open(os.environ["SIM_LAUNCHES"]) as log:
        last = log.read().splitlines()[-1]
    assert "FillFunctor" in last and "grid=1,1,1" in last and "pointers=1 dangling=0" in last, last


def test_dangling_pointer_ends_the_context():
    """The last test: nothing works behind it, as on a device."""
    values = torch.zeros(1 << 22, device="cuda")
    torch.cuda.synchronize()
    runtime = ctypes.CDLL("libcudart.so.13")
    assert runtime.cudaFree(ctypes.c_void_p(values.data_ptr())) == 0  # behind PyTorch's back
    try:
        values.add_(1)
        torch.cuda.synchronize()
        raise AssertionError("the launch works")
    except RuntimeError as error:
        assert "illegal memory access" in str(error), error
    assert inside.engine.sim_launch_dangling() >= 1
    try:
        torch.cuda.synchronize()
        raise AssertionError("the context goes on")
    except RuntimeError as error:
        assert "illegal memory access" in str(error), error


if __name__ == "__main__":
    import sys
    try:
        inside.main(globals())
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code)  # the context is gone: PyTorch's destructors would complain
