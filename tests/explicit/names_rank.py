"""Names of Colossal-AI's scripts that lead to Castor's own division and lazy initialization: one rank of two. Prints what test_names.py compares."""
import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin
from colossalai.legacy.zero.init_ctx import ZeroInitContext
from colossalai.shardformer import GradientCheckpointConfig, PipelineGradientCheckpointConfig, ShardConfig, ShardFormer
from colossalai.shardformer.layer import Embedding1D, Linear1D_Col, Linear1D_Row, VocabParallelEmbedding1D, cross_entropy_1d
from colossalai.shardformer.layer.loss import dist_cross_entropy, dist_log_prob
from colossalai.shardformer.policies.auto_policy import get_autopolicy
from colossalai.shardformer.policies.base_policy import ModulePolicyDescription, Policy, SubModuleReplacementDescription
from colossalai.shardformer.policies.llama import LlamaPolicy
from colossalai.zero import ColoInitContext
from found import end, found, raised

colossalai.launch_from_torch(verbose=False)
rank, size = dist.get_rank(), dist.get_world_size()
F = torch.nn.functional


def refusal(function):
    return raised((ValueError, TypeError, RuntimeError), function)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = torch.nn.Embedding(12, 8), torch.nn.ModuleList(Layer() for _ in range(2)), torch.nn.Linear(8, 12)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Own(Policy):
    seen = ()

    def config_sanity_check(self):
        assert self.shard_config.tensor_parallel_size == size

    def preprocess(self):
        return self.model

    def module_policy(self):
        policy = {Layer: ModulePolicyDescription(sub_module_replacement=[
            SubModuleReplacementDescription("up", Linear1D_Col), SubModuleReplacementDescription("down", Linear1D_Row)])}
        self.append_or_create_submodule_replacement(SubModuleReplacementDescription("embed", VocabParallelEmbedding1D), policy, "Net")
        self.append_or_create_submodule_replacement(SubModuleReplacementDescription("gate", Linear1D_Col, ignore_if_not_exist=True), policy, "Net")
        self.append_or_create_method_replacement({"shown": lambda module: type(module).__mro__[2].__name__}, policy, torch.nn.LayerNorm)
        return policy

    def postprocess(self):
        self.seen = (*self.seen, "postprocess")
        return self.model


def built(seed=1):
    torch.manual_seed(seed)
    return Net()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


ids = torch.randint(0, 12, (4, 5), generator=torch.Generator().manual_seed(2))


def trained(model, make):
    optimizer, losses = make(model.parameters()), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), *(whole(p.detach()).flatten() for p in model.parameters())])


# ---- ShardFormer and policies: the same numbers as the whole model's, with parts on each rank
config = ShardConfig()
for name, make in (("SGD", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)), ("Adam", lambda p: torch.optim.Adam(p, lr=0.01))):
    plain = trained(built(), make)
    for kind, policy in (("found", None), ("llama", LlamaPolicy()), ("auto", get_autopolicy(built())), ("own", Own())):
        model, shared = ShardFormer(shard_config=ShardConfig()).optimize(built(1 + rank), policy)  # ranks take the first one's values
        found(f"{name} {kind}", [float((trained(model, make) - plain).abs().max()) < 1e-5, shared == [], model.layers[0].up.weight.to_local().shape[0],
                                tuple(whole(model.embed.weight).shape)])
own = Own()
model, _ = ShardFormer(config).optimize(built(), own)
found("own policy", [own.seen, model.layers[0].norm.shown(), config.parallel_output, config.tensor_parallel_size])
untouched, _ = ShardFormer(ShardConfig(enable_tensor_parallelism=False)).optimize(built())
found("without", type(untouched.head.weight).__name__)

# ---- the same policies in a plugin, which has the ShardConfig of its models; and checkpointed layers of stages
for name, make in (("SGD", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)), ("Adam", lambda p: torch.optim.Adam(p, lr=0.01))):
    plain = trained(built(), make)
    for kind, policy in (("auto", get_autopolicy(built())), ("own", Own())):
        plugin = HybridParallelPlugin(tp_size=2, pp_size=1, precision="fp32", custom_policy=policy)
        model, booster = built(), Booster(plugin=plugin)
        model, optimizer, *_ = booster.boost(model, make(model.parameters()))
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            booster.backward(loss, optimizer)
            optimizer.step()
            losses.append(loss.detach())
        got = torch.cat([torch.stack(losses), *(whole(p.detach()).flatten() for p in model.unwrap().parameters())])
        found(f"plugin {name} {kind}", [float((got - plain).abs().max()) < 1e-5, model.unwrap().layers[0].up.weight.to_local().shape[0], plugin.shard_config.parallel_output,
                                        plugin.shard_config.tensor_parallel_size])


class Checkpointed(Layer):
    gradient_checkpointing, runs = False, 0

    def inner(self, x):
        self.runs += 1
        return super().forward(x)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False) if self.gradient_checkpointing else self.inner(x)


def runs(config, enabled):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(Checkpointed() for _ in range(6)))
    for layer in model:
        layer.gradient_checkpointing = enabled
    layers = list(model)
    booster = Booster(plugin=HybridParallelPlugin(tp_size=1, pp_size=2, precision="fp32", num_microbatches=1, gradient_checkpoint_config=config))
    model, optimizer, *_ = booster.boost(model, torch.optim.SGD(model.parameters(), lr=0.1))
    booster.execute_pipeline(iter([torch.ones(2, 8)]), model, lambda output, batch: output.square().mean(), optimizer)
    return [layer.runs for layer in layers]


found("stages", [runs(None, True), runs(PipelineGradientCheckpointConfig(num_ckpt_layers_per_stage=[2, 0]), True), runs(PipelineGradientCheckpointConfig(0.4), True),
                 runs(GradientCheckpointConfig(1.0), True), runs(PipelineGradientCheckpointConfig(1.0), False)])

# ---- log-probabilities and cross entropy, with gradients
logits = torch.randn(3, 6, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
labels = torch.randint(0, 12, (3, 6), generator=torch.Generator().manual_seed(4))
weights = torch.randn(3, 5, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
reference = logits.clone().requires_grad_()
expected = F.log_softmax(reference[:, :-1], -1).gather(-1, labels[:, 1:, None])
(expected * weights).sum().backward()


def part(tensor, bounds):
    return tensor[..., bounds[0]:bounds[1]].clone()


for kind, bounds, vocabulary in (("parts", (rank * 6, rank * 6 + 6), 12), ("no size", (rank * 6, rank * 6 + 6), None),
                                 ("uneven", ((0, 7), (7, 12))[rank], 12), ("whole", (0, 12), 12)):
    mine = part(logits, bounds).requires_grad_()
    got = dist_log_prob(labels, mine, ShardConfig(), vocabulary, torch.float64)
    (got * weights).sum().backward()
    found(f"log prob {kind}", [got.shape == (3, 5, 1), torch.allclose(got, expected, rtol=1e-12, atol=1e-12),
                              torch.allclose(mine.grad, part(reference.grad, bounds), rtol=1e-12, atol=1e-12)])
got = dist_log_prob(labels, logits, ShardConfig(parallel_output=False), 12, torch.float64)
found("log prob not divided", torch.equal(got, expected))
half = dist_log_prob(labels, part(logits, (rank * 6, rank * 6 + 6)).bfloat16(), ShardConfig(), 12, torch.bfloat16)
found("log prob bf16", [str(half.dtype), float((half - expected).detach().abs().max()) < 0.05])
masked = labels.clone()
masked[:, 2] = -100
for mode in ("mean", "sum"):
    reference = logits.clone().requires_grad_()
    total = F.cross_entropy(reference.flatten(0, 1), masked.flatten(), reduction=mode)
    total.backward()
    mine = part(logits, (rank * 6, rank * 6 + 6)).requires_grad_()
    got = cross_entropy_1d(mine, masked, mode=mode, vocab_size=12)
    got.backward()
    found(f"cross entropy {mode}", [abs(float(got) - float(total)) < 1e-12,
                                   torch.allclose(mine.grad, part(reference.grad, (rank * 6, rank * 6 + 6)), rtol=1e-12, atol=1e-12)])
mine = part(logits, (rank * 6, rank * 6 + 6))
expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), masked[:, 1:].flatten())
found("dist_cross_entropy", abs(float(dist_cross_entropy(masked, mine, ShardConfig(), 12, torch.float64) - expected)) < 1e-12)
found("refused losses", [refusal(lambda: dist_log_prob(labels, mine, ShardConfig(), 13, None)), refusal(lambda: dist_log_prob(labels, logits, ShardConfig(), None, None)),
                        refusal(lambda: dist_log_prob(labels[:, 1:], mine, ShardConfig(), 12, None)), refusal(lambda: cross_entropy_1d(mine, labels, mode="most"))])

# ---- layers, one by one: a rank's part is a plain parameter
x = torch.randn(4, 8, generator=torch.Generator().manual_seed(6))
torch.manual_seed(7)
linear, table = torch.nn.Linear(8, 16), torch.nn.Embedding(12, 8, padding_idx=3)
reference = x.clone().requires_grad_()
linear(reference).square().sum().backward()
made = {}
for name, layer, own in (("column", Linear1D_Col.from_native_module(linear, process_group=None, gather_output=True), lambda t: t.chunk(size, 0)[rank]),
                         ("row", Linear1D_Row.from_native_module(linear, None, parallel_input=False), lambda t: t.chunk(size, -1)[rank])):
    given = x.clone().requires_grad_()
    y = layer(given)
    y.square().sum().backward()
    found(f"linear {name}", [torch.allclose(y, linear(x), atol=1e-6), torch.allclose(layer.weight.grad, own(linear.weight.grad), atol=1e-5), type(layer.weight).__name__,
                            list(layer.weight.shape), torch.allclose(given.grad, reference.grad, atol=1e-5), isinstance(layer, torch.nn.Linear)])
parts = Linear1D_Row.from_native_module(torch.nn.Linear(16, 8))(Linear1D_Col.from_native_module(linear)(x))
found("column, row", list(parts.shape))
table(ids).square().sum().backward()
for name, layer, dim in (("features", Embedding1D.from_native_module(table), 1), ("entries", VocabParallelEmbedding1D.from_native_module(table), 0)):
    y = layer(ids)
    y.square().sum().backward()
    found(f"embedding {name}", [torch.allclose(y, table(ids)), torch.allclose(layer.weight.grad, table.weight.grad.chunk(size, dim)[rank]), list(layer.weight.shape)])
fresh = Linear1D_Col(8, 16, bias=False)
everyone = [torch.empty(8, 8) for _ in range(size)]
dist.all_gather(everyone, fresh.weight.detach())
found("made anew", [list(fresh.weight.shape), bool((everyone[0] != everyone[-1]).any())])
found("refused layers", [refusal(lambda: Linear1D_Col.from_native_module(linear, seq_parallel_mode="ring")), refusal(lambda: Linear1D_Col.from_native_module(table)),
                        refusal(lambda: Linear1D_Row.from_native_module(torch.nn.Linear(3, 2))), refusal(lambda: Linear1D_Col.from_native_module(linear, gather=True)),
                        refusal(lambda: Embedding1D.from_native_module(table, gather_output=False))])
found("refused policies", [refusal(lambda: ShardFormer(ShardConfig(pipeline_stage_manager=object())).optimize(built()))])

# ---- contexts
torch.manual_seed(1)
plain = Net()
after = torch.rand(1)
torch.manual_seed(1)
with ColoInitContext(device="cpu", dtype=torch.half):
    model = Net()
found("ColoInitContext", [all(torch.equal(p, q.half()) for p, q in zip(model.parameters(), plain.parameters())), str(next(model.parameters()).dtype),
                         torch.equal(torch.rand(1), after)])
torch.manual_seed(2)
state = torch.get_rng_state()
with ZeroInitContext(target_device=torch.device("cpu"), shard_strategy=None, seed=1, shard_param=True) as context:
    model = Net()
found("ZeroInitContext", [all(map(torch.equal, model.parameters(), plain.parameters())), context.model_numel_tensor.item() == sum(p.numel() for p in model.parameters()),
                         torch.equal(torch.get_rng_state(), state)])

# ---- numbers of checkpointed layers
numbers = PipelineGradientCheckpointConfig(num_ckpt_layers_per_stage=[4, 3, 2, 0])
found("checkpointed", [numbers.get_num_ckpt_layers(stage=1, num_stages=4, num_layers=5), numbers.get_num_ckpt_layers(0, 2, 5, 1, 2),
                       PipelineGradientCheckpointConfig(0.5).get_num_ckpt_layers(0, 2, 5), refusal(lambda: numbers.get_num_ckpt_layers(0, 2, 5)),
                       refusal(lambda: numbers.get_num_ckpt_layers(0, 4, 3)), refusal(lambda: PipelineGradientCheckpointConfig(1.5))])
end()
