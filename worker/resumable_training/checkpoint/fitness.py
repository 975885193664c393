"""PURE: whether ranks and store are fit to train with, beyond what the store itself proves.

Errors are what would make the first save fail for certain. All else is a warning: a full disk can be cleared
while the job trains, and no rule of the store rests on clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MEBIBYTE = 1 << 20
SKEW_SECONDS = 10.0  # object storage tells whole seconds, and a request takes some
SMALL_SHM_BYTES = 64 * MEBIBYTE  # what container runtimes give when nobody asks
ERROR, WARNING = "error", "warning"
_MOST_NAMED = 4


@dataclass(frozen=True)
class Needs:
    """What the job will want, in bytes; 0: not known. ``shm``: of this rank, in /dev/shm."""

    state: int = 0  # one checkpoint, of all ranks together
    shm: int = 0


@dataclass(frozen=True)
class Shm:
    """The file system at /dev/shm, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class Look:
    """What one rank sees of its own machine. ``clock``: wall clock in seconds, read at the same moment."""

    host: str
    clock: float
    shm: Shm | None = None  # None: there is none, or it can't be asked
    needs: Needs = Needs()


@dataclass(frozen=True)
class Room:
    """Free space in the store, in bytes; of object storage nothing is known. ``keep``: checkpoints kept."""

    location: str
    free: int | None
    keep: int
    has_some: bool  # the job has saved here before


@dataclass(frozen=True)
class Finding:
    severity: str
    text: str  # what is wrong, and what to change


def judge(looks: Sequence[Look], room: Room, store_skews: Sequence[float]) -> list[Finding]:
    """All that is found, errors first.

    Args:
        looks: by rank.
        store_skews: by rank, seconds that the store's clock is ahead of the rank's.
    """
    found = [*space(looks[0].needs.state, room), *shm(looks), *rank_clocks(looks), *store_clock(store_skews)]
    return sorted(found, key=lambda one: one.severity != ERROR)


def space(state_bytes: int, room: Room) -> list[Finding]:
    """A save needs room for a whole checkpoint before retention may delete an old one."""
    if room.free is None or not state_bytes:
        return []
    free = f"{room.location} has {size(room.free)} free, and a checkpoint takes about {size(state_bytes)}"
    quota = "(A quota may leave less: it can't be seen from here.)"
    if room.has_some:
        if room.free >= state_bytes:
            return []
        how = "saves will fail until there is more: rtj checkpoints prune, or lower spec.checkpoint.keep"
        return [Finding(WARNING, f"{free}: {how}. {quota}")]
    wanted = (room.keep + 1) * state_bytes
    if room.free < 2 * state_bytes:
        how = "two must fit: give the volume more space, or set spec.checkpoint to another"
        return [Finding(ERROR, f"{free}; {how}. {quota}")]
    if room.free < wanted:
        how = f"spec.checkpoint.keep: {room.keep} needs {size(wanted)}, with one being written: lower it"
        return [Finding(WARNING, f"{free}: {how}. {quota}")]
    return []


def shm(looks: Sequence[Look]) -> list[Finding]:
    """Of each machine once."""
    found: dict[str, list[str]] = {}
    severity = WARNING
    for host in dict.fromkeys(look.host for look in looks):
        here = [look for look in looks if look.host == host]
        needed = sum(look.needs.shm for look in here)
        problem = shm_text(here[0].shm, needed)
        if problem:
            found.setdefault(problem, []).append(host)
            severity = ERROR if needed else severity
    return [Finding(severity, f"{text} ({named('host', hosts)})") for text, hosts in found.items()]


def shm_text(there: Shm | None, needed_bytes: int) -> str | None:
    """What is wrong with /dev/shm for so many bytes, and the fix; None: nothing."""
    fix = (
        "mount an emptyDir with medium: Memory at /dev/shm (the operator does, unless the template mounts"
        " something there: then raise its sizeLimit); under docker give --shm-size"
    )
    if there is None:
        return f"there is no /dev/shm, and {size(needed_bytes)} are needed: {fix}" if needed_bytes else None
    has = f"the shared memory /dev/shm has {size(there.free)} free"
    if needed_bytes > there.free:
        return f"{has}, and {size(needed_bytes)} are needed: {fix}"
    if not needed_bytes and there.total <= SMALL_SHM_BYTES:
        return f"{has} of {size(there.total)}, and data loader workers pass batches through it: {fix}"
    return None


def rank_clocks(looks: Sequence[Look]) -> list[Finding]:
    """Pins of readers say until when they hold, and reports compare times of several machines."""
    first = looks[0]
    off = {look.host: look.clock - first.clock for look in looks if look.host != first.host}
    wrong = {host: ahead for host, ahead in off.items() if abs(ahead) > SKEW_SECONDS}
    if not wrong:
        return []
    worst = max(wrong.items(), key=lambda pair: abs(pair[1]))
    text = (
        f"clocks differ: {worst[0]} is {abs(worst[1]):.0f} s {_side(worst[1])} {first.host}"
        f" ({named('host', list(wrong))} by more than {SKEW_SECONDS:.0f} s): run NTP on the nodes. Pins and"
        " reports use the clock; checkpoints do not"
    )
    return [Finding(WARNING, text)]


def store_clock(skews: Sequence[float]) -> list[Finding]:
    """Ages of files are the store's; object storage refuses requests that are 15 minutes off."""
    worst = max(skews, key=abs, default=0.0)
    if abs(worst) <= SKEW_SECONDS:
        return []
    rank = list(skews).index(worst)
    text = (
        f"the store's clock is {abs(worst):.0f} s {_side(worst)} that of rank {rank}: run NTP on both. Pins"
        " and ages of leftovers use the clock; checkpoints do not"
    )
    return [Finding(WARNING, text)]


def _side(ahead: float) -> str:
    return "ahead of" if ahead > 0 else "behind"


def named(noun: str, names: Sequence[str]) -> str:
    """``host a``, ``hosts a, b and 3 more``."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_NAMED])}{more}"


def size(count: int) -> str:
    """``64 MiB``, ``1.5 GiB``."""
    gib = count / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{-(-count // MEBIBYTE)} MiB"


def message(findings: Sequence[Finding]) -> str:
    """All in one, numbered when there are several."""
    texts = [one.text.rstrip(".") for one in findings]
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"({number}) {text}" for number, text in enumerate(texts, 1))
