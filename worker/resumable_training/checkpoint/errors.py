"""What can go wrong with checkpoints, by what the caller should do.

::

    CheckpointError
    +-- StorageUnavailable      cannot tell now: the attempt ends as infrastructure and is tried again
    |   +-- StorageRefused      and it won't get better until somebody mends credentials, rights or address
    +-- Superseded              a newer attempt owns the store: stop training, write nothing
    +-- PeerFailed              another rank raised: its own error is the cause, this one only follows
    +-- CheckpointUserError     the job's own input is wrong: trying again would change nothing
    |   +-- StateMismatch       the checkpoint is of another model, optimizer or set of tracked objects
    |   +-- StoreOwnership      another job made this store
    |   +-- StoreMisconfigured  not writable, not shared between ranks, or without create-only writes
    |   +-- NotPlain            a value that could only be saved with pickle
    |   +-- Unstorable          a tensor that no resume could bring back; later on, a save that fails of it
    |   +-- NoResumePoint       nothing verified to resume from, and no word from the user to start fresh
    +-- StoreNotFound           the name does not exist (between stores and their callers)
    +-- StoreExists             a create-only write was refused (between stores and their callers)

``exit_code`` is what a rank that dies of the error exits with (contract.exitcodes).
"""

from resumable_training.contract import exitcodes


class CheckpointError(Exception):
    """Base of all errors of this package."""

    exit_code = exitcodes.STORAGE
    on_all_ranks = True  # False: one of them raised what is no CheckpointError, and has nothing else to say


class StorageUnavailable(CheckpointError):
    """The store can't be read or written now; nothing is proven about its content."""


class StorageRefused(StorageUnavailable):
    """The store refuses us (credentials, rights, no such bucket); the text has the fix."""


class Superseded(CheckpointError):
    """A newer record exists, made by somebody else: what this attempt commits is off the chain."""

    exit_code = exitcodes.SUPERSEDED


class PeerFailed(CheckpointError):
    """Another rank raised an error of its own in a part that all ranks do together."""

    exit_code = exitcodes.PEER_LOST


class CheckpointUserError(CheckpointError):
    """Base of errors that only the user can mend."""

    exit_code = exitcodes.USER_ERROR


class StateMismatch(CheckpointUserError):
    """The checkpoint does not fit what is tracked; the message lists every difference."""


class StoreOwnership(CheckpointUserError):
    """The store belongs to another job and ``checkpoint.adopt`` is not set."""


class StoreMisconfigured(CheckpointUserError):
    """The directory can't serve as a checkpoint store; the message says what to change."""


class NoResumePoint(CheckpointUserError):
    """Checkpoints are known, none is usable, and the user has not allowed a fresh start."""


class DamagedCheckpoint(NoResumePoint):
    """The checkpoint that was asked for is not what was written; ``reason`` says in which file."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is damaged: {reason}")
        self.name = name
        self.reason = reason


class NotPlain(CheckpointUserError, TypeError):
    """A value that can't be saved without pickle; the text says where it is."""


class Unstorable(CheckpointUserError, TypeError):
    """A tensor of a kind that can't be saved, or not be loaded into; the text has key, kind and fix."""


class StoreNotFound(CheckpointError):
    """The store has nothing of that name."""


class StoreExists(CheckpointError):
    """The store has that name already, so the create-only write was refused."""


BY_NAME: dict[str, type[CheckpointError]] = {
    kind.__name__: kind
    for kind in (
        CheckpointError,
        StorageUnavailable,
        StorageRefused,
        Superseded,
        PeerFailed,
        CheckpointUserError,
        StateMismatch,
        StoreOwnership,
        StoreMisconfigured,
        NoResumePoint,
        NotPlain,
        Unstorable,
        StoreNotFound,
        StoreExists,
    )
}
