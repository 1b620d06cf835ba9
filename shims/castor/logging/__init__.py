"""A logger that knows the ranks (Colossal-AI: colossalai.logging). It is Python's logging, on standard error."""
import logging
import os
import sys

__all__ = ["DistributedLogger", "disable_existing_loggers", "get_dist_logger"]

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_loggers = {}  # by name


def get_dist_logger(name="castor"):
    """The DistributedLogger of that name; there is one of each name."""
    return _loggers.get(name) or DistributedLogger(name)


def disable_existing_loggers(include=None, exclude=("castor", "colossalai")):
    """Silences what loggers that exist now say below a warning: those named in `include`, or all but those in `exclude`."""
    for name in list(logging.Logger.manager.loggerDict):
        if name in include if include is not None else name not in exclude:
            logging.getLogger(name).setLevel(logging.WARNING)


def _place():
    """(rank, number of ranks)"""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


class _Formatter(logging.Formatter):
    """castor - INFO - rank 1 - train.py:12: the message. The rank only where there are several."""

    def format(self, record):
        rank, world = _place()
        record.of_rank = f" - rank {rank}" if world > 1 else ""
        return super().format(record)


class _Handler(logging.StreamHandler):
    """Writes to what sys.stderr is at that time."""

    def __init__(self):
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


class DistributedLogger:
    """Says messages on the ranks that are meant. Made by get_dist_logger().

    `ranks` of each method: a list of the ranks that say the message; None: all of them."""

    def __init__(self, name):
        if name in _loggers:
            raise ValueError(f"castor: there is a logger {name!r} already: get_dist_logger({name!r}) returns it")
        self._logger = logging.getLogger(name)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._formatter = _Formatter("%(name)s - %(levelname)s%(of_rank)s - %(filename)s:%(lineno)d: %(message)s")
        self._add(_Handler())
        _loggers[name] = self

    @staticmethod
    def get_instance(name):
        return get_dist_logger(name)

    @property
    def rank(self):
        """This process's; 0 without a process group."""
        return _place()[0]

    def _add(self, handler):
        handler.setFormatter(self._formatter)
        self._logger.addHandler(handler)

    def set_level(self, level):
        """Says nothing below `level`: "DEBUG", "INFO", "WARNING" or "ERROR"."""
        self._logger.setLevel(_checked(level))

    def log_to_file(self, path, mode="a", level="INFO", suffix=None):
        """Writes the messages from `level` on to a file as well: rank_R.log, or rank_R_SUFFIX.log, in the folder `path`, which is
        made. `mode`: "a" or "w"."""
        level = _checked(level)
        os.makedirs(path, exist_ok=True)
        handler = logging.FileHandler(os.path.join(path, f"rank_{self.rank}{'' if suffix is None else f'_{suffix}'}.log"), mode)
        handler.setLevel(level)
        self._add(handler)

    def _say(self, level, message, ranks):
        if ranks is None or self.rank in ranks:
            self._logger.log(level, "%s", message, stacklevel=3)

    def debug(self, message, ranks=None):
        self._say(logging.DEBUG, message, ranks)

    def info(self, message, ranks=None):
        self._say(logging.INFO, message, ranks)

    def warning(self, message, ranks=None):
        self._say(logging.WARNING, message, ranks)

    def error(self, message, ranks=None):
        self._say(logging.ERROR, message, ranks)


def _checked(level):
    if level not in _LEVELS:
        raise ValueError(f"castor: {level!r} is no level: expected {', '.join(_LEVELS)}")
    return level
