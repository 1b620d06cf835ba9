"""The environment in which a program runs on simulated devices; see docs/rehearse.md.

    import simulated
    env = simulated.environment(devices=2, memory="8G")
    subprocess.run([sys.executable, "script.py"], env=env)
"""
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
BUILD = os.path.join(ROOT, "build")
CUDA = "13.0"  # whose functions the libraries have
LIBRARIES = ("libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libnccl.so.2")


def libraries(build=None):
    """The folder of the libraries, below the folder `build` (default: `build` in the root)."""
    return os.path.join(build or BUILD, "lib", "castor-simulation")


def left_out(whole=False):
    """Why the torch of this Python cannot be tried on the simulated devices; None: it can.

    whole: with everything that it does on CUDA. On later versions of CUDA 13 much works, and what they add is refused.
    """
    torch = importlib.util.find_spec("torch")
    if not torch or not torch.origin:
        return "this Python has no torch"
    folder = os.path.dirname(torch.origin)
    with open(os.path.join(folder, "version.py")) as file:
        text = file.read()
    version, cuda = (re.search(rf"^{name}\b.*= *'([^']*)'", text, re.M) for name in ("__version__", "cuda"))
    name = f"torch {version[1]}" if version else "this torch"
    if not cuda or not os.path.exists(os.path.join(folder, "lib", "libtorch_cuda.so")):
        return f"{name} is built for the CPU"
    if cuda[1] != CUDA and (whole or cuda[1].split(".")[0] != CUDA.split(".")[0]):
        return f"{name} is built for CUDA {cuda[1]}; CUDA {CUDA} is simulated"
    return None


def make(python, build=None, targets=("sim",)):
    """Builds the libraries for the Python that has torch, one process at a time. Returns None, or why they cannot be built."""
    make_command = os.environ.get("MAKE", "make").split()
    command = [*make_command, "-s", "-C", ROOT, *targets, f"PYTHON={python}"]
    if build:
        command.append(f"B={build}")
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    os.makedirs(build or BUILD, exist_ok=True)
    with open(os.path.join(build or BUILD, "sim.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return None if done.returncode == 0 else done.stdout.strip()


def need(whole=False, build=None, targets=("sim",)):
    """Builds the libraries for this Python, or fails. Another version of PyTorch than the one of `make setup-tests` may be for a
    CUDA that is not simulated: scripts/test-torch then leaves these tests out, which is said."""
    why = left_out(whole)
    if why and os.environ.get("TEST_TORCH"):
        raise unittest.SkipTest(why)
    why = why and f"{why}; `make setup-tests` makes .venv with the torch that the tests need" or make(sys.executable, build, targets)
    if why:
        raise AssertionError(f"{why}\nthe simulated devices cannot be built")


def preload(build=None):
    """The libraries for LD_PRELOAD. A library of the wheel finds them by their names, whatever its run path says."""
    return ":".join(os.path.join(libraries(build), name) for name in LIBRARIES)


def environment(devices=1, memory="8G", base=None, build=None, preload_first=None, numbers=False, **settings):
    """The environment of a program on simulated devices.

    devices, memory: how many, and bytes of each ("8G", "512M"). settings: more of the simulation's variables without
    `SIM_` and in lower case, for instance fail="cudaMalloc:3:2", latency="launch:100". preload_first: a library that
    stands in front of the simulation. numbers: PyTorch's kernels for the CPU compute what the device's would. base: the environment to
    start from (default: this process's).
    """
    env = dict(os.environ if base is None else base)
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(devices)))  # instead of the real devices
    parts = [preload_first, env.get("LD_PRELOAD"), preload(build)]  # `castor run` before it: the library of Castor is in front, too
    env["LD_PRELOAD"] = ":".join(part for part in parts if part)
    env["SIM_DEVICES"] = str(devices)
    env["SIM_MEMORY"] = str(memory)
    if numbers:
        env["PYTHONPATH"] = ":".join(filter(None, (os.path.join(libraries(build), "numbers"), env.get("PYTHONPATH"))))
    for name, value in settings.items():
        env[f"SIM_{name.upper()}"] = str(value)
    return env
