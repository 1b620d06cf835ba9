"""CASTOR_COMPAT=1 on a machine without a GPU: what "cuda" means, see test_compat.py. The argument: torch.compile's backend."""
import io
import os
import pickle
import socket
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import DataLoader, TensorDataset

from found import end, found, raised

warnings.simplefilter("ignore", FutureWarning)  # torch.cuda.amp's functions have newer names
BACKEND = sys.argv[1]
cpu = torch.device("cpu")
x = torch.ones(2, 3)

# ---- devices
named = [torch.device(*which) for which in (("cuda",), ("cuda:0",), ("cuda:7",), ("cuda", 1), (2,), ("cpu",), ("cpu", 0))]
named += [torch.device(type="cuda", index=3), torch.device(torch.device("cuda:1")), pickle.loads(pickle.dumps(torch.device("cuda:1")))]
found("devices", [len(named), sorted({repr(device) for device in named}), all(device == x.device for device in named), {str(d): 1 for d in named},
                  all(isinstance(device, torch.device) for device in named), named[2].type == "cuda", hash(named[3]) == hash(cpu)])
found("others stay", [repr(torch.device("meta", 1)), str(torch.zeros(1, device="meta").device), raised(RuntimeError, torch.device, "cudas")[:8]])
found("no GPU", [torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available(), x.cuda().is_cuda, torch.cuda.current_device()])

# ---- moves: to where the tensor is already
moves = [x.cuda(), x.cuda(0), x.cuda(device="cuda:1", non_blocking=True), x.to("cuda"), x.to("cuda:1", non_blocking=True), x.to(device=torch.device("cuda", 1)),
         x.to("cuda", torch.float32)]
found("moved", [move is x for move in moves])
copies = [x.to(0), x.to(torch.cuda.current_device()), x.to("cuda", torch.float64), x.to("cuda", copy=True), x.pin_memory()]
found("copied", [(copy is not x and torch.equal(copy, x.to(copy.dtype)), str(copy.device)) for copy in copies])
made = [torch.zeros(2, device="cuda"), torch.full((2,), 1, device="cuda:1"), torch.tensor([1], device=0), torch.arange(3, device=torch.device("cuda")),
        torch.randn(2, device="cuda"), torch.randperm(3, device="cuda"), torch.empty_like(x, device="cuda"), x.new_zeros(2, device="cuda:0"), torch.eye(2, device=1),
        torch.as_tensor([1.0], device="cuda"), torch.linspace(0, 1, 3, device="cuda"), torch.randint(3, (2,), device=torch.cuda.current_device())]
with torch.device("cuda"):
    made.append(torch.ones(2))
torch.set_default_device("cuda")
made.append(torch.ones(2))
torch.set_default_device(None)
made.append(torch.nn.Linear(2, 2, device="cuda").weight)
made.append(torch.nn.Linear(2, 2).cuda().to("cuda:0").to(0).to(device="cuda", dtype=torch.float64).cuda(1).weight)
found("made", [str(tensor.device) for tensor in made])
found("generator", [str(torch.Generator("cuda").device), torch.rand(2, generator=torch.Generator("cuda:0").manual_seed(3)).tolist()
                    == torch.rand(2, generator=torch.Generator().manual_seed(3)).tolist()])
torch.manual_seed(5)
found("values", [torch.randn(4, device="cuda").tolist(), (torch.manual_seed(5), torch.randn(4).tolist())[1]])
weight = torch.nn.Parameter(torch.ones(3))
loss = (weight.cuda() * x.cuda()).sum()
loss.backward()
found("gradients", [weight.grad.tolist(), weight.cuda() is weight])
packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
found("packed", str(packed.cuda().data.device))
found("traced", str(torch.jit.trace(lambda t: t.to("cuda") + 1, x)(x).device))

# ---- torch.cuda
begin, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
with torch.cuda.stream(torch.cuda.Stream()) as _:
    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
    x.record_stream(torch.cuda.current_stream())
    x.cuda(non_blocking=True)
done.record()
for function in (torch.cuda.synchronize, torch.cuda.empty_cache, torch.cuda.reset_peak_memory_stats, torch.cuda.reset_max_memory_allocated):
    function()
torch.cuda.set_device("cuda:3")
torch.cuda.set_device(0)
torch.cuda.manual_seed_all(1)
done.synchronize()
with torch.cuda.device(0):
    pass
found("torch.cuda", [0 <= begin.elapsed_time(done) < 1e6, done.query(), torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(),
                     "timing" in raised(ValueError, begin.elapsed_time, torch.cuda.Event())])
state = torch.cuda.get_rng_state()
drawn = torch.rand(2, device="cuda")
torch.cuda.set_rng_state(state)
found("random state", torch.equal(torch.rand(2), drawn))

# ---- autocast and the scaler
linear = torch.nn.Linear(3, 3).cuda()
types = []
for context in (torch.autocast("cuda"), torch.cuda.amp.autocast(), torch.amp.autocast("cuda", dtype=torch.bfloat16), torch.autocast(device_type="cuda", enabled=False),
                torch.autocast(torch.device("cuda").type, torch.float16)):
    with context:
        types.append(str(linear(x.cuda()).dtype))
found("autocast", types)
scaler = torch.cuda.amp.GradScaler(init_scale=8.0)
sgd = torch.optim.SGD(linear.parameters(), lr=0.5)
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = linear(x).float().sum()
scaler.scale(loss).backward()
scaled = linear.bias.grad.tolist()
before = linear.bias.detach().clone()
scaler.step(sgd)
scaler.update()
found("scaler", [torch.amp.GradScaler("cuda").is_enabled(), scaled, torch.equal(linear.bias, before - 0.5 * 2)])
checkpointed = torch.nn.Linear(3, 3)
seen = []
for use_reentrant in (True, False):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.utils.checkpoint.checkpoint(checkpointed, torch.ones(1, 3, requires_grad=True), use_reentrant=use_reentrant).float().sum().backward()
    seen.append(checkpointed.weight.grad.tolist())
    checkpointed.weight.grad = None
found("recomputed", [seen[0] == seen[1], seen[0]])

# ---- files
file = io.BytesIO()
torch.save({"a": x}, file)
loaded = []
for location in ("cuda", "cuda:1", torch.device("cuda", 1), {"cpu": "cuda:0"}, lambda storage, name: storage, None):
    file.seek(0)
    loaded.append(str(torch.load(file, map_location=location)["a"].device))
found("loaded", loaded)
tagged = io.BytesIO()
torch.serialization.register_package(1, lambda storage: "cuda:3", lambda storage, location: None)  # as a GPU's storages are saved
torch.save({"a": x}, tagged)
torch.serialization._package_registry[:] = [row for row in torch.serialization._package_registry if row[0] != 1]
tagged.seek(0)
found("a GPU's file", [torch.load(tagged)["a"].tolist() == x.tolist(), b"cuda:3" in tagged.getvalue()])

# ---- workers, compiled code, ranks
batches = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2, collate_fn=lambda rows: torch.stack([row[0].cuda() for row in rows]))
found("workers", [batch.cuda(non_blocking=True).sum().item() for batch in batches])


@torch.compile(backend=BACKEND)
def compiled(t):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        t = torch.mm(t, t.t())
    return t.cuda() + torch.ones(2, 2, device="cuda:0") + torch.ones(2, 2, device=torch.device("cuda", 1))


found("compiled", [compiled(x).tolist(), str(compiled(x).dtype)])
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1).cuda(0), device_ids=[0], output_device=0)
    ddp(x.cuda(0)).sum().backward()
    found("ranks", [dist.get_backend(), dist.get_backend(dist.new_group([0], backend="nccl")), next(ddp.parameters()).grad is not None,
                    list(torch.nn.DataParallel(torch.nn.Linear(3, 1))(x).shape)])
    mesh = init_device_mesh("cuda", (1,))
    found("mesh", [mesh.device_type, str(distribute_tensor(x, mesh, [Shard(0)]).to_local().device)])
    del ddp, mesh
    end()

# ---- other launchers' variables, and the backend that scripts for a GPU name
import castor

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
missing = [raised(RuntimeError, launch, "127.0.0.1", port) for launch in (castor.launch_from_slurm, castor.launch_from_openmpi)]
os.environ.update(SLURM_PROCID="0", SLURM_NPROCS="1", SLURM_LOCALID="0", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1", OMPI_COMM_WORLD_LOCAL_RANK="0")
backends = []
for launch in (castor.launch_from_slurm, castor.launch_from_openmpi):
    launch({}, "127.0.0.1", port, backend="nccl", verbose=False)
    backends.append([dist.get_backend(), dist.get_world_size()])
    end()
parsed = castor.get_default_parser().parse_args(["--host", "h", "--port", "7", "--rank", "1", "--world_size", "2"])
found("launchers", [backends, [text[: text.index(" in the")] for text in missing], [parsed.host, parsed.port, parsed.rank, parsed.world_size, parsed.config]])
