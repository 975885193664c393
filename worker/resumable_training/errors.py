"""Errors of the worker library, by what the caller should do. Every one knows the exit code of its rank.

::

    ResumableError
    +-- UserError           the script or its arguments are wrong; trying again changes nothing
    |   +-- DataChanged     the data is not the one the checkpoint was trained on
    +-- NonFiniteLoss       the loss is NaN or infinite, and the script asked to stop on that
    +-- PeerLost            another rank went away; its agent knows why
    +-- MasterBindFailed    the master port was taken; the attempt is repeated
    +-- StartTimeout        the ranks did not meet in time

Errors about checkpoints are in :mod:`resumable_training.checkpoint.errors`; they carry ``exit_code`` too.
"""

from __future__ import annotations

from resumable_training.contract import exitcodes


class ResumableError(Exception):
    """Base of what this library raises."""

    exit_code: int = 1


class UserError(ResumableError, ValueError):
    """The script, its arguments or its data are wrong; the text says what to change."""

    exit_code = exitcodes.USER_ERROR


class DataChanged(UserError):
    """The data differs from what the checkpoint was trained on; the text names each difference."""


class NonFiniteLoss(ResumableError, ArithmeticError):
    """A loss is NaN or infinite and ``stop_on_nonfinite`` is set."""

    exit_code = exitcodes.NUMERIC


class PeerLost(ResumableError, ConnectionError):
    """Another rank, or rank 0's store, went away."""

    exit_code = exitcodes.PEER_LOST


class MasterBindFailed(ResumableError, OSError):
    """Rank 0 could not bind the master port: another process took it after it was chosen."""

    exit_code = exitcodes.MASTER_BIND


class StartTimeout(ResumableError, TimeoutError):
    """The process group did not form in time; the text names the ranks that are missing."""

    exit_code = exitcodes.START_TIMEOUT
