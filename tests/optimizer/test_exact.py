"""Steps of libcastor.so and of torch.optim on the same numbers: every bit of parameters and states."""
import itertools
import os
import subprocess
import sys
import unittest

import torch

import runner
from native import AdamNumbers, Native, call, ranges_of, step_of

# The loops take blocks of 8, 16 and 32 elements, and what is left: the few sizes have each kind of end.
SMALL = list(range(1, 101)) if runner.LENGTH == "all" else [*range(1, 18), 31, 32, 33, 63, 64, 65, 100]
FEW = [1, 5, 7, 8, 13, 16, 31, 100, 1003] if runner.LENGTH == "all" else [7, 16, 103]
LARGE = [4097, 65537, 100003]
IMPLEMENTATIONS = (dict(foreach=False), dict(foreach=True), dict(fused=True))


def random(numel, generator, kind):
    """Numbers of everyday size, or with what rarely occurs among them."""
    values = torch.randn(numel, generator=generator)
    if kind == "plain":
        return values
    values *= 10.0 ** torch.randint(-20, 20, (numel,), generator=generator)
    odd = torch.tensor([0.0, -0.0, 1e-40, -1e-45, 1e38, -3e38, 1.0, -1.0, 1e-38, 1e-20])
    if kind == "wild":
        odd = torch.cat([odd, torch.tensor([float("inf"), -float("inf"), float("nan")])])
    where = torch.rand(numel, generator=generator) < 0.3
    return torch.where(where, odd[torch.randint(0, len(odd), (numel,), generator=generator)], values)


def differences(a, b):
    """How many elements differ in a bit; one no number is as good as another."""
    bits = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return int(((a.view(bits) != b.view(bits)) & ~(a.isnan() & b.isnan())).sum())


class ExactTest(unittest.TestCase):
    def compare(self, name, native, param, states, text):
        wrong = [differences(native.param, param)] + [differences(x, y) for x, y in zip(native.states, states)]
        if any(wrong):
            self.fail(f"{name}, {text}: {wrong} of {param.numel()} elements differ in parameter and states")

    def against(self, name, make, state_names, options, sizes, kinds=("plain", "odd", "wild"), steps=3, **ours):
        """`make`: the class of torch.optim; ours: what only the method of Native is told."""
        generator = torch.Generator().manual_seed(len(str(options)))
        for chosen, threads in itertools.product(IMPLEMENTATIONS, (1, 2)):
            torch.set_num_threads(threads)
            for numel, kind in itertools.product(sizes, kinds):
                param = random(numel, generator, kind)
                native = Native(param.clone(), "fused" in chosen, threads, cuts=(numel // 3, numel // 2) if threads == 2 else ())
                param.requires_grad_()
                optimizer = make([param], **options, **chosen)
                for number in range(steps):
                    grad = random(numel, generator, kind)
                    param.grad = grad.clone()  # foreach writes to it with nesterov
                    optimizer.step()
                    getattr(native, name)(grad, **options, **ours)
                    kept = optimizer.state[param]
                    self.compare(name, native, param.detach(), [kept[x] for x in state_names if x in kept],
                                 f"{options} {chosen}, {threads} threads, {kind} numbers, step {number + 1}")

    def tearDown(self):
        torch.set_num_threads(1)

    def adams(self, make, sizes, kinds=("plain", "odd", "wild"), **ours):
        for amsgrad, maximize, decay, (lr, betas) in itertools.product(
                (False, True), (False, True), (0, 0.1), ((1e-3, (0.9, 0.999)), (0.3, (0.4, 0.7)))):
            options = dict(lr=lr, betas=betas, eps=1e-8, weight_decay=decay, amsgrad=amsgrad, maximize=maximize)
            self.against("adam", make, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), options, sizes, kinds, **ours)

    def test_adam(self):
        self.adams(torch.optim.Adam, FEW)

    def test_adamw(self):
        self.adams(torch.optim.AdamW, FEW, decoupled=True)

    def test_adam_of_every_small_size(self):
        self.against("adam", torch.optim.Adam, ("exp_avg", "exp_avg_sq"), dict(weight_decay=0.01), SMALL)

    def test_adam_of_large_sizes(self):
        self.against("adam", torch.optim.AdamW, ("exp_avg", "exp_avg_sq"), dict(weight_decay=0.01), LARGE, decoupled=True)

    def test_sgd(self):
        for momentum, decay, maximize in itertools.product((0, 0.9), (0, 0.1), (False, True)):
            for nesterov, dampening in ((False, 0), (False, 0.3), (True, 0)):
                if momentum or not (nesterov or dampening):
                    options = dict(lr=0.1, momentum=momentum, dampening=dampening, nesterov=nesterov, weight_decay=decay,
                                   maximize=maximize)
                    self.against("sgd", torch.optim.SGD, ("momentum_buffer",), options, FEW)

    def test_sgd_of_every_small_size(self):
        self.against("sgd", torch.optim.SGD, ("momentum_buffer",), dict(lr=0.1, momentum=0.9, dampening=0.1), SMALL)

    def test_sgd_of_large_sizes(self):
        self.against("sgd", torch.optim.SGD, ("momentum_buffer",), dict(lr=0.1, momentum=0.9, weight_decay=0.01,
                                                                        nesterov=True), LARGE)

    def test_unscaling_and_clipping(self):
        generator = torch.Generator().manual_seed(1)
        for numel, kind in itertools.product(SMALL, ("plain", "odd")):
            param = random(numel, generator, kind)
            native = Native(param.clone(), inv_scale=1 / 3.0, clip=0.7)
            optimizer = torch.optim.Adam([param.requires_grad_()], foreach=False)
            for _ in range(3):
                grad = random(numel, generator, kind)
                param.grad = grad.mul(1 / 3.0).mul_(0.7)
                optimizer.step()
                native.adam(grad)
            self.compare("adam", native, param.detach(), [], "scaled")

    def test_square_roots(self):
        """Those of every mantissa, at an even and an odd exponent, and of any float; a step shows 1 / root."""
        def steps_equal(squares):
            native = Native(torch.zeros(squares.numel()), False, 2)
            native.states = [torch.ones(squares.numel()), squares.clone()]
            zero = torch.zeros(squares.numel())
            step = step_of(native.param, zero, False, 0, 1.0)
            native.go("adam", AdamNumbers(step, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0), zero)
            self.assertEqual(differences(native.param, 1 / squares.sqrt()), 0)

        for first in range(0x3F800000, 0x40800000, 1 << 21):
            steps_equal(torch.arange(first, first + (1 << 21), dtype=torch.int32).view(torch.float32))
        steps_equal(torch.randint(0, 0x7F800001, (1 << 20,), dtype=torch.int32).view(torch.float32))
        steps_equal(torch.zeros(1000))

    def test_narrow_types(self):
        """A float copy stepped by torch, with the gradients widened, and rounded after each step."""
        generator = torch.Generator().manual_seed(1)
        narrow = (torch.bfloat16, torch.float16, torch.float32)
        for param_type, grad_type, with_master in itertools.product(narrow, narrow, (True, False)):
            for numel, kind, name in itertools.product((1, 7, 33, 1003), ("plain", "wild"), ("adam", "sgd")):
                master = random(numel, generator, kind)
                param = master.to(param_type)
                if not with_master:
                    master = param.float()
                native = Native(param.clone(), False, 2, master=master.clone() if with_master else None)
                master.requires_grad_()
                make = dict(adam=torch.optim.Adam, sgd=torch.optim.SGD)[name]
                options = dict(lr=0.1, weight_decay=0.1, **(dict(momentum=0.9) if name == "sgd" else {}))
                optimizer = make([master], foreach=False, **options)
                for _ in range(3):
                    grad = random(numel, generator, kind).to(grad_type)
                    master.grad = grad.float()
                    optimizer.step()
                    param = master.detach().to(param_type)
                    if not with_master:
                        master.data.copy_(param)
                    getattr(native, name)(grad, **options)
                    text = f"{param_type} with gradients of {grad_type}, master {with_master}, {kind} numbers"
                    self.compare(name, native, param, [], text)
                    if with_master:
                        self.assertEqual(differences(native.master, master.detach()), 0, text)

    def test_several_tensors_and_threads(self):
        """The threads share all elements of all tensors; where they part changes nothing."""
        generator = torch.Generator().manual_seed(1)
        sizes = [1, 70001, 13, 64, 20003, 0, 9, 30011]
        results = []
        for threads in (1, 2, 3, 5):
            generator.manual_seed(2)
            params, grads, means = ([random(n, generator, "plain") for n in sizes] for _ in range(3))
            squares = [random(n, generator, "plain").abs() for n in sizes]
            numbers = AdamNumbers(step_of(params[0], grads[0], True, 0.1, 0.1), 0.1, 0.999, 0.001, 0.5, 1e-8, -0.01)
            call("adam", numbers, [x for t in zip(params, grads, means, squares) for x in ranges_of(t[0], t[1], t[2:])], threads)
            results.append(torch.cat(params + means + squares))
        for other in results[1:]:
            self.assertEqual(differences(results[0], other), 0)

    def test_what_cannot_be_stepped_is_refused(self):
        param, grad = torch.ones(8), torch.ones(8)
        numbers = AdamNumbers(step_of(param, grad, False, 0, 0.1), 0.1, 0.9, 0.1, 1, 1e-8, -0.1)
        with self.assertRaisesRegex(ValueError, "1: .*range 0 lacks"):
            call("adam", numbers, ranges_of(param, grad, [torch.ones(8)]), 1)
        good = ranges_of(param, grad, [torch.ones(8), torch.ones(8)])
        good[0].offset = 1
        with self.assertRaisesRegex(ValueError, "1: .*8 elements from 1 on"):
            call("adam", numbers, good, 1)
        numbers.step.param_dtype = 1
        with self.assertRaisesRegex(ValueError, "1: .*type 1"):
            call("adam", numbers, good, 1)
        self.assertTrue(torch.equal(param, torch.ones(8)))

    @unittest.skipIf("ATEN_CPU_CAPABILITY" in os.environ, "is one of these runs")
    def test_other_capabilities_of_torch(self):
        """torch's kernels for lesser processors: those without FMA round products."""
        for capability in ("avx2", "default") if runner.LENGTH == "all" else ("default",):
            run = subprocess.run([sys.executable, "-m", "unittest", "test_exact.ExactTest.test_adam",
                                  "test_exact.ExactTest.test_sgd"],
                                 cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True,
                                 env=dict(os.environ, ATEN_CPU_CAPABILITY=capability, PYTHONPATH=os.path.dirname(runner.__file__)))
            self.assertEqual(run.returncode, 0, f"{capability}: {run.stderr}")
