"""What the Booster asks of a mixed precision."""
import abc

__all__ = ["MixedPrecision"]


class MixedPrecision(abc.ABC):
    """A way of computing in fewer bits.

    `engine_precision`: CASTOR_PRECISION's word, if the engine does it; None: configure() does all."""

    engine_precision = None

    @abc.abstractmethod
    def configure(self, model, optimizer=None, criterion=None):
        """Returns all three as the script goes on with them; after the plugin's configure()."""
