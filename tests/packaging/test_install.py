"""make install and make uninstall, and what they install."""
import os
import re
import sys

import runner
from installed import BUILD, SONAME, VERSION, InstalledTest

PROGRAM = """
#include <castor.h>
#include <stdio.h>
int main(void) { return printf("[%s]\\n", castor_error()) < 0; }
"""
# What a shell would offer for each line.
COMPLETE = """
PATH=$1/bin:$PATH
source "$1/share/bash-completion/completions/castor"
shift
for line in "$@"; do
    COMP_LINE=$line COMP_POINT=${#line}
    _castor castor 2>/dev/null
    echo "${COMPREPLY[*]}"
done
complete -p castor
"""


class Install(InstalledTest):
    def install(self, prefix="prefix"):
        self.make("install", f"PREFIX={self.path(prefix)}")
        return self.path(prefix)

    def test_a_job_runs_from_there(self):
        prefix = self.install()
        self.assertEqual(self.command(os.path.join(prefix, "bin/castor"), "version"), f"castor {VERSION}\n")
        self.check_main_job(os.path.join(prefix, "bin/castor"), sys.executable, prefix, outside=False)
        self.make("uninstall", f"PREFIX={prefix}")
        self.assertEqual(self.files("prefix"), [])  # also of what Python has compiled

    def test_the_names_of_the_library(self):
        prefix = self.install()
        self.assertEqual(os.readlink(os.path.join(prefix, "lib/libcastor.so")), SONAME)
        self.assertEqual(os.readlink(os.path.join(prefix, "lib", SONAME)), f"libcastor.so.{VERSION}")
        self.assertIn(f"soname: [{SONAME}]", self.command("readelf", "-d", os.path.join(prefix, "lib", SONAME)))

    def test_a_program_is_linked(self):
        prefix = self.install()
        with open(os.path.join(prefix, "lib/pkgconfig/castor.pc")) as file:
            lines = dict(re.findall(r"^(\w+)[:=] *(.*)$", file.read(), re.MULTILINE))
        self.assertEqual((lines["prefix"], lines["Version"]), (prefix, VERSION))
        fill = lambda text: re.sub(r"\$\{(\w+)\}", lambda match: fill(lines[match[1]]), text)  # noqa: E731
        flags = [*fill(lines["Cflags"]).split(), *fill(lines["Libs"]).split()]
        found = self.command(runner.program("pkg-config"), "--cflags", "--libs", "castor", env={"PKG_CONFIG_PATH": os.path.join(prefix, "lib/pkgconfig")})
        self.assertEqual(found.split(), flags)
        with open(self.path("program.c"), "w") as file:
            file.write(PROGRAM)
        self.command("cc", "program.c", "-o", "program", *flags)
        os.remove(os.path.join(prefix, "lib/libcastor.so"))  # only the linker needs it
        self.assertEqual(self.command("./program", env={"LD_LIBRARY_PATH": os.path.join(prefix, "lib")}), "[]\n")

    def test_below_another_folder(self):
        self.make("install", f"DESTDIR={self.path('stage')}", "PREFIX=/opt/castor")
        files = self.files("stage")
        self.assertEqual({os.path.commonpath([name, "opt/castor"]) for name in files}, {"opt/castor"})
        self.assertFalse([name for name in files if "__pycache__" in name])
        with open(self.path("stage/opt/castor/lib/pkgconfig/castor.pc")) as file:
            self.assertEqual(file.readline(), "prefix=/opt/castor\n")
        self.make("uninstall", f"DESTDIR={self.path('stage')}", "PREFIX=/opt/castor")
        self.assertEqual(self.files("stage"), [])

    def test_over_an_older_version(self):
        prefix = self.install()
        for name in (f"lib/{SONAME}.0.9", "lib/castor/castor/gone.py", "lib/libother.so", "bin/other", "share/man/man1/other.1"):
            with open(os.path.join(prefix, name), "w"):
                pass
        self.install()
        files = self.files("prefix")
        self.assertIn("lib/castor/castor/__init__.py", files)
        self.assertFalse({f"lib/{SONAME}.0.9", "lib/castor/castor/gone.py"} & set(files))
        self.make("uninstall", f"PREFIX={prefix}")
        self.assertEqual(self.files("prefix"), ["bin/other", "lib/libother.so", "share/man/man1/other.1"])
        self.make("uninstall", f"PREFIX={prefix}")  # again: there is nothing to do

    def test_into_a_python_environment(self):
        packages = "prefix/lib/python3.11/site-packages"
        os.makedirs(self.path(packages, "__pycache__"))
        prefix = self.install()
        code = "import castor, sys; print(castor.__file__, castor.__version__, *(name for name in ('torch', 'ctypes') if name in sys.modules))"
        found = [os.path.join(prefix, "lib/castor/castor/__init__.py"), VERSION]
        self.assertEqual(self.command(sys.executable, "-c", code, env={"PYTHONPATH": self.path(packages)}).split(), found)
        # Python ignores PYTHONPATH: the package is that of the library which is preloaded, not the environment's.
        other = self.path("other")
        self.make("install", f"PREFIX={other}")
        code = f"import sys; sys.path.append({self.path(packages)!r}); {code}"
        out = self.command(os.path.join(other, "bin/castor"), "run", "--log-dir", "log", "--", sys.executable, "-E", "-c", code)
        self.assertEqual(out.split(), [found[0].replace(prefix, other), VERSION])
        self.make("uninstall", f"PREFIX={prefix}")
        self.assertEqual(self.files("prefix"), [])
        with open(self.path(packages, "castor.py"), "w") as file:
            file.write("mine = 1\n")
        self.install()
        self.make("uninstall", f"PREFIX={prefix}")
        self.assertEqual(self.files("prefix"), ["lib/python3.11/site-packages/castor.py"])

    def test_a_prefix_that_cannot_work(self):
        for prefix, text in (("below", "must begin with /"), (self.path("with space"), "spaces or colons"), (self.path("with:colon"), "spaces or colons")):
            self.assertIn(f"install: PREFIX={prefix}", self.make("install", f"PREFIX={prefix}", status=2))
            self.assertIn(text, self.make("install", f"PREFIX={prefix}", status=2))
        self.assertEqual(os.listdir(self.folder), [])


class Texts(InstalledTest):
    def setUp(self):
        super().setUp()
        self.prefix = self.path("prefix")
        self.make("install", f"PREFIX={self.prefix}")
        self.castor = os.path.join(self.prefix, "bin/castor")

    def names(self):
        """The commands and options of this castor, as it lists them."""
        commands = re.findall(r"^  castor (\w+) {2,}", self.command(self.castor, "help").partition("--plugin")[0], re.MULTILINE)
        options = re.findall(r"^(CASTOR_\w+)=", self.command(self.castor, "options"), re.MULTILINE)
        self.assertTrue({"run", "report", "version"} <= set(commands) and len(options) > 30, (commands, options))
        return commands, options

    def test_the_man_page(self):
        page = os.path.join(self.prefix, "share/man/man1/castor.1")
        with open(page) as file:
            text = file.read().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
        self.command(runner.program("mandoc"), "-T", "lint", "-W", "error", page)
        self.assertEqual(self.command(runner.program("groff"), "-man", "-ww", "-z", "-Tutf8", page), "")
        text = self.command(runner.program("man"), "-l", page, env={"MANWIDTH": "500", "LC_ALL": "C"})
        commands, options = self.names()
        for word in [*(f"castor {command}" for command in commands), *options, "--plugin", "--format", "zero1"]:
            self.assertIn(word, text)
        self.assertIn(f"castor {VERSION}", text)
        self.assertNotIn("CASTOR_JOB", text)

    def test_completion_in_bash(self):
        lines = ["castor ", "castor rep", "castor run --set ", "castor run --set CASTOR_DEBUG=", "castor report --format=j", "castor run --plugin ze", "castor report "]
        *found, rule = self.command("bash", "--norc", "-c", COMPLETE, "bash", self.prefix, *lines).splitlines()
        commands, options = self.names()
        self.assertEqual([answer.split() for answer in found],
                         [commands, ["report"], [option + "=" for option in options], ["0", "1"], ["json"], ["zero1", "zero2"], []])
        self.assertIn("-o default", rule)  # names of files, where castor has none

    def test_completion_in_fish(self):
        asked = 'source $argv[1]/share/fish/vendor_completions.d/castor.fish; complete -C "castor rep"; complete -C "castor run --set CASTOR_DEBUG="'
        found = self.command(runner.program("fish"), "--no-config", "-c", asked, self.prefix,
                             env={"PATH": os.path.join(self.prefix, "bin") + ":" + os.environ["PATH"], "HOME": self.folder})
        self.assertEqual(found, "report\tshow what a run did\nCASTOR_DEBUG=0\nCASTOR_DEBUG=1\n")
