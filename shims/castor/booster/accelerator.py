"""The device of a Booster without a plugin (Colossal-AI: colossalai.booster.accelerator)."""
import torch

__all__ = ["Accelerator"]


class Accelerator:
    """Args: device: "cpu", "cuda", or another name of a device of PyTorch. ValueError: PyTorch knows no such device, or there is none."""

    def __init__(self, device):
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"castor: Booster(device={device!r}): {str(error).splitlines()[0]}") from None
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"castor: Booster(device={device!r}): there is no CUDA device here; leave it out, and the CPU is used")

    def bind(self):
        """Makes it this process's device."""
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)

    def configure_model(self, model):
        return model.to(self.device)
