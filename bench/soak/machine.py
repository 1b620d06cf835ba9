"""What the results of the soak say of the machine, and how the processes of its jobs are found."""

import collections
import importlib.util
import os
import sys
import types

MARK = "SOAK_JOB"  # in the environment of every process of a job

_HERE = os.path.dirname(os.path.abspath(__file__))


def _gpt_cpu():
    """bench/gpt_cpu/run.py, which describes machine and versions for all benches; it has the name of this one's driver."""
    path = os.path.join(os.path.dirname(_HERE), "gpt_cpu", "run.py")
    sys.path.append(os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("gpt_cpu_run", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def describe_machine():
    return _gpt_cpu().describe_machine()


def describe_versions(python):
    return _gpt_cpu().describe_versions(types.SimpleNamespace(python=python, deepspeed_python=None))


def counted(words):
    return dict(sorted(collections.Counter(words).items()))


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
            return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}
    except OSError:
        return {}  # it has ended, or is not ours


def processes_of(mark):
    """{pid: its environment} of a job's processes."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            environment = environment_of(name)
            if environment.get(MARK) == mark:
                found[int(name)] = environment
    return found


def rank_of(environment):
    """The rank of a process that torchrun or `castor run --nproc` started; None of any other."""
    for name in ("RANK", "CASTOR_RANK"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None
