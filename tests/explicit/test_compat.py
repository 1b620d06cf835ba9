"""CASTOR_COMPAT=1: a Colossal-AI script's imports."""
import os
import tempfile
import textwrap
import unittest

import jobs


class Compat(unittest.TestCase):
    def printed(self, code, how=jobs.NONE, **environment):
        done = jobs.start(["-c", textwrap.dedent(code)], how, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_both_names_are_castors(self):
        code = """
            import sys
            import colossalai
            print("torch" in sys.modules)
            import torch
            from coati.trainer.utils import AnnealingScheduler, CycledDataLoader
            from colossalai.engine.schedule import NonPipelineSchedule
            import colossalai.utils.gradient_accumulation as accumulation
            from colossalai import engine
            import castor.engine.schedule, castor.trainer.utils, castor.utils.gradient_accumulation

            print(colossalai is castor, accumulation is castor.utils.gradient_accumulation, engine is castor.engine)
            print(NonPipelineSchedule is castor.engine.schedule.NonPipelineSchedule, AnnealingScheduler is castor.trainer.utils.AnnealingScheduler)
            print(colossalai.initialize is castor.initialize, castor.__spec__.name, castor.engine.schedule.__spec__.name, castor.engine.__name__)
            print(CycledDataLoader([7]).next())
            for missing in ("colossalai.nothing", "colossalai.engine.nothing", "coati.nothing.more"):
                try:
                    __import__(missing)
                except ModuleNotFoundError as error:
                    print(error)
        """
        for how in (jobs.NONE, jobs.GEMINI):
            self.assertEqual(self.printed(code, how, CASTOR_COMPAT="1"), [
                "False", "True True True", "True True", "True castor castor.engine.schedule castor.engine", "7",
                "No module named 'colossalai.nothing'", "No module named 'colossalai.engine.nothing'", "No module named 'coati.nothing'",
            ])

    def test_an_installed_package_wins(self):
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            for package in ("colossalai", "colossalai/engine", "coati"):  # coati: a folder that happens to have the name
                os.makedirs(os.path.join(folder, package))
            for package, text in (("colossalai", "here = 'installed'\n"), ("colossalai/engine", "here = 'too'\n")):
                with open(os.path.join(folder, package, "__init__.py"), "w") as file:
                    file.write(text)
            printed = self.printed("""
                import colossalai, colossalai.engine, coati.trainer.utils, castor.trainer.utils
                print(colossalai.here, colossalai.engine.here, coati.trainer.utils is castor.trainer.utils)
                try:
                    import colossalai.trainer
                except ModuleNotFoundError as error:
                    print(error)
            """, PYTHONPATH=folder, CASTOR_COMPAT="1")
        self.assertEqual(printed, ["installed too True", "No module named 'colossalai.trainer'"])

    def test_an_installed_package_wins_over_what_comes_later(self):
        # Behind castor's names on the path, as what is in site-packages.
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            with open(os.path.join(folder, "coati.py"), "w") as file:
                file.write("here = 'installed'\n")
            printed = self.printed(f"""
                import sys
                sys.path.append({folder!r})
                import coati, colossalai, castor
                print(coati.here, colossalai is castor, coati.__spec__.origin)
            """, CASTOR_COMPAT="1")
        self.assertEqual(printed, [f"installed True {folder}/coati.py"])

    def test_a_path_that_was_left_over(self):
        # Of a process whose environment no longer has the option.
        self.assertEqual(self.printed("""
            import subprocess, sys, os
            os.environ["CASTOR_COMPAT"] = "0"
            child = "try:\\n    import colossalai\\nexcept ModuleNotFoundError as error:\\n    print(error)"
            sys.stdout.write(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
        """, CASTOR_COMPAT="1"), ["No module named 'colossalai'"])

    def test_without_torch_the_agent_is_not_needed(self):
        self.assertEqual(self.printed("""
            import sys, coati, castor
            print(coati is castor, "torch" in sys.modules)
        """, CASTOR_COMPAT="1"), ["True False"])

    def test_without_the_option_the_names_are_unknown(self):
        self.assertEqual(self.printed("""
            import torch
            try:
                import colossalai
            except ModuleNotFoundError as error:
                print(error)
        """), ["No module named 'colossalai'"])


if __name__ == "__main__":
    unittest.main()
