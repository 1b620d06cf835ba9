"""Writes files of checkpoints atomically, also in the background, for the explicit API (agent/writer.py)."""
from ..agent import core

core.require()

from ..agent.writer import Job, checksum, crcs, summed, wait  # noqa: E402 - they need the library

__all__ = ["Job", "checksum", "crcs", "summed", "wait"]
