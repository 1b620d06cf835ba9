"""What a HybridParallelPlugin shows to scripts, what it refuses, and loss scales: see test_hybrid.py. Two ranks."""
import copy
import os
import sys
import time

import torch
import torch.distributed as dist
from found import end, found, launch, raised
from hybrid_models import MODELS, Perceptron, call

from castor.checkpoint_io import CheckpointError


def plugin_of(tp, pp, **more):
    from castor.booster.plugin import HybridParallelPlugin

    return HybridParallelPlugin(tp, pp, **{"precision": "fp32", "num_microbatches": 2, **more})


def boosted(plugin, model, rate=0.1):
    from castor.booster import Booster

    booster = Booster(plugin=plugin)
    model, optimizer, *_ = booster.boost(model, torch.optim.SGD(model.parameters(), lr=rate))
    return booster, model, optimizer


def layouts():
    rank = dist.get_rank()
    tensor, stages = plugin_of(2, 1), plugin_of(1, 2)
    manager = stages.stage_manager
    found("tensor", [tensor.rank, tensor.world_size, tensor.dp_size, dist.get_world_size(tensor.dp_group), dist.get_rank(tensor.tp_group) == rank,
                     tensor.stage_manager is None, tensor.enable_pipeline_parallelism, tensor.pg_mesh.shape])
    found("stages", [manager.stage, manager.num_stages, manager.is_first_stage(), manager.is_last_stage(), stages.pg_mesh.shape])
    loader = tensor.prepare_dataloader(list(range(8)), batch_size=4)
    found("samples", [batch.tolist() for batch in loader])
    loader = plugin_of(1, 1).prepare_dataloader(list(range(8)), batch_size=4)
    found("samples of replicas", [batch.tolist() for batch in loader])


class Skipping(torch.nn.Module):
    """Computes with the output of a layer that is two layers back."""

    def __init__(self, skips):
        super().__init__()
        self.layers, self.skips = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4)), skips

    def forward(self, x):
        kept = None
        for i, layer in enumerate(self.layers):
            x = layer(x)
            kept = x if i == 0 else kept
        return x + kept if self.skips else x


class Shifted(torch.nn.Module):
    """With a layer that is not trained and a buffer, of numbers that 16 bits do not have."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.layers[1].requires_grad_(False)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x + self.shift


class Twice(Skipping):
    def forward(self, x):
        return super().forward(super().forward(x))


class Direct(torch.nn.Module):
    """Uses a layer's weight without the layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.layer.weight)


def refusals():
    from castor.booster import Booster
    from castor.booster.plugin import HybridParallelPlugin

    rank, x = dist.get_rank(), torch.ones(4, 8)
    found("arguments", [
        raised(TypeError, HybridParallelPlugin, 1, 1, tensor_size=2), raised(TypeError, HybridParallelPlugin, 1), raised(ValueError, HybridParallelPlugin, 3, 1),
        raised(ValueError, HybridParallelPlugin, 1, 2), raised(ValueError, HybridParallelPlugin, 1, 1, precision="fp8"),
        raised(ValueError, HybridParallelPlugin, 1, 1, zero_stage=3), raised(ValueError, HybridParallelPlugin, 1, 1, sp_size=2),
        raised(ValueError, HybridParallelPlugin, 1, 2, pp_style="gpipe", num_microbatches=2), raised(ValueError, HybridParallelPlugin, 2, 1, max_norm=float(rank))])
    criterion = lambda output, batch: output.mean()  # noqa: E731
    booster, model, optimizer = boosted(plugin_of(1, 2), Skipping(False))
    found("called", raised(RuntimeError, model, x))
    found("called inside", raised(RuntimeError, model.module, x))
    found("copied", raised(RuntimeError, copy.deepcopy, model.module))
    found("boosted twice", raised(ValueError, booster.boost, model))
    found("not this plugin's", raised(ValueError, booster.execute_pipeline, iter([x]), Skipping(False), criterion, optimizer))
    found("no data", raised(Exception, booster.execute_pipeline, None if rank else iter([x]), model, criterion, optimizer))
    found("indivisible", raised(Exception, booster.execute_pipeline, iter([x[:3]]), model, criterion, optimizer))
    found("closure", raised(ValueError, optimizer.step, lambda: None))
    found("too many parts", raised(ValueError, Booster(plugin=plugin_of(1, 2, pp_style="interleaved", num_model_chunks=4)).boost, Skipping(False)))
    found("no chain", raised(ValueError, Booster(plugin=plugin_of(1, 2)).boost, torch.nn.Linear(2, 2)))
    found("layers", raised(ValueError, Booster(plugin=plugin_of(1, 2, num_layers_per_stage=[1, 1])).boost, Skipping(False)))
    one = Skipping(False)
    found("foreign parameters", raised(ValueError, boosted(plugin_of(2, 1), Skipping(False))[0].boost, one, torch.optim.SGD([*one.parameters(), torch.zeros(1)], lr=1)))
    found("different models", raised(ValueError, Booster(plugin=plugin_of(2, 1)).boost, torch.nn.Linear(2, 4 + rank)))
    found("hidden states", raised(ValueError, booster.execute_pipeline, iter([{"x": x, "output_hidden_states": True}]), model, criterion, optimizer))
    booster, model, optimizer = boosted(plugin_of(2, 1), Skipping(False))
    found("no pipeline", raised(RuntimeError, booster.execute_pipeline, iter([x]), model, criterion, optimizer))
    found("different inputs", raised(RuntimeError, model, x + rank))
    torch.manual_seed(rank)
    found("different seeds", raised(RuntimeError, model, x))
    torch.manual_seed(0)
    direct = Booster(plugin=plugin_of(2, 1)).boost(Direct())[0]
    found("a weight used directly", raised(RuntimeError, direct, x))
    found("attentions", raised(ValueError, direct, x, output_attentions=True))
    found("policies", [raised(TypeError, Booster(plugin=plugin_of(2, 1, custom_policy="col")).boost, Skipping(False)),
                       raised(ValueError, Booster(plugin=plugin_of(2, 1, custom_policy={"layers.*": "diagonal"})).boost, Skipping(False)),
                       raised(ValueError, Booster(plugin=plugin_of(2, 1, custom_policy={"layers": "col"})).boost, Skipping(False))])


def skipping():
    """Each in a job of its own: one stage alone finds out."""
    kind = {"skipping": lambda: Skipping(True), "twice": lambda: Twice(False)}[sys.argv[1]]
    booster, model, optimizer = boosted(plugin_of(1, 2, num_layers_per_stage=[2, 2], cpu_offload=True), kind())
    try:
        booster.execute_pipeline(iter([torch.ones(4, 8)]), model, lambda output, batch: output.mean(), optimizer)
    except RuntimeError as error:
        found("error", str(error))
        raise


def overflows():
    torch.manual_seed(3)
    model = Perceptron()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    booster, model, optimizer = boosted(plugin_of(1, 2, precision="fp16", initial_scale=2**30, hysteresis=1, growth_interval=2), model)
    ids, scales, moved = torch.arange(24).view(4, 6), [], []
    for _ in range(24):
        result = booster.execute_pipeline(iter([{"ids": ids}]), model, lambda output, batch: MODELS["perceptron"][2](output.float(), batch), optimizer)
        optimizer.step()
        optimizer.zero_grad()
        scales.append(optimizer.loss_scale)
        moved.append(any(not torch.equal(p, before[name].to(p.dtype)) for name, p in model.module.named_parameters()))
    found("scales", scales)
    found("moved", moved)
    found("loss", None if result["loss"] is None else result["loss"].item())


def returned():
    """What execute_pipeline returns, and evaluation."""
    torch.manual_seed(3)
    model = MODELS["bert"][0]().eval()
    plain = copy.deepcopy(model)
    booster, model, optimizer = boosted(plugin_of(1, 2), model)
    model.eval()
    batch = MODELS["bert"][1](torch.Generator().manual_seed(1), 8)
    expected = call(plain, batch)
    last = booster.plugin.stage_manager.is_last_stage()
    for name, returns in (("both", (True, True)), ("loss", (True, False)), ("outputs", (False, True)), ("neither", (False, False))):
        with torch.no_grad():
            result = booster.execute_pipeline(iter([batch]), model, lambda output, _: output.loss, None, *returns)
        loss, outputs = result["loss"], result["outputs"]
        found(f"{name}: kinds", [sorted(result), None if loss is None else list(loss.shape), None if outputs is None else type(outputs).__name__])
        if last and returns[0]:
            found(f"{name}: loss is equal", torch.allclose(loss, expected.loss, rtol=1e-5))
        if last and returns[1]:
            found(f"{name}: logits are equal", torch.allclose(outputs.logits, expected.logits, rtol=1e-5, atol=1e-6))
            found(f"{name}: loss in outputs", torch.allclose(outputs.loss, expected.loss, rtol=1e-5))
    found("gradients", [p.grad is not None for p in model.parameters()].count(True))


def policy():
    """A policy that a script gives."""
    torch.manual_seed(3)
    model = Perceptron()
    plain, ids = copy.deepcopy(model), torch.arange(24).view(4, 6)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    booster, model, optimizer = boosted(plugin_of(2, 1, custom_policy={"blocks.*.1": ColwiseParallel(), "blocks.*.3": "row", "embedding": None}), model)
    divided = [name for name, p in model.module.named_parameters() if hasattr(p, "placements")]
    booster.backward(model(ids).square().mean(), optimizer)
    plain(ids).square().mean().backward()
    found("divided", divided)
    found("equal", all(torch.allclose(p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad, plain.get_parameter(name).grad, rtol=1e-4, atol=1e-6)
                       for name, p in model.module.named_parameters()))


def kept():
    """What a model of 16 bits saves of what was not trained: the float values, those that were loaded, and what a script has written."""
    from castor.booster import Booster

    file, first, other = os.path.join(os.environ["EXPLICIT_TEST_FOUND"], "kept.bin"), Shifted(3).state_dict(), Shifted(4).state_dict()
    untrained = ["layers.1.weight", "layers.1.bias", "shift"]
    for name, tp, pp in (("tensor", 2, 1), ("stages", 1, 2)):
        for trains in (True, False):
            booster, model = Booster(plugin=plugin_of(tp, pp, precision="bf16")), Shifted(3)
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0) if trains else None
            model, optimizer, *_ = booster.boost(model, optimizer)

            def saved():
                dist.barrier()
                booster.save_model(model, file)
                dist.barrier()
                return torch.load(file, weights_only=True)

            def alike(state, expected, of):
                return [key for key in of if not torch.equal(state[key], expected[key])]

            before = saved()
            if pp == 2 and trains:
                booster.execute_pipeline(iter([torch.ones(4, 8)]), model, lambda output, batch: output.square().mean(), optimizer)
            elif trains:
                booster.backward(model(torch.ones(4, 8)).square().mean(), optimizer)
            if trains:
                optimizer.step()
            after = saved()
            dist.barrier()
            if dist.get_rank() == 0:
                torch.save(other, file)
            dist.barrier()
            booster.load_model(model, file)
            loaded = saved()
            with torch.no_grad():
                model.module.shift[0] = 0.5
            edited = saved()["shift"]
            found(f"{name}, {'trains' if trains else 'evaluates'}", [
                alike(before, first, first), alike(after, first, untrained), len(alike(after, first, first)), alike(loaded, other, other),
                float(edited[0]), torch.equal(edited[1:], other["shift"][1:])])


def saved_alone():
    """By rank 0 while the other one trains on."""
    for name, tp, pp in (("tensor", 2, 1), ("stages", 1, 2)):
        booster, model, optimizer = boosted(plugin_of(tp, pp), torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))))

        def step():
            if pp == 2:
                booster.execute_pipeline(iter([torch.ones(4, 8)]), model, lambda output, batch: output.square().mean(), optimizer)
            else:
                booster.backward(model(torch.ones(4, 8)).square().mean(), optimizer)
            optimizer.step()

        step()
        began = time.monotonic()
        said = [raised(CheckpointError, save, thing, "alone.bin") for save, thing in ((booster.save_model, model), (booster.save_optimizer, optimizer))
                if dist.get_rank() == 0]
        seconds = time.monotonic() - began
        step()
        found(name, [said, seconds])


def main():
    launch()
    for part in sys.argv[1:]:
        (skipping if part in ("skipping", "twice") else globals()[part])()
    end()


main()
