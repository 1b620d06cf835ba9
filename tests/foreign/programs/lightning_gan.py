"""A Lightning module with two optimizers that it steps itself: a GAN on images, noise drawn for each batch."""
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST
from torchvision.transforms import ToTensor


class Gan(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Linear(64, 784), nn.Sigmoid())
        self.discriminator = nn.Sequential(nn.Linear(784, 64), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(64, 1))

    def training_step(self, batch, index):
        real = batch[0].flatten(1)
        g, d = self.optimizers()
        fake = self.generator(torch.randn(len(real), 16))
        self.toggle_optimizer(g)
        loss = binary_cross_entropy_with_logits(self.discriminator(fake), torch.ones(len(real), 1))
        g.zero_grad()
        self.manual_backward(loss)
        g.step()
        self.untoggle_optimizer(g)
        self.toggle_optimizer(d)
        loss = (binary_cross_entropy_with_logits(self.discriminator(real), torch.ones(len(real), 1))
                + binary_cross_entropy_with_logits(self.discriminator(fake.detach()), torch.zeros(len(real), 1))) / 2
        d.zero_grad()
        self.manual_backward(loss)
        d.step()
        self.untoggle_optimizer(d)

    def configure_optimizers(self):
        return [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (self.generator, self.discriminator)], []


seed_everything(7)
trainer = Trainer(max_epochs=1, limit_train_batches=6, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
                  default_root_dir="lightning")
trainer.fit(Gan(), DataLoader(MNIST("data", transform=ToTensor()), batch_size=32, shuffle=True))
