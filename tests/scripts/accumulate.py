"""Single-process loops whose step is a micro-step under CASTOR_ACCUMULATE (see accumulate_ddp.py)."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import record
from model import Classifier
from parts import Parts, adamw_of, samples, sgd_of

WHOLE = 24


def train(log, optimizer_of, clip=None, **settings):
    model = Classifier()
    optimizer, parts = optimizer_of(model.parameters()), Parts(log)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    dataset = TensorDataset(*samples(90))
    for _ in range(2):
        batches = DataLoader(dataset, batch_size=WHOLE // record.parts, shuffle=True, drop_last=True, **settings)
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            parts.over(loss, model, optimizer)


@record.case
def sgd(log):
    train(log, sgd_of)


@record.case
def adamw_clipped(log):
    train(log, adamw_of, clip=0.3)


@record.case
def workers(log):
    train(log, sgd_of, num_workers=2)


@record.case
def workers_that_stay(log):
    train(log, sgd_of, num_workers=1, persistent_workers=True)


if __name__ == "__main__":
    record.main()
