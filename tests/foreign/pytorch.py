"""PyTorch's own tests, plain and under Castor: each must end as it does without.

    pytorch.py DIR [NAME]...        DIR: a clone's work tree, best of the version that is installed; NAMEs select files whose path contains one of them
    pytorch.py DIR --markdown FILE  writes the results into docs/foreign.md as well

Results are kept in build/foreign/pytorch.json. A test that ends in another way is run by itself, plainly and under Castor, three times each:
one that plain PyTorch ends in several ways is no reference. The last line is `N passed, N failed`, of tests in modes."""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests")]
import runner  # noqa: E402
import sections  # noqa: E402

FILES = ("test_autograd.py", "test_nn.py", "test_torch.py", "test_optim.py", "test_serialization.py", "test_dataloader.py", "test_multiprocessing.py",
         "nn/test_convolution.py", "nn/test_dropout.py", "nn/test_embedding.py", "nn/test_lazy_modules.py", "nn/test_load_state_dict.py",
         "nn/test_module_hooks.py", "nn/test_multihead_attention.py", "nn/test_packed_sequence.py", "nn/test_parametrization.py", "nn/test_pooling.py",
         "nn/test_pruning.py", "optim/test_optim.py", "optim/test_lrscheduler.py", "optim/test_swa_utils.py")
MODES = {"gemini": [], "gemini, 512 MiB": ["--set", "CASTOR_MEMORY_BUDGET=512M"]}
TITLE = "PyTorch's own tests"
SECONDS = 2400
AGAIN = 3


def outcomes(path):
    """{test: how it ended}; of several ends (subtests) the worst."""
    found = {}
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                test, end = json.loads(line)
                if found.get(test, "ok") in ("ok", "skipped"):
                    found[test] = end
    return found


class Tests:
    def __init__(self, args, python):
        self.args, self.python = args, python
        self.work = os.path.join(args.build, "foreign", "pytorch")
        os.makedirs(self.work, exist_ok=True)

    def run(self, file, mode, arguments=()):
        """({test: how it ended}, how the process ended). mode: None is plain."""
        name = re.sub(r"\W+", "-", f"{file} {mode or 'plain'} {' '.join(arguments)}")
        output = os.path.join(self.work, name + ".jsonl")
        command = [self.python, os.path.join(HERE, "pytorch_driver.py"), output, os.path.abspath(os.path.join(self.args.repository, "test", file)), *arguments]
        if mode:
            command = [self.args.castor, "run", "--plugin", "gemini", *MODES[mode], "--log-dir", os.path.join(self.work, name + ".log"), "--", *command]
        with open(os.path.join(self.work, name + ".out"), "w") as text:
            process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                       env=dict(runner.environment(), PYTORCH_TEST_WITH_SLOW="0"))
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        ended = "in time" if process.returncode in (0, 1) else f"status {process.returncode}"
        return outcomes(output), ended

    def compare(self, file, mode, plain, found):
        """[(test, plain end, end under Castor)] of those that differ, after both were asked again."""
        differ = []
        for test in sorted(test for test in plain.keys() | found.keys() if plain.get(test) != found.get(test)):
            ends = {None: collections.Counter(), mode: collections.Counter()}
            for _ in range(AGAIN):
                for one in ends:
                    ends[one][self.run(file, one, (test.removeprefix("__main__."),))[0].get(test)] += 1
            if len(ends[None]) == 1 and ends[None] != ends[mode]:
                differ.append((test, next(iter(ends[None])) or "not reached", next(end for end in ends[mode] if end not in ends[None]) or "not reached"))
        return differ


def section(stored):
    rows = list(stored["files"].values())
    lines = [f"By `tests/foreign/pytorch.py`, with a clone of pytorch/pytorch at {stored['version']}, under torch {stored['torch']}, on CPUs. How each test ends is compared with",
             "how it ends in plain PyTorch; tests that fail there (of another version than the installed one) must fail as they do there.", "",
             "| file | tests | ok, plain | " + " | ".join(f"differ under {mode}" for mode in MODES) + " |", "| --- | --- | --- |" + " --- |" * len(MODES)]
    for file, row in sorted(stored["files"].items()):
        cells = [str(len(row["differ"].get(mode, []))) if mode in row["differ"] else "-" for mode in MODES]
        lines.append(f"| {file} | {row['tests']} | {row['ok']} | " + " | ".join(cells) + " |")
    total = [sum(len(row["differ"].get(mode, [])) for row in rows) for mode in MODES]
    lines.append(f"| all | {sum(row['tests'] for row in rows)} | {sum(row['ok'] for row in rows)} | " + " | ".join(map(str, total)) + " |")
    differ = [(mode, file, *one) for file, row in stored["files"].items() for mode, some in row["differ"].items() for one in some]
    if differ:
        lines += ["", "| mode | test | plain | under Castor |", "| --- | --- | --- | --- |"]
        lines += [f"| {mode} | {file} {test} | {plain} | {end} |" for mode, file, test, plain, end in differ]
    return "\n".join(lines)


def version_of(repository):
    path = os.path.join(repository, "version.txt")
    if not os.path.exists(path):
        return "an unknown version"
    with open(path) as file:
        return file.read().strip()


def main():
    import run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository")
    parser.add_argument("names", nargs="*", default=[""])
    run.add_arguments(parser)
    args = parser.parse_args()
    args.castor, args.build = os.path.abspath(args.castor), os.path.abspath(args.build)
    tests = Tests(args, run.environment(os.path.abspath(args.python), os.path.join(args.build, "foreign", "env")))
    place = os.path.join(args.build, "foreign", "pytorch.json")
    stored = {"files": {}}
    if os.path.exists(place):
        with open(place) as file:
            stored = json.load(file)
    torch = subprocess.run([tests.python, "-c", "import torch; print(torch.__version__.partition('+')[0])"], capture_output=True, text=True).stdout.strip()
    stored.update(version=version_of(args.repository), torch=torch)
    passed = failed = 0
    for file in FILES:
        if not any(name in file for name in args.names or [""]) or not os.path.exists(os.path.join(args.repository, "test", file)):
            continue
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda mode: tests.run(file, mode), [None, *MODES]))
        (plain, ended), others = results[0], dict(zip(MODES, results[1:]))
        if not plain:
            failed += 1
            print(f"{file}: plain PyTorch runs no test of it ({ended})", flush=True)
            continue
        row = stored["files"][file] = {"tests": len(plain), "ok": sum(end == "ok" for end in plain.values()), "differ": {}}
        for mode, (found, end) in others.items():
            row["differ"][mode] = differ = tests.compare(file, mode, plain, found)
            if end != ended:
                differ.append(("the whole file", ended, end))
            passed, failed = passed + len(plain) - len(differ), failed + len(differ)
            print(f"{file} {mode}: {len(plain)} tests, {len(differ)} differ", *differ, sep="\n    ", flush=True)
        with open(place, "w") as written:
            json.dump(stored, written, indent=1)
    if args.markdown:
        sections.replace(args.markdown, TITLE, section(stored))
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or not passed


if __name__ == "__main__":
    sys.exit(main())
