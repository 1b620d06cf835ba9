"""Training scripts under a library that is built with AddressSanitizer and UndefinedBehaviorSanitizer, with PyTorch in the process.

    tests/sanitized/run.py [--castor build-address,undefined/bin/castor] [NAME]...

`make SAN=address,undefined` builds it. Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains
one of them. The last line is `N passed, N failed`.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402

LIMIT_S = 300  # of one job; reached only by a failure
BUDGET = ("CASTOR_CHUNK_SIZE=64K", "CASTOR_MEMORY_BUDGET=80M", "CASTOR_OFFLOAD_DIR=/var/tmp")
DISK = ("CASTOR_CHUNK_SIZE=64K", "CASTOR_PLACEMENT=static", "CASTOR_SHARD_PARAM_FRAC=1", "CASTOR_OFFLOAD_OPTIM_FRAC=1",
        "CASTOR_OFFLOAD_PARAM_FRAC=1", "CASTOR_OFFLOAD_DIR=/var/tmp")
# The library comes before the runtime, as it comes before libc, whose place the runtime takes. Memory that Python and PyTorch
# leave to the end is not a leak of ours.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
CASTOR = None


def runtime():
    """AddressSanitizer's, of the compiler that built the library."""
    needed = subprocess.run(["ldd", os.path.join(os.path.dirname(CASTOR), "..", "lib", "libcastor.so")], capture_output=True, text=True)
    found = re.search(r"=> (\S*libasan\.so\S*)", needed.stdout)
    if not found:
        sys.exit(f"{CASTOR} is not built with AddressSanitizer; run make SAN=address,undefined")
    return found[1]


class SanitizedTest(unittest.TestCase):
    def check(self, *command, **how):
        """The script ends well, and prints losses."""
        with tempfile.TemporaryDirectory(prefix="castor-sanitized-") as folder:
            done = self.start(folder, *command, "--out", "out", **how)
        self.assertGreater(len(re.findall(r"^(?:step \d+ )?loss \S+", done.stdout, re.MULTILINE)), 3, done.stderr)

    def check_found(self, *command, **how):
        """The script of the suite `explicit` ends well, and finds that everything is as it should be."""
        with tempfile.TemporaryDirectory(prefix="castor-sanitized-") as folder:
            self.start(folder, *command, **how)
            with open(os.path.join(folder, "found-0.json")) as file:
                found = json.load(file)
        self.assertEqual([name for name, value in found.items() if not value], [])
        self.assertGreater(len(found), 20)

    def start(self, folder, *command, under=(), plugin="gemini", settings=()):
        for setting in settings:
            under = (*under, "--set", setting)
        environment = dict(runner.environment("ASAN_", "UBSAN_"), LD_PRELOAD=runtime(), EXPLICIT_TEST_FOUND=folder, **OPTIONS)
        done = subprocess.run([CASTOR, "run", "--plugin", plugin, *under, "--", *command], env=environment, cwd=folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotRegex(done.stderr, r"runtime error|AddressSanitizer")
        return done

    def script(self, name, ranks=0, suite="scripts"):
        return [*(runner.ranks(ranks) if ranks else [sys.executable]), os.path.join(ROOT, "tests", suite, name)]

    def explicit(self, name, ranks=0):
        return self.script(name, ranks, "explicit")

    def test_ranks_under_a_budget(self):
        self.check(*self.script("gpt_ddp.py", 2), settings=BUDGET)

    def test_ranks_of_one_process(self):
        self.check(*self.script("gpt.py"), under=("--nproc", "2"), plugin="zero2")

    def test_saves_in_the_background(self):
        self.check_found(*self.explicit("checkpoint_writer_rank.py"), plugin="none", settings=("CASTOR_CHECKPOINT=async",))

    @runner.long
    def test_saves_with_forks_and_errors(self):
        self.check_found(*self.explicit("checkpoint_saving.py"), plugin="none", settings=("CASTOR_CHECKPOINT=async",))

    @runner.long
    def test_saves_of_two_ranks(self):
        self.check_found(*self.explicit("checkpoint_writer_rank.py", 2), settings=("CASTOR_CHECKPOINT=async",))

    @runner.long
    def test_optimizers_on_disk(self):
        self.check(*self.script("loops_ddp.py", 2), settings=DISK)

    @runner.long
    def test_weights_of_four_ranks(self):
        self.check(*self.script("weights_ddp.py", 4), plugin="zero1")

    @runner.long
    def test_construction(self):
        self.check(*self.script("construct_ddp.py", 2), settings=("CASTOR_LAZY_INIT=1", "CASTOR_LAZY_BYTES=64K"))

    @runner.long
    def test_files(self):
        self.check(*self.script("files.py"), under=("--nproc", "2"))

    @runner.long
    def test_forks(self):
        self.check(*self.script("copies_ddp.py", 2))


def main():
    global CASTOR
    CASTOR, names = runner.arguments(__doc__, "--castor", "build-address,undefined", "bin", "castor")
    runner.run(unittest.defaultTestLoader.loadTestsFromTestCase(SanitizedTest), names, runner.by_name)


if __name__ == "__main__":
    main()
