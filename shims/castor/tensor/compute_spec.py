"""How operators compute with a sharded parameter (Colossal-AI: colossalai.tensor.compute_spec)."""
import enum

__all__ = ["ComputePattern", "ComputeSpec"]


class ComputePattern(enum.Enum):
    TP1D = 0
    TP2D = 1
    TP2P5D = 2
    TP3D = 3


class ComputeSpec:
    """The pattern in which an operator computes with a sharded parameter. Only TP1D computes.

    output_replicate: the outputs of operators whose parts lie on different ranks are gathered; otherwise they stay sharded."""

    def __init__(self, compute_pattern):
        if not isinstance(compute_pattern, ComputePattern):
            raise TypeError(f"castor: {compute_pattern!r} is no ComputePattern")
        if compute_pattern is not ComputePattern.TP1D:
            raise ValueError(f"castor: operators compute in the pattern ComputePattern.TP1D, not in {compute_pattern}")
        self.compute_pattern = compute_pattern
        self.output_replicate = True

    def set_output_replicate(self, flag=True):
        self.output_replicate = flag

    def __eq__(self, other):
        return isinstance(other, ComputeSpec) and (self.compute_pattern, self.output_replicate) == (other.compute_pattern, other.output_replicate)

    def __hash__(self):
        return hash((self.compute_pattern, self.output_replicate))

    def __repr__(self):
        return f"ComputeSpec(compute_pattern={self.compute_pattern}, output_replicate={self.output_replicate})"
