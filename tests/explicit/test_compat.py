"""CASTOR_COMPAT=1: a Colossal-AI script's imports."""
import os
import re
import subprocess
import tempfile
import textwrap
import unittest

import jobs
import runner


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
        """
        for how in (jobs.NONE, jobs.GEMINI):
            self.assertEqual(self.printed(code, how, CASTOR_COMPAT="1"), [
                "False", "True True True", "True True", "True castor castor.engine.schedule castor.engine", "7",
            ])

    def test_names_that_stand_elsewhere_and_missing_ones(self):
        cases = {
            "import colossalai.nothing": "castor: there is no colossalai.nothing: colossalai has accelerator, booster, ",
            "import colossalai.some.thing": "castor: there is no colossalai.some: colossalai has accelerator, ",
            "import coati.engine.nothing": "castor: there is no coati.engine.nothing: coati.engine has ",
            "from colossalai import nothing": "castor: there is no castor.nothing: castor has accelerator, ",
            "from colossalai.boster import Booster": "castor: there is no colossalai.boster: the nearest in colossalai is booster",
            "from colossalai.booster.plugin import TorchDDPPlugin, GeminiPlugn":
                "castor: there is no castor.booster.plugin.GeminiPlugn: the nearest in castor.booster.plugin is GeminiPlugin",
            "from colossalai.lazy import LazyInit": "castor: there is no castor.lazy.LazyInit: the nearest in castor.lazy is LazyInitContext",
            "from colossalai.booster.plugin import MoeHybridParallelPlugin":
                "castor: there is no castor.booster.plugin.MoeHybridParallelPlugin: Castor has no expert parallelism: use colossalai.booster.plugin.HybridParallelPlugin",
            "from colossalai.booster.plugin.moe_hybrid_parallel_plugin import MoeHybridParallelPlugin":
                "castor: there is no colossalai.booster.plugin.moe_hybrid_parallel_plugin: Castor has no expert parallelism: use ",
            "from colossalai.zero import GeminiDDP": "castor: there is no castor.zero.GeminiDDP: use colossalai.booster.plugin.GeminiPlugin",
            "from colossalai.legacy.trainer import Trainer": "castor: there is no castor.trainer.Trainer: write the loop",
            "from colossalai.legacy.core import global_context": "castor: there is no colossalai.legacy.core: use colossalai.tensor.ProcessGroup",
            "from colossalai.nn.optimizer import GaLoreAdamW": "castor: there is no castor.nn.optimizer.GaLoreAdamW: use the library galore-torch",
            "from colossalai.shardformer import ModelSharder": "castor: there is no castor.shardformer.ModelSharder: use colossalai.shardformer.ShardFormer",
            "from coati.trainer import SFTTrainer": "castor: there is no castor.trainer.SFTTrainer: use trl",
            "import colossalai.agent": "castor: there is no colossalai.agent: colossalai has accelerator, ",
            "import colossalai; colossalai.boster": "castor: there is no castor.boster: the nearest in castor is booster",
        }
        with open(os.path.join(os.path.dirname(os.path.dirname(jobs.FOLDER)), "docs", "migrate.md")) as file:
            page = file.read()
        options = subprocess.run([jobs.castor(), "options"], capture_output=True, text=True, check=True).stdout
        for option in set(re.findall(r"CASTOR_[A-Z_]+", page)):
            self.assertIn(option, options)
        for plugin in set(re.findall(r"--plugin (\w+)", page)):
            self.assertIn(plugin, options)
        named = sorted(set(re.findall(r"\b(?:castor|colossalai)\.[a-z]\w*(?:\.\w+)*", page)))
        self.assertGreater(len(named), 8)
        found = self.printed(f"""
            cases = {list(cases)!r}
            for case in cases:
                try:
                    exec(case, {{}})
                except (ImportError, AttributeError) as error:
                    print(type(error).__name__, error)
            import colossalai
            print(hasattr(colossalai, "nothing"), hasattr(colossalai, "tensor"))

            import colossalai.legacy.engine.schedule, castor.engine.schedule, castor.tensor, castor.launching, castor.utils.gradient_accumulation
            from colossalai.legacy.engine.gradient_accumulation import GradAccumOptimizer
            from colossalai.legacy.tensor import ProcessGroup
            from colossalai.legacy import launch_from_torch
            from colossalai.initialize import launch
            from coati.models.loss import GPTLMLoss
            import castor.nn.loss
            print(colossalai.legacy.engine.schedule is castor.engine.schedule, ProcessGroup is castor.tensor.ProcessGroup)
            print(GradAccumOptimizer is castor.utils.gradient_accumulation.GradAccumOptimizer, launch is castor.launching.launch)
            print(launch_from_torch is castor.launch_from_torch, colossalai.__version__ >= "0.2.0", callable(colossalai.initialize))
            print(GPTLMLoss is castor.nn.loss.GPTLMLoss)
            from colossalai.nn.optimizer.hybrid_adam import HybridAdam
            from colossalai.nn.lr_scheduler.linear import LinearWarmupLR
            from colossalai.accelerator.api import get_accelerator
            import colossalai.lazy.lazy_init as lazy_init, colossalai.logging.logger as logger
            import castor.nn.lr_scheduler, castor.nn.optimizer, castor.logging
            print(HybridAdam is castor.nn.optimizer.HybridAdam, LinearWarmupLR is castor.nn.lr_scheduler.LinearWarmupLR, lazy_init is castor.lazy,
                  logger is castor.logging, get_accelerator is castor.accelerator.get_accelerator)

            import importlib
            for name in {named!r}:
                root, *rest = name.split(".")
                held = importlib.import_module(root)
                for part in rest:
                    try:
                        held = getattr(held, part)
                    except AttributeError:
                        held = importlib.import_module(held.__name__ + "." + part)
            print("named")
        """, CASTOR_COMPAT="1")
        self.assertEqual(found[-6:], ["True True", "True True", "True True True", "True", "True True True True True", "named"])
        found = found[:-6]
        self.assertEqual(len(found), len(cases) + 1, found)
        for (case, expected), line in zip(cases.items(), found):
            kind = "AttributeError" if ";" in case else "ModuleNotFoundError"
            self.assertTrue(line.startswith(f"{kind} {expected}"), (case, line))
        self.assertEqual(found[-1], "False True")

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
            print(torch.device("cuda", 1))
            try:
                torch.ones(1).cuda()
            except (RuntimeError, AssertionError) as error:  # of a PyTorch for CUDA, and for the CPU
                print(type(torch.ones(1).cuda).__name__)
        """), ["No module named 'colossalai'", "cuda:1", "builtin_function_or_method"])


class WithoutGpu(unittest.TestCase):
    """On a machine without a GPU "cuda" means the CPU."""

    def setUp(self):
        self.ways = {how: jobs.once("without_gpu_rank.py", 1, how, "inductor" if runner.LENGTH == "all" else "eager", CASTOR_COMPAT="1") for how in jobs.WAYS}

    def check(self, name, value):
        for how, (found,) in self.ways.items():
            self.assertEqual(found[name], value, how)

    def test_devices(self):
        self.check("devices", [10, ["device(type='cpu')"], True, {"cpu": 1}, True, False, True])
        self.check("others stay", ["device(type='meta', index=1)", "meta", "Expected"])
        self.check("no GPU", [False, 0, False, False, 0])

    def test_tensors(self):
        self.check("moved", [True] * 7)
        self.check("copied", [[True, "cpu"]] * 5)
        self.check("made", ["cpu"] * 16)
        self.check("generator", ["cpu", True])
        for found, in self.ways.values():
            self.assertEqual(found["values"][0], found["values"][1])
        self.check("gradients", [[2.0] * 3, True])
        self.check("packed", "cpu")
        self.check("traced", "cpu")

    def test_functions_of_torch_cuda(self):
        self.check("torch.cuda", [True, True, 0, 0, 0, True])
        self.check("random state", True)

    def test_autocast_and_the_scaler(self):
        self.check("autocast", ["torch.float16", "torch.float16", "torch.bfloat16", "torch.float32", "torch.float16"])
        self.check("scaler", [True, [16.0] * 3, True])
        self.check("recomputed", [True, [[1.0] * 3] * 3])

    def test_files(self):
        self.check("loaded", ["cpu"] * 6)
        self.check("a GPU's file", [True, True])

    def test_workers_compiled_code_and_ranks(self):
        self.check("workers", [1.0, 5.0, 9.0, 13.0])
        self.check("compiled", [[[5.0, 5.0], [5.0, 5.0]], "torch.float32"])
        self.check("ranks", ["gloo", "gloo", True, [2, 1]])
        self.check("mesh", ["cpu", "cpu"])

    def test_launchers(self):
        self.check("launchers", [[["gloo", 1]] * 2, [
            "castor: launch_from_slurm found no SLURM_PROCID and no SLURM_NPROCS and no SLURM_LOCALID",
            "castor: launch_from_openmpi found no OMPI_COMM_WORLD_RANK and no OMPI_COMM_WORLD_SIZE and no OMPI_COMM_WORLD_LOCAL_RANK"],
            ["h", 7, 1, 2, None]])

    @runner.long  # without_gpu_rank.py
    def test_a_script_for_gpus_under_a_plugin(self):
        printed = []
        for how in (jobs.NONE, jobs.GEMINI):
            done = jobs.start([*runner.ranks(2)[1:], os.path.join(jobs.FOLDER, "cuda_ddp.py")], how, CASTOR_COMPAT="1")
            self.assertEqual((done.returncode, "without the plugin" in done.stderr), (0, False), done.stderr)
            printed.append(done.stdout.splitlines())
        self.assertEqual((len(printed[0]), printed[0]), (3, printed[1]))

    def test_it_is_said_once_and_at_the_first_device(self):
        line = 'castor: there is no GPU: "cuda" means the CPU here (CASTOR_COMPAT=1)'
        code = "import torch, sys; torch.device('cpu', 0); sys.stderr.write('now\\n'); torch.ones(1).cuda(); torch.device('cuda:1'); torch.cuda.synchronize()"
        done = jobs.start(["-c", code], jobs.NONE, CASTOR_COMPAT="1")
        self.assertEqual((done.returncode, done.stderr.count(line), done.stderr.index(line) > done.stderr.index("now")), (0, 1, True), done.stderr)

    def test_with_a_gpu_nothing_is_replaced(self):
        jobs.simulated.need()
        code = """
            import torch
            print(torch.cuda.is_available(), repr(torch.device("cuda", 1)), torch.ones(2, device="cuda:1").device, torch.ones(2).cuda().device, torch.ones(2).to(1).device)
            print([f.__module__ for f in (torch.cuda.synchronize, torch.cuda.Event)], "cuda" in vars(torch.Tensor), "castor" in torch.autocast.__init__.__module__)
        """
        environment = jobs.devices(2, numbers=False)
        done = jobs.start(["-c", textwrap.dedent(code)], jobs.NONE, **dict(environment, CASTOR_COMPAT="1"))
        self.assertEqual(done.stdout.splitlines(), [
            "True device(type='cuda', index=1) cuda:1 cuda:0 cuda:1", "['torch.cuda', 'torch.cuda.streams'] False False"], done.stderr)


if __name__ == "__main__":
    unittest.main()
