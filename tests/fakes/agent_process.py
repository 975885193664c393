"""A real agent process for tests, and a small blocking client that signs as the operator does."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from resumable_training.contract import env, signing
from resumable_training.contract.assignment import (
    AgentSpec,
    Assignment,
    Limits,
    Member,
    Request,
    membership_digest,
)
from resumable_training.contract.codec import from_json, from_plain, to_json
from resumable_training.contract.events import AgentState, Event

KEY = bytes(range(32))
JOB, JOB_UID = "local/train", "uid-1"
FAKE_RANK = str(Path(__file__).with_name("fake_rank.py"))
WAIT_SECONDS = 20.0


def fake_command(*options: str) -> tuple[str, ...]:
    """Command line of the fake rank."""
    return (sys.executable, FAKE_RANK, *options)


def script(text: str) -> tuple[str, ...]:
    """Command line of a script given as text."""
    return (sys.executable, "-S", "-c", text)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Poll until ``condition`` is true; its value. Fails the test when the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def process_exists(pid: int) -> bool:
    """Alive, that is: neither gone nor a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


class AgentProcess:
    """One agent; use as a context manager. ``port`` and ``boot_id`` are known after ``start``."""

    def __init__(self, directory: Path, command: tuple[str, ...], **changes: Any) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        key_file = directory / "key"
        key_file.write_text(KEY.hex() + "\n")
        worker = changes.pop("worker", "train-0-1")
        self.launcher: tuple[str, ...] = changes.pop(
            "launcher", (sys.executable, "-m", "resumable_training.agent")
        )
        self.extra_environment: dict[str, str] = changes.pop("extra_environment", {})
        self.stdout: Any = changes.pop("stdout", None)
        self.spec = replace(
            AgentSpec(
                job=JOB,
                job_uid=JOB_UID,
                worker=worker,
                place=0,
                incarnation=1,
                command=command,
                address="127.0.0.1",
                directory=str(directory / "scratch"),
                log_directory=str(directory / "logs"),
                key_file=str(key_file),
                allow_faults=True,
            ),
            **changes,
        )
        self.counter = 0
        self.port = 0
        self.boot_id = ""
        self.lifeline = -1
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> AgentProcess:
        """Start the process and wait until it serves."""
        read, self.lifeline = os.pipe()
        spec_file = self.directory / "spec.json"
        spec_file.write_bytes(to_json(replace(self.spec, lifeline_fd=read)))
        errors = (self.directory / "agent.log").open("ab")
        output = self.stdout if self.stdout is not None else (self.directory / "stdout.log").open("ab")
        self.process = subprocess.Popen(
            self.launcher,
            env={**os.environ, env.AGENT_SPEC: str(spec_file), **self.extra_environment},
            pass_fds=(read,),
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        os.close(read)
        errors.close()
        if self.stdout is None:
            output.close()
        info = wait_until(self._introduced, "the agent's run file: " + self.own_log())
        self.port, self.boot_id = info["port"], info["boot_id"]
        return self

    def _introduced(self) -> Any:
        assert self.process is not None
        path = Path(self.spec.directory, "agent.json")
        if self.process.poll() is not None:
            raise AssertionError(f"the agent ended with {self.process.returncode}: {self.own_log()}")
        info = json.loads(path.read_text()) if path.exists() else {}
        return info if info.get("pid") == self.process.pid else None

    def own_log(self) -> str:
        return (self.directory / "agent.log").read_text()

    def __enter__(self) -> AgentProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        """End the agent through its lifeline, as a dying parent would."""
        assert self.process is not None
        self.cut_lifeline()
        try:
            self.process.wait(WAIT_SECONDS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def cut_lifeline(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    # calls --------------------------------------------------------------------------------------------

    def headers(self, method: str, path: str, body: bytes = b"", **forged: Any) -> dict[str, str]:
        """Signed headers with the next counter; ``forged`` replaces parts of them."""
        if "counter" not in forged:
            self.counter += 1
        key = forged.get("key", KEY)
        counter = forged.get("counter", self.counter)
        boot_id = forged.get("boot_id", self.boot_id)
        sign = signing.sign_request(key, method, path, forged.get("body", body), boot_id, counter)
        return {
            signing.HEADER_KEY_ID: signing.key_id(key),
            signing.HEADER_BOOT_ID: boot_id,
            signing.HEADER_COUNTER: str(counter),
            signing.HEADER_SIGNATURE: sign,
        }

    def call(
        self, method: str, path: str, value: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and decoded body; checks the signature of the reply where there is one."""
        body = value if isinstance(value, bytes) else to_json(value) if value is not None else b""
        sent = self.headers(method, path, body) if headers is None else headers
        connection = http.client.HTTPConnection(self.spec.address, self.port, timeout=WAIT_SECONDS)
        try:
            connection.request(method, path, body=body, headers=sent)
            reply = connection.getresponse()
            data = reply.read()
            sign = reply.getheader(signing.HEADER_SIGNATURE)
        finally:
            connection.close()
        if sign is not None:
            counter = int(sent[signing.HEADER_COUNTER])
            assert sign == signing.sign_reply(KEY, self.boot_id, counter, reply.status, data)
        is_json = (reply.getheader("Content-Type") or "").startswith("application/json")
        return reply.status, json.loads(data) if is_json else data.decode()

    def state(self) -> AgentState:
        status, plain = self.call("GET", "/v1/state")
        assert status == 200, plain
        return from_plain(AgentState, plain)

    def assign(self, assignment: Assignment) -> tuple[int, Any]:
        return self.call("PUT", "/v1/assignment", assignment)

    def request(self, kind: str, **fields: Any) -> tuple[int, Any]:
        return self.call("POST", "/v1/request", Request(kind, **fields))

    def begin(self, attempt: int = 1, ranks: int = 2, **changes: Any) -> Assignment:
        """Send an assignment for this worker alone; it must be accepted."""
        wanted = self.assignment(attempt, ranks, **changes)
        status, answer = self.assign(wanted)
        assert status == 200, answer
        return wanted

    def assignment(self, attempt: int = 1, ranks: int = 2, **changes: Any) -> Assignment:
        """An assignment with this worker as the only member."""
        member = Member(self.spec.worker, 0, 1, self.spec.address, self.port, 0, ranks)
        members = changes.pop("members", (member,))
        limits = changes.pop("limits", Limits())
        return replace(
            Assignment(
                job=JOB,
                job_uid=JOB_UID,
                attempt=attempt,
                digest=membership_digest(JOB_UID, attempt, members),
                worker=self.spec.worker,
                members=members,
                master_address=self.spec.address,
                master_port=0,
                limits=limits,
            ),
            **changes,
        )

    # events -------------------------------------------------------------------------------------------

    def stream(self, after: int = 0, seconds: float = WAIT_SECONDS, query: str = "") -> Iterator[Event]:
        """All lines of a new stream, snapshots too, with their signatures checked."""
        path = f"/v1/events?after={after}{query}"
        headers = self.headers("GET", path)
        counter = int(headers[signing.HEADER_COUNTER])
        connection = http.client.HTTPConnection(self.spec.address, self.port, timeout=seconds)
        try:
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            index = 0
            while line := reply.readline():
                plain = json.loads(line)
                text = plain["l"].encode()
                assert plain["i"] == index
                assert plain["s"] == signing.sign_line(KEY, self.boot_id, counter, index, text)
                index += 1
                yield from_json(Event, text)
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def wait_event(
        self, kind: str, after: int = 0, where: Callable[[Event], bool] = lambda event: True
    ) -> Event:
        """The first event of that kind with a number beyond ``after``."""
        deadline = time.monotonic() + WAIT_SECONDS
        for event in self.stream(after):
            if event.kind == kind and where(event):
                return event
            if time.monotonic() > deadline:
                break
        raise AssertionError(f"no {kind} event; the agent says: {self.own_log()}")

    def events(self) -> list[Event]:
        """All events so far, without snapshots."""
        last = self.state().last_seq
        found: list[Event] = []
        for event in self.stream():
            if event.seq:
                found.append(event)
            if event.seq >= last:
                break
        return found

    def ended(self, attempt: int = 1) -> str:
        """Wait for the end of an attempt; its outcome."""
        event = self.wait_event("attempt_ended", where=lambda event: event.attempt == attempt)
        return str(event.data["outcome"])

    def rank_pids(self) -> dict[int, int]:
        """Living ranks by the agent's run file."""
        ranks = json.loads(Path(self.spec.directory, "ranks.json").read_text())["ranks"]
        return {int(rank): entry["pid"] for rank, entry in ranks.items()}

    def rank_log(self, attempt: int = 1, rank: int = 0) -> str:
        path = Path(self.spec.log_directory, f"attempt-{attempt:05d}", f"rank-{rank:05d}.log")
        return path.read_text() if path.exists() else ""

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send the agent a signal and wait for its end; the exit code as ``subprocess`` reports it."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)
