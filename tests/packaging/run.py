"""Castor installed, as a user has it: make install and uninstall, the wheel, the man page, completion, what setup installs.

    tests/packaging/run.py [--castor build/bin/castor] [NAME]...

The wheel needs hatchling, in this Python or from a network. NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402


def main():
    castor, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    os.environ["PACKAGING_TEST_BUILD"] = os.path.dirname(os.path.dirname(castor))
    runner.run(runner.in_folder(FOLDER), names)


if __name__ == "__main__":
    main()
