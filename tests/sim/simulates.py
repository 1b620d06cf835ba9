"""The command `simulate`; started by run.py."""
import os
import subprocess
import sys

import inside
import simulated

SEEN = "import os; print(os.environ['SIM_DEVICES'], os.environ['SIM_MEMORY'], os.environ.get('SIM_HOST_MEMORY'), os.environ.get('SIM_LINK_BANDWIDTH'))"


def simulate(*arguments):
    command = [sys.executable, os.path.join(simulated.FOLDER, "simulate"), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SIM_") and name != "LD_PRELOAD"}
    return subprocess.run(command, env={**env, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=100)


def test_the_exit_status_is_the_commands():
    done = simulate("--", sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(7)", "--memory")
    assert (done.returncode, done.stdout) == (7, "--memory\n"), done


def test_the_options_are_the_devices():
    done = simulate("--devices", "3", "--memory", "160M", "--host-memory", "4G", "--link-bandwidth", "2G", "--", sys.executable, "-c", SEEN)
    assert (done.returncode, done.stdout) == (0, "3 160M 4G 2G\n"), done


def test_numbers_and_what_a_device_has():
    script = "import torch; x = torch.ones(3, device='cuda:1'); print((x * 2).sum().item(), torch.cuda.mem_get_info(1)[1] >> 20)"
    done = simulate("--devices", "2", "--memory", "160M", "--numbers", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "6.0 160\n"), done


def test_what_is_preloaded_stays_in_front():
    names = ["libfirst.so", "libcuda.so.1"]
    env = simulated.environment(base={"LD_PRELOAD": "/there/libfirst.so"})
    assert [os.path.basename(part) for part in env["LD_PRELOAD"].split(":")][:2] == names, env["LD_PRELOAD"]


def test_bad_input_is_one_error():
    for arguments, said in (((), "no COMMAND after --"), (("--memory", "much", "--", "true"), "'much' is no size"),
                            (("--devices", "17", "--", "true"), "--devices 17: 1 to 16"), (("--", "/nowhere"), "cannot start /nowhere")):
        done = simulate(*arguments)
        assert done.returncode == 2 and said in done.stderr and not done.stdout, done


if __name__ == "__main__":
    inside.main(globals())
