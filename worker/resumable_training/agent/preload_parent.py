"""The agent's end of a preloaded parent: starts its process, hears it, and has it fork ranks.

Messages are one packet of JSON each. Of the parent: ``probed {wanted}``, ``ready {seconds, modules,
compiled}``, ``unfit {why}``, and to each request, with its number, ``started {pids}`` or ``refused {why,
lasting, again}``. Of the agent, with two descriptors for each rank, its output and its gate: ``{number,
ranks}``, the latter how many. What makes a rank of a process comes through its gate, when it is wanted:
``{set, unset}``, variables of its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from resumable_training.agent import procfs, reap
from resumable_training.agent.ranks import StartedRank, spawn

VARIABLE = "RESUMABLE_PRELOAD"
FORK_SECONDS = 2.0  # for the answer to a request; the agent's loop stands still meanwhile
MORE_FORKS_SECONDS = 0.5  # and for each further rank
MOST_FORK_SECONDS = 10.0
PAUSE_SECONDS = 1.5  # between two looks: both were stopped, or only this agent
MESSAGE_BYTES = 1 << 17
GATE_SECONDS = 2.0  # for a rank to take what it is told, more than its socket holds unread


@dataclass(frozen=True)
class Forked:
    """A process that waits at its gate to become a rank. ``output``, ``gate``: our ends."""

    pid: int
    output: int
    gate: socket.socket

    def let_go(self, request: Mapping[str, Any]) -> StartedRank:
        """From now on it is ours, and may run. ``request``: what turns its variables into those of a rank."""
        with self.gate, contextlib.suppress(OSError):  # it has ended, or will, which will be seen
            self.gate.settimeout(GATE_SECONDS)
            self.gate.sendall(json.dumps(request).encode())
        return StartedRank(self.pid, self.output)

    def give_up(self) -> None:
        """It ends, also where it is stopped and can't see that its gate is closed. It has not been reaped."""
        reap.kill_session(self.pid)
        self.close()

    def close(self) -> None:
        """Our ends: it has ended, or will when it comes to its gate."""
        self.gate.close()
        os.close(self.output)


class Parent:
    """One process: it probes an interpreter, and is a parent of ranks then.

    Args:
        command: what probes the interpreter, with the hook in front.
        settings: for the hook.
        environment: of ranks, as far as all have the same.

    ``printed``: read end of a pipe for what imports print.

    Raises:
        OSError, ValueError: no process could be made.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: str,
        hook: str,
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        self.environment = environment
        self.began = self._moved_at = self._looked_at = time.monotonic()
        self._work: Tuple[int, ...] = ()
        self._asked = self._answered = 0  # numbers of requests
        self.ready = False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(FORK_SECONDS)
        theirs.set_inheritable(True)
        self.printed, write = os.pipe()
        path = environment.get("PYTHONPATH")
        told = dict(settings, control=theirs.fileno(), agent=os.getpid(), hook=hook, pythonpath=path)
        variables = dict(environment, PYTHONPATH=os.pathsep.join(filter(None, (hook, path))))
        variables[VARIABLE] = json.dumps(told)
        try:
            arguments = [str(os.getpid()), directory, *command]
            self.pid = spawn("trampoline", arguments, variables, {1: write, 2: write})
        except (OSError, ValueError):
            os.close(self.printed)
            self.control.close()
            raise
        finally:
            os.close(write)
            theirs.close()

    def hear(self) -> Dict[str, Any]:
        """Its next message; empty when it has ended.

        Raises:
            OSError: none in time.
        """
        data = self.control.recv(MESSAGE_BYTES)
        answer: Dict[str, Any] = json.loads(data) if data else {}
        self._answered = answer.get("number", self._answered)
        return answer

    @property
    def owes_answer(self) -> bool:
        """It has one request already that it does, and answers, when it can: it may be stopped."""
        return self._answered < self._asked

    def idle_seconds(self, now: float) -> float:
        """How long it has neither computed nor read, as far as this was asked."""
        work = procfs.work(self.pid)
        paused, self._looked_at = now - self._looked_at > PAUSE_SECONDS, now
        process = procfs.read_process(self.pid)
        waits_for_disk = process is not None and process.state == "D"
        if work != self._work or paused or waits_for_disk:
            self._work, self._moved_at = work, now
        return now - self._moved_at

    def fork(self, count: int, seconds: Optional[float] = None) -> Tuple[List[Forked], Dict[str, Any]]:
        """So many processes, or fewer; and what it said. With 0 it says whether it could fork now.

        ``seconds``: for the answer; by default as many as a machine that is busy may need.
        """
        outputs: List[Tuple[int, int]] = []
        gates: List[Tuple[socket.socket, socket.socket]] = []
        try:
            for _ in range(count):
                outputs.append(os.pipe())
                gates.append(socket.socketpair())
        except OSError as error:  # of this process: no fault of the parent
            answer: Dict[str, Any] = {"kind": "refused", "why": str(error)}
        else:
            answer = self._ask(outputs, gates, fork_seconds(count) if seconds is None else seconds)
        pids = answer.get("pids", ())
        forked = [Forked(pid, output, gate) for pid, (output, _), (gate, _) in zip(pids, outputs, gates)]
        for number, (output, theirs) in enumerate(outputs):
            os.close(theirs)
            if number >= len(forked):
                os.close(output)
        for number, (gate, other) in enumerate(gates):
            other.close()
            if number >= len(forked):
                gate.close()  # by which a rank ends that nobody knows
        return forked, answer

    def _ask(
        self,
        outputs: Sequence[Tuple[int, int]],
        gates: Sequence[Tuple[socket.socket, socket.socket]],
        seconds: float,
    ) -> Dict[str, Any]:
        """Its answer to this request; one to an earlier request, whose ranks end by their gates, is late."""
        theirs = [end for (_, output), (_, gate) in zip(outputs, gates) for end in (output, gate.fileno())]
        request = {"number": self._asked + 1, "ranks": len(outputs)}
        deadline = time.monotonic() + seconds
        try:
            self.control.settimeout(seconds)
            socket.send_fds(self.control, [json.dumps(request).encode()], theirs)
            self._asked += 1
            while True:
                self.control.settimeout(max(0.001, deadline - time.monotonic()))
                answer = self.hear()
                if not answer or answer.get("number") == self._asked:
                    return answer
        except OSError as error:
            return {"kind": "refused", "why": str(error), "again": True}


def fork_seconds(ranks: int) -> float:
    """How long to wait until a parent has forked so many."""
    return min(FORK_SECONDS + MORE_FORKS_SECONDS * max(0, ranks - 1), MOST_FORK_SECONDS)
