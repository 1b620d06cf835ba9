"""The hooks, tested by effect: real programs under the preloaded library, and what it recorded of them.

    tests/hooks/run.py [--library build/lib/libcastor.so] [NAME]...

Runs in a Python that has torch, without the launcher. NAMEs select tests whose id contains one of them. The last line
is `N passed, N failed`.
"""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import runner  # noqa: E402


def main():
    library, names = runner.arguments(__doc__, "--library", "build", "lib", "libcastor.so")
    os.environ["HOOKS_TEST_LIBRARY"] = library
    runner.run(runner.in_folder(FOLDER), names, runner.by_class)


if __name__ == "__main__":
    main()
