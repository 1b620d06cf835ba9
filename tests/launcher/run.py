"""The command line of castor, tried on the real binary: exit statuses, environment, output, signals, ends, bad input.

    tests/launcher/run.py [--castor build/bin/castor] [NAME]...

Only the jobs of test_env.py and test_auto.py need torch. NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402


def main():
    castor, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    os.environ["LAUNCHER_TEST_BINARY"] = castor
    for name in [name for name in os.environ if name.startswith("CASTOR_")]:
        del os.environ[name]
    runner.run(runner.in_folder(FOLDER), names)


if __name__ == "__main__":
    main()
