"""Optimizers, learning rate schedulers and losses (Colossal-AI: colossalai.nn). They need no library: plain PyTorch reads their
checkpoints, and they read its."""
from .loss import *  # noqa: F401,F403
from .lr_scheduler import *  # noqa: F401,F403
from .optimizer import *  # noqa: F401,F403
