"""The explicit API, in scripts that call it, under castor run without a plugin and with one.

    tests/explicit/run.py [--castor build/bin/castor] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import argparse
import os
import sys
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))


def chosen(suite, names):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test, names)
        elif not names or any(name in test.id() for name in names):
            yield test


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--castor", default=os.path.join(ROOT, "build", "bin", "castor"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    if not os.access(args.castor, os.X_OK):
        sys.exit(f"{args.castor} is missing; run make first")
    os.environ["EXPLICIT_TEST_CASTOR"] = os.path.abspath(args.castor)

    everything = unittest.defaultTestLoader.discover(FOLDER, pattern="test_*.py", top_level_dir=FOLDER)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(unittest.TestSuite(chosen(everything, args.names)))
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
