"""Scripts that train on a CUDA device, with Castor keeping what does not fit its budget on the host: all that they print must be what
plain PyTorch prints, to the last bit of each tensor. On simulated devices with numbers (docs/rehearse.md).

    tests/device/run.py [--castor build/bin/castor] [--plugin gemini|none|plain] [--jobs 2] [--device NAME] [--scripts] [--gpu] [--seed 1] [NAME]...

Trains the cases of train.py, and scripts of tests/scripts (on_device.py). NAMEs select cases: `gpt` the rows that the short length has of
it, `gpt:adamw` each that there is with this optimizer; and scripts: `loops.py`, `loops.py:adam`. --device selects
what they run on by a part of its name in rows.py. The plugin `plain` runs plain PyTorch a second time. Needs a torch for the CUDA of the
simulation. --gpu: on the first GPU of this machine, the rows that need no simulation; what plain PyTorch cannot repeat to the bit there, or
cannot run, is left out. The last line is `N passed, N failed`.
"""
import argparse
import concurrent.futures
import dataclasses
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
sys.path[1:1] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "tests", "semantics"), os.path.join(ROOT, "tests", "sim")]
import launch  # noqa: E402
import plain_jobs  # noqa: E402
import rows  # noqa: E402
import rows_scripts  # noqa: E402
import runner  # noqa: E402
import simulated  # noqa: E402
from complaints import last_words, what_is_wrong_with  # noqa: E402

TRAIN, ON_DEVICE = os.path.join(FOLDER, "train.py"), os.path.join(FOLDER, "on_device.py")
TOGETHER, SCRIPTS_TOGETHER = 10, 40  # cases that share a process, for one `import torch`
START_S, CASE_S = 60, 30  # that a run may take; reached only by a failure
PLACED = re.compile(r"^castor: (?:rank 0: )?device \d+ had at most (\d+) bytes of model data at a time on the host; (\d+) times some came back, and (\d+) steps of a parameter were done there$")
RESCUED = re.compile(r"^castor: (?:rank 0: )?device \d+(: no memory for .* of slots| (was|is) out of memory: )")
SMALL_SHARES = re.compile(r"^castor: (?:rank 0: )?device \d+: (slots|parts) have .*[.] (CASTOR_DEVICE_BUDGET=\d+M|No budget of this device) would do$")
HELD = re.compile(r"^castor: (?:rank 0: )?device \d+: [\d.]+ MiB of parameters stay there, since other code has their addresses ")
OVERFLOWED = re.compile(r"^castor: a gradient overflowed: ")
# Beside a budget: the invariants are checked at each step, and it is said at the end where the model data was.
TOLD_OF_ACTIVATIONS = r"device \d+: activations of [\d.]+ MiB were on the host at a time, (?!0\.00 )"
ACTIVATIONS = re.compile(rf"^castor: (?:rank 0: )?{TOLD_OF_ACTIVATIONS}")
OPTIONS = ("CASTOR_DEBUG=1",)
AWAY = "CASTOR_ACTIVATIONS=offload", "CASTOR_ACTIVATIONS_LEAST=1"
CLEAR = re.compile(r"raised (RuntimeError|AcceleratorError|OutOfMemoryError|Error): .*\w")  # of PyTorch or Castor


def placed(output):
    """Bytes of model data that had homes on the host at most, how often some came back to the device, and how many parameters were stepped on
    the host, by what Castor says on standard error at the end; None: it does not say."""
    found = [tuple(map(int, match.groups())) for match in map(PLACED.search, output.splitlines()) if match]
    return max(found, default=(None, 0, 0))


def sections(printed, words):
    """What each of them printed."""
    found, lines = {}, []
    for line in printed.splitlines():
        if line.startswith("== ") and line[3:] in words:
            lines = found.setdefault(line[3:], [])
        else:
            lines.append(line)
    return found


def number_after(word, lines):
    """In the last line that begins so."""
    return next((int(line.split()[len(word.split())]) for line in reversed(lines) if line.startswith(word)), 0)


def is_script(word):
    return word.partition(":")[0].endswith(".py")


def whole(word):
    """The case without the calls that fail."""
    return word.partition("@")[0]


def called(lines):
    """By function: its calls, and how many of them failed."""
    words = [line.split() for line in lines if line.startswith("# called cu") or line.startswith("# called __cuda")]
    return {name: (int(calls), int(failed)) for _, _, name, calls, failed in words}


def fault_of(word):
    """The function, which of its calls, and the code that it returns then; None: no call fails in this row."""
    return word.partition("@")[2].split(":") if "@" in word else None


def until_raised(plain, found):
    """What plain PyTorch printed, as far as the case came before it raised."""
    raised = [number for number, line in enumerate(found) if re.match(r"raised \w*Error: ", line)]
    return (plain[:raised[0]], found[:raised[0]]) if raised else (plain, found)


def seen(lines):
    return [line for line in lines if not line.startswith("# ")]


def difference(plain, found):
    """The first one; empty: there is none."""
    for number, (a, b) in enumerate(zip(plain, found), 1):
        if a != b:
            more = sum(x != y for x, y in zip(plain, found)) - 1
            return f"line {number}: {b}\n    plain PyTorch: {a}" + (f"\n    and {more} more lines" if more else "")
    if len(plain) != len(found):
        return f"{len(found)} lines instead of {len(plain)}; the last is {(found or [''])[-1]!r}"
    return ""


def proves_nothing(word, lines):
    """Why what plain PyTorch printed is no reference; empty: it is one."""
    raised = next((line for line in lines if line.startswith("raised ")), "")
    if raised or not number_after("model data", lines):
        return f"plain PyTorch fails: {raised or 'it did not end, or nothing of it was on the device'}"
    if is_script(word):
        return "" if any(line.startswith("saw ") for line in lines) else "it has seen nothing"
    losses = [float(line.split()[3]) for line in lines if line.startswith("step ")]
    if len(set(losses)) < 2 or not all(map(math.isfinite, losses)):
        return f"the losses of plain PyTorch are {losses}"
    left = re.search(r"^# memory .* at first ([1-9]\d*)$", "\n".join(lines), re.M)
    return f"{left[1]} bytes of the case before are still there" if left else ""


class Suite:
    def __init__(self, args):
        self.args, self.passed, self.failed = args, 0, 0
        self.work = tempfile.mkdtemp(prefix="castor-device-")
        self.plain = {}  # what plain PyTorch printed, by case and optimizer
        self.least = {}  # bytes that a device must have for what is no model data, by case and optimizer
        self.lock = threading.Lock()
        self.jobs = None if args.gpu else plain_jobs.PlainJobs(runner.SIMULATED)

    def settle(self, passed, device, words, why, seconds):
        with self.lock:
            self.passed, self.failed = self.passed + passed, self.failed + (not passed)
            print(f"{'ok    ' if passed else 'FAILED'} {words:42} {device.name}{': ' * bool(why)}{why}  [{seconds:.1f} s]", flush=True)

    def start(self, words, device, memory, under=()):
        """Trains these cases in one process."""
        with self.lock:
            folder = tempfile.mkdtemp(dir=self.work)
        under, seconds = [part.format(folder=folder) for part in under], START_S + CASE_S * len(words)
        program = [ON_DEVICE] if is_script(words[0]) else [TRAIN, "--seed", str(self.args.seed), *["--deterministic"] * self.args.gpu]
        if under or self.args.gpu:
            simulation = [] if self.args.gpu else [*runner.SIMULATED[:-1], "--memory", str(memory), *(["--link-bandwidth", device.link] if device.link else []), "--"]
            command = [*under, *simulation, *(runner.script(self.args.plugin, {"SIM_DEVICES": "2"}) if under and not self.args.gpu else [sys.executable]), *program, *words]
            environment = dict(device.variables, **({"SIM_LATENCY": device.latency} if device.latency else {})) if under else {}
            finished = launch.run(command, folder, seconds, environment, name=" ".join(words))
        else:
            began = time.monotonic()
            status = self.jobs.status(self.jobs.start(program[0], [*program[1:], *words], 0, folder, seconds, {"SIM_MEMORY": str(memory)}))
            finished = dataclasses.replace(launch.read(folder, status), seconds=time.monotonic() - began, timed_out=status == plain_jobs.TOO_LONG)
        shutil.rmtree(folder, ignore_errors=True)
        return finished

    def train_plain(self, words):
        finished = self.start(words, rows.ROOM, rows.AMPLE)
        found = sections(finished.printed, words)
        with self.lock:
            self.plain.update(found)
        why = {word: proves_nothing(word, found.get(word, [])) for word in words}
        if self.args.gpu:
            again = sections(self.start(words, rows.ROOM, rows.AMPLE).printed, words)
            why.update({word: "plain PyTorch gives other bits each time" for word in words if not why[word] and difference(seen(found[word]), seen(again.get(word, [])))})
        for word in filter(why.get, words):
            self.plain.pop(word, None)
            if self.args.gpu:
                print(f"left out {word}: {why[word]}", flush=True)
            else:
                self.settle(False, rows.ROOM, word, f"{why[word]}\n{last_words(finished)}", finished.seconds)

    def model_bytes(self, word):
        return number_after("model data", self.plain[whole(word)])

    def measure(self, words):
        """What these cases use of a device with all their model data on the host, in the segments that PyTorch's allocator takes."""
        finished = self.start(words, rows.ROOM, rows.AMPLE, self.under(rows.ROOM, 0))
        with self.lock:
            self.least.update({word: number_after("# used", lines) for word, lines in sections(finished.printed, words).items()})

    def memory_of(self, device, word, model_bytes):
        """None: no size that holds a segment of the allocator is too small for plain PyTorch. What a case uses of an ample device is more
        than it must have, where the allocator keeps what it does not need; then it is what plain PyTorch cannot do with."""
        peak, least = number_after("# memory", self.plain[whole(word)]), self.least.get(word, 0)
        sizes = dict.fromkeys(device.memory(model_bytes, peak, other) for other in (least, min(least, peak - rows.MIB)))
        if not device.overflows or device.part:
            return next(iter(sizes))
        return next((size for size in sizes if size >= rows.SEGMENTS and self.overflows(device, word, size)), None)

    def overflows(self, device, word, memory):
        """Whether plain PyTorch runs out of the device's memory."""
        return "raised OutOfMemoryError" in self.start([word], device, memory).printed

    def under(self, device, budget):
        if self.args.plugin == "plain":
            return ["env"]
        options = [*self.args.set]
        if self.args.plugin != "none":
            options += [*OPTIONS, *device.options, *AWAY * device.away, *([f"CASTOR_PRECISION={device.precision}"] if device.precision else []), *([f"CASTOR_DEVICE_BUDGET={budget}"] if budget is not None else [])]
        sets = [part for option in options for part in ("--set", option)]
        return [self.args.castor, "run", "--plugin", self.args.plugin, "--log-dir", "{folder}/logs", *sets, "--"]

    def compare(self, device, words):
        """One process under Castor, and another one for what it did not reach."""
        bytes_of = [self.model_bytes(word) for word in words]
        budget = device.budget(bytes_of)
        changed = self.args.plugin not in ("none", "plain")
        memory = self.memory_of(device, words[0], bytes_of[0]) if changed else rows.AMPLE
        if memory is None:
            return print(f"left out {words[0]} {device.name}: plain PyTorch trains in what everything else takes", flush=True)
        finished = self.start(words, device, memory, self.under(device, budget))
        found = sections(finished.printed, words)
        reached = [word for word in words if word in found] or words[:1]
        must = (budget is not None and budget < max(bytes_of) or device.overflows or bool(device.options)) if changed and device.homes else None
        back = rows.BACK.get(words[0].partition(":")[0]) if changed and device is rows.NEARLY else None
        expected = [PLACED, SMALL_SHARES, *[RESCUED] * (device.overflows or any(word.partition(":")[0] in rows.FAIL for word in words)),
                    *[ACTIVATIONS] * (device.away or any("CASTOR_ACTIVATIONS" in option for option in self.args.set)), *[HELD] * any(word.partition(":")[0] in rows.HELD for word in words), *[OVERFLOWED] * (device.precision == "fp16")]
        wrong = self.wrong(finished, must, expected, back, device.steps if changed else "", (TOLD_OF_ACTIVATIONS if device.away else device.says) if changed else "")
        good = True
        for word in reached:
            lines = seen(self.plain[whole(word)]), seen(found.get(word, []))
            differs = difference(*(until_raised(*lines) if device.fails else lines))
            if device.fails:
                differs = differs or self.failed_well(word, found.get(word, []), finished)
            ended = word != reached[-1] or finished.status == 0 or "raised" in finished.printed
            why = differs or ("" if ended else f"status {finished.status}")
            if why:
                why += "".join(f"\n    {line}" for line in last_words(finished).splitlines())
            good = good and not why
            room = f" ({budget >> 10} KiB of {self.model_bytes(word) >> 10})" if budget is not None and changed else ""
            self.settle(not why, device, word + room, why, finished.seconds / len(reached))
        if wrong and good and not (device.fails and finished.status >= 0 and not finished.timed_out):
            self.settle(False, device, " ".join(reached), wrong, finished.seconds)
        if len(reached) < len(words):
            self.compare(device, words[len(reached):])

    @staticmethod
    def wrong(finished, must_be_on_host, expected, back, steps, says):
        """What is wrong with a run as a whole; empty: nothing. must_be_on_host: whether model data must have been there, or must not; None:
        Castor has nothing to do with it. expected: lines. back: how often some must have come back to the device, at least and at most;
        None: as often as it likes. steps: where the processors or parts must have stepped what was there (rows.Device). says: how a line must begin, once for each device."""
        if finished.timed_out or finished.left_running:
            return f"ran into {finished.seconds:.0f} s" if finished.timed_out else f"{finished.left_running} processes were left running"
        on_host, came_back, stepped = placed(finished.errors)
        if must_be_on_host is not None and on_host is None:
            return "Castor does not say what lay on the host"
        if must_be_on_host is not None and must_be_on_host != (on_host > 0):
            return f"{on_host} bytes of model data lay on the host"
        if steps and (steps == "host") != (stepped > 0):
            return f"the processors stepped {stepped} parameters where they lay"
        if back and not back[0] <= came_back <= back[1]:
            return f"{came_back} times model data came back to the device, not {back[0]} to {back[1]} times"
        said = [line for line in finished.errors.splitlines() if says and re.match(rf"castor: (?:rank 0: )?{says}", line)]
        if says and (not said or len(set(said)) < len(said)):
            return f"says {says!r} {len(said)} times"
        finished.errors = "\n".join(line for line in finished.errors.splitlines()
                                    if line not in said and not any(pattern.search(line) for pattern in expected))
        return what_is_wrong_with([], finished)

    @staticmethod
    def failed_well(word, lines, finished):
        """Why a run, a call of which failed, did not end as it must: with the numbers of plain PyTorch, or with one clear error; empty: it
        did. Its numbers are compared elsewhere."""
        function, _, _ = fault_of(word)
        if not called(lines).get(function, (0, 0))[1]:
            return f"no call of {function} failed, of {called(lines).get(function, (0,))[0]}"
        raised = [line for line in lines if line.startswith("raised ")]
        if raised and not CLEAR.match(raised[0]):
            return f"its error says nothing: {raised[0]}"
        return "" if finished.status == bool(raised) else f"status {finished.status}{' after ' * bool(raised)}{' '.join(raised)}"

    def resolved(self, plan):
        """The plan, with the number of the call in place of a word of rows.WHICH: by how often the case calls each function."""
        counted = {}
        for device, word in plan:
            fault = fault_of(word)
            if not fault or fault[1] not in rows.WHICH:
                yield device, word
                continue
            case = whole(word)
            if case in self.plain and (device, case) not in counted:
                counted[device, case] = self.count(device, case)
            calls = counted.get((device, case), {}).get(fault[0], (0, 0))[0]
            if calls:
                yield device, f"{case}@{fault[0]}:{rows.WHICH[fault[1]](calls)}:{fault[2]}"
            elif case in self.plain:
                self.settle(False, device, word, "it is never called", 0)

    def count(self, device, case):
        finished = self.start([f"{case}@all:0:0"], device, rows.AMPLE, self.under(device, device.budget([self.model_bytes(case)])))
        found = called(finished.printed.splitlines())
        missed = sorted(found.keys() - set(rows.CALLED) - set(rows.SPARED))
        if missed or not found:
            self.settle(False, device, case, f"called, and in no row of calls that fail: {' '.join(missed) or 'nothing was called'}", finished.seconds)
        return found

    def alike(self, device, word):
        """What cases must have in common to share a process: the device, and of scripts, some of which are tiny, about the amount of model
        data as well, since their budget is that of the least of them. A case of rows.APART shares none."""
        if word.partition(":")[0] in rows.APART:
            return device, word
        return device, (self.model_bytes(word) >> 23).bit_length() if is_script(word) else None

    def grouped(self, plan):
        """Cases that share a process: of like amounts of model data, so that their budget is each one's."""
        groups = {}
        for device, word in plan:
            if whole(word) in self.plain:
                own = word if word.partition(":")[0] in rows.APART else None
                groups.setdefault((*self.alike(device, word), own), []).append(word)
        for (device, scripts, _), words in groups.items():
            words.sort(key=self.model_bytes)
            apart = 1 if device.alone else TOGETHER if scripts is None else SCRIPTS_TOGETHER
            yield from ((device, words[first : first + apart]) for first in range(0, len(words), apart))

    def at_a_time(self, function, calls):
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            try:
                for done in concurrent.futures.as_completed([pool.submit(function, *call) for call in calls]):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                launch.end_all()
                raise

    def go(self, plan):
        words = list(dict.fromkeys(whole(word) for _, word in plan))
        cases, scripts = [word for word in words if not is_script(word)], [word for word in words if is_script(word)]
        groups = [cases[first : first + TOGETHER] for first in range(0, len(cases), TOGETHER)]
        groups += [scripts[first : first + SCRIPTS_TOGETHER] for first in range(0, len(scripts), SCRIPTS_TOGETHER)]
        try:
            self.at_a_time(self.train_plain, [(group,) for group in groups])
            if self.args.plugin not in ("none", "plain"):
                small = list(dict.fromkeys(word for device, word in plan if device.overflows and not device.part and word in self.plain and not is_script(word)))
                self.at_a_time(self.measure, [(small[first : first + TOGETHER],) for first in range(0, len(small), TOGETHER)])
            self.at_a_time(self.compare, list(self.grouped(dict.fromkeys(self.resolved(plan)))))
        finally:
            shutil.rmtree(self.work, ignore_errors=True)


def cases_of_train():
    """The optimizers of each case, by its name."""
    told = subprocess.run([sys.executable, TRAIN, "--list"], check=True, capture_output=True, text=True, env=runner.environment()).stdout
    return {name: optimizers for name, *optimizers in map(str.split, told.splitlines())}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--castor", default=os.path.join(ROOT, "build", "bin", "castor"))
    parser.add_argument("--plugin", default="gemini")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="for every run under Castor")
    parser.add_argument("--jobs", type=int, default=2, help="so many processes at a time")
    parser.add_argument("--device", default="")
    parser.add_argument("--scripts", action="store_true", help="none but those of tests/scripts")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    args.castor = os.path.abspath(args.castor)
    return args


def chosen(args, cases):
    """What runs, and how much is left to the other length."""
    if args.gpu:
        plan = [row for row in rows.on_gpu(cases) if not args.names or row[1].partition(":")[0] in args.names]
        return [row for row in plan if args.device in row[0].name], 0
    short = rows.short(cases) + rows_scripts.short()
    every = list(dict.fromkeys([*short, *rows.everything(cases), *rows_scripts.everything()]))
    if args.scripts:
        short, every = ([row for row in some if is_script(row[1])] for some in (short, every))
    if not (args.names or args.device):
        plan = every if runner.LENGTH == "all" else short
        return plan, len(every) - len(plan)
    of = [row for row in every if not args.names or row[1] in args.names or row[1].partition(":")[0] in args.names and (row in short or args.device or is_script(row[1]))]
    return [row for row in of if args.device in row[0].name], 0


def main():
    args = arguments()
    if args.plugin != "plain" and not os.access(args.castor, os.X_OK):
        sys.exit(f"{args.castor} is missing; run make first")
    try:
        if not args.gpu:
            simulated.need(whole=True)
    except unittest.SkipTest as why:
        runner.leave_out_all(why)
    except AssertionError as why:
        runner.cannot_run(why)
    clean = runner.environment("SIM_", "PYTORCH_", "CUDA_", "CUBLAS_")
    os.environ.clear()
    # A workspace of cuBLAS is of the device's memory, like all that a run needs beside model data.
    os.environ.update(clean, PYTHON=sys.executable, CUBLAS_WORKSPACE_CONFIG=":4096:8" if args.gpu else ":4096:1")
    plan, left = chosen(args, cases_of_train())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception: what was started is ended
    suite, began = Suite(args), time.monotonic()
    served = [] if args.gpu or args.plugin == "plain" else [args.plugin]
    with runner.served(args.castor, *served, under=runner.SIMULATED):
        suite.go(plan)
    runner.leave(left, "rows")
    print(f"device: {time.monotonic() - began:.0f} s", flush=True)
    runner.close(suite.passed, suite.failed)


if __name__ == "__main__":
    main()
