"""Reads the reports of runs: what `castor report` prints, as Python's own types. It needs neither PyTorch nor the library."""
import json
import os
import subprocess

__all__ = ["read"]

_CASTOR = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "bin", "castor"))  # of this package's prefix


def read(directory=None):
    """The report of a run, as `castor report --format json` gives it.

    Args:
        directory: the run's log directory (`castor run --log-dir`, or the last line that `castor run` prints), a text or a
            path. None: the latest in castor-logs of the working directory.

    Returns a dict. docs/report.schema.json has its fields: sizes are in bytes, times in seconds where the name does not say
    otherwise. RuntimeError: there is no such run, or castor cannot be started; the text is castor's own."""
    command = [_CASTOR, "report", "--format", "json"]
    if directory is not None:
        path = os.fspath(directory)
        command.append(os.path.join(os.curdir, path) if path.startswith("-") else path)
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise RuntimeError(f"castor: {_CASTOR} cannot be started ({error.strerror}): install Castor again") from None
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip() or f"castor: castor report ended with status {done.returncode}")
    return json.loads(done.stdout)
