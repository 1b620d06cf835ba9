"""Training with a Booster beside the same in plain PyTorch: every plugin with every feature; and what a Booster refuses."""
import socket
import tempfile
import unittest

import jobs
import runner

# feature: cases of booster_rank.py
FEATURES = {
    "plain": ("sgd", "adamw"),
    "LoRA": ("sgd+lora", "adamw+lora+clip"),
    "fp16": ("sgd+fp16", "adamw+fp16+clip"),
    "bf16": ("sgd+bf16", "adamw+bf16+clip", "adamw+bf16+clip+lora"),
    "`no_sync`": ("sgd+no_sync", "sgd+bf16+no_sync", "adamw+fp16+no_sync+clip+lora"),
    "lazy": ("adamw+lazy", "sgd+lazy+bf16"),
    "clipping": ("sgd+clip", "adamw+clip"),
}
HABITS = ("sgd+batchnorm", "adamw+batchnorm+clip", "sgd+tied+clip", "adamw+tied+fp16", "adamw+frozen+bf16", "adamw+compiled", "sgd+kept+clip",
          "adamw+zeros+bf16", "sgd+alone+no_sync", "adamw+alone+fp16")
CASES = [case for cases in FEATURES.values() for case in cases] + list(HABITS)
GOES_ON = ("sgd+clip+shard+safe", "adamw+safe", "adamw+lora+shard", "sgd+background+shard+safe", "adamw+fp16", "sgd+bf16+shard",
           "adamw+frozen+bf16+shard")
SHORT = ("sgd+tied+kept+alone", "adamw+lora+clip", "adamw+fp16+clip", "sgd+bf16+no_sync", "adamw+lazy")  # the others are these in other combinations
# On ranks that divide tensors, what does not look at the model's inside. (A batch norm's statistics are of a rank's part of the batch.)
OF_WHOLE_BATCHES = [case for case in CASES if not {"compiled", "alone", "batchnorm", "tied"} & set(case.split("+"))]
HALF = [case for case in (*CASES, *GOES_ON) if "fp16" in case or "bf16" in case]
SAME_BITS = {"none", "ddp", "zero1", "zero2", "gemini", "fsdp"}


def tolerance(case, key):
    """Of sums in another order. A step of Adam has its size also where a gradient is nothing but rounding, which 16 bits have more of: its parameters
    say little then, and its norms tell a wrong scale. Numbers or losses of SGD differ by 1e-2 and more where a gradient is halved."""
    if not {"fp16", "bf16"} & set(case.split("+")):
        return 1e-5
    return 5e-2 if "adamw" in case and key == "numbers" else 2e-3


def alone():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


class Beside(unittest.TestCase):
    maxDiff = None

    def near(self, ours, theirs, case, name):
        self.assertEqual(ours["names"], theirs["names"], name)
        for key in ("losses", "norms", "numbers"):
            for one, other in zip(ours[key], theirs[key], strict=True):
                self.assertAlmostEqual(one, other, delta=tolerance(case, key) * max(1, abs(other)), msg=f"{name}: {key}")


class Table(Beside):

    @staticmethod
    def trained(plugin, ranks, cases, on_devices=False):
        """What the ranks found with a plugin's name, or with one of plain PyTorch's."""
        more = jobs.devices(ranks) if on_devices else {}
        how = jobs.ALONE if plugin.startswith("plain") and not on_devices else jobs.NONE
        return jobs.job("booster_rank.py", ranks, how, plugin, *cases, **(alone() if ranks == 1 else {}), **more)

    def beside(self, plugins, ranks, cases, on_devices=False, by=None):
        """Each plugin's cases are those of plain PyTorch, to the bit."""
        made = {}
        for plugin in plugins:
            plain = by or ("plain-autocast" if plugin in ("ddp", "none") else "plain")
            if plain not in made:
                made[plain] = self.trained(plain, ranks, cases, on_devices)
            theirs = made[plain]
            ours = self.trained(plugin, ranks, cases, on_devices)
            for rank in range(ranks):
                for case in cases:
                    self.assertEqual(ours[rank][case], theirs[rank][case], f"{plugin}, {case}, rank {rank} of {ranks}")

    def close(self, plugin, ranks, cases, beside, by="plain", on_devices=False):
        """The plugin adds in another order than plain PyTorch on `beside` ranks, with whose numbers its own are compared."""
        theirs = self.trained(by, beside, cases, on_devices)
        for rank, ours in enumerate(self.trained(plugin, ranks, cases, on_devices)):
            for case in cases:
                self.near(ours[case], theirs[ours[case]["part"]][case], case, f"{plugin}, {case}, rank {rank} of {ranks}")

    def test_on_two_ranks(self):
        self.beside(("gemini",), 2, SHORT)

    @runner.long  # test_hybrid
    def test_what_adds_in_another_order(self):
        # Two samples a rank, which a batch norm makes 1 and -1 of, whatever they are: plain PyTorch then differs by 6e-5 from itself with another order.
        for ranks, without in ((2, {"compiled", "alone"}), (4, {"compiled", "alone", "batchnorm"})):
            self.close("hybrid-1", ranks, [case for case in CASES if not without & set(case.split("+"))], ranks)
        self.close("hybrid-2", 2, OF_WHOLE_BATCHES, 1)
        self.close("hybrid-2", 4, OF_WHOLE_BATCHES, 2)

    @runner.long  # test_on_two_ranks; for ddp test_seeds
    def test_every_plugin_and_case(self):
        for ranks in (1, 2, 4):
            self.beside(("ddp", "zero1", "zero2", "gemini", "fsdp"), ranks, CASES)
        self.beside(("none",), 1, CASES)

    def test_on_a_simulated_device(self):
        jobs.simulated.need(whole=True)
        self.beside(("gemini",), 1, SHORT, on_devices=True)

    @runner.long
    def test_on_simulated_devices(self):
        jobs.simulated.need(whole=True)
        for ranks in (1, 2):
            self.beside(("ddp", "zero1", "zero2", "gemini"), ranks, CASES, on_devices=True)
        # There every rank must take part in forward passes; and a rank's buffers are rank 0's, which fully_shard leaves as they are.
        self.beside(("fsdp",), 2, [case for case in CASES if not {"alone", "batchnorm"} & set(case.split("+"))], on_devices=True, by="plain-fsdp")
        self.close("hybrid-1", 2, [case for case in CASES if case not in HALF and "compiled" not in case and "alone" not in case], 2, on_devices=True)
        self.close("hybrid-2", 2, OF_WHOLE_BATCHES, 1, on_devices=True)


class Resumed(Beside):
    """What one job saves, another one with another plugin goes on with."""

    def check(self, first, ranks_first, second, ranks_second, cases, on_devices=False):
        """`on_devices`: the second job; what was saved without devices goes on there."""
        kind, parts = "plain-autocast" if second == "ddp" else "plain", ranks_second // (2 if second == "hybrid-2" else 1)
        whole = jobs.once("booster_rank.py", parts, jobs.ALONE, kind, "on", *cases) if parts > 1 else jobs.job(
            "booster_rank.py", 1, jobs.ALONE, kind, "on", *cases, **alone())
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            jobs.job("booster_rank.py", ranks_first, jobs.NONE, first, "save", folder, *cases, **(alone() if ranks_first == 1 else {}))
            went_on = jobs.job("booster_rank.py", ranks_second, jobs.NONE, second, "load", folder, *cases, **(alone() if ranks_second == 1 else {}),
                               **(jobs.devices(ranks_second) if on_devices else {}))
        for ours in went_on:
            for case in cases:
                name = f"{case}: {first} on {ranks_first}, then {second} on {ranks_second}"
                theirs = whole[ours[case]["part"]][case]
                if ranks_first == ranks_second and not on_devices and {first, second} <= SAME_BITS:
                    self.assertEqual(ours[case], theirs, name)
                else:  # gradients, or those of other parts of the batch, were added in another order
                    self.near(ours[case], theirs, case, name)

    def test_under_another_plugin(self):
        self.check("gemini", 2, "zero2", 2, GOES_ON)

    @runner.long  # test_under_another_plugin: files say nothing of ranks
    def test_on_another_number_of_ranks(self):
        self.check("gemini", 2, "ddp", 1, GOES_ON[:3])

    @runner.long
    def test_others(self):
        self.check("zero1", 1, "gemini", 2, GOES_ON)
        self.check("ddp", 4, "gemini", 2, GOES_ON[:4])
        self.check("gemini", 2, "gemini", 4, GOES_ON)
        self.check("none", 1, "zero1", 1, GOES_ON[:4])
        for first, second in (("fsdp", "gemini"), ("zero1", "fsdp"), ("hybrid-2", "zero2"), ("gemini", "hybrid-2"), ("hybrid-2", "fsdp")):
            self.check(first, 2, second, 2, GOES_ON)

    @runner.long  # test_under_another_plugin, test_fsdp_devices
    def test_on_simulated_devices(self):
        jobs.simulated.need(whole=True)
        for first, ranks_first, second, ranks_second in (("gemini", 2, "fsdp", 2), ("fsdp", 2, "gemini", 1), ("zero2", 1, "zero1", 2), ("ddp", 2, "hybrid-2", 2)):
            self.check(first, ranks_first, second, ranks_second, GOES_ON[:4], on_devices=True)


REFUSED = r"""
import os, torch, warnings
import castor
from castor.booster import Booster, Plugin
from castor.booster.plugin import DPPluginBase, GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from castor.booster.mixed_precision.mixed_precision_base import MixedPrecision
from castor.interface import ModelWrapper, OptimizerWrapper

def said(what):
    try:
        what()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

model = lambda: torch.nn.Linear(2, 2)
said(lambda: GeminiPlugin(no_such=1))
said(lambda: GeminiPlugin(placement_policy="const"))
said(lambda: GeminiPlugin(tp_size=2))
said(lambda: GeminiPlugin(precision="fp8"))
said(lambda: GeminiPlugin(placement_policy="auto", offload_optim_frac=0.5))
said(lambda: GeminiPlugin(chunk_config_dict={}, precision="fp32").__class__)
said(lambda: Booster(plugin=GeminiPlugin(chunk_config_dict={}, precision="fp32")).boost(model()))
said(lambda: LowLevelZeroPlugin(stage=3))
said(lambda: LowLevelZeroPlugin(initial_scale=0))
said(lambda: Booster(mixed_precision="fp32"))
said(lambda: Booster(mixed_precision=torch.float16))
said(lambda: Booster(mixed_precision="fp16_apex"))
said(lambda: Booster(mixed_precision="fp8"))
said(lambda: Booster(precision="fp16", mixed_precision="bf16"))
said(lambda: Booster(plugin="gemini"))
said(lambda: Booster(device="abacus"))
said(lambda: Booster(plugin=TorchDDPPlugin()).boost([1]))
said(lambda: Booster(plugin=TorchDDPPlugin()).boost(model(), torch.optim.SGD(model().parameters(), lr=0.1)))
booster = Booster(plugin=TorchDDPPlugin())
own = model()
boosted, optimizer, *_ = booster.boost(own, torch.optim.SGD(own.parameters(), lr=1))
print(isinstance(boosted, ModelWrapper), isinstance(optimizer, OptimizerWrapper), type(boosted.unwrap()).__name__, type(optimizer.unwrap()).__name__)
said(lambda: booster.boost(boosted))
said(lambda: booster.no_sync(model()))
said(lambda: booster.execute_pipeline(iter([]), boosted, None))
said(lambda: booster.enable_lora(model()))
said(lambda: booster.save_lora_as_pretrained(boosted, "lora"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    Booster(device="cpu", precision="fp16", plugin=GeminiPlugin(precision="fp32"))
    print([str(w.message) for w in caught])
print(issubclass(GeminiPlugin, DPPluginBase), issubclass(DPPluginBase, Plugin), isinstance(MixedPrecision, type))

class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4))

said(lambda: TorchDDPPlugin().prepare_dataloader(Numbers(), 2))
amp = Booster(mixed_precision="fp16")
one = torch.nn.Linear(4, 1, bias=False)
one.weight.data.fill_(0.5)
one, steps, *_ = amp.boost(one, torch.optim.SGD(one.parameters(), lr=8.0))
x = torch.tensor([[0.75, 0.0, 1.0, 0.0]])
print([p.shape for p in steps.parameters], steps.get_grad_norm())
amp.backward(one(x).float().mean() / 2, steps)
print(steps.get_grad_norm(), steps.clip_grad_by_norm(0.5).item(), steps.get_grad_norm())
said(lambda: amp.backward(one(x).float().mean() / 2, steps))
steps.zero_grad()
amp.backward(one(x).float().mean() / 2, steps)
steps.step()
print(one.unwrap().weight[0].tolist(), steps.get_grad_norm())
steps.zero_grad()
(one(x).float().mean() / 2).backward()
said(steps.step)
steps.zero_grad()
steps.backward_by_grad(one(x), torch.full((1, 1), 0.5))
steps.step()
print(one.unwrap().weight[0].tolist())
amp.save_model(one, "model.pt")
amp.save_optimizer(steps, "optimizer.pt")
amp.load_model(one, "model.pt", True, low_cpu_mem_mode=False, num_threads=8)
amp.load_optimizer(steps, "optimizer.pt", low_cpu_mem_mode=False, num_threads=8)
"""
SAID = """TypeError: GeminiPlugin.__init__() got an unexpected keyword argument 'no_such'
ValueError: castor: GeminiPlugin(placement_policy='const'): expected 'static' or 'auto'
ValueError: castor: GeminiPlugin(tp_size=2): tensor parallelism is HybridParallelPlugin's (tp_size=2, pp_size=1)
ValueError: castor: GeminiPlugin(precision='fp8'): expected one of 'fp16', 'bf16', 'fp32'
ValueError: castor: GeminiPlugin(placement_policy='auto') decides by itself: leave out offload_optim_frac, or use 'static'
ValueError: castor: {} is no configuration of chunks: expected {data-parallel degree: {'chunk_size': elements, 'keep_gathered': bool}}, as \
search_chunk_configuration() returns it
ValueError: castor: LowLevelZeroPlugin(stage=3): expected 1 (states) or 2 (gradients, too); GeminiPlugin shards parameters as well
ValueError: castor: a loss scale with initial_scale=0: expected 0 < min_scale <= initial_scale <= max_scale, growth_factor >= 1, 0 < \
backoff_factor <= 1, growth_interval >= 1 and hysteresis >= 1
ValueError: castor: there is no mixed precision 'fp32': expected one of 'fp16', 'fp16_apex', 'fp16_naive', 'bf16', 'fp8', or a \
castor.booster.mixed_precision.MixedPrecision
TypeError: castor: Booster(mixed_precision=torch.float16): expected a name or a castor.booster.mixed_precision.MixedPrecision
ImportError: castor: mixed precision 'fp16_apex' needs NVIDIA's library apex, which is not installed: install it, or use 'fp16', which is \
PyTorch's own
ImportError: castor: mixed precision 'fp8' needs the library torchao, which is not installed: pip install torchao, or use 'bf16'
ValueError: castor: Booster() got mixed_precision and precision, which are two names of one parameter
TypeError: castor: Booster(plugin='gemini'): expected an object of a class of castor.booster.plugin
ValueError: castor: Booster(device='abacus'): Expected one of cpu, cuda
TypeError: castor: boost() of a list: expected a torch.nn.Module, and what belongs to it by name
ValueError: castor: boost(): this SGD has none of the model's parameters, and would train nothing of it: build it from model.parameters(), of the \
model that is boosted, and not of a copy
True True Linear SGD
ValueError: castor: this model was boosted already: boost each model once
ValueError: castor: no_sync() of a model that was not boosted: give it what booster.boost() returned
RuntimeError: castor: TorchDDPPlugin has no pipeline: use HybridParallelPlugin(tp_size=..., pp_size=2), or call the model and booster.backward()
ValueError: castor: enable_lora() needs lora_config (a peft.LoraConfig), or pretrained_dir, a directory that has one
ValueError: castor: save_lora_as_pretrained() of a Linear, which has no LoRA modules: give it the model of enable_lora()
["castor: GeminiPlugin decides the precision by its own parameter `precision`: the Booster's is ignored", 'castor: GeminiPlugin decides the \
device: the Booster's is ignored']
True True True
ValueError: castor: prepare_dataloader() of Numbers, an IterableDataset, of which a rank cannot pick its part: let its __iter__ yield every \
plugin.dp_size-th item from its rank in plugin.dp_group on, and give it to torch.utils.data.DataLoader
[torch.Size([1, 4])] None
0.625 0.625 0.625
RuntimeError: castor: the loss scale was taken off the gradients (by clipping, or to show their norm), and another backward would add scaled ones: \
clip after the last backward of a step; or zero_grad() first
[-2.5, 0.5, -3.5, 0.5] 0.625
RuntimeError: castor: under fp16 losses are scaled, and these gradients are of none that this optimizer scaled: call booster.backward(loss, optimizer) \
before each step, instead of loss.backward()
[-5.5, 0.5, -7.5, 0.5]
""".replace("'castor: GeminiPlugin decides the device: the Booster's is ignored'", '"castor: GeminiPlugin decides the device: the Booster\'s is ignored"')


class Loader(unittest.TestCase):
    def test_each_rank_has_its_part(self):
        ranks = jobs.job("booster_loader_rank.py", 2, jobs.NONE)
        for rank, found in enumerate(ranks):
            self.assertEqual(found["plugin"], [rank, 2, 2, True])
            for name in ("again", "another seed", "another epoch"):
                self.assertTrue(found[name], name)
            self.assertEqual(found["sampler"], [[10, 9, 8, 7, 6, 5], [4, 3, 2, 1, 0]])
            self.assertEqual(found["collated"], ["tuple"])
        self.assertEqual([found["in order"] for found in ranks], [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 0]]])
        self.assertEqual([found["whole batches"] for found in ranks], [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 0]]])
        every = sorted(sum(sum((found["shuffled"] for found in ranks), []), []))
        self.assertEqual(sorted(set(every)), list(range(11)))
        self.assertEqual(len(every), 12)
        drawn = [tuple(pair) for found in ranks for pair in found["drawn"]]
        self.assertEqual(len(set(drawn)), 12, "two workers drew the same numbers")


class Refused(unittest.TestCase):
    maxDiff = None

    def test_bad_input(self):
        done = jobs.start(["-c", REFUSED], jobs.NONE)
        shown = [line[:len("ValueError: castor: Booster(device='abacus'): Expected one of cpu, cuda")] if "abacus" in line else line
                 for line in done.stdout.splitlines()]
        self.assertEqual(shown, SAID.splitlines(), done.stderr)

    def test_another_plugin_or_precision_in_the_environment(self):
        script = "from castor.booster.plugin import TorchDDPPlugin; TorchDDPPlugin()"
        done = jobs.start(["-c", script], jobs.GEMINI)
        self.assertIn("castor: the environment says CASTOR_PLUGIN=gemini, and the script makes a TorchDDPPlugin, which is CASTOR_PLUGIN=ddp", done.stderr)
        script = "import torch; from castor.booster import Booster; from castor.booster.plugin import GeminiPlugin; " \
                 "Booster(plugin=GeminiPlugin(precision='bf16')).boost(torch.nn.Linear(2, 2))"
        done = jobs.start(["-c", script], jobs.GEMINI, CASTOR_PRECISION="fp16")
        self.assertIn("castor: the environment says CASTOR_PRECISION=fp16, and a plugin object asks for bf16", done.stderr)


if __name__ == "__main__":
    unittest.main()
