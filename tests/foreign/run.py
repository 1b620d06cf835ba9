"""Runs training programs of other authors, and programs written with their libraries, plainly and under Castor. Everything that they see
must be equal, or Castor must refuse.

    run.py                          every program that needs packages of PyPI only, in every mode of table.py
    run.py NAME...                  programs, and examples of launchers.py, whose name contains one of these; --mode M the same for modes
    run.py --repositories DIR       those of public repositories as well: DIR/OWNER+NAME is a clone's work tree (by default the variable REPOSITORIES);
                                    then the own tests of pytorch/pytorch and hpcaitech/ColossalAI, too, where they are there
    run.py --markdown FILE          writes docs/foreign.md, of these results and of earlier ones

The packages go to an environment of their own, build/foreign/env, on top of the one that has PyTorch. Data and models are made here
(data.py); nothing is downloaded while a program runs. The last line is `N passed, N failed`."""
import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "tests", "semantics")]
import launch  # noqa: E402
import launchers  # noqa: E402
import runner  # noqa: E402
import sections  # noqa: E402
from compare import compare_files, compare_ranks, compare_text, compare_values, Outcome, shown, Tolerance  # noqa: E402
from complaints import last_words, refusal  # noqa: E402
from expect import ADAPTIVE, EXACT  # noqa: E402
from gloo_words import without_gloo  # noqa: E402

SECONDS = 300
LINEAR = Tolerance("linear", "sums in another order, over more layers than tests/scripts have", 1e-5, 1e-4, 1e-4, 1e-4, 1e-9)
NOISE = 1e-6  # of the step's largest gradient
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRL_EXPERIMENTAL_SILENCE": "1",
           "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "DISABLE_TQDM": "1", "OMP_NUM_THREADS": "1", "CASTOR_TIMEOUT": "60"}
TIMES = r"'?\w*(?:runtime|per_second|total_flos)\w*'?\s*[:=]\s*'?[\d.:e+-]+'?,?\s*"


def packages_of(python):
    """The folder of its packages."""
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()


def environment(python, folder):
    """The packages of requirements.txt, beside those of `python`. Returns the interpreter that has both."""
    inner = os.path.join(folder, "bin", "python")
    wanted = os.path.join(HERE, "requirements.txt")
    done = os.path.join(folder, "installed.txt")
    with open(wanted) as file:
        text = file.read()
    if os.path.exists(done) and open(done).read() == text + python:
        return inner
    print(f"packages of {os.path.relpath(wanted, ROOT)} go to {os.path.relpath(folder, ROOT)}", flush=True)
    ask = [python, "-c", "import torch; print(torch.__version__.partition('+')[0])"]
    torch = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    with open(os.path.join(packages_of(inner), "beside.pth"), "w") as file:
        file.write(packages_of(python) + "\n")
    install = [inner, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*install, f"torch=={torch}", "-r", wanted], check=True, timeout=1500)
    with open(done, "w") as file:
        file.write(text + python)
    return inner


def record(folder, rank):
    with open(os.path.join(folder, "record", f"rank{rank}.pkl"), "rb") as file:
        return pickle.load(file)


def largest_of(tensor):
    return float(numpy.abs(tensor.get("values", tensor["sample"] if "sample" in tensor else numpy.zeros(1))).max(initial=0))


def compare_steps(outcome, who, expected, found, tolerance):
    """Gradients and parameters, step by step. A parameter whose gradients are rounding noise beside the others' (a bias before a
    normalization) goes anywhere where an optimizer divides by their size: from then on it is not looked at, unless all must be equal."""
    names = [event for event, _ in expected], [event for event, _ in found]
    if names[0] != names[1]:
        outcome.fail(who, f"took the steps {shown(names[1])}, expected {shown(names[0])}")
        return
    noise = set()
    for index, ((event, a), (_, b)) in enumerate(zip(expected, found)):
        owner, what = event.rsplit(" ", 1)
        allowed = tolerance.of(event)
        if what == "gradients" and not tolerance.exact:
            sizes = [largest_of(item["tensor"]) if item else 0.0 for item in a]
            noise |= {(owner, number) for number, size in enumerate(sizes) if size < NOISE * max(sizes, default=0.0)}
        for number, pair in enumerate(zip(a, b, strict=True)):
            if (owner, number) not in noise:
                compare_values(outcome, f"{who}, event {index} {event}[{number}]", *pair, allowed)


class Suite:
    def __init__(self, args, python):
        import table

        self.args, self.python, self.table = args, python, table
        self.work = os.path.join(args.build, "foreign")
        self.packages = packages_of(python)
        self.stored = os.path.join(self.work, "results.json")
        self.results, self.ran = {}, []
        if os.path.exists(self.stored):
            with open(self.stored) as file:
                self.results = json.load(file)

    def base(self, program):
        if "/" in program.source:
            return os.path.abspath(os.path.join(self.args.repositories, program.source.replace("/", "+")))
        return self.packages if "/" in program.path else self.table.OWN

    def start(self, program, mode, castor):
        """One run in a folder of its own, data and all; all have the same path meanwhile, since programs write it down. Returns
        the folder and what launch.run tells."""
        kind = mode.starts if mode.starts == self.table.DDP else self.table.ALONE
        name = f"{program.name} {mode.name if castor else 'plain ' + kind}"
        kept, folder = os.path.join(self.work, "runs", re.sub(r"\W+", "-", name)), os.path.join(self.work, "run")
        for old in (kept, folder):
            shutil.rmtree(old, ignore_errors=True)
        out = os.path.join(folder, "out")
        shutil.copytree(self.made(program), out)
        inside = os.path.join(out, program.inside)
        os.makedirs(inside, exist_ok=True)
        for path in program.files:
            source, target = os.path.join(self.base(program), path), os.path.join(inside, os.path.basename(path))
            (shutil.copytree if os.path.isdir(source) else shutil.copyfile)(source, target)
        arguments = f"{program.arguments} {program.under.get(mode.starts, '')}".split()
        started = [self.python]
        if mode.starts == self.table.DDP:
            started += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(mode.ranks)]
        path = os.path.join(self.base(program), program.path)
        command = [*started, os.path.join(HERE, "observe.py"), os.path.relpath(out, inside), path, *arguments]
        if castor:
            nproc = ["--nproc", str(mode.ranks)] if mode.starts == self.table.NPROC else []
            command = [self.args.castor, "run", *mode.options, *self.table.chosen(program.settings), *nproc, "--log-dir", os.path.join(folder, "logs"), "--", *command]
        variables = {"HF_HOME": os.path.join(folder, "home"), "XDG_CACHE_HOME": os.path.join(folder, "home")}
        if "/" in program.source:
            variables["PYTHONPATH"] = self.base(program)  # as if the repository's own packages were installed
        if not program.seeded:
            variables["OBSERVE_SEED"] = "3"
        if program.double:
            variables["OBSERVE_DOUBLE"] = "1"
        finished = launch.run(["env", "-C", inside, *command], folder, SECONDS * max(1, mode.ranks // 2), {**OFFLINE, **variables})
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        os.rename(folder, kept)
        return kept, finished

    def made(self, program):
        """Data and models, made once for each combination."""
        name = "-".join(f"{folder}-{maker.__name__}" for folder, maker in program.data) or "nothing"
        folder = os.path.join(self.work, "data", name)
        if not os.path.exists(folder):
            os.makedirs(folder + ".new", exist_ok=True)
            code = "import sys, data\n" + "".join(f"data.{maker.__name__}(sys.argv[1] + '/{inner}')\n" for inner, maker in program.data)
            subprocess.run([self.python, "-c", code, folder + ".new"], check=True, cwd=HERE, env={**os.environ, **OFFLINE}, timeout=SECONDS)
            os.rename(folder + ".new", folder)
        return folder

    def printed(self, program, mode, finished):
        text = without_gloo(finished.printed)
        for pattern in (TIMES, *program.noise):
            text = re.sub(pattern, "", text)
        if program.of_part and mode.splits:
            text = re.sub(program.of_part, "", text)
        return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"

    def verdict(self, program, mode, plain, folder, finished):
        pattern = program.refused.get(mode.name)
        if pattern:
            return refusal(pattern, finished)
        if finished.timed_out or finished.status or finished.left_running:
            return False, f"status {finished.status}, {'timed out, ' if finished.timed_out else ''}{finished.left_running} left running"
        single = mode.starts != self.table.DDP
        tolerance = EXACT if mode.exact else LINEAR if program.linear or program.double else ADAPTIVE
        reference, candidate = os.path.join(plain[0], "out"), os.path.join(folder, "out")
        outcome = Outcome()
        for rank in range(mode.ranks):
            compare_steps(outcome, f"rank {rank}", record(reference, 0 if single else rank), record(candidate, rank), tolerance)
        if single and not outcome.failures:
            compare_ranks(outcome, candidate, mode.ranks)
        seen = outcome.relative
        compare_text(outcome, "printed", self.printed(program, mode, plain[1]), self.printed(program, mode, finished), tolerance.of("printed"))
        of_part = program.of_part if mode.splits else ""
        compare_files(outcome, reference, candidate, tolerance, (*program.ignored, *(["trainer_state.json"] if of_part else [])))
        if outcome.failures:
            return False, "\n        ".join(outcome.failures[:4])
        report = self.report(folder)
        idle = self.idle(report)
        if bool(idle) != program.aside:
            return False, idle or "Castor took part"
        beside = ", but for training metrics" if of_part else ", computed whole" if mode.divides and not any(rank.get("calls_by_rows") for rank in report["ranks"]) else ""
        if idle:
            return True, "bit for bit, Castor took no part" if outcome.bitwise else "equal, Castor took no part"
        return True, f"bit for bit{beside}" if outcome.bitwise else f"equal{beside} (to {seen:.0e} of a tensor's largest element)"

    def report(self, folder):
        told = subprocess.run([self.args.castor, "report", os.path.join(folder, "logs"), "--format", "json"], capture_output=True, text=True, timeout=60)
        if told.returncode:
            raise RuntimeError(f"castor report fails: {told.stderr.strip()[:200]}")
        return json.loads(told.stdout)

    @staticmethod
    def idle(report):
        """A run that Castor took no part in proves nothing."""
        held = any(node["peak_bytes"] for node in report["model_data"]["nodes"])
        return "" if held or report["chunks"]["moves"] else f"Castor took no part: {report['outcome']}"

    def run(self, program):
        plain = {}
        for name in program.modes:
            mode = self.table.MODES[name]
            if not any(part in name for part in self.args.mode):
                continue
            kind = mode.starts == self.table.DDP
            if kind not in plain:
                plain[kind] = self.start(program, mode, castor=False)
            reference = plain[kind][1]
            if reference.status or reference.timed_out:
                self.settle(program, name, False, "the plain run fails", 0, last_words(reference))
                continue
            folder, finished = self.start(program, mode, castor=True)
            passed, text = self.verdict(program, mode, plain[kind], folder, finished)
            self.settle(program, name, passed, text, finished.seconds / max(reference.seconds, 0.01), "" if passed else last_words(finished))
            if passed and not self.args.keep:
                shutil.rmtree(folder, ignore_errors=True)

    def settle(self, program, mode, passed, text, ratio, detail):
        self.results[f"{program.name}: {mode}"] = {"passed": passed, "text": text, "commit": commit()}
        self.ran.append(passed)
        with open(self.stored, "w") as file:
            json.dump(self.results, file, indent=1)
        print(f"{'ok    ' if passed else 'FAILED'} {program.name:24} {mode:22} {text}  [{ratio:.1f} x the plain run's time]", flush=True)
        if detail:
            print("        " + detail.replace("\n", "\n        "), flush=True)


HEAD = """# Programs of other authors under Castor

Made by `tests/foreign/run.py --repositories DIR --markdown docs/foreign.md`; do not edit.

These are training programs from packages, programs written with the libraries, and programs from public repositories. Each runs plainly and
under `castor run`, unedited, with synthetic data. On every rank, the comparison covers the gradients before each step of each optimizer, the parameters
after it, the printed text and all written files. Under `--nproc` the reference is one process. Sums have another order there, and where the model is divided,
so numbers are equal up to rounding (tests/foreign/run.py has the tolerances). DDP under `gemini`, and one
process with parameters and states on disk, are compared bit for bit.

- **equal, but for training metrics**: metrics that a program computes from a training batch itself belong to its rank's part
  ([single-process.md](single-process.md)); loss, gradients and parameters are the whole batch's.
- dcgan computes in double precision, because its steps amplify the rounding of single precision. For the same reason the repository's
  siamese_network is left out: its ResNet decides ties by rounding (by hand: first gradients differ by 0.12 of their largest element in
  float32, by 4e-14 in float64).
- The example scripts of transformers are those of version 4.57, run with version 5.23.
- **refused**: before a wrong step, with one line that says why and what to do.
- `TP` and `PP`: the [model is divided](hybrid.md) under `hybrid`, `CASTOR_TP=2`, or `CASTOR_PP=2` and `CASTOR_MICROBATCHES=4`. **computed whole**: it cannot be, and a
  line says why.
- **Castor took no part**: the program draws its batches by hand and has no optimizer, so each rank runs the plain script.
- `-`: that mode does not apply, or was not run.

"""


def markdown(suite):
    modes = list(suite.table.MODES)
    lines = ["| program | of | " + " | ".join(modes) + " |", "| --- | --- |" + " --- |" * len(modes)]
    for program in suite.table.PROGRAMS:
        cells = []
        for mode in modes:
            result = suite.results.get(f"{program.name}: {mode}") if mode in program.modes else None
            text = re.sub(r" \(.*|:.*", "", result["text"]) if result else "-"
            cells.append(text if not result or result["passed"] else "**FAILED**")
        if set(cells) != {"-"}:
            lines.append(f"| {program.name} | {program.source} | " + " | ".join(cells) + " |")
    commits = sorted({result["commit"] for result in suite.results.values()})
    others = sections.others(suite.args.markdown)
    return HEAD + "\n".join(lines) + f"\n\nCastor's code: {', '.join(commits)}.\n" + (f"\n{others}" if others else "")


def commit():
    told = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%h", "--", "shims", "interpose", "kernels"], capture_output=True, text=True)
    return told.stdout.strip()


def add_arguments(parser):
    """Of each program here."""
    parser.add_argument("--markdown")
    parser.add_argument("--castor", default=os.path.join(ROOT, "build", "bin", "castor"))
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--python", default=os.environ.get("PYTHON", os.path.join(ROOT, ".venv", "bin", "python")))


def own_tests(args):
    """(passed, failed) of the repositories' own tests, each by its program."""
    counts = [0, 0]
    for name, program in (("hpcaitech+ColossalAI", "originals.py"), ("pytorch+pytorch", "pytorch.py")):
        folder = os.path.join(args.repositories or "", name)
        if not args.repositories or not os.path.isdir(folder):
            runner.left_out.append(f"no clone of {name.replace('+', '/')}: REPOSITORIES=DIR, with DIR/{name}")
            continue
        command = [sys.executable, os.path.join(HERE, program), folder, "--castor", args.castor, "--build", args.build, "--python", args.python]
        told = subprocess.run([*command, *(["--markdown", args.markdown] if args.markdown else [])], stdout=subprocess.PIPE, text=True).stdout
        print(told, flush=True)
        last = re.search(r"^(\d+) passed, (\d+) failed$", told, re.MULTILINE)
        counts = [counts[0] + int(last[1]), counts[1] + int(last[2])] if last else [counts[0], counts[1] + 1]
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""])
    parser.add_argument("--mode", action="append")
    parser.add_argument("--repositories", default=os.environ.get("REPOSITORIES"))
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs that passed")
    add_arguments(parser)
    args = parser.parse_args()
    args.names, args.mode = args.names or [""], args.mode or [""]
    suite = Suite(args, environment(os.path.abspath(args.python), os.path.join(args.build, "foreign", "env")))
    programs = [p for p in suite.table.PROGRAMS if any(name in p.name for name in args.names) and ("/" not in p.source or args.repositories)]
    for program in programs:
        suite.run(program)
    suite.ran += launchers.run(args, suite.python) if args.mode == [""] else []
    if args.markdown:
        text = markdown(suite)  # which reads other sections of that file
        with open(args.markdown, "w") as file:
            file.write(text)
    passed, failed = own_tests(args) if args.names == [""] and args.mode == [""] else (0, 0)
    runner.say_left_out()
    passed, failed = passed + sum(suite.ran), failed + len(suite.ran) - sum(suite.ran)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
