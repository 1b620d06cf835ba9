"""Scripts as they are written for Colossal-AI (tutorials/), under torchrun and CASTOR_COMPAT=1, without a GPU: their losses beside those
of plain PyTorch with the same model and data."""
import os
import re
import tempfile
import unittest

import jobs
import runner

FOLDER = os.path.join(jobs.FOLDER, "tutorials")
EXACT = 2e-5  # relative; sums of two ranks' gradients are rounded in another order
HALF = 4e-2  # 8 bits in bf16's products, 11 in fp16's


def losses(output):
    return [float(loss) for loss in re.findall(r"^loss (\S+)$", output, re.M)]


def started(command, ranks, folder):
    """By torchrun, for which the short length has no time. No ranks: a plain process."""
    command = [os.path.join(FOLDER, command[0]), *command[1:]]
    if ranks:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if runner.LENGTH == "all" else runner.ranks(ranks)[1:]
        command = [*start, *command]
    done = jobs.start(command, jobs.NONE, cwd=folder, CASTOR_COMPAT="1")
    if done.returncode:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


_beside = {}


def beside(*arguments):
    """Of a tutorial, a number of ranks, and "fp16", "masters" or nothing."""
    if arguments not in _beside:
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            _beside[arguments] = losses(started(["plain.py", *map(str, arguments)], 0, folder).stdout)
    return _beside[arguments]


class Tutorial(unittest.TestCase):
    tutorial = None

    def setUp(self):
        runner.need_packages("torchvision", "transformers", "tqdm")

    def check(self, tolerance, *arguments, ranks=2):
        # The scaler of autocast begins with 2^16, and leaves steps out.
        how = ["fp16"] if "torch_ddp_fp16" in arguments else ["masters"] if self.tutorial == "cifar_resnet" and arguments else []
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            self.compare(started([f"{self.tutorial}.py", *arguments], ranks, folder), tolerance, beside(self.tutorial, ranks, *how), ranks)

    def compare(self, done, tolerance, plain, ranks=2):
        found = losses(done.stdout)
        self.assertEqual((len(found), len(found) >= 6), (len(plain), True), done.stdout)
        for step, (ours, theirs) in enumerate(zip(found, plain, strict=True)):
            self.assertLess(abs(ours - theirs), tolerance * max(theirs, 1), (step, found, plain))
        self.assertGreater(max(abs(loss - found[0]) for loss in found), 1e-3)
        self.assertEqual(done.stderr.count('"cuda" means the CPU'), 1, done.stderr)
        if ranks > 1:
            self.assertNotIn("trains without the plugin", done.stderr)


class CifarResnet(Tutorial):
    tutorial = "cifar_resnet"

    @runner.long  # GptGemini; test_seeds.py has a ResNet and its checkpoint
    def test_checkpoint_that_plain_pytorch_loads_and_resume(self):
        with tempfile.TemporaryDirectory(prefix="castor-explicit-") as folder:
            done = started(["cifar_resnet.py"], 2, folder)
            plain = started(["plain.py", "cifar_resnet", "2", "checkpoint/model_2.pth"], 0, folder).stdout
            self.compare(done, 2e-3, losses(plain))  # a step of Adam divides by what is nearly 0
            self.assertLess(float(re.search(r"^difference (\S+)$", plain, re.M)[1]), 2e-2)
            resumed = losses(started(["cifar_resnet.py", "-r", "1", "-i", "0"], 2, folder).stdout)
            self.assertEqual(resumed, losses(done.stdout)[3:])

    @runner.long
    def test_fp16_by_autocast(self):
        self.check(EXACT, "-p", "torch_ddp_fp16")

    @runner.long
    def test_low_level_zero(self):
        self.check(1e-7, "-p", "low_level_zero")


class CifarVit(Tutorial):
    tutorial = "cifar_vit"

    @runner.long
    def test_ddp(self):
        self.check(EXACT)

    @runner.long
    def test_ddp_fp16(self):
        self.check(EXACT, "-p", "torch_ddp_fp16")

    @runner.long
    def test_gemini(self):
        self.check(HALF, "-p", "gemini")
        self.check(HALF, "-p", "gemini", "--precision", "bf16")
        self.check(EXACT, "-p", "gemini", "--precision", "fp32")

    @runner.long
    def test_low_level_zero(self):
        self.check(HALF, "-p", "low_level_zero")
        self.check(HALF, "-p", "low_level_zero", ranks=1)


class GlueBert(Tutorial):
    tutorial = "glue_bert"

    @runner.long
    def test_ddp(self):
        self.check(EXACT)
        self.check(EXACT, ranks=1)

    @runner.long
    def test_ddp_fp16(self):
        self.check(EXACT, "-p", "torch_ddp_fp16")

    @runner.long
    def test_gemini(self):
        self.check(HALF, "-p", "gemini")

    @runner.long
    def test_low_level_zero(self):
        self.check(HALF, "-p", "low_level_zero")

    @runner.long
    def test_fsdp(self):
        self.check(HALF, "-p", "torch_fsdp")


class GptGemini(Tutorial):
    tutorial = "gpt_gemini"

    def test_gemini(self):
        self.check(HALF)

    @runner.long
    def test_gemini_on_one_rank_and_in_bf16(self):
        self.check(HALF, "--precision", "bf16")
        self.check(HALF, ranks=1)
        self.check(EXACT, "--precision", "fp32")

    @runner.long
    def test_zero(self):
        self.check(HALF, "--distplan", "CAI_ZeRO1")
        self.check(EXACT, "--distplan", "CAI_ZeRO2", "--precision", "fp32")

    @runner.long
    def test_ddp(self):
        self.check(EXACT, "--distplan", "Pytorch_DDP")


if __name__ == "__main__":
    unittest.main()
