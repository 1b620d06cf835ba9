"""What the tests share: programs run under the preloaded library, in a folder of their own."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import runner
import trace_files

LIBRARY = os.environ["HOOKS_TEST_LIBRARY"]
FOLDER = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 240  # of one program; reached only by a failure
FOREIGN = ("CASTOR_", "LD_PRELOAD", "PYTHONPATH", "MALLOC_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "TORCH_")


class PreloadTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="castor-hooks-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.log_dir = os.path.join(self.folder, "log")
        os.mkdir(self.log_dir)

    def environment(self, preload=(LIBRARY,), agent=True, **extra):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        if preload:
            clean["LD_PRELOAD"] = ":".join(preload)
            clean["CASTOR_LOG_DIR"] = self.log_dir
            if agent:
                clean["PYTHONPATH"] = os.path.join(os.path.dirname(LIBRARY), "castor")
        clean["OMP_NUM_THREADS"] = "1"
        clean.update({name: str(value) for name, value in extra.items()})
        return clean

    def run_program(self, *command, status=0, **environment):
        """Runs a command to its end and returns its output and its errors."""
        done = subprocess.run(
            command, env=self.environment(**environment), cwd=self.folder, capture_output=True, text=True,
            timeout=LIMIT_S,
        )
        self.assertEqual(done.returncode, status, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout, done.stderr

    def python(self, text, **environment):
        return self.run_program(sys.executable, "-c", text, **environment)

    def run_ranks(self, count, script, *arguments, **environment):
        return self.run_program(
            *runner.ranks(count),
            os.path.join(FOLDER, script), *arguments, **environment,
        )

    def counters(self):
        """The counters of each process of the log directory."""
        return trace_files.read_counters(self.log_dir)

    def records(self):
        return trace_files.read_records(self.log_dir)
