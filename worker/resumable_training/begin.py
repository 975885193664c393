"""What ``rt.start`` does: connects this process to its agent and to its peers."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from typing import Any

from resumable_training import process_group, rng
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.progress import ProgressPage
from resumable_training.drain import Agreement, Watcher
from resumable_training.errors import UserError
from resumable_training.health.stacks import write_stacks_on_signal
from resumable_training.launch import SUPERVISED, Launch
from resumable_training.link import AgentLink
from resumable_training.phases import PhaseClock, started_ns
from resumable_training.session import Session
from resumable_training.trace import Trace


def begin(
    launch: Launch,
    overrides: dict[str, Any],
    seed: int | None,
    start_timeout_seconds: float,
    timeout_seconds: float,
) -> Session:
    """Everything up to the formed process group, in the order that lets failures be seen: see ``rt.start``.

    ``overrides`` are fields of ``CheckpointConfig``; None: not given.
    """
    page = ProgressPage(launch.progress) if launch.progress else None
    clock = PhaseClock(page, started_ns(launch.wanted_ns))
    if launch.stacks:
        write_stacks_on_signal(launch.stacks)
    inbox = _Inbox()
    link = _connect(launch, inbox)
    config, ignored = _configure(launch, overrides)
    launch = replace(launch, checkpoint=config)
    device = process_group.choose_device(launch)
    if seed is not None:
        rng.seed_all(seed)
    clock.enter("rendezvous")
    group = process_group.form(launch, device, start_timeout_seconds, timeout_seconds)
    agreement = Agreement()
    watcher = Watcher(agreement, group.watcher_store, launch.rank, launch.world_size, clock.rank_0_evaluates)
    trace = Trace(launch.trace_directory, launch.attempt, launch.rank) if launch.trace_directory else None
    session = Session(launch, device, group, clock, agreement, watcher, link, trace, seed, config)
    inbox.open(session)
    if ignored and session.main:
        session.warn(f"rt.start: {', '.join(ignored)} ignored, the job's specification says how to save")
    if launch.mode != SUPERVISED:
        _drain_on_sigterm(watcher)
    clock.enter("setup")
    return session


class _Inbox:
    """What the agent sends; what comes before the group is formed is kept until then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[str] = []
        self._settings: CheckpointConfig | None = None
        self._session: Session | None = None

    def drain(self, reason: str) -> None:
        with self._lock:
            if self._session is None:
                self._pending.append(reason)
                return
        self._session.watcher.request(reason)

    def settings(self, config: CheckpointConfig) -> None:
        with self._lock:
            self._settings = config
            if self._session is not None:
                self._session.settings = config

    def open(self, session: Session) -> None:
        with self._lock:
            self._session = session
            session.settings = self._settings or session.settings
        for reason in self._pending:
            session.watcher.request(reason)


def _connect(launch: Launch, inbox: _Inbox) -> AgentLink | None:
    if launch.mode != SUPERVISED:
        return None
    link = AgentLink(launch.socket, launch.rank, inbox.drain, inbox.settings)
    link.listen()
    return link


def _configure(launch: Launch, overrides: dict[str, Any]) -> tuple[CheckpointConfig, list[str]]:
    """The checkpoint settings that count, and the arguments that do not."""
    given = {name: value for name, value in overrides.items() if value is not None}
    if launch.mode == SUPERVISED and launch.checkpoint.directory:
        return launch.checkpoint, sorted(given)
    if (
        given.get("every_steps", 1) < 1
        or given.get("every_seconds", 1.0) <= 0
        or given.get("keep_last", 2) < 2
    ):
        raise UserError("save_every_steps must be >= 1, save_every_seconds > 0 and keep_last >= 2")
    return replace(launch.checkpoint, **given), []


def _drain_on_sigterm(watcher: Watcher) -> None:
    """Without an agent SIGTERM asks for a drain, unless the script has a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def handler(number: int, frame: object) -> None:
        # Not here: the main thread may hold the very lock that a request needs.
        threading.Thread(target=watcher.request, args=("SIGTERM",), daemon=True).start()

    signal.signal(signal.SIGTERM, handler)
