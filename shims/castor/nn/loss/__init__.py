"""Losses (Colossal-AI: colossalai.nn.loss and coati.models.loss)."""
import torch

__all__ = ["GPTLMLoss"]


class GPTLMLoss(torch.nn.Module):
    """The mean cross entropy of each token's prediction of the next one.

    logits: (..., length, vocabulary). labels: (..., length), whole numbers; those of -100 do not count."""

    def forward(self, logits, labels):
        if logits.shape[:-1] != labels.shape:
            raise ValueError(f"castor: GPTLMLoss: logits of shape {tuple(logits.shape)} need labels of shape {tuple(logits.shape[:-1])}, not "
                             f"{tuple(labels.shape)}")
        predicted, following = logits[..., :-1, :], labels[..., 1:]
        return torch.nn.functional.cross_entropy(predicted.reshape(-1, logits.shape[-1]), following.reshape(-1))
