"""The optimizer steps of libcastor.so beside torch.optim's, bit for bit.

    tests/optimizer/run.py [--library build/lib/libcastor.so] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402


def main():
    library, names = runner.arguments(__doc__, "--library", "build", "lib", "libcastor.so")
    # Its thread-local memory must be there from the start of the process.
    if os.environ.get("LD_PRELOAD") != library:
        # Two tests at a time, each with threads: one that waits must not keep a core from the other.
        environment = dict(runner.environment(), LD_PRELOAD=library, CASTOR_LOG_LEVEL="error", OPTIMIZER_TEST_LIBRARY=library,
                           OMP_WAIT_POLICY="passive")
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    runner.run(runner.in_folder(FOLDER), names, runner.by_name)


if __name__ == "__main__":
    main()
