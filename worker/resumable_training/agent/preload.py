"""Preloaded ranks: one process of the user's interpreter imports torch once, and ranks are forked from it.

Most of what a restart on a healthy machine takes is imports. ``PreloadStarter`` takes the place of
``ColdStarter`` and falls back to it whenever a fork would not be safe or not be the same: it says why, once,
and training goes on. ``preload_parent`` talks to the parent, ``preload_hook`` is its own side, and
what makes a command fit is in ``preload_command``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import pkgutil
import shutil
import signal
import sys
import time
import zipfile
from collections import deque
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Generator, List, Optional, Sequence, Set, Tuple

from resumable_training.agent import preload_command as commands
from resumable_training.agent import procfs, reap
from resumable_training.agent.bounded import within
from resumable_training.agent.guarding import GuardProcess
from resumable_training.agent.output import OutputPump, RankOutput
from resumable_training.agent.preload_command import PythonProgram
from resumable_training.agent.preload_parent import Forked, Parent
from resumable_training.agent.preload_standby import (
    AFTER_SECONDS,
    AGAIN_SECONDS,
    BETWEEN_SECONDS,
    PATIENCE_SECONDS,
    Standbys,
)
from resumable_training.agent.ranks import RankPlan, StartedRank, own_environment, start_cold
from resumable_training.contract.assignment import AgentSpec

MOST_RANKS = 100  # in one request: they have two descriptors each
IDLE_SECONDS = 3.0  # a parent that has neither computed nor read for so long hangs in an import
LAST_WORDS_SECONDS = 0.2  # to read what a parent that failed has printed
LONGEST_SECONDS = 120.0  # of the imports, before ranks no longer wait for them
TORCH_SECONDS = (5.0, 30.0)  # after its start, whether a rank of an unknown program has loaded torch
_LOOK_SECONDS = 0.5
MOST_PARENTS = 5
_HOOK = {
    "sitecustomize.py": "preload_hook.py",
    "resumable_preload_rank.py": "preload_rank.py",
    "resumable_preload_native.py": "preload_native.py",
}
_HEAD_BYTES, _TEXT_BYTES = 1024, 1 << 20


class PreloadStarter:
    """Forks ranks from a preloaded parent where that is safe and the same, else starts them cold."""

    def __init__(
        self,
        spec: AgentSpec,
        scratch: Path,
        pump: OutputPump,
        guard: GuardProcess,
        warn: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.pump = pump
        self.hook = str(scratch / "preload.zip")
        self.environment: Dict[str, str] = {}
        self._forced: Dict[str, str] = {}
        self._guard, self._warn, self._say = guard, warn, say
        self._program: Optional[PythonProgram] = None
        self._parent: Optional[Parent] = None
        self._printed: Optional[RankOutput] = None  # by the parent
        self._cold_because = ""  # for good
        self._said: Set[str] = set()
        self._made = 0
        self._changed = asyncio.Event()
        self._standbys = Standbys(guard)
        self._usual_count = 0  # ranks of the attempt before

    # as its agent sees it -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The agent serves now: make a parent, if the program is known to want one."""
        if not self.spec.preload:
            self._cold_because = "spec.workers.preload is off"
            self._said.add(self._cold_because)  # by the user himself
            return
        self._use_environment(own_environment(self.spec, {}, os.environ))
        self._cold_because = self._read_program()
        if self._cold_because:
            if self.spec.preload_modules:
                self._tell(self._cold_because)
        elif self.spec.preload_modules or commands.uses_torch(self._text()):
            self._probe()

    async def until_ready(self, unless: Callable[[], bool]) -> None:
        """Wait for a parent that gets on with its imports, which a rank would have to do as well."""
        while self._parent and not self._parent.ready and not unless():
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._changed.wait(), _LOOK_SECONDS)
            if self._parent and not self._parent.ready:
                self._doubt(self._parent, time.monotonic())

    def _doubt(self, parent: Parent, now: float) -> None:
        """Give up one that does not get on."""
        if parent.idle_seconds(now) > IDLE_SECONDS:
            self._give_up("the preloaded parent hangs in an import%s" % self._last_words())
        elif now - parent.began > LONGEST_SECONDS:
            self._give_up("the preloaded parent has imported for %d s" % LONGEST_SECONDS)

    def start(self, plans: Sequence[RankPlan]) -> Generator[StartedRank, None, None]:
        """Fork them, or start cold those that are not forked."""
        self._standbys.unplan()
        self._usual_count = len(plans)
        requests = self._requests(plans)
        forked = self._fork(len(requests))
        try:
            for plan, request in zip_longest(plans, requests[: len(forked)]):
                yield forked.popleft().let_go(request) if request else self._start_cold(plan)
        finally:
            for rank in forked:
                rank.give_up()
            self._plan_standbys()

    def _start_cold(self, plan: RankPlan) -> StartedRank:
        started = start_cold(plan)
        self._watch(started.pid)
        return started

    def kill(self, started: StartedRank) -> None:
        reap.send(started.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the parent; ranks that came from it are the agent's children."""
        self._drop()

    def reaped(self, ended: Sequence[Tuple[int, int]]) -> None:
        if self._standbys.reaped(ended):
            self._plan_standbys(AGAIN_SECONDS)

    def memory_bytes(self) -> int:
        """Of the parent and those that stand by, their share of what ranks have in common with them.

        One of them is looked at for all: that takes 10 ms of a processor each.
        """
        if self._parent is None:
            return 0
        pids = self._standbys.pids
        each = procfs.memory_bytes(pids[0]) if pids else 0
        return procfs.memory_bytes(self._parent.pid) + len(pids) * each

    def warming(self) -> bool:
        return self._parent is not None and not self._parent.ready

    # what to preload ----------------------------------------------------------------------------------

    def _read_program(self) -> str:
        """Why the command can't be preloaded, whatever the interpreter is; empty: it can."""
        if sys.platform != "linux":
            return "preloading needs Linux"
        path = shutil.which(self.spec.command[0], path=self.environment.get("PATH"))
        head = _beginning(self._directory() / path, _HEAD_BYTES) if path else ""
        read = commands.read_command(self.spec.command, head)
        if isinstance(read, str):
            return read
        self._program = read
        name = commands.sets_variable(self._text())
        return "the program sets %s itself, which is read when modules are imported" % name if name else ""

    def _text(self) -> str:
        """Of the program, as far as it can be found without its interpreter."""
        program = self._program
        if program is None or program.way == commands.TEXT:
            return program.target if program else ""
        directory = self._directory()
        if program.way == commands.SCRIPT:
            script = directory / program.target
            return _beginning(script / "__main__.py" if script.is_dir() else script, _TEXT_BYTES)
        module = directory / program.target.replace(".", "/")
        return _beginning(module.with_suffix(".py"), _TEXT_BYTES) or _beginning(
            module / "__main__.py", _TEXT_BYTES
        )

    def _directory(self) -> Path:
        return Path(self.spec.working_directory or os.getcwd())

    def _watch(self, pid: int) -> None:
        """Look whether a rank that was started cold loads torch: then the next ones need not."""
        if self._parent is None and not self._made and self.spec.preload:
            for seconds in TORCH_SECONDS:
                asyncio.get_running_loop().call_later(seconds, self._look, pid)

    def _look(self, pid: int) -> None:
        if self._parent is not None or self._made or not procfs.has_mapped(pid, b"libtorch"):
            return
        if self._cold_because:
            self._tell(self._cold_because)
        else:
            self._probe()

    # parents ------------------------------------------------------------------------------------------

    def _probe(self) -> None:
        """Make a parent. First it runs nothing, to see whether this interpreter runs what we put before a
        script: else it would run the script."""
        assert self._program is not None
        if self._made == MOST_PARENTS:
            self._give_up("%d preloaded parents were needed; there will be no more" % MOST_PARENTS)
            return
        try:
            self._write_hook()
        except OSError as error:
            self._give_up("what ranks are forked by can't be written: %s" % error)
            return
        self._make(self._program)

    def _write_hook(self) -> None:
        with zipfile.ZipFile(self.hook, "w") as archive:
            for name, source in _HOOK.items():
                text = pkgutil.get_data("resumable_training.agent", source)
                assert text is not None
                archive.writestr(name, text)

    def _settings(self, program: PythonProgram) -> Dict[str, Any]:
        return {
            "probe": True,
            "command": self.spec.command,
            "way": program.way,
            "target": program.target,
            "usual": commands.USUAL,
            "native": commands.NATIVE,
            "beside": commands.BESIDE,
            "named": self.spec.preload_modules,
            "directory": self.spec.working_directory,
            "forced": self._forced,
        }

    def _make(self, program: PythonProgram) -> None:
        spec = self.spec
        command, settings = (*program.interpreter, "-c", ""), self._settings(program)
        try:
            parent = Parent(command, spec.working_directory, self.hook, settings, self.environment)
        except (OSError, ValueError) as error:
            self._give_up("no process could be made for preloading: %s" % error)
            return
        self._parent = parent
        self._printed = self.pump.add(parent.printed, "[preload] ", Path(spec.directory, "preload.log"))
        self._guard.harbour(parent.pid)
        asyncio.get_running_loop().add_reader(parent.control, self._on_message, parent)

    def _on_message(self, parent: Parent) -> None:
        """Unasked ones: how its start went, and its end."""
        parent.control.settimeout(0)  # with a time-out Python waits that long whatever the flags are
        try:
            message = parent.hear()
        except BlockingIOError:
            return  # a request has read it meanwhile
        except OSError:
            message = {}
        kind = message.get("kind")
        if kind == "probed":
            if message["wanted"]:
                self._made += 1
            else:
                self._drop()
        elif kind == "ready":
            parent.ready = True
            self._say(commands.told_of_imports(message))
            self._plan_standbys()
        elif kind == "unfit":
            self._give_up(message["why"])
        elif kind in ("started", "refused"):
            return  # too late: its ranks have ended by their gates
        elif parent.ready:
            self._replace("the preloaded parent, process %d, has ended" % parent.pid)
        else:
            self._give_up("the interpreter can't be preloaded%s" % self._last_words())
        self._changed.set()

    def _last_words(self) -> str:
        assert self._printed is not None
        try:
            tail = self.pump.finish(self._printed).result(LAST_WORDS_SECONDS)
        except concurrent.futures.TimeoutError:
            tail = tuple(self._printed.tail)
        return "; its last line: %s" % tail[-1] if tail else ""

    def _replace(self, why: str) -> None:
        """Ranks that start before the new one is ready start cold."""
        self._say("%s; starting another" % why)
        self._drop()
        self._probe()  # the hook may be gone by now, and then the script would run

    def _give_up(self, why: str) -> None:
        self._cold_because = why
        self._tell(why)
        self._drop()

    def _tell(self, why: str) -> None:
        """Once, where users see it."""
        if why not in self._said:
            self._said.add(why)
            self._warn("ranks start cold, which takes seconds at each restart: %s" % why)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def _drop(self) -> None:
        parent, self._parent = self._parent, None
        self._standbys.unplan()
        self._standbys.give_up()
        if parent is None:
            return
        with contextlib.suppress(RuntimeError):  # no loop any more
            asyncio.get_running_loop().remove_reader(parent.control)
        parent.control.close()
        reap.kill_session(parent.pid)
        self._guard.remove(parent.pid)
        assert self._printed is not None
        self.pump.close(self._printed)
        self._changed.set()

    def _use_environment(self, environment: Dict[str, str]) -> None:
        self.environment, self._forced = commands.parent_environment(environment)

    # ranks --------------------------------------------------------------------------------------------

    def _requests(self, plans: Sequence[RankPlan]) -> List[Dict[str, Any]]:
        """What makes ranks of copies of the parent; fewer than there are plans, if the rest can't be told."""
        parent = self._parent
        if parent is None or not parent.ready or not all(self._can_fork(parent, plan) for plan in plans):
            return []
        requests = [commands.request(plan.environment, parent.environment, self._forced) for plan in plans]
        fitting = [*takewhile(commands.fits, requests)]
        if len(fitting) < len(requests):
            self._tell("the variables of a rank are more than %d bytes" % commands.REQUEST_BYTES)
        return fitting

    def _fork(self, count: int) -> Deque[Forked]:
        """So many processes, all as a rule; the others are to be started cold."""
        forked: Deque[Forked] = deque()
        if count and self._standbys and self._parent:
            _, answer = self._parent.fork(0)
            if answer.get("kind") != "started":
                self._standbys.give_up()
                self._refused(answer, 0, count)
                return forked
            forked += self._standbys.take(count, _is_fit)
        while self._parent and len(forked) < count:
            wanted = min(count - len(forked), MOST_RANKS)
            some, answer = self._parent.fork(wanted)
            forked += some
            if len(some) < wanted:
                self._refused(answer, len(forked), count)
                break
        return forked

    def _plan_standbys(self, after: float = AFTER_SECONDS) -> None:
        if self._parent and self._parent.ready and len(self._standbys) < self._usual_count:
            loop = asyncio.get_running_loop()
            self._standbys.plan(lambda: loop.call_later(after, self._stand_by))

    def _stand_by(self) -> None:
        """Fork one rank of the next attempt, and plan one more until there are as many as of this one."""
        assert self._parent is not None  # or nothing would be planned
        if self._parent.owes_answer:
            self._plan_standbys(AGAIN_SECONDS)
            return
        some, answer = self._parent.fork(1, PATIENCE_SECONDS)
        self._standbys.add(some)
        if some:
            self._plan_standbys(BETWEEN_SECONDS)
            return
        self._say_once("no rank stands by: %s" % answer.get("why", "the preloaded parent has ended"))
        if not answer.get("lasting"):
            self._plan_standbys(AGAIN_SECONDS)

    def _can_fork(self, parent: Parent, plan: RankPlan) -> bool:
        odd = commands.odd_count(plan.environment)
        if odd:
            self._tell("%s=%s is for libraries to read" % (odd, plan.environment[odd]))
            return False
        name = commands.difference(plan.environment, parent.environment)
        if name:
            self._use_environment(plan.environment)
            self._replace("%s is different in this attempt" % name)
        return not name

    def _refused(self, answer: Dict[str, Any], forked: int, wanted: int) -> None:
        why = answer.get("why", "it has ended")
        if answer.get("lasting"):
            self._give_up("the preloaded parent can't be forked: %s" % why)
        elif not answer or answer.get("again"):
            self._replace("the preloaded parent could not fork: %s" % why)
        else:
            some = "only %d of %d ranks" % (forked, wanted) if forked else "no rank"
            self._say("%s could be forked: %s" % (some, why))


def _is_fit(pid: int) -> bool:
    """Whether it goes on when it is let go."""
    return not procfs.is_dying(pid) and not procfs.is_stopped(pid)


def _beginning(path: Path, size: int) -> str:
    """Of a text file; empty when it is none that can be read."""
    try:
        with path.open("rb") as file:
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
