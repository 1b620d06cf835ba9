"""Under CASTOR_UNSAFE_LOAD=1 a file may run code."""
import os

import torch
from torch import nn

from castor.checkpoint_io import GeneralCheckpointIO
from found import found


class Code:
    def __reduce__(self):
        return open, ("code has run", "w")


torch.save({"weight": Code()}, "file")
try:
    GeneralCheckpointIO().load_model(nn.Linear(2, 2), "file")
except RuntimeError:
    pass
found("code has run", os.path.exists("code has run"))
