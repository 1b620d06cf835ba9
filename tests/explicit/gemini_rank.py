"""castor.gemini on each rank: see test_gemini.py for what must be found."""
import os

import torch
import torch.distributed as dist

from castor.gemini import search_chunk_configuration
from found import end, found, raised

UNIT = 1 << 20


class Model(torch.nn.Module):
    """Parameters of so many elements, in this order; the last one is the first one once more."""

    def __init__(self, *sizes):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.empty(size, device="meta")) for size in sizes)
        self.tied = self.weights[0]


def search(*sizes, span, interval=1, minimum=2, **more):
    """All in elements: fractions of the units of 2^20 that the function takes."""
    found, total, wasted = search_chunk_configuration(Model(*sizes), span / UNIT, interval, minimum / UNIT, **more)
    (degree, chosen), = found.items()
    return [degree, chosen["chunk_size"], chosen["keep_gathered"], total, wasted]


if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    dist.init_process_group("gloo")
found("least waste", search(6, 5, 4, span=5))
found("end of the range", [search(6, 5, 4, span=8)[4], search(6, 5, 4, span=9)[4]])
found("interval", search(6, 5, 4, span=8, interval=4))
found("gathered", search(6, 5, 4, span=5, minimum=16))
found("large ones aside", search(*[10] * 19, 1000, span=0))
found("large ones too", search(*[10] * 19, 1000, span=0, filter_exlarge_params=False))
found("defaults", search_chunk_configuration(Model(UNIT), 32, 1024)[0])
model = Model(6, 5, 4)
model.weights[1]._ddp_to_ignore = True
found("ignored by DDP", search_chunk_configuration(model, 0, 1, 0)[1:])
for name, arguments in (("range", (-1, 1)), ("interval", (1, 0)), ("minimum", (1, 1, -1))):
    found(f"bad {name}", raised(ValueError, search_chunk_configuration, model, *arguments))
found("too far", raised(RuntimeError, search_chunk_configuration, model, (1 << 43) - 1, 1 << 40, 0))
found("too long", raised(RuntimeError, search_chunk_configuration, model, 1 << 12, 1, 0))
if dist.is_initialized():
    end()
