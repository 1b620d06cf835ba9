"""Every bit of losses, masters and states is that of mixed precision written out, at two ranks."""
from beside import PrecisionTest


class ReferenceTest(PrecisionTest):
    def test_mlp_sgd(self):
        self.check("mlp", "sgd")

    def test_mlp_adam(self):
        self.check("mlp", "adam")

    def test_mlp_adamw(self):
        self.check("mlp", "adamw")

    def test_mlp_adagrad(self):
        self.check("mlp", "adagrad")

    def test_gpt_adamw(self):
        self.check("gpt", "adamw")

    def test_convolution_sgd(self):
        self.check("convolution", "sgd")
