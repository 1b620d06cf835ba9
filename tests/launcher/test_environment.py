"""What a command finds in its environment."""
import json
import os
import re
import shutil
import sys

from command import BINARY, LIBRARY, SONAME, CommandTest

SHOW = "import json, os, sys; json.dump([dict(os.environ), os.getcwd()], open(sys.argv[1], 'w'))"
TELL = "import json, os; os.write(1, (json.dumps(dict(os.environ)) + '\\n').encode())"


class Environment(CommandTest):
    def seen(self, *options, env={}, binary=BINARY, ranks=None):
        if ranks and ranks > 1:
            arguments = ["run", "--plugin", "ddp", *options, "--all-output", "--nproc", str(ranks), "--", sys.executable, "-c", TELL]
            status, out, err = self.castor(*arguments, env=env, binary=binary)
            self.assertEqual(status, 0, err)
            return sorted(map(json.loads, out.splitlines()), key=lambda environment: int(environment["CASTOR_RANK"]))
        arguments = ["run", *options, *(["--nproc", str(ranks)] if ranks else []), "--"]
        status, _, err = self.castor(*arguments, sys.executable, "-c", SHOW, self.path("seen"), env=env, binary=binary)
        self.assertEqual(status, 0, err)
        return json.loads(self.text("seen"))[0]

    def python_directory(self):
        return os.path.realpath(os.path.join(os.path.dirname(BINARY), "../lib/castor"))

    def test_the_python_part_adds_no_other_packages(self):
        # Python takes any folder on its path for a package: one named torch would hide that there is none.
        found = "import sys, importlib.util as u; sys.exit(' '.join(n for n in ('torch', 'cuda', 'nccl') if u.find_spec(n)) or 0)"
        status, _, err = self.castor("run", "--", sys.executable, "-S", "-c", found)
        self.assertEqual(status, 0, err)

    def test_one_process(self):
        seen = self.seen()
        self.assertEqual(seen["CASTOR_PLUGIN"], "none")
        self.assertRegex(seen["CASTOR_JOB"], "^[0-9a-f]{32}$")
        self.assertRegex(seen["CASTOR_LOG_DIR"], "^" + re.escape(self.folder) + r"/castor-logs/\d{8}-\d{6}$")
        self.assertEqual(seen["LD_PRELOAD"], LIBRARY)
        self.assertEqual(seen["PYTHONPATH"], self.python_directory())
        for name in ("CASTOR_RANK", "CASTOR_WORLD_SIZE", "OMP_NUM_THREADS", "PYTHONHASHSEED"):
            self.assertNotIn(name, seen)
        self.assertNotEqual(seen["CASTOR_JOB"], self.seen()["CASTOR_JOB"])

    def test_the_rest_is_untouched(self):
        with_castor = self.seen(env={"EMPTY": "", "EQUALS": "a=b", "CASTOR_DEBUG": "1"})
        set_by_castor = {"CASTOR_PLUGIN", "CASTOR_JOB", "CASTOR_LOG_DIR", "LD_PRELOAD", "PYTHONPATH"}
        plain = self.environment({"EMPTY": "", "EQUALS": "a=b", "CASTOR_DEBUG": "1"})
        rest = {name: value for name, value in with_castor.items() if name not in set_by_castor}
        rest.pop("LC_CTYPE", None)  # Python's own
        plain.pop("LC_CTYPE", None)
        self.assertEqual(rest, plain)

    def test_one_rank_is_plain(self):
        self.assertNotIn("CASTOR_RANK", self.seen(ranks=1))

    def test_ranks(self):
        seen = self.seen("--plugin", "gemini", ranks=3)
        threads = str(max(1, len(os.sched_getaffinity(0)) // 3))
        for rank, environment in enumerate(seen):
            self.assertEqual(environment["CASTOR_RANK"], str(rank))
            self.assertEqual(environment["CASTOR_WORLD_SIZE"], "3")
            self.assertEqual(environment["OMP_NUM_THREADS"], threads)
            self.assertEqual(environment["CASTOR_PLUGIN"], "gemini")
        self.assertEqual(len({environment["CASTOR_JOB"] for environment in seen}), 1)
        seeds = {environment["PYTHONHASHSEED"] for environment in seen}
        self.assertEqual(len(seeds), 1)
        self.assertIn(int(seeds.pop()), range(1, 2**32))

    def test_another_launcher_is_hidden_from_ranks(self):
        others = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "29500"}
        for environment in self.seen(ranks=2, env=others):
            self.assertFalse(others.keys() & environment.keys())
        self.assertEqual({name: self.seen(env=others)[name] for name in others}, others)

    def test_what_the_user_set_stays(self):
        for environment in self.seen(ranks=2, env={"OMP_NUM_THREADS": "7", "PYTHONHASHSEED": "0"}):
            self.assertEqual((environment["OMP_NUM_THREADS"], environment["PYTHONHASHSEED"]), ("7", "0"))

    def test_settings(self):
        seen = self.seen("--set", "CASTOR_CHUNK_SIZE=1M", "--set", "CASTOR_SEPARABLE=a=b,c", "--set", "CASTOR_CHUNK_SIZE=2M",
                         env={"CASTOR_CHUNK_SIZE": "3M", "CASTOR_DEBUG": "1", "CASTOR_PLUGIN": "gemini"})
        self.assertEqual(seen["CASTOR_CHUNK_SIZE"], "2M")
        self.assertEqual(seen["CASTOR_SEPARABLE"], "a=b,c")
        self.assertEqual(seen["CASTOR_DEBUG"], "1")
        self.assertEqual(seen["CASTOR_PLUGIN"], "gemini")
        self.assertEqual(self.seen("--plugin", "none", env={"CASTOR_PLUGIN": "gemini"})["CASTOR_PLUGIN"], "none")

    def test_no_empty_path_elements(self):
        here, library = self.python_directory(), LIBRARY
        for given, expected in (
            ("", here),
            ("/a:/b", f"{here}:/a:/b"),
            (":/a", f"{here}:.:/a"),  # to Python, an empty element is the working directory
            ("/a:", f"{here}:/a:."),
            ("/a::/b", f"{here}:/a:.:/b"),
            (f"/a:{here}", f"{here}:/a"),
        ):
            self.assertEqual(self.seen(env={"PYTHONPATH": given})["PYTHONPATH"], expected)
        for given, expected in (("", library), (":", library), (f" {library}::", library)):
            self.assertEqual(self.seen(env={"LD_PRELOAD": given})["LD_PRELOAD"], expected)

    def test_a_preload_of_the_user_stays(self):
        other = shutil.copy(LIBRARY, self.path("other.so"))
        self.assertEqual(self.seen(env={"LD_PRELOAD": other})["LD_PRELOAD"], f"{LIBRARY}:{other}")

    def test_working_directory_in_the_python_path(self):
        self.script("neighbour.py", "", 0o644)
        status, _, err = self.castor("run", "--", sys.executable, "-c", "import neighbour", env={"PYTHONPATH": "/x:"})
        self.assertEqual(status, 0, err)

    def test_inside_another_run(self):
        outer = ["run", "--log-dir", "outer", "--plugin", "gemini", "--nproc", "2", "--"]
        on_rank_0 = ["sh", "-c", '[ "$CASTOR_RANK" = 1 ] || exec "$@"', "sh"]
        inner = [BINARY, "run", "--", sys.executable, "-c", SHOW, self.path("seen")]
        status, _, err = self.castor(*outer, *on_rank_0, *inner)
        self.assertEqual(status, 0, err)
        inner = json.loads(self.text("seen"))[0]
        self.assertNotIn("CASTOR_RANK", inner)
        self.assertNotEqual(inner["CASTOR_LOG_DIR"], self.path("outer"))
        self.assertEqual(inner["LD_PRELOAD"], LIBRARY)
        self.assertEqual(inner["PYTHONPATH"], self.python_directory())
        self.assertEqual(inner["CASTOR_PLUGIN"], "gemini")

    def test_installed(self):
        os.makedirs(self.path("prefix/bin"))
        os.makedirs(self.path("prefix/lib/castor/castor"))
        binary = shutil.copy(BINARY, self.path("prefix/bin/castor"))
        shutil.copy(LIBRARY, self.path("prefix/lib/" + SONAME))
        seen = self.seen(binary=binary)
        self.assertEqual(seen["LD_PRELOAD"], self.path("prefix/lib/" + SONAME))
        self.assertEqual(seen["PYTHONPATH"], self.path("prefix/lib/castor"))
        os.symlink(binary, self.path("link"))
        self.assertEqual(self.seen(binary=self.path("link"))["PYTHONPATH"], self.path("prefix/lib/castor"))

    def test_a_place_that_cannot_be_preloaded(self):
        os.makedirs(self.path("with space/bin"))
        os.makedirs(self.path("with space/lib/castor/castor"))
        binary = shutil.copy(BINARY, self.path("with space/bin/castor"))
        shutil.copy(LIBRARY, self.path("with space/lib/" + SONAME))
        status, _, err = self.castor("run", "true", binary=binary)
        self.assertEqual((status, len(err)), (1, 1))
        self.assertIn("spaces", err[0])
