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
    kinds = [("gemini", {}), ("none", {}), ("none", {"CASTOR_COMPAT": "1"})]
    if jobs.simulated.left_out(whole=True) is None and jobs.simulated.make(sys.executable) is None:  # else the tests say why not
        kinds.append(("none", jobs.devices(2)))
    with contextlib.ExitStack() as stack:
        for plugin, more in kinds:
            stack.enter_context(runner.served(castor, plugin, modules=("torch._dynamo", "torch.distributed.tensor"), **jobs.environment(plugin, more)))
        runner.run(runner.in_folder(FOLDER), names, runner.by_class)


if __name__ == "__main__":
    main()
