"""Which system packages scripts/setup asks for: those of the tests only for the tests."""
import os
import shutil

import runner
from installed import InstalledTest

TOOLS = "bash sh cat grep sed awk mkdir env timeout flock dirname cc make ldconfig id true".split()


class Setup(InstalledTest):
    def asked(self, *options):
        """The packages that setup installs on a machine with a C compiler, where PYTHON has everything."""
        bin = self.path("bin")
        shutil.rmtree(bin, ignore_errors=True)
        os.mkdir(bin)
        for tool in TOOLS:
            if path := shutil.which(tool, path=os.environ["PATH"] + ":/sbin:/usr/sbin"):
                os.symlink(path, os.path.join(bin, tool))
        for name, text in (("apt-get", f'[ "$1" != install ] || echo "$@" >>{self.path("asked")}'), ("apt-cache", ""), ("sudo", 'shift; exec "$@"'), ("python", "echo 2.11.0")):
            with open(os.path.join(bin, name), "w") as file:
                file.write(f"#!{shutil.which('sh')}\n{text}\n")
            os.chmod(os.path.join(bin, name), 0o755)
        with open(self.path("asked"), "w"):
            pass
        self.command(os.path.join(bin, "bash"), os.path.join(runner.ROOT, "scripts/setup"), *options, os.path.join(bin, "python"), "2.11.0", env={"PATH": bin})
        with open(self.path("asked")) as file:
            return {word for word in file.read().split() if not word.startswith("-")} - {"install"}

    def test_what_is_asked_for(self):
        self.assertEqual(self.asked(), set())
        self.assertLessEqual({"g++", "libgtest-dev", "valgrind", "gdb"}, self.asked("--tests"))

    def test_the_demo_asks_for_no_more(self):
        # The demo's own environment would be made here; what make would run is enough.
        for target, tests in (("demo", False), ("bench", False), ("setup", False), ("setup-tests", True)):
            (setup,) = [line for line in self.make("-n", target, "PYTHON=/usr/bin/python3").splitlines() if "scripts/setup" in line]
            self.assertEqual("--tests" in setup.split(), tests, setup)
