"""Two networks against each other, each with its optimizer."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import record
from model import FEATURES, batch


def generator():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, FEATURES))


def critic():
    return nn.Sequential(nn.Linear(FEATURES, 600), nn.LeakyReLU(0.2), nn.Linear(600, 600), nn.LeakyReLU(0.2), nn.Linear(600, 1))


@record.case
def weight_clamp(log):
    """A Wasserstein critic whose weights are clamped after each of its two steps, while the generator takes one."""
    g, d = DistributedDataParallel(generator()), DistributedDataParallel(critic())
    g_optimizer = torch.optim.RMSprop(g.parameters(), lr=1e-3)
    d_optimizer = torch.optim.RMSprop(d.parameters(), lr=1e-3)
    for step in range(3):
        for inner in range(2):
            real, _ = batch(10 * step + inner)
            noise, _ = batch(10 * step + inner + 5, features=16)
            d_optimizer.zero_grad()
            with torch.no_grad():
                fake = g(noise)
            d_loss = d(fake).mean() - d(real).mean()
            d_loss.backward()
            d_optimizer.step()
            with torch.no_grad():
                for p in d.parameters():
                    p.clamp_(-0.02, 0.02)
            log.step(d_loss, d, d_optimizer)
        noise, _ = batch(10 * step + 8, features=16)
        g_optimizer.zero_grad()
        g_loss = -d(g(noise)).mean()
        g_loss.backward()
        g_optimizer.step()
        log.step(g_loss, g, g_optimizer)
        log.step(None, d, d_optimizer)


@record.case
def clamp_through_data(log):
    """The older spelling of the clamp, and gradients of the critic that the generator's step leaves behind."""
    g, d = DistributedDataParallel(generator()), DistributedDataParallel(critic())
    g_optimizer = torch.optim.Adam(g.parameters(), lr=1e-3, betas=(0.5, 0.999))
    d_optimizer = torch.optim.SGD(d.parameters(), lr=1e-2)
    for step in range(4):
        real, _ = batch(step)
        noise, _ = batch(step + 50, features=16)
        d.zero_grad()
        d_loss = d(g(noise).detach()).mean() - d(real).mean()
        d_loss.backward()
        d_optimizer.step()
        for p in d.parameters():
            p.data.clamp_(-0.03, 0.03)
        g.zero_grad()
        g_loss = -d(g(noise)).mean()
        g_loss.backward()
        g_optimizer.step()
        log.step(d_loss, d, d_optimizer)
        log.step(g_loss, g, g_optimizer)


@record.case
def frozen_critic(log):
    """The critic's parameters do not require gradients while the generator learns."""
    g, d = DistributedDataParallel(generator()), DistributedDataParallel(critic())
    g_optimizer = torch.optim.Adam(g.parameters(), lr=1e-3)
    d_optimizer = torch.optim.Adam(d.parameters(), lr=1e-3)
    for step in range(3):
        real, _ = batch(step)
        noise, _ = batch(step + 50, features=16)
        fake = g(noise)
        d_optimizer.zero_grad()
        scores = d(torch.cat([real, fake.detach()]))
        targets = torch.cat([torch.ones(len(real), 1), torch.zeros(len(fake), 1)])
        d_loss = F.binary_cross_entropy_with_logits(scores, targets)
        d_loss.backward()
        d_optimizer.step()
        for p in d.parameters():
            p.requires_grad_(False)
        g_optimizer.zero_grad()
        g_loss = F.binary_cross_entropy_with_logits(d.module(fake), torch.ones(len(fake), 1))
        g_loss.backward()
        g_optimizer.step()
        for p in d.parameters():
            p.requires_grad_(True)
        log.step(d_loss, d, d_optimizer)
        log.step(g_loss, g, g_optimizer)


@record.case
def one_optimizer_for_both(log):
    g, d = DistributedDataParallel(generator()), DistributedDataParallel(critic())
    optimizer = torch.optim.Adam([*g.parameters(), *d.parameters()], lr=1e-3)
    for step in range(3):
        noise, _ = batch(step + 50, features=16)
        optimizer.zero_grad()
        loss = d(g(noise)).square().mean()
        loss.backward()
        optimizer.step()
        log.step(loss, g, optimizer)
        log.parameters(d)


if __name__ == "__main__":
    record.main()
