"""Lightning's demo of a language model under its Trainer: accumulation, clipping, validation, checkpoints, early stopping."""
import sys

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.demos import LightningTransformer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

ranks = int(sys.argv[1])  # of DDP, started by torchrun; 1: one process
seed_everything(8)
rows = torch.randint(0, 100, (48, 13), generator=torch.Generator().manual_seed(1))


class Model(LightningTransformer):
    def prepare_data(self):
        """Nothing is downloaded."""

    def validation_step(self, batch, index):
        self.log("valid", torch.nn.functional.nll_loss(self(*batch), batch[1].view(-1)), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader(part, shuffle):
    return DataLoader(TensorDataset(part[:, :-1], part[:, 1:]), batch_size=4, shuffle=shuffle)


trainer = Trainer(max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5, accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto",
                  logger=CSVLogger("logs", version=0), callbacks=[EarlyStopping("valid"), ModelCheckpoint("best", monitor="valid")], log_every_n_steps=1,
                  enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(vocab_size=100), loader(rows[:32], True), loader(rows[32:], False))
