"""Learning rates step by step (Colossal-AI: colossalai.nn.lr_scheduler). All are stepped once a step of the optimizer."""
from .after import DelayerScheduler, TwoStageScheduler, WarmupDelayerScheduler, WarmupScheduler
from .annealing import (
    CosineAnnealingLR, CosineAnnealingWarmupLR, FlatAnnealingLR, FlatAnnealingWarmupLR, LinearWarmupLR, MultiStepLR,
    MultiStepWarmupLR, PolynomialLR, PolynomialWarmupLR,
)
from .uniform import ExponentialLR, LambdaLR, MultiplicativeLR, OneCycleLR, StepLR

__all__ = [
    "CosineAnnealingLR", "CosineAnnealingWarmupLR", "DelayerScheduler", "ExponentialLR", "FlatAnnealingLR", "FlatAnnealingWarmupLR",
    "LambdaLR", "LinearWarmupLR", "MultiStepLR", "MultiStepWarmupLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
    "PolynomialWarmupLR", "StepLR", "TwoStageScheduler", "WarmupDelayerScheduler", "WarmupScheduler",
]
