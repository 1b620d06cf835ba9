"""Every bit of losses, masters and states is that of mixed precision written out, at two ranks."""
import runner
from beside import PrecisionTest

BUDGET = ("CASTOR_MEMORY_BUDGET=16M", "CASTOR_OFFLOAD_DIR=/var/tmp", "CASTOR_CHUNK_SIZE=64K")


class ReferenceTest(PrecisionTest):
    @runner.long
    def test_mlp_sgd(self):
        self.check("mlp", "sgd")

    @runner.long
    def test_mlp_adam(self):
        self.check("mlp", "adam")

    @runner.long  # test_budget
    def test_mlp_adamw(self):
        self.check("mlp", "adamw")

    @runner.long
    def test_mlp_adagrad(self):
        self.check("mlp", "adagrad")

    @runner.long
    def test_gpt_adamw(self):
        self.check("gpt", "adamw")

    @runner.long
    def test_single_process_sgd(self):
        self.check("mlp", "sgd", single=True)

    def test_single_process_gpt_adamw(self):
        self.check("gpt", "adamw", single=True)

    @runner.long
    def test_three_ranks(self):
        self.check("mlp", "adamw", ranks=3)

    def test_one_process(self):
        self.check("mlp", "sgd", single=True, ranks=1)

    @runner.long
    def test_one_process_gpt_adamw(self):
        self.check("gpt", "adamw", single=True, ranks=1)

    @runner.long
    def test_one_process_under_a_budget(self):
        self.check("mlp", "adamw", single=True, ranks=1, settings=BUDGET)

    @runner.long
    def test_one_rank(self):
        self.check("mlp", "adamw", ranks=1)

    @runner.long
    def test_ddp(self):
        self.check("mlp", "adamw", plugin="ddp")

    @runner.long
    def test_zero1(self):
        self.check("mlp", "sgd", plugin="zero1")

    def test_zero2(self):
        self.check("gpt", "adamw", plugin="zero2")

    def test_budget(self):
        self.check("mlp", "adamw", settings=BUDGET)

    @runner.long
    def test_float16_mlp_sgd(self):
        self.check("mlp", "sgd", precision="fp16")

    def test_float16_gpt_adamw(self):
        self.check("gpt", "adamw", precision="fp16")

    @runner.long
    def test_float16_convolution_adam(self):
        self.check("convolution", "adam", precision="fp16")

    @runner.long
    def test_float16_single_process(self):
        self.check("mlp", "adamw", precision="fp16", single=True)

    @runner.long
    def test_float16_one_process(self):
        self.check("mlp", "adamw", precision="fp16", single=True, ranks=1)

    @runner.long
    def test_float16_one_rank(self):
        self.check("gpt", "sgd", precision="fp16", ranks=1)

    @runner.long
    def test_float16_zero1(self):
        self.check("mlp", "adamw", precision="fp16", plugin="zero1")

    @runner.long
    def test_float16_three_ranks(self):
        self.check("mlp", "adamw", precision="fp16", ranks=3)

    @runner.long
    def test_convolution_sgd(self):
        self.check("convolution", "sgd")
