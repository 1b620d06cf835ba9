"""Runs a script of this folder, or a text, in each of the ways in which the explicit API must work, and reads what it found.

A script calls found(NAME, VALUE) (found.py) for what the tests compare with figures worked out by hand."""
import json
import os
import subprocess
import sys
import tempfile

import runner

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(FOLDER), "sim"))
import simulated  # noqa: E402

LIMIT_S = 240  # of one job; reached only by a failure

# How a job is started: by itself, without the library; observed only, so that PyTorch is as it is; with the node store.
ALONE, NONE, GEMINI = "alone", "none", "gemini"
# The ways in which tests look at what a script finds. The figures are worked out by hand: one way needs no other to compare with.
WAYS = (NONE, GEMINI) if runner.LENGTH == "all" else (GEMINI,)


def castor():
    return os.environ["EXPLICIT_TEST_CASTOR"]


def environment(how, more):
    clean = dict(runner.environment(), PYTHONPATH=FOLDER)
    if how == ALONE:
        clean["PYTHONPATH"] = os.path.join(os.path.dirname(os.path.dirname(castor())), "lib", "castor")
    return dict(clean, **more)


def devices(count, memory="1G", numbers=True):
    """The environment of a job with simulated devices. Small workspaces of cuBLAS, which count as well."""
    base = environment(NONE, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    return simulated.environment(devices=count, memory=memory, numbers=numbers, base=base)


def start(command, how, *, nproc=None, cwd=None, fresh=False, **more):
    """Runs a Python command (a list); `more` is its environment. `fresh`: the start of a process is what is looked at; else it may be a fork,
    which runs a text as a script."""
    variables = environment(how, more)
    with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
        own = os.path.join(folder, "own")
        os.mkdir(own)
        if command[0] == "-c" and how != ALONE and not fresh:
            text, command = command[1], [os.path.join(folder, "text.py"), *command[2:]]
            with open(command[0], "w") as file:
                file.write(text)
        forked = how != ALONE and not fresh and not command[0].startswith("-") and command[0] != runner.START_RANKS
        command = [*(runner.script(how, variables) if forked else [sys.executable]), *command]
        if how != ALONE:
            command = [castor(), "run", "--plugin", how, "--log-dir", "log", *(runner.nproc(nproc, command) if nproc else []), "--", *command]
        return subprocess.run(command, env=variables, cwd=cwd or own, capture_output=True, text=True, timeout=LIMIT_S)


def job(script, ranks, how, *arguments, **more):
    """What each rank found, in rank order. One rank: a plain process."""
    with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
        command = [os.path.join(FOLDER, script), *arguments]
        if ranks > 1:
            command = [*runner.ranks(ranks)[1:], *command]
        done = start(command, how, cwd=folder, EXPLICIT_TEST_FOUND=folder, **more)
        if done.returncode:
            raise AssertionError(f"{script}, {ranks} ranks, {how}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        if how == GEMINI and ranks > 1 and "PyTorch's reducer" in done.stderr:
            raise AssertionError(f"{script}: the plugin stepped aside\n{done.stderr}")
        return [json.load(open(os.path.join(folder, f"found-{rank}.json"))) for rank in range(ranks)]


_made = {}  # what once() was called with: (what job() returned, its error)


def once(*arguments, **more):
    """job(), made once for all tests that look at it."""
    key = (*arguments, *sorted(more.items()))
    if key not in _made:
        try:
            _made[key] = job(*arguments, **more), None
        except (AssertionError, subprocess.TimeoutExpired) as error:
            _made[key] = None, error
    result, error = _made[key]
    if error is not None:
        raise error.with_traceback(None)  # else each test would add its lines to it
    return result
