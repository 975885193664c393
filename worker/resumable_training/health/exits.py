"""What a rank's last error means to its agent, and how the rank ends: at once, and with that exit code.

A rank whose peers died must not run destructors that wait for them, so after an error nothing but the
output is flushed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from resumable_training.contract import exitcodes

# Texts of collectives that failed because a peer went away. gloo raises plain RuntimeErrors.
_PEER_TEXT = re.compile(
    r"gloo.*(connection closed by peer|connection reset|broken pipe|connection refused|timed out)"
    r"|\[c10d\].*(connection|recv|send)"
    r"|nccl.*(remote process exited|connection closed|aborted|unhandled system error)"
    r"|failed to recv, got 0 bytes|connection was likely closed",
    re.IGNORECASE | re.DOTALL,
)
_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LAST_SECONDS = 60.0
_last_acts: list[Callable[[int], None]] = []
_TORCH_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")


def exit_code_of(error: BaseException) -> int:
    """The exit code that tells the agent what ``error`` means."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    if isinstance(error, KeyboardInterrupt):
        return 130
    return exitcodes.PEER_LOST if is_peer_lost(error) else 1


def is_peer_lost(error: BaseException) -> bool:
    """Whether ``error``, or the one it came from, is a collective that lost a peer."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if any(kind.__name__ in _TORCH_ERRORS for kind in type(current).__mro__):
            return True
        if isinstance(current, RuntimeError) and _PEER_TEXT.search(str(current)):
            return True
        current = current.__cause__ or current.__context__
    return False


def end_at_once_on_error() -> None:
    """An uncaught error prints its traceback and ends this process with :func:`exit_code_of` it."""
    previous = sys.excepthook
    pid = os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        trace = for_people(error, trace)
        try:
            previous(kind, error, trace)
        except Exception:  # noqa: BLE001 - a broken hook of the script's must not hide the error
            traceback.print_exception(kind, error, trace)
        if os.getpid() == pid and not hasattr(sys, "ps1"):
            code = exit_code_of(error)
            if not isinstance(error, KeyboardInterrupt):
                _do_last_acts(code)
            exit_now(code)

    sys.excepthook = hook


def before_the_end(act: Callable[[int], None]) -> None:
    """Have this done, with the exit code, when an uncaught error ends the process; it may take a while.

    Not at Ctrl-C, which is somebody who does not want to wait.
    """
    _last_acts.append(act)


def _do_last_acts(code: int) -> None:
    """For a bounded time, and until Ctrl-C: a thread that hangs is left behind."""
    for act in _last_acts:
        thread = threading.Thread(target=act, args=(code,), name="rt-end", daemon=True)
        with contextlib.suppress(KeyboardInterrupt):
            thread.start()
            thread.join(_LAST_SECONDS)


def for_people(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback of an error that its user has to mend: the script's own lines; the text says the rest."""
    if getattr(error, "exit_code", None) != exitcodes.USER_ERROR:
        return trace
    error.__cause__, error.__suppress_context__ = None, True
    own: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_LIBRARY):
            own.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for part in reversed(own):
        kept = TracebackType(kept, part.tb_frame, part.tb_lasti, part.tb_lineno)
    error.__traceback__ = kept
    return kept


def exit_now(code: int) -> None:
    """Flush the output and end; no destructor, exit handler or thread gets a say."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_by(seconds: float, code: int) -> None:
    """End this process in ``seconds`` if it has not ended by then: the script's exit must not hang."""
    timer = threading.Timer(seconds, exit_now, (code,))
    timer.daemon = True
    timer.start()
