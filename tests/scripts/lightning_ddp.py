"""A Lightning Trainer on a small module: accumulation, clipping, a validation loop, checkpoints, a resumed fit."""

import argparse
import logging
import os
import warnings

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from model import CLASSES, FEATURES, Classifier
from record import ON_DEVICE, Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()
torch.set_num_threads(1)
warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, FEATURES, generator=generator), torch.randint(0, CLASSES, (count,), generator=generator))


class Learner(LightningModule):
    def __init__(self, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.network = Classifier()

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        scores = self(x)
        self.log("validation_loss", F.cross_entropy(scores, y), sync_dist=True)
        self.log("accuracy", (scores.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Watch(Callback):
    def __init__(self):
        self.seen = None

    def on_fit_start(self, trainer, module):
        self.seen = self.seen or Recorder(args.out)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.seen.gradients(module, "before clipping")

    def on_before_zero_grad(self, trainer, module, optimizer):
        self.seen.gradients(module, "before they are cleared")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.seen.note("loss", outputs["loss"])
        self.seen.parameters(module)
        self.seen.print(f"step {trainer.global_step} loss {outputs['loss'].item():.4f}")

    def on_validation_end(self, trainer, module):
        self.seen.note("validation loss", dict(trainer.callback_metrics))


def fitted(watch, max_epochs, resumed_from=None):
    """The module and the trainer after `max_epochs`, from the start or from a checkpoint."""
    module = Learner()
    trainer = Trainer(
        accelerator="cuda" if ON_DEVICE else "cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=max_epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        callbacks=[
            ModelCheckpoint(args.out, filename="best", monitor="validation_loss", save_last=True, enable_version_counter=False),
            LearningRateMonitor("step"),
            watch,
        ],
        logger=CSVLogger(args.out, name="metrics", version=max_epochs),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Five batches to a rank and epoch: the last step of an epoch has one micro-batch.
    training = DataLoader(samples(3, 20 * trainer.world_size), batch_size=4, shuffle=True)
    trainer.fit(module, training, DataLoader(samples(4, 8 * trainer.world_size), batch_size=4), ckpt_path=resumed_from)
    return module, trainer


seed_everything(17, verbose=False)
watch = Watch()
fitted(watch, 2)
module, trainer = fitted(watch, 4, os.path.join(args.out, "last.ckpt"))
log = watch.seen
log.step(model=module, optimizer=trainer.optimizers[0])
held_out = DataLoader(samples(4, 8 * trainer.world_size), batch_size=4)
log.note("validation loss again", trainer.validate(module, held_out, verbose=False))
# The files hold paths; what they hold of the training is compared here.
for name in ("best.ckpt", "last.ckpt"):
    saved = torch.load(log.path(name), weights_only=True)
    log.note(f"parameters in {name}", saved["state_dict"])
    log.note("optimizer", saved["optimizer_states"])
    log.note(f"counters in {name}", [saved["epoch"], saved["global_step"]])
log.close()
trainer.strategy.barrier()
torch.distributed.destroy_process_group()
