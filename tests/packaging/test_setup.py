"""Which system packages scripts/setup asks for: those of the tests only for the tests. And the machine without toolkits that .ci/run
runs the tests on."""
import os
import shutil
import subprocess

import runner
from installed import InstalledTest

TOOLS = "bash sh cat grep sed awk mkdir env timeout flock dirname cc make ldconfig id true du sleep mktemp rm".split()
ENVIRONMENT = os.path.join(runner.ROOT, ".venv-packaging")  # is not there, and is not made


class Setup(InstalledTest):
    def asked(self, *options, python=None, status=0):
        """The packages that setup installs on a machine with a C compiler, where PYTHON (default) has everything; what it said."""
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
        said = self.command(os.path.join(bin, "bash"), os.path.join(runner.ROOT, "scripts/setup"), *options, python or os.path.join(bin, "python"), "2.11.0",
                            status=status, env={"PATH": bin})
        with open(self.path("asked")) as file:
            return {word for word in file.read().split() if not word.startswith("-")} - {"install"}, said

    def test_what_is_asked_for(self):
        self.assertEqual(self.asked()[0], set())
        self.assertEqual(self.asked("--system", python="/no/python"), (set(), ""))
        packages, said = self.asked("--tests")
        self.assertLessEqual({"g++", "libgtest-dev", "valgrind", "gdb", "iproute2", "man-db"}, packages)
        self.assertIn("tests that need these packages will fail, since they could not be installed here: g++", said)

    def test_python_is_asked_for_where_it_lacks(self):
        packages, said = self.asked(python=os.path.join(ENVIRONMENT, "bin/python"), status=1)
        self.assertEqual(packages, {"python3", "python3-venv"})
        self.assertIn("setup: these packages are needed and could not be installed here: python3 python3-venv\n", said)
        self.assertFalse(os.path.exists(ENVIRONMENT))

    def test_what_takes_long_says_how_far_it_is(self):
        """A command that is watched says each 10 seconds how much there is; one that fails, what it said."""
        with open(os.path.join(runner.ROOT, "scripts/setup")) as file:
            text = file.read()
        watched = text[text.index("\nwatched() {"):text.index("\ninstall_packages() {")]
        script = f"""{watched}
say() {{ echo "setup: $*"; }}
sleep() {{ SECONDS=$((SECONDS + 5)); command sleep 0.2; }}
watched {self.folder} -- sh -c 'head -c 5M /dev/zero >{self.path("file")}; sleep 1; echo well'
watched {self.folder} -- sh -c 'echo badly; exit 3' || echo "status $?"
"""
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertRegex(done.stdout, r"^setup: 10 s, 5 MiB so far\nsetup: 20 s, 5 MiB so far\n(?s:.*)status 3\n$")
        self.assertEqual(done.stderr, "badly\n")

    def test_the_demo_asks_for_no_more(self):
        # The demo's own environment would be made here; what make would run is enough. The demo asks for what a compiler needs first.
        for target, tests in (("demo", False), ("bench", False), ("setup", False), ("setup-tests", True)):
            setup = [line for line in self.make("-n", target, "PYTHON=/usr/bin/python3").splitlines() if "scripts/setup" in line]
            self.assertEqual(["--system" in line.split() for line in setup], [True, False] if target == "demo" else [False])
            self.assertEqual("--tests" in setup[-1].split(), tests, setup)


class Bare(InstalledTest):
    def test_no_toolkit_is_seen(self):
        """What lies in /usr/local and in toolkits of /opt is not there; who calls is who they were, and may mount again."""
        bare = os.path.join(runner.ROOT, "scripts/bare")
        show = 'echo $(id -u) "$PATH" "${CUDA_HOME:-none}" "${LIBRARY_PATH:-none}"; find /usr/local /opt/*/lib ! -type d 2>/dev/null; exit 7'
        done = subprocess.run([bare, "sh", "-c", show], capture_output=True, text=True, cwd=self.folder, timeout=60,
                              env=dict(runner.environment(), CUDA_HOME="/elsewhere", LIBRARY_PATH="/elsewhere/lib"))
        self.assertEqual(done.returncode, 7, done.stderr)
        if done.stderr:
            self.assertRegex(done.stderr, r"^bare: the command sees \S+.*: no mount namespace can be made here \(.*\)\n$")
            self.skipTest("no mount namespace can be made")
        self.assertEqual(done.stdout, f"{os.getuid()} /usr/sbin:/usr/bin:/sbin:/bin none none\n")
