"""PyTorch's CUDA wheel on simulated devices; started by run.py."""
import gc
import os

import torch

import inside

torch.manual_seed(0)
MIB = 1 << 20


def close(left, right, tolerance):
    # Only copies leave the device with their numbers: conversions there are kernels, which do nothing.
    difference = (left.cpu().double() - right.cpu().double()).abs().max().item()
    assert difference <= tolerance, difference


def refused(error, function):
    try:
        function()
    except error as raised:
        return str(raised)
    raise AssertionError(f"{error.__name__} expected")


def test_devices():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == int(os.environ["SIM_DEVICES"]) == 2
    properties = torch.cuda.get_device_properties(1)
    assert (properties.major, properties.minor) == (9, 0), properties
    assert properties.total_memory == 8 << 30
    assert torch.cuda.get_device_name(0) == "Castor simulated GPU"


def test_copies():
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        values = torch.randint(0, 2, (1000, 37)).to(dtype)
        assert torch.equal(values.cuda().cpu(), values)
    strided = torch.randn(64, 64)[:, ::1].t().contiguous()
    there = torch.empty(64, 64, device="cuda")
    there.copy_(strided)
    assert torch.equal(there.clone().cpu(), strided)
    assert torch.equal(there.to("cuda:1").cpu(), strided), "from one device to the other"


def test_linear_layer():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-14), (torch.bfloat16, 0.02), (torch.float16, 0.004)):
        for bias in (True, False):
            layer = torch.nn.Linear(300, 130, bias=bias, dtype=dtype)
            batch = torch.randn(70, 300, dtype=dtype)
            expected = layer(batch)
            close(layer.cuda()(batch.cuda()), expected, tolerance)


def test_linear_backward():
    layer = torch.nn.Linear(64, 48, bias=False)
    batch = torch.randn(32, 64, requires_grad=True)
    out = layer(batch)
    seed = torch.randn_like(out)
    weight_grad, batch_grad = torch.autograd.grad(out, (layer.weight, batch), seed)
    layer.cuda()
    there = batch.detach().cuda().requires_grad_()
    found = torch.autograd.grad(layer(there), (layer.weight, there), seed.cuda())
    close(found[0], weight_grad, 1e-5)
    close(found[1], batch_grad, 1e-5)


def test_batched_products():
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-12), (torch.bfloat16, 0.3), (torch.float16, 0.04)):
        left, right = torch.randn(5, 70, 130, dtype=dtype), torch.randn(5, 130, 90, dtype=dtype)
        close(left.cuda() @ right.cuda(), left.double() @ right.double(), tolerance)
        close(left.cuda().transpose(1, 2) @ left.cuda(), left.double().transpose(1, 2) @ left.double(), tolerance)
    matrix, vector = torch.randn(40, 30), torch.randn(30)
    close(matrix.cuda() @ vector.cuda(), matrix @ vector, 1e-5)
    close(vector.cuda().dot(vector.cuda()), vector.dot(vector), 1e-5)


def test_memory_and_limit():
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    assert total == 8 << 30 and 0 < free <= total
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    taken = free - torch.cuda.mem_get_info()[0]
    assert taken == torch.cuda.memory_reserved() - reserved, "what PyTorch reserves is what the device lacks"
    assert taken >= 1000 * MIB, taken  # an expandable segment may have had some room
    assert torch.cuda.memory_allocated() >= 1 << 30
    said = refused(torch.OutOfMemoryError, lambda: torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
    assert "8.00 GiB" in said, said
    del block
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= free


def test_pinned_memory_and_streams():
    pinned, back = torch.randn(MIB, pin_memory=True), torch.empty(MIB, pin_memory=True)
    assert pinned.is_pinned() and not torch.randn(10).is_pinned()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    gate = inside.Gate(stream)
    with torch.cuda.stream(stream):
        there = pinned.to("cuda", non_blocking=True)
        done.record()
    assert not done.query() and not stream.query(), "a copy from pinned memory returns before it is done"
    torch.cuda.current_stream().wait_event(done)
    back.copy_(there, non_blocking=True)
    assert not torch.cuda.current_stream().query(), "behind the other stream"
    gate.open()
    torch.cuda.synchronize()
    assert done.query() and torch.equal(back, pinned)


def test_events_measure():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    inside.faults(latency="blas:20000")
    try:
        left = torch.zeros(8, 8, device="cuda")
        start.record()
        left @ left
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 20, start.elapsed_time(end)
    finally:
        inside.faults()


def test_a_device_that_hangs():
    values = [torch.zeros(8, device=f"cuda:{device}") for device in range(2)]
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    inside.engine.sim_hang_set(b"launch:2:1")
    try:
        done = []
        for value in values:
            with torch.cuda.device(value.device):
                for _ in range(2):
                    value.add_(1)
                    done.append(torch.cuda.Event())
                    done[-1].record()
        torch.cuda.synchronize(0)
        done[2].synchronize()
        assert [event.query() for event in done] == [True, True, True, False]
    finally:
        inside.engine.sim_hang_set(b"")
    torch.cuda.synchronize(1)
    assert done[3].query()


def test_launches_are_recorded():
    before = inside.engine.sim_launch_count()
    values = torch.empty(1000, device="cuda").fill_(3)
    values.mul_(2)
    torch.cuda.synchronize()
    found = inside.launches(before)
    assert len(found) == 2, [launch.name for launch in found]
    assert b"FillFunctor" in found[0].name and list(found[0].block) == [128, 1, 1]
    assert found[0].argument_bytes >= 16 and found[0].pointers == 1 and found[1].pointers == 2
    assert not found[0].dangling and not found[1].dangling
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        values.add_(1)
    stream.synchronize()
    assert inside.launches(before)[-1].stream_id != found[0].stream_id


def test_optimizer_step_launches():
    layer = torch.nn.LayerNorm(512).cuda()
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(4, 512).cuda()).sum().backward()
    before = inside.engine.sim_launch_count()
    optimizer.step()
    torch.cuda.synchronize()
    assert inside.engine.sim_launch_count() > before
    assert all(not launch.dangling for launch in inside.launches(before))


def test_transformer_step():
    """Embedding, attention, loss and a fused optimizer launch with pointers into mapped memory only."""
    tokens = torch.randint(0, 100, (2, 16)).cuda()
    embedding = torch.nn.Embedding(100, 64).cuda()
    block = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).cuda()
    head = torch.nn.Linear(64, 100).cuda()
    parameters = [*embedding.parameters(), *block.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    before = inside.engine.sim_launch_count(), inside.engine.sim_launch_dangling()
    for _ in range(2):
        optimizer.zero_grad()
        out = head(block(embedding(tokens)))
        torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    torch.cuda.synchronize()
    found = inside.launches(before[0])
    assert len(found) > 50 and any(b"Adam" in launch.name for launch in found), len(found)
    assert inside.engine.sim_launch_dangling() == before[1], [launch.name for launch in found if launch.dangling]
    assert all(parameter.grad is not None for parameter in parameters)


def test_graph_replays():
    left, right = torch.empty(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = left @ right
        product + 1
    before = inside.engine.sim_launch_count()
    for _ in range(3):
        values = torch.randn(64, 64)
        left.copy_(values)
        right.copy_(values)
        graph.replay()
        torch.cuda.synchronize()
        close(product, values @ values, 1e-4)
    assert inside.engine.sim_launch_count() - before == 3, "one kernel for each replay, none for the capture"


def test_nccl_in_one_process():
    values = [torch.randn(5000) for _ in range(2)]
    there = [value.to(f"cuda:{device}") for device, value in enumerate(values)]
    torch.cuda.nccl.all_reduce(there)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    for value in there:
        assert torch.equal(value.cpu(), values[0] + values[1])


def test_injected_failure():
    torch.cuda.empty_cache()
    inside.faults(fail="cudaMalloc:1*:2,cuMemCreate:1*:2")
    try:
        refused(torch.OutOfMemoryError, lambda: torch.empty(64 * MIB, device="cuda"))
    finally:
        inside.faults()
    torch.empty(64 * MIB, device="cuda")


if __name__ == "__main__":
    inside.main(globals())
