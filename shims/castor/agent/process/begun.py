"""A job that this process has begun, since no `castor run` has (interpose/job/begin.h), is the job of all that it starts."""
import os

from .. import core


def pass_on():
    if "CASTOR_JOB" in os.environ:
        return
    core.read_options()
    mine = {"CASTOR_JOB": core.options.job, "CASTOR_BEGUN": core.options.begun, "CASTOR_LOG_DIR": core.options.log_dir}
    os.environ.update({name: value for name, value in mine.items() if value})
