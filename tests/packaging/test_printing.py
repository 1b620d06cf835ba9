"""What make prints, on sources of a line each: the Makefiles are the project's own."""
import os
import re
import shutil

import runner
from installed import InstalledTest

LAUNCHER = "launcher/main launcher/run/a launcher/run/b".split()
with open(os.path.join(runner.ROOT, "Makefile")) as file:
    MAKEFILE = file.read().replace("\\\n", "")
NAMES = re.search(r"^LAUNCHER_INTERPOSE := (.*)", MAKEFILE, re.M)[1].split()
NAMES += re.findall(r"interpose/((?:base|job)/\w+)\.o", " ".join(re.findall(r"^\$\(B\)/bin/castor:.*", MAKEFILE, re.M)))
OTHERS = [f"interpose/{name}" for name in dict.fromkeys(NAMES)]
SIMULATED = ["simulation/engine/a", "simulation/engine/b"]
HEADERS = ["cuda.h", "crt/host_defines.h", "nv/target"]


class Printing(InstalledTest):
    def setUp(self):
        super().setUp()
        for name in ("Makefile", "scripts/printing.mk", "simulation/Makefile"):
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            shutil.copy(os.path.join(runner.ROOT, name), self.path(name))
        for name in LAUNCHER + OTHERS + ["interpose/hooks/table/hook_table"] + SIMULATED:
            self.write(f"{name}.c", f"int {'main' if name == LAUNCHER[0] else name.replace('/', '_')}(void) {{ return 0; }}\n")

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)

    def lines(self, *arguments, **options):
        """Of a run with two jobs at once; where it is to fail, both streams."""
        return self.command("make", "--no-print-directory", "-j2", *arguments, **options).splitlines()

    def test_a_line_for_each_folder_and_each_file_that_is_linked(self):
        program = "build/bin/castor"
        folders = ["launcher", "launcher/run", "interpose/hooks/table", *sorted({os.path.dirname(name) for name in OTHERS})]
        printed = self.lines(program)
        self.assertEqual(sorted(printed[:-1]), sorted(f"compiling {folder}" for folder in folders))
        self.assertEqual(printed[-1], f"linking {program}")
        self.assertEqual(self.lines(program), [f"make: '{program}' is up to date."])
        self.assertEqual(self.lines("SAN=undefined", "build-undefined/obj/launcher/main.o"), ["compiling launcher (undefined)"])

        self.write("launcher/run/a.c", "static int unused;\n")
        printed = self.lines(program, status=2)
        self.assertEqual(printed[0], "compiling launcher/run")
        for shown in ("launcher/run/a.c:1:", "static int unused;", "Werror=unused-variable", "Error 1"):
            self.assertIn(shown, "\n".join(printed[1:]))
        self.assertNotIn("-std=", "\n".join(printed))

        self.write("launcher/run/a.c", "")
        printed = self.lines(program, "V=1")
        self.assertRegex(printed[0], "-std=gnu11 .* -c launcher/run/a.c -o build/obj/launcher/run/a.o$")
        self.assertRegex(printed[1], f" -o {program} ")
        self.assertEqual(len(printed), 2)

    def test_the_simulated_devices_too(self):
        self.write("python", f"#!/bin/sh\necho {self.path('nvidia')}\n")
        os.chmod(self.path("python"), 0o755)
        for name in HEADERS:
            self.write(f"nvidia/cu13/include/{name}", "")
        library = "build/lib/castor-simulation/libcastor-sim.so"
        arguments = "-f", "simulation/Makefile", f"PYTHON={self.path('python')}", library
        self.assertEqual(self.lines(*arguments), ["compiling simulation/engine", f"linking {library}"])
        os.remove(self.path(library))
        (printed,) = self.lines(*arguments, "V=1")
        self.assertIn(f" -o {library} ", printed)
