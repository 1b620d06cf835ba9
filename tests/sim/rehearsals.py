"""`castor rehearse` on scripts as people write them (rehearsed/), beside the same scripts on the CPU; started by run.py.

    rehearsals.py BUILD [all]

Without `all`: two rehearsals that end badly after they have trained well, and one without numbers."""
import json
import math
import os
import re
import subprocess
import sys
import tempfile

import inside
import simulated

SCRIPTS = os.path.join(simulated.FOLDER, "rehearsed")
START_RANKS = os.path.join(os.path.dirname(simulated.FOLDER), "start_ranks.py")
MIB = 1 << 20
BUILD = sys.argv[1]


def environment(variables):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("SIM_", "CASTOR_")) and name not in ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")}
    return {**env, "CUBLAS_WORKSPACE_CONFIG": ":16:1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}


def command(script, ranks):
    return [sys.executable, *([START_RANKS, str(ranks)] if ranks else []), os.path.join(SCRIPTS, script)]


def losses(text):
    """The figures of each line that a script prints of its losses, by its rank, in order."""
    lines = re.findall(r"^(loss(?: \d)?) (.*)$", text, re.M)
    return {name: [float(word) for of, rest in lines if of == name for word in rest.split() if word[0].isdigit()] for name, _ in lines}


def on_the_cpu(script, ranks=0, variables=None):
    """What plain PyTorch prints where there is no device."""
    env = environment({"CUDA_VISIBLE_DEVICES": "", **(variables or {})})
    done = subprocess.run(command(script, ranks), env=env, capture_output=True, text=True, timeout=300)
    assert losses(done.stdout), done
    return losses(done.stdout)


class Rehearsal:
    def __init__(self, script, *options, ranks=0, variables=None):
        with tempfile.TemporaryDirectory() as folder:
            castor, logs = os.path.join(BUILD, "bin", "castor"), os.path.join(folder, "logs")
            done = subprocess.run([castor, "rehearse", "--log-dir", logs, *options, "--", *command(script, ranks)], env=environment(variables or {}),
                                  capture_output=True, text=True, timeout=300)
            told = subprocess.run([castor, "report", logs, "--format", "json"], capture_output=True, text=True, timeout=60)
        self.status, self.printed, self.errors = done.returncode, done.stdout, done.stderr
        self.said = "\n".join(line for line in done.stderr.splitlines() if line.startswith("castor: "))
        self.ranks = json.loads(told.stdout)["ranks"]

    def has_losses_of(self, others, tolerance):
        mine = losses(self.printed)
        for name, values in mine.items():
            assert len(values) <= len(others[name]) and all(map(lambda a, b: math.isclose(a, b, rel_tol=tolerance), values, others[name])), (mine, others)
        assert sorted(mine) == sorted(others), (mine, others)
        return {name: len(values) for name, values in mine.items()}

    def has_peaks_of_torch(self):
        """The report's peaks are those that PyTorch counts, to the byte."""
        found = re.findall(r"^peak (?:(\d) )?(\d) (\d+)$", self.printed, re.M)
        assert found, self.printed
        for rank, device, bytes in found:
            assert self.peak(int(rank or 0), int(device))["peak"] == int(bytes), (self.ranks[int(rank or 0)]["device_peaks"], found)

    def peak(self, rank=0, device=0):
        (found,) = [one for one in self.ranks[rank]["device_peaks"] if one["device"] == device]
        assert found["peak"] == sum(found[part] for part in ("param", "grad", "optim", "other")) <= found["reserved"], found
        return found

    def says(self, *texts):
        for text in texts:
            assert text in self.said, (text, self.errors[-3000:])


def in_blocks(*shapes):
    """Bytes of tensors of floats, as PyTorch's allocator counts them."""
    return sum(-(-4 * math.prod(shape) // 512) * 512 for shape in shapes)


def test_a_batch_that_does_not_fit(beside=None):
    own = Rehearsal("too_large.py", "--memory", "192M")
    assert own.status == 1 and "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB" in own.errors, own.errors
    assert re.search(r'too_large.py", line \d+', own.errors), own.errors
    assert own.has_losses_of(beside or losses(own.printed), 1e-5) == {"loss": 2}  # of those that fit
    model = in_blocks((2048, 512), (2048,), (512, 2048), (512,))
    found = own.peak()
    assert (found["param"], found["grad"], found["optim"]) == (model, model, 2 * model), (found, model)
    own.says("it does not fit in 192.0 MiB: device 0 of rank 0", "parameters 8.0 MiB, gradients 8.0 MiB, optimizer states 16.0 MiB")
    (enough,) = re.findall(r"with --memory (\d+)M or more it goes on from there", own.said)
    assert int(enough) * MIB >= found["needed"] > 192 * MIB, (enough, found)


def test_ranks_that_call_different_collectives(beside=None):
    own = Rehearsal("ddp.py", "--devices", "2", "--memory", "1G", ranks=2, variables={"MISMATCH": "1"})
    assert own.status != 0
    assert own.has_losses_of(beside or losses(own.printed), 1e-5) == {"loss 0": 3, "loss 1": 3}
    own.says("the collectives do not match: number 12 of process group 0: rank 0 called allreduce of 4 B, rank 1 called broadcast of 4 B")


def in_stages(*options, start=("--nproc", "2"), **how):
    own = Rehearsal("stages.py", "--devices", "2", "--memory", "1G", "--plugin", "hybrid", *start, "--set", "CASTOR_PP=2", "--set", "CASTOR_MICROBATCHES=4", *options, **how)
    assert own.status == 0, own.errors
    own.says("it runs, and fits in 1.0 GiB", "those of all ranks match")
    assert "computed whole" not in own.said, own.said
    return own


def test_a_model_in_stages_without_numbers():
    own = in_stages("--no-numbers")
    assert losses(own.printed) == {"loss": 3 * [0.0]}, own.printed
    (resident,) = re.findall(r"^resident (\d+)$", own.printed, re.M)
    assert int(resident) << 10 < own.peak()["peak"] / 4, (resident, own.ranks)  # of a device nothing is in the memory of this machine
    return own


def long_a_model_in_stages():
    own, other = in_stages(), test_a_model_in_stages_without_numbers()
    own.has_losses_of(on_the_cpu("stages.py"), 1e-5)
    have_the_same_peaks(own, other, (0, 0))


def long_ranks_with_a_model_in_stages():
    """In 1F1B from the fourth call on."""
    own, other = (in_stages(*options, start=(), ranks=2) for options in ((), ("--no-numbers",)))
    have_the_same_peaks(own, other, (0, 1))
    assert [rank["calls_1f1b"] for rank in own.ranks] == [rank["calls_1f1b"] for rank in other.ranks] == [2, 2], (own.ranks, other.ranks)


def have_the_same_peaks(own, other, devices):
    """devices: of each rank."""
    for rank, device in enumerate(devices):
        one, two = own.peak(rank, device), other.peak(rank, device)
        assert abs(two["peak"] / one["peak"] - 1) < 0.01, (one, two)
        assert [two[part] for part in ("param", "grad", "optim")] == [one[part] for part in ("param", "grad", "optim")], (one, two)


def long_ranks_that_differ_in_what_a_trace_has_not():
    own = Rehearsal("ddp.py", "--devices", "2", "--memory", "1G", ranks=2, variables={"MISMATCH": "type"})
    assert own.status != 0
    own.says("it failed: rank ", "the collectives do not match: NCCL: the ranks called different collectives: rank ", "allreduce of 1 x float32 by sum",
             "allreduce of 1 x int32 by sum")


def long_ranks_with_different_parameters():
    own = Rehearsal("ddp.py", "--devices", "2", "--memory", "1G", ranks=2, variables={"MISMATCH": "parameter"})
    assert own.status != 0
    own.says("raised RuntimeError: ", "appears not to match sizes of the same param", "those of all ranks have the same operation and size")
    assert "do not match" not in own.said, own.said


def long_activations_that_are_most_of_the_memory():
    own = Rehearsal("plain.py", "--memory", "1G")
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("plain.py"), 1e-5)
    own.has_peaks_of_torch()
    found, model, batch = own.peak(), in_blocks(*[(256, 256)] * 4), in_blocks((16384, 256))
    assert (found["param"], found["grad"], found["optim"]) == (model, model, model), (found, model)
    # When the loss is computed: the batch, three activations, the result, its squared differences, and mse_loss's result, whose memory is as large, of this
    # step and the one before.
    assert abs(found["peak"] / (3 * model + 8 * batch) - 1) < 0.03, (found, model, batch)
    own.says("it runs, and fits in 1.0 GiB")
    (enough,) = re.findall(r"\(--memory (\d+)M\)", own.said)
    again = Rehearsal("plain.py", "--memory", f"{enough}M", "--no-numbers")
    assert again.status == 0 and again.peak() == found, (again.errors, again.ranks, found)
    assert Rehearsal("plain.py", "--memory", f"{int(enough) * 3 // 4}M", "--no-numbers").status == 1


def long_ranks_of_a_ddp_script():
    own = Rehearsal("ddp.py", "--devices", "2", "--memory", "1G", ranks=2)
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("ddp.py", ranks=2), 1e-5)
    own.has_peaks_of_torch()
    own.says("it runs, and fits in 1.0 GiB", "11 collectives of 1 process group: those of all ranks match")
    other = Rehearsal("ddp.py", "--devices", "2", "--memory", "1G", "--no-numbers", ranks=2)
    assert other.status == 0, other.errors
    for rank in (0, 1):  # where nothing is computed, a bucket's collective may still run when the next bucket is made, as on a device
        found, expected = other.peak(rank, rank), own.peak(rank, rank)
        assert abs(found["peak"] - expected["peak"]) < 0.03 * expected["peak"] + expected["param"], (found, expected)
    other.says("11 collectives of 1 process group: those of all ranks match")


def long_parameters_that_are_divided():
    own = Rehearsal("sharded.py", "--devices", "2", "--memory", "1G", ranks=2)
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("sharded.py", ranks=2), 1e-5)
    own.has_peaks_of_torch()
    half = in_blocks((512, 256), (512,), (128, 1024), (128,))
    assert all((own.peak(rank, rank)["param"], own.peak(rank, rank)["optim"]) == (half, 2 * half) for rank in (0, 1)), (own.ranks, half)


def long_what_a_device_has_in_cudnn():
    own = Rehearsal("images.py", "--memory", "1G")
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("images.py"), 1e-2)  # bfloat16
    own.has_peaks_of_torch()
    # In backward of the ReLU: what it gave, what it gets and gives back, and what batch norm keeps; and the images.
    found, expected = own.peak(), 4 * in_blocks((32, 64, 64, 64)) + in_blocks((32, 3, 64, 64))
    assert abs(found["peak"] / expected - 1) < 0.03, (found, expected)
    other = Rehearsal("images.py", "--memory", "1G", "--no-numbers")
    assert other.status == 0, other.errors
    assert abs(other.peak()["peak"] / found["peak"] - 1) < 0.03, (own.ranks, other.ranks)


def long_mixed_precision():
    own = Rehearsal("amp.py", "--memory", "1G")
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("amp.py"), 1e-3)  # products are rounded to bfloat16 after another order of additions
    own.has_peaks_of_torch()


def long_a_compiled_model():
    own = Rehearsal("compiled.py", "--memory", "1G")
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("compiled.py"), 1e-5)
    own.has_peaks_of_torch()
    kernels = Rehearsal("compiled.py", "--memory", "1G", "--no-numbers")  # of Triton
    assert kernels.status == 0, kernels.errors
    kernels.has_peaks_of_torch()
    assert [kernels.peak()[part] for part in ("param", "grad", "optim")] == [own.peak()[part] for part in ("param", "grad", "optim")], (kernels.ranks, own.ranks)


def long_the_trainer():
    own = Rehearsal("trainer.py", "--memory", "1G")
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("trainer.py"), 1e-4)  # six digits are printed
    own.has_peaks_of_torch()


def long_two_devices_of_one_process():
    own = Rehearsal("two_devices.py", "--devices", "2", "--memory", "1G")
    assert own.status == 0, own.errors
    own.has_losses_of(on_the_cpu("two_devices.py"), 1e-5)
    own.has_peaks_of_torch()
    assert own.peak(0, 0)["param"] == in_blocks((1024, 256), (1024,)) and own.peak(0, 1)["param"] == in_blocks((256, 1024), (256,)), own.ranks


def long_a_rank_that_does_not_come():
    own = Rehearsal("ddp.py", "--devices", "2", "--memory", "1G", "--set", "CASTOR_STALL_SECONDS=4", "--set", "CASTOR_TIMEOUT=8", ranks=2,
                    variables={"MISMATCH": "absent"})
    assert own.status != 0
    own.says("the rehearsal is ended: no progress for 8 s (CASTOR_TIMEOUT) in allreduce, number 12 of process group 0 (2 ranks)",
             "number 12 of process group 0: rank 0 called allreduce of 4 B, rank 1 called none")


def long_what_ended_badly_had_the_numbers_of_the_cpu():
    test_a_batch_that_does_not_fit(on_the_cpu("too_large.py"))
    test_ranks_that_call_different_collectives(on_the_cpu("ddp.py", ranks=2))


def long_under_a_plugin():
    plain = Rehearsal("plain.py", "--memory", "1G")
    for options in (("--plugin", "gemini"), ("--plugin", "gemini", "--set", "CASTOR_DEVICE_BUDGET=1M")):
        own = Rehearsal("plain.py", "--memory", "1G", *options)
        assert own.status == 0 and losses(own.printed) == losses(plain.printed), (own.errors, own.printed, plain.printed)
        own.says("it runs, and fits in 1.0 GiB")


if __name__ == "__main__":
    long = {name.replace("long_", "test_", 1): test for name, test in list(globals().items()) if name.startswith("long_")}
    inside.main(long if sys.argv[2:] == ["all"] else globals())
