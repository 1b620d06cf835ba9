"""CASTOR_PRECISION: scripts that know nothing of it, beside mixed precision written out (reference.py).

    tests/precision/run.py [--castor build/bin/castor] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402


def main():
    castor, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    os.environ["PRECISION_TEST_CASTOR"] = castor
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with runner.served(castor, "gemini"):
        runner.run(runner.in_folder(FOLDER), names, runner.by_name)


if __name__ == "__main__":
    main()
