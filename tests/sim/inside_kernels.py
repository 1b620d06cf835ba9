"""Castor's CUDA kernels on a simulated device, whose bodies are Castor's kernels for the CPU; started by run.py under `castor run`.
PyTorch's numbers there are the CPU's, so the whole path is compared to the bit: the fat binary, its layouts, packed arguments,
streams, the self-check at run time. The arithmetic of the device's own code is not (tests/unit/kernels/cuda_steps_test.cc)."""
import ctypes
import os
import sys

import torch

import inside
from castor.agent import core
from castor.agent.optim import kernels

kernels.install("auto")
SHAPES = [(1,), (7, 3), (0,), (64, 65), (9001,), (5,)]
inside.engine.setenv.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]


def ran(since):
    """The names of Castor's kernels that were launched since then."""
    torch.cuda.synchronize()
    return [launch.name.decode() for launch in inside.launches(since) if launch.name.startswith(b"castor_")]


def parameters(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in SHAPES]


def train(chosen, make, device="cuda", dtype=torch.float32, steps=3, scaler=None):
    """What parameters, gradients and states are after some steps; CASTOR_OPTIMIZER is `chosen`."""
    kernels.install(chosen)
    params = parameters(device, dtype)
    optimizer = make(params)
    generator = torch.Generator().manual_seed(2)
    since = inside.engine.sim_launch_count()
    for step in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(device, dtype)
        if scaler is not None:
            optimizer.grad_scale = torch.tensor(64.0, device=device)
            optimizer.found_inf = torch.tensor(float(step == 1), device=device)
        optimizer.step()
    kernels.install("auto")
    states = [optimizer.state[p] for p in params]
    return [[p.detach() for p in params], [p.grad for p in params], states], ran(since)


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu()), (one - other).abs().max()
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        same(list(one.values()), list(other.values()))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            same(a, b)
    else:
        assert one == other, (one, other)


def compare(make, kernel, **more):
    mine, launched = train("auto", make, **more)
    theirs, none = train("native", make, **more)
    same(mine, theirs)
    assert not none, none
    assert kernel in launched if kernel else not launched, launched


FORMS = {"foreach": {"foreach": True}, "single": {"foreach": False}, "fused": {"fused": True}}


def test_layouts_and_arguments_are_known():
    since = inside.engine.sim_launch_count()
    p = [torch.ones(5, device="cuda") for _ in range(4)]
    rows = (core.CudaTensor * 1)()
    rows[0].param, rows[0].grad, rows[0].numel = p[0].data_ptr(), p[1].data_ptr(), 5
    rows[0].states[0], rows[0].states[1] = p[2].data_ptr(), p[3].data_ptr()
    rows[0].root_divisor, rows[0].negative_step = 1.0, -0.5
    core.cuda_kernels()
    step = core.CudaStep(0, 0, 0, core.CUDA_FOREACH, core.DECAY_NONE, 0, 0, 0, None, None, None, None, 0.5, 0.0, 1.0, 1.0)
    core.cuda_adam_step(ctypes.byref(core.CudaAdam(step, 0.9, 0.999, 1e-8)), rows, 1, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    launch, = (each for each in inside.launches(since) if each.name == b"castor_adam_f32")
    assert launch.argument_bytes > 3000 and launch.pointers == 4 and launch.dangling == 0, (launch.argument_bytes, launch.pointers)
    assert torch.all(p[0] < 1) and torch.all(p[2] == 1)


def test_adam_in_all_forms():
    for form, options in FORMS.items():
        for more in ({}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True, "betas": (0.4, 0.99)}):
            compare(lambda p: torch.optim.Adam(p, lr=1e-2, **options, **more), "castor_adam_f32")
        compare(lambda p: torch.optim.AdamW(p, lr=1e-2, **options), "castor_adam_f32")


def test_sgd_in_all_forms():
    for form, options in FORMS.items():
        for more in ({}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1},
                     {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}):
            compare(lambda p: torch.optim.SGD(p, lr=1e-2, **options, **more), "castor_sgd_f32")
    # With foreach, PyTorch's own step writes the gradients; a kernel reads them.
    compare(lambda p: torch.optim.SGD(p, lr=1e-2, fused=True, momentum=0.9, nesterov=True), "castor_sgd_f32")


def test_a_scale_and_an_overflow_on_the_device():
    compare(lambda p: torch.optim.Adam(p, lr=1e-2, fused=True), "castor_adam_f32", scaler=True)
    compare(lambda p: torch.optim.SGD(p, lr=1e-2, fused=True), "castor_sgd_f32", scaler=True)


def test_parameters_of_16_bits_with_fused():
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
        compare(lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), f"castor_adam_{name}", dtype=dtype)
        compare(lambda p: torch.optim.SGD(p, lr=1e-2, fused=True, weight_decay=0.1), f"castor_sgd_{name}", dtype=dtype)


def test_a_learning_rate_on_the_device():
    compare(lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2, device="cuda"), fused=True), "castor_adam_f32")


def test_gradient_of_16_bits_and_a_working_copy():
    for dtype in (torch.bfloat16, torch.float16):
        for form, options in FORMS.items():
            kernels.install("auto")
            sides = []
            for chosen in ("auto", "native"):
                kernels.install(chosen)
                params = parameters("cuda")
                working = {p.data_ptr(): torch.zeros_like(p, dtype=dtype) for p in params if p.numel()}
                optimizer = torch.optim.AdamW(params, lr=1e-2, **options)
                generator = torch.Generator().manual_seed(3)
                since = inside.engine.sim_launch_count()
                for _ in range(2):
                    narrow = [torch.randn(p.shape, generator=generator).to("cuda", dtype) for p in params]
                    with torch.no_grad(), kernels.publishing(working, 0.25):
                        step(optimizer, params, narrow)
                sides.append([[p.detach() for p in params], list(working.values()), [optimizer.state[p] for p in params]])
                # The loop over tensors divides by a number, of which a device multiplies by the inverse: the self-check keeps PyTorch's here.
                assert ("castor_adam_mixed" in ran(since)) == (chosen == "auto" and form != "single"), (form, dtype, chosen, ran(since))
            kernels.install("auto")
            same(*sides)


def step(optimizer, params, grads):
    """A step with gradients that have another type than the parameters: PyTorch's function, as the agent calls it."""
    group = optimizer.param_groups[0]
    fused = bool(group["fused"])
    for p in params:
        if not optimizer.state[p]:
            optimizer.state[p] = {"step": torch.tensor(0.0, device="cuda" if fused else "cpu"), "exp_avg": torch.zeros_like(p),
                                  "exp_avg_sq": torch.zeros_like(p)}
    lists = [[optimizer.state[p][name] for p in params] for name in ("exp_avg", "exp_avg_sq", "step")]
    form = "fused" if fused else "multi_tensor" if group["foreach"] else "single_tensor"
    function = getattr(sys.modules["torch.optim.adam"], f"_{form}_adam")  # torch.optim.adam is hidden by a function
    function([p.detach() for p in params], grads, *lists[:2], [], lists[2], None, None, amsgrad=False, has_complex=False, beta1=0.9,
             beta2=0.999, lr=1e-2, weight_decay=0.01, eps=1e-8, maximize=False, capturable=False, differentiable=False,
             decoupled_weight_decay=True)


def test_what_a_kernel_cannot_step_stays_pytorchs():
    compare(lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True, foreach=True), None)
    compare(lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True), None, dtype=torch.bfloat16)
    compare(lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True), None, dtype=torch.float64)
    compare(lambda p: torch.optim.Adam(p, lr=1e-2), None, device="cpu")  # a kernel for the CPU steps these


def test_other_bits_leave_pytorchs_step():
    kernels._equal.clear()
    inside.engine.setenv(b"SIM_BODIES_WRONG", b"1", 1)
    try:
        since = inside.engine.sim_launch_count()
        mine, launched = train("auto", lambda p: torch.optim.Adam(p, lr=1e-2))
        assert len(launched) == kernels.TRIED_STEPS, launched  # the trial alone
        again, launched = train("auto", lambda p: torch.optim.Adam(p, lr=1e-2))
        assert not launched, launched
    finally:
        inside.engine.unsetenv(b"SIM_BODIES_WRONG")
        kernels._equal.clear()
    theirs, _ = train("native", lambda p: torch.optim.Adam(p, lr=1e-2))
    same(mine, theirs)
    same(again, theirs)


def test_the_trial_sees_how_a_product_is_rounded():
    """Of a step that is small beside most parameters, too: PyTorch's loops round some elements' product apart from the sum."""

    def stepping(apart):
        def stock(params, grads, momentum_buffer_list, grad_scale, found_inf, *, lr, **more):
            for p, g in zip(params, grads):
                g.div_(grad_scale)
                here, along = p.cpu(), g.cpu()
                factor = torch.tensor(lr, dtype=torch.float32)
                joined = (here.double() - factor.double() * along.double()).float()
                p.copy_(here - factor * along if apart else joined)
        return stock

    ones, scale = [torch.ones(3, device="cuda")], torch.tensor(1024.0, device="cuda")
    for lr in (1e-2, 1e-5):
        arguments = dict(params=ones, grads=ones, momentum_buffer_list=[None], grad_scale=scale, found_inf=None, weight_decay=0, momentum=0,
                         lr=lr, dampening=0, nesterov=False, maximize=False, has_sparse_grad=False)
        equal = [kernels._try(kernels.SGD.cuda, "fused", stepping(apart), arguments, torch.device("cuda", 0)) for apart in (False, True)]
        assert sorted(equal) == [False, True], (lr, equal)


def test_a_second_device_and_another_stream():
    for device in ("cuda:1", "cuda:0"):
        compare(lambda p: torch.optim.AdamW(p, lr=1e-2), "castor_adam_f32", device=device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        since = inside.engine.sim_launch_count()
        train("auto", lambda p: torch.optim.AdamW(p, lr=1e-2))
        stream.synchronize()
        ids = {launch.stream_id for launch in inside.launches(since) if launch.name.startswith(b"castor_adam")}
    with torch.cuda.stream(torch.cuda.default_stream()):
        since = inside.engine.sim_launch_count()
        train("auto", lambda p: torch.optim.AdamW(p, lr=1e-2))
        torch.cuda.synchronize()
        assert ids and ids.isdisjoint({launch.stream_id for launch in inside.launches(since) if launch.name.startswith(b"castor_adam")})


def test_wrong_arguments_are_named():
    rows = (core.CudaTensor * 1)()
    rows[0].numel = 3
    step = core.CudaStep(0, 0, 0, core.CUDA_FOREACH, 0, 0, 0, 0, None, None, None, None, 0.5, 0.0, 1.0, 1.0)
    for what, text in ((rows, "lacks"), ((core.CudaTensor * 1)(), None)):
        try:
            core.cuda_adam_step(ctypes.byref(core.CudaAdam(step, 0.9, 0.999, 1e-8)), what, 1, 0)
            assert text is None
        except core.Error as error:
            assert text and text in str(error), error
    step.mode = 9
    try:
        rows[0].param = rows[0].grad = rows[0].states[0] = rows[0].states[1] = torch.ones(3, device="cuda").data_ptr()
        core.cuda_adam_step(ctypes.byref(core.CudaAdam(step, 0.9, 0.999, 1e-8)), rows, 1, 0)
        raise AssertionError("a mode that does not exist")
    except core.Error as error:
        assert "mode" in str(error), error


torch.ones(1, device="cuda")
try:
    core.cuda_kernels()
except core.Error as error:
    if "without nvcc" in str(error) and os.environ.get("TEST_TORCH"):
        print(f"left out: {error}")
        sys.exit()
inside.main(globals())
