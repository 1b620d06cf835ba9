"""Numbers on simulated devices beside the CPU's; started by run.py. Products are added in another order than the CPU's, so what has
gone through one is close; everything else is the same to the bit."""
import threading

import torch
from torch import nn
from torch.nn import functional

import inside


def both(function, *tensors, exact=True):
    """What the function gives of these tensors on the CPU and on the device, with the same random numbers."""
    torch.manual_seed(3)
    want = function(*[tensor.clone() for tensor in tensors])
    torch.manual_seed(3)
    got = function(*[tensor.clone().cuda() for tensor in tensors])
    compare(want, got, exact)


def compare(want, got, exact):
    if isinstance(want, torch.Tensor):
        assert got.is_cuda, got.device
        got = got.detach().cpu()
        assert (got.shape, got.dtype) == (want.shape, want.dtype), (got.shape, want.shape, got.dtype, want.dtype)
        if exact:
            assert torch.equal(got.nan_to_num(), want.detach().nan_to_num()), (got - want).abs().max()
        else:
            torch.testing.assert_close(got, want.detach(), rtol=2e-5, atol=2e-6)
    else:
        assert len(want) == len(got)
        for one, other in zip(want, got):
            compare(one, other, exact)


def test_elements_and_reductions():
    values = torch.randn(7, 9)
    both(lambda x: (x.exp(), x.sin() * 2 + 1, x.remainder(0.3), 1 / x, x.sum(), x.mean(1), x.std(), x.softmax(-1), x.cumsum(0), x.argmax(1)), values)
    both(lambda x: (x.double(), x.half(), x.bfloat16().float(), x.to(torch.int32), x > 0, x.isnan()), values)
    both(lambda x: [*x.sort(1), *x.topk(3), *x.max(0), x.median(), x.norm(), x.logsumexp(0), x.var((0, 1))], values)


def test_views_and_writes_through_them():
    def changed(x):
        x[1:4, ::2].mul_(3)
        x.t()[2] += 1
        x.view(-1)[5:9] = 0
        x[x > 1] = -1
        x[:, 3].copy_(x[:, 4].clone())
        x.diagonal().fill_(7)
        x.index_add_(0, torch.tensor([0, 2], device=x.device), torch.ones(2, 9, device=x.device))
        return x, x.permute(1, 0).reshape(-1), x.unfold(0, 3, 2).sum(-1), x.expand(2, 7, 9).sum(0), x.flip(0), x.as_strided((3, 3), (1, 9), 2).clone()
    both(changed, torch.randn(7, 9))


def test_out_and_numbers_that_sizes_depend_on():
    def made(x):
        out = torch.empty(0, device=x.device)
        torch.add(x, 1, out=out)
        part = torch.zeros(3, 9, device=x.device)
        torch.mul(x[:3], 2, out=part)
        return out, part, x.nonzero(), x[x > 0], torch.unique((x * 2).long()), torch.bincount((x.abs() * 3).long().view(-1)), torch.where(x > 1)[0]
    both(made, torch.randn(7, 9))


def test_factories_and_random_numbers():
    def made(x):
        there = {"device": x.device}
        own = torch.Generator(x.device).manual_seed(9)
        return (torch.arange(5, **there), torch.eye(3, **there), torch.linspace(0, 1, 7, **there), torch.full((2,), 3.5, **there), torch.randn(5, **there),
                torch.rand(5, generator=own, **there), torch.randn(3, generator=own, **there), torch.randperm(9, **there), torch.randint(0, 9, (4,), **there),
                x.normal_().clone(), x.uniform_(-1, 1).clone(), x.bernoulli_(0.3).clone(), torch.multinomial(torch.ones(5, **there), 3),
                torch.multinomial(torch.ones(5, **there), 3, generator=own), torch.rand(2, generator=own, **there),
                torch.tril(torch.ones(3, 3, **there)), functional.dropout(torch.ones(50, **there), 0.4))
    both(made, torch.randn(4, 4))


def test_complex_numbers():
    both(lambda x: (x * x.conj(), x.abs(), x.angle(), x.real + x.imag, torch.view_as_real(x).sum(-1), x.conj().clone()), torch.randn(5, 5, dtype=torch.complex64))
    both(lambda x: x @ x.conj(), torch.randn(5, 5, dtype=torch.complex64), exact=False)
    both(lambda x: torch.fft.rfft(x), torch.randn(6, 8))


def test_products_of_all_layouts():
    left, right = torch.randn(6, 12, 10), torch.randn(6, 10, 8)
    both(lambda a, b: (a @ b, a[0] @ b[0], a[:, ::2] @ b[..., ::2], a[1] @ b[1][:, 0], b[2].t() @ a[2].t(), a[0].t()[::3] @ a[0]), left, right, exact=False)
    both(lambda a, b, c: (torch.addmm(c, a, b), torch.addmm(c[0], a, b), torch.addmm(c[:, :1], a, b, beta=0.5, alpha=2), torch.addmv(c[:, 0], a, b[:, 0])),
         torch.randn(5, 4), torch.randn(4, 6), torch.randn(5, 6), exact=False)
    both(lambda a, b: (torch.einsum("bij,bjk->ik", a, b), torch.baddbmm(a[:, :, :8], a, b), torch.outer(a[0, 0], b[0, 0])), left, right, exact=False)


def test_linear_algebra():
    both(lambda x: (torch.linalg.solve(x, x[:, 0]), torch.linalg.inv(x), torch.linalg.det(x)), torch.randn(4, 4) + 4 * torch.eye(4), exact=False)


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.convolution, self.batch = nn.Embedding(20, 12), nn.Conv1d(12, 12, 3, padding=1), nn.BatchNorm1d(12)
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.1, batch_first=True)
        self.lstm, self.gru = nn.LSTM(12, 12, batch_first=True), nn.GRU(12, 12, batch_first=True)
        self.group, self.head = nn.GroupNorm(3, 12), nn.Linear(12, 20)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = self.batch(self.convolution(x.transpose(1, 2))).relu().transpose(1, 2)
        x = self.gru(self.lstm(self.layer(x))[0])[0]
        q = x.view(*x.shape[:2], 2, 6).transpose(1, 2)
        x = x + functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(x.shape)
        return self.head(self.group(x.transpose(1, 2)).transpose(1, 2))


def trained(device, optimizer, amp=None, steps=4):
    torch.manual_seed(5)
    model = Everything().to(device)
    optimizer = optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=amp is torch.float16, init_scale=2.0**8)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 20, (4, 9)).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, amp, enabled=amp is not None):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        losses += [loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()]
        scaler.step(optimizer)
        scaler.update()
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


def check_training(optimizer, amp=None, tolerance=2e-5):
    plain, there = trained("cpu", optimizer, amp), trained("cuda", optimizer, amp)
    worst = max(abs(a - b) / abs(a) for a, b in zip(plain[0], there[0]))
    assert worst < tolerance, (worst, plain[0], there[0])
    assert plain[0][0] != plain[0][2]
    assert set(plain[1]) == set(there[1])


def test_training_with_sgd():
    check_training(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))


def test_training_with_adamw_in_each_form():
    for form in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        check_training(lambda parameters, form=form: torch.optim.AdamW(parameters, lr=1e-2, **form))


def test_training_in_half_precision():
    check_training(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), torch.bfloat16, 0.03)
    check_training(lambda parameters: torch.optim.SGD(parameters, lr=0.1), torch.float16, 0.03)


def test_layers_in_half_precision():
    def run(x):
        torch.manual_seed(1)
        network = nn.Sequential(nn.BatchNorm1d(9), nn.LayerNorm(9), nn.LayerNorm(9, elementwise_affine=False), nn.Tanh()).to(x)
        x = x.requires_grad_()
        out = network(x)
        out.square().sum().backward()
        return out, x.grad, *[p.grad for p in network.parameters()]
    both(run, torch.randn(7, 9, dtype=torch.bfloat16))
    both(run, torch.randn(7, 9, dtype=torch.float16))


def test_softmax_of_halves_in_float():
    """As autocast asks for it."""
    def run(x):
        x = x.requires_grad_()
        out = x.softmax(-1, dtype=torch.float32), x.log_softmax(-1, dtype=torch.float32)
        (out[0].square().sum() + out[1][:, 0].sum()).backward()
        return *out, x.grad
    both(run, torch.randn(7, 9, dtype=torch.bfloat16))
    both(run, torch.randn(7, 9, dtype=torch.float16))


def test_images_with_channels_last():
    def run(x):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(2))
        network = network.to(x.device, memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        out = network(x)
        out.square().sum().backward()
        grid = functional.affine_grid(torch.eye(2, 3, device=x.device)[None].repeat(2, 1, 1), (2, 3, 8, 8), align_corners=True)
        return out, x.grad, *[p.grad for p in network.parameters()], functional.interpolate(x, scale_factor=2), functional.grid_sample(x, grid, align_corners=True)
    both(run, torch.randn(2, 3, 12, 12), exact=False)


def test_results_lie_as_a_device_lays_them():
    """What a compiled graph asserts of the operators that it calls, and DTensor: where the CPU's results have other strides, or more of them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def layouts(function, *shapes):
        return [(tuple(one.shape), one.stride()) for one in function(*(torch.ones(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes))]

    def image(x, weight):
        return (functional.conv2d(x.to(memory_format=torch.channels_last), weight),)

    def attend(operator, *more):
        return lambda x: [one for one in operator(*(x.view(2, 16, 4, 8).transpose(1, 2) for _ in range(3)), *more) if isinstance(one, torch.Tensor) and one.numel()]

    aten = torch.ops.aten
    for function, *shapes in ((image, (2, 3, 8, 8), (4, 3, 3, 3)), (attend(aten._scaled_dot_product_cudnn_attention, None, True), (2, 16, 32)),
                              (attend(aten._scaled_dot_product_efficient_attention, None, True), (2, 16, 32))):
        with FakeTensorMode():
            expected = layouts(function, *shapes)
        assert layouts(function, *shapes) == expected, (layouts(function, *shapes), expected)
    x = torch.randn(2, 4, 16, 8, device="cuda", requires_grad=True)
    for p in (0.0, 0.5):
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            out = functional.scaled_dot_product_attention(x, x, x, dropout_p=p)
        assert [one.dim() for one in aten._scaled_dot_product_efficient_attention(x, x, x, None, True, p)[2:]] == [0, 0]
        first, = torch.autograd.grad(out.square().sum(), x, retain_graph=True)
        assert torch.equal(first, torch.autograd.grad(out.square().sum(), x)[0])  # the same is dropped in each pass


def test_attention_goes_back_in_its_own_precision():
    """Where a mask learns, or something is dropped, the kernel of the backward pass differentiates the formula."""
    values = [*torch.randn(3, 2, 2, 7, 8), torch.randn(1, 2, 7, 7)]

    def gradients(device, p):
        query, key, value, mask = leaves = [one.to(device).requires_grad_() for one in values]
        torch.manual_seed(3)
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=p)
        return torch.autograd.grad(out.square().sum(), leaves)

    for p in (0.0, 0.5):
        torch.testing.assert_close([one.cpu() for one in gradients("cuda", p)], list(gradients("cpu", p)))


def test_weights_of_recurrent_networks_are_flattened():
    layer = nn.LSTM(4, 4, 2).cuda()
    first = layer.weight_ih_l0.untyped_storage().data_ptr()
    assert all(weight.untyped_storage().data_ptr() == first for weight in layer.parameters())
    before = layer(torch.ones(3, 2, 4, device="cuda"))[0].cpu()
    layer.cpu()
    torch.testing.assert_close(layer(torch.ones(3, 2, 4))[0], before)


def test_streams_devices_and_threads():
    values, found = torch.randn(1000), []
    stream = torch.cuda.Stream()
    there = values.cuda()
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        doubled = there * 2
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal((doubled + 1).cpu(), values * 2 + 1)
    assert torch.equal((values.to("cuda:1") * 3).to("cuda:0").cpu(), values * 3)

    def work():
        x = values.cuda().requires_grad_()
        (x.sin() * 2).sum().backward()
        found.append(x.grad.cpu())
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, values.cos() * 2) for one in found) and len(found) == 3


def test_what_a_device_refuses_is_refused():
    there, here = torch.ones(2, 3, 5, device="cuda"), torch.ones(2, 3, 5)
    for function in (lambda: there + here, lambda: there.bmm(here.transpose(1, 2)), lambda: functional.conv1d(there, here), lambda: there.add_(here),
                     lambda: torch.ones(2, 2, dtype=torch.long, device="cuda").mm(torch.ones(2, 2, dtype=torch.long, device="cuda"))):
        try:
            function()
        except RuntimeError as error:
            assert "same device" in str(error) or "not implemented" in str(error), error
        else:
            raise AssertionError("an error is expected")


def test_launches_are_still_made():
    before = inside.engine.sim_launch_count()
    values = torch.ones(100, device="cuda")
    values.mul_(2)
    assert inside.engine.sim_launch_count() - before >= 2 and values.sum().item() == 200


def test_what_has_no_numbers_says_so():
    values = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            values * 2
    except NotImplementedError as error:
        assert "aten.mul" in str(error) and "numbers are not simulated" in str(error), error
    else:
        raise AssertionError("a captured graph has no numbers")


if __name__ == "__main__":
    inside.main(globals())
