"""Training scripts under a library that is built with AddressSanitizer and UndefinedBehaviorSanitizer, with PyTorch in the process.

    tests/sanitized/run.py [--castor build-address,undefined/bin/castor] [NAME]...

`make SAN=address,undefined` builds it. Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains
one of them. The last line is `N passed, N failed`.
"""
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
    def check(self, *command, under=(), plugin="gemini", settings=()):
        """The script ends well, and prints losses."""
        for setting in settings:
            under = (*under, "--set", setting)
        environment = dict(runner.environment("ASAN_", "UBSAN_"), LD_PRELOAD=runtime(), **OPTIONS)
        with tempfile.TemporaryDirectory(prefix="castor-sanitized-") as folder:
            done = subprocess.run([CASTOR, "run", "--plugin", plugin, *under, "--", *command, "--out", "out"], env=environment, cwd=folder,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotRegex(done.stderr, r"runtime error|AddressSanitizer")
        self.assertGreater(len(re.findall(r"^(?:step \d+ )?loss \S+", done.stdout, re.MULTILINE)), 3, done.stderr)

    def script(self, name, ranks=0):
        return [*(runner.ranks(ranks) if ranks else [sys.executable]), os.path.join(ROOT, "tests", "scripts", name)]

    def test_ranks_under_a_budget(self):
        self.check(*self.script("gpt_ddp.py", 2), settings=BUDGET)

    def test_ranks_of_one_process(self):
        self.check(*self.script("gpt.py"), under=("--nproc", "2"), plugin="zero2")

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
