"""Timers (Colossal-AI: colossalai.utils.timer). Each reading waits for what the device still does."""
import time

from ..accelerator import get_accelerator


class Timer:
    """Times from start() to stop(), in seconds."""

    def __init__(self):
        self.reset()

    @property
    def has_history(self):
        return bool(self._history)

    @property
    def current_time(self):
        """Seconds of a clock that never goes back."""
        get_accelerator().synchronize()
        return time.monotonic()

    def start(self):
        self._elapsed = 0.0
        self._started = self.current_time

    def lap(self):
        """The time since start()."""
        return self.current_time - self._running()

    def stop(self, keep_in_history=False):
        """Ends and returns the time since start()."""
        self._elapsed = self.lap()
        self._started = None
        if keep_in_history:
            self._history.append(self._elapsed)
        return self._elapsed

    def get_elapsed_time(self):
        """The last time from start() to stop()."""
        if self._started is not None:
            raise RuntimeError("castor: the timer runs: stop() it before get_elapsed_time(), or call lap()")
        return self._elapsed

    def get_history_sum(self):
        return sum(self._history)

    def get_history_mean(self):
        if not self._history:
            raise RuntimeError("castor: the timer has no history: call stop(keep_in_history=True) before get_history_mean()")
        return sum(self._history) / len(self._history)

    def reset(self):
        """Forgets all times."""
        self._started, self._elapsed, self._history = None, 0.0, []

    def _running(self):
        if self._started is None:
            raise RuntimeError("castor: the timer does not run: call start() first")
        return self._started


class MultiTimer:
    """Timers by name. `on`: False: start() and stop() do nothing."""

    def __init__(self, on=True):
        self._on = on
        self._timers = {}

    def start(self, name):
        if self._on:
            self._timers.setdefault(name, Timer()).start()

    def stop(self, name, keep_in_history=False):
        """The time since start(name); None: the timers are off."""
        return self._timers[name].stop(keep_in_history) if self._on else None

    def get_timer(self, name):
        return self._timers[name]

    def reset(self, name=None):
        """Forgets the times of one timer, or of all."""
        if self._on:
            for timer in self._timers.values() if name is None else (self._timers[name],):
                timer.reset()

    def is_on(self):
        return self._on

    def set_status(self, mode):
        self._on = mode

    def __iter__(self):
        yield from self._timers.items()
