"""`castor run --nproc`: which processes fork their ranks, and that nobody can tell.

    tests/forking/run.py [--castor build/bin/castor] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`."""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402

LIMIT_S = 120  # of one job; reached only by a failure
JOB = os.path.join(FOLDER, "job.py")
CASTOR = None
FORKED = "forked from one import of PyTorch"
# What a process does before it imports PyTorch, and why it must not be forked then (docs/forking.md).
UNFIT = {
    "writes": "/file is open for writing",
    "socket": "socket:[",
    "pipe": "pipe:[",
    "epoll": "anon_inode:[eventpoll]",
    "child": "it has started a process",
    "thread": "1 threads run beside the script's",
    "timer": "a timer runs",
    "shares memory": "it shares memory: /dev/zero",
    "shares a lock": "it shares memory: /dev/shm/",
    "asks a child": "the command starts Python as a process of its own",
    "cannot fork": "0 of 1 ranks could be forked",
}
# What the short length leaves out: kinds of files as "pipe", of shared memory as "shares a lock", of what runs as "thread".
FULL = ("socket", "epoll", "shares memory", "timer")


class Forking(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="castor-forking-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        with open(os.path.join(self.folder, "lines"), "w") as file:
            file.write("one\ntwo\nthree\n")

    def start(self, *command, ranks=2, settings=(), environment=None, options=()):
        """(status, standard output, standard error) of a job."""
        words = [CASTOR, "run", "--plugin", "gemini", "--nproc", str(ranks), "--log-dir", "log", *options]
        for setting in settings:
            words += ["--set", setting]
        done = subprocess.run([*words, "--", *command], env={**runner.environment(), **(environment or {})}, cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode, done.stdout, done.stderr

    def how(self):
        """How the ranks were started, by the trace."""
        with open(os.path.join(self.folder, "log", "castor.about")) as file:
            return [line.removeprefix("ranks ").rstrip("\n") for line in file if line.startswith("ranks ")]

    def told(self, ranks=2):
        """What the ranks have said, which is what each would have said by itself."""
        found = []
        for rank in range(ranks):
            with open(os.path.join(self.folder, "out", f"{rank}.json")) as file:
                found.append(json.load(file))
        for rank, one in enumerate(found):
            self.assertEqual(one["rank"], rank)
            self.assertFalse(one["line"])
            self.assertEqual(one["input"], "")
            alike = ("losses", "group", "argv", "optimize", "name", "hash", *(["parent"] if self.how() == [FORKED] else []))
            self.assertEqual([one[name] for name in alike], [found[0][name] for name in alike])
        return found

    def output(self, rank):
        with open(os.path.join(self.folder, "log", f"rank{rank}.out")) as file:
            return file.read()

    def check(self, habit, how, command=(sys.executable, JOB), **options):
        status, out, errors = self.start(*command, habit, "out", **options)
        self.assertEqual(status, 0, errors)
        self.assertEqual(len(self.how()), 1)
        self.assertIn(how, self.how()[0])
        found = self.told()
        self.assertEqual(found[0]["losses"], plain_losses())
        self.assertEqual(out.splitlines()[-2:], ["before", f"after {found[0]['losses']}"])
        self.assertEqual(self.output(1).splitlines()[-1], f"after {found[0]['losses']}")
        return found

    def test_it_cannot_be_told(self):
        found = self.check("nothing", FORKED)
        self.assertEqual([one["files"] for one in found], [[], [200]])  # rank 1's is for Castor's lines
        report = subprocess.run([CASTOR, "report", os.path.join(self.folder, "log")], capture_output=True, text=True, timeout=LIMIT_S)
        self.assertIn(f"ranks     2 on 1 node, {FORKED}", report.stdout)

    def test_files_open_for_reading_have_positions_of_their_own(self):
        for one in self.check("reads", FORKED):
            self.assertEqual(one["seen"], {"rest": "two\nthree\n", "bytes": "\ntwo\nthree\n"})

    def test_what_was_made_before_is_there_for_all(self):
        for one in self.check("makes", FORKED):
            self.assertEqual(one["seen"]["made"], ["whole", ["inside"]])

    def test_threads_that_end_for_a_fork(self):
        for one in self.check("numpy", FORKED, environment={"OMP_NUM_THREADS": "2"}):
            self.assertEqual(one["seen"]["product"], 300.0 ** 3)

    def test_ways_to_start_python(self):
        for name, words in {
            "env, -O -X -u": ["env", "SOME=thing", sys.executable, "-O", "-X", "faulthandler", "-u", JOB],
            "-m": [sys.executable, "-m", "job"],
            "-c": [sys.executable, "-c", f"import runpy; runpy.run_path({JOB!r}, run_name='__main__')"],
        }.items():
            with self.subTest(name):
                self.check("nothing", FORKED, command=words, environment={"PYTHONPATH": FOLDER})
        script = os.path.join(self.folder, "script")
        with open(script, "w") as file:
            file.write(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({JOB!r}, run_name='__main__')\n")
        os.chmod(script, 0o755)
        self.check("nothing", FORKED, command=[script])

    def test_one_by_one(self):
        self.check("nothing", "one by one: the command does not become Python", command=["sh", "-c", f"{sys.executable} {JOB} $0 $1; exit $?"])
        self.check("nothing", "one by one: CASTOR_FORK=off", settings=("CASTOR_FORK=off",))
        self.check("sleeps", "one by one: PyTorch was not imported for long", settings=("CASTOR_TIMEOUT=6",))

    def test_who_never_imports_pytorch_is_alone(self):
        status, _, errors = self.start(sys.executable, JOB, "never")
        self.assertEqual(status, 3, errors)
        self.assertEqual(self.how(), [])
        status, out, errors = self.start(sys.executable, "-c", "print('done')", ranks=3)
        self.assertEqual((status, out), (0, "done\n"), errors)

    def test_all_output_passes(self):
        status, out, errors = self.start(sys.executable, JOB, "nothing", options=("--all-output",))
        self.assertEqual(status, 0, errors)
        self.assertEqual(sorted(out.splitlines()), [*[f"after {plain_losses()}"] * 2, "before"])
        self.assertEqual(self.how(), [FORKED])


class Serving(unittest.TestCase):
    """Ranks of torchrun and accelerate: what they say, in every way to end, is what they say without Castor."""

    maxDiff = None

    def setUp(self):
        self.plain = {}
        self.folder = tempfile.mkdtemp(prefix="castor-serving-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        shutil.copy(os.path.join(FOLDER, "rank.py"), self.folder)

    def run_words(self, words, environment=None):
        done = subprocess.run(words, env={**clean_environment(), **(environment or {})}, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        said = [line for line in done.stdout.splitlines() if line.startswith(("rank ", "[rank", "Traceback", "ValueError", "KeyboardInterrupt", '  File "'))]
        return done.returncode, sorted(said), done.stdout

    def compare(self, *words, how="forked from the launcher's import of PyTorch", also=(), launcher=None, environment=None, under_castor=None):
        """What castor says in a job whose ranks say what they say without it. `under_castor`: more of the environment there, which changes nothing
        that they say. Those without castor run once for the same words."""
        launcher = launcher or [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        key = (*launcher, *words, str(environment))
        if key not in self.plain:
            self.plain[key] = self.run_words([*launcher, *words], environment)
        status, plain, plain_output = self.plain[key]
        found, said, output = self.run_words([CASTOR, "run", "--plugin", "gemini", "--log-dir", "log", "--", *launcher, *words],
                                             {**(environment or {}), **(under_castor or {})})
        self.assertTrue(plain, plain_output)
        self.assertEqual((found, said), (status, plain), output)
        with open(os.path.join(self.folder, "log", "castor.about")) as file:
            found = [line.removeprefix("ranks ").rstrip("\n") for line in file if line.startswith("ranks ")]
        self.assertEqual(found, [how, *also] if how else [])
        return output

    def test_ends(self):
        for way in ("raises", "exits"):
            with self.subTest(way):
                self.compare("rank.py", way)

    @runner.long
    def test_other_ends(self):
        for way in ("plain", "interrupted", "killed", "thread", "threads"):
            with self.subTest(way):
                self.compare("rank.py", way)

    def test_a_module_and_what_comes_too_late(self):
        output = self.compare("-m", "rank", "late", "-m", "word")
        self.assertIn("TORCH_SHOW_CPP_STACKTRACES: set by the script before it imports PyTorch", output)

    def test_restarts(self):
        self.compare("--max-restarts", "1", "rank.py", "restarts")
        self.compare("--max-restarts", "1", "rank.py", "restarts", also=["one by one: the server that forks them has ended"],
                     under_castor={"RANKS_END_THEIR_SERVER": "1"})

    @runner.long
    def test_accelerate(self):
        if importlib.util.find_spec("accelerate") is None:
            self.skipTest("needs accelerate")
        self.compare("rank.py", "plain", launcher=[sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                                                   "--mixed_precision", "no", "--dynamo_backend", "no"])

    @runner.long
    def test_other_words_and_environments(self):
        self.compare("--no-python", sys.executable, "rank.py", "plain", how="one by one: they are not started as `python -u SCRIPT`")
        self.compare("rank.py", "plain", environment={"PYTHONPATH": FOLDER})
        self.compare("rank.py", "plain", environment={"OMP_NUM_THREADS": "1"})
        self.compare("rank.py", "plain", environment={"CASTOR_FORK": "off"}, how=None)


def clean_environment():
    environment = runner.environment()
    del environment["OMP_NUM_THREADS"]
    return environment


def of_habit(habit, how):
    return lambda self: self.check(habit, how)


for habit in ("past child", "executes"):
    setattr(Forking, f"test_fit_{habit.replace(' ', '_')}", of_habit(habit, FORKED))
for habit, reason in UNFIT.items():
    test = of_habit(habit, reason)
    setattr(Forking, f"test_unfit_{habit.replace(' ', '_')}", runner.long(test) if habit in FULL else test)


_losses = []


def plain_losses():
    """Of the same script without Castor."""
    if not _losses:
        done = subprocess.run([sys.executable, JOB, "nothing"], env=runner.environment(), capture_output=True, text=True, timeout=LIMIT_S, check=True)
        _losses[:] = json.loads(done.stdout.rpartition("after ")[2])
    return _losses


def main():
    global CASTOR
    CASTOR, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    plain_losses()
    runner.run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]), names, runner.by_name)


if __name__ == "__main__":
    main()
