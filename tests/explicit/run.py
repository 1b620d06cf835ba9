"""The explicit API, in scripts that call it, under castor run without a plugin and with one.

    tests/explicit/run.py [--castor build/bin/castor] [NAME]...

Needs torch (the interpreter that runs this has it). NAMEs select tests whose id contains one of them. The last line is
`N passed, N failed`.
"""
import contextlib
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
import jobs  # noqa: E402
import runner  # noqa: E402


def main():
    castor, names = runner.arguments(__doc__, "--castor", "build", "bin", "castor")
    os.environ["EXPLICIT_TEST_CASTOR"] = castor
    with contextlib.ExitStack() as stack:
        for plugin, more in (("gemini", {}), ("none", {}), ("none", {"CASTOR_COMPAT": "1"}), ("none", jobs.devices(2))):
            stack.enter_context(runner.served(castor, plugin, **jobs.environment(plugin, more)))
        runner.run(runner.in_folder(FOLDER), names, runner.by_class)


if __name__ == "__main__":
    main()
