"""``python -m resumable_operator``: the Kubernetes operator.

Exit codes: 0 stopped by a signal; 1 it could not go on, the last line of the log says why; 2 the command line
is wrong, or there are no credentials.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import Any

import click

from resumable_operator import operator_options
from resumable_operator.errors import ResumableError, UserError
from resumable_operator.jsonlog import configure
from resumable_operator.process import run

logger = logging.getLogger("resumable_operator")

END_SECONDS = 2.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@operator_options.with_options
def main(**given: Any) -> None:
    """Look after ResumableTrainingJobs in a cluster, with the credentials of the pod or of a kubeconfig."""
    try:
        options = operator_options.read(given)
    except UserError as error:
        raise click.UsageError(str(error)) from error
    configure(options.log_format, options.log_level)
    sys.exit(asyncio.run(_exit_code(options)))


async def _exit_code(options: operator_options.Options) -> int:
    try:
        await run(options)
    except ResumableError as error:
        logger.error("cannot go on: %s", error, extra={"event": "fatal"})
        return _ending(2 if isinstance(error, UserError) else 1)
    except Exception:  # a bug; a fresh process may do better
        logger.exception("cannot go on: unexpected error", extra={"event": "fatal"})
        return _ending(1)
    return _ending(0)


def _ending(code: int) -> int:
    """The exit code, which the process will have in time whatever in it does not end."""
    timer = threading.Timer(END_SECONDS, os._exit, [code])
    timer.daemon = True
    timer.start()
    return code


if __name__ == "__main__":
    main()
