"""kill -9 at every labelled moment of save, commit, retention and load, and what the next attempt finds.

The moments are read from the code, so a new one is killed at too. By default each of them is met once, by the
hardest death: a whole machine, of two where ranks work together. `make soak` has all combinations.
"""

import ast
import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from campaign_programs import HOME, KEEP_LAST, SAVES, Death, Home, Told, a_home, life, run_attempt
from rank_programs import full_values, make_state, train
from test_async import eventually
from test_ranks import assert_same

from resumable_training import checkpoint
from resumable_training.checkpoint import verify
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore

SOURCES = Path(checkpoint.__file__).parent
RANKS_OWN = {"snapshot", "engine", "load", "read"}  # modules of the rank's own process; others: its writer's
RANK_0_ONLY = {"commit", "sweep"}
WITHOUT_A_WRITER = {"commit", "sweep"}  # modules that a synchronous save passes through, too
OF_RANK_0 = {"save.gather", "load.pin", "load.look", "load.first-values"}
OF_OTHERS = {"save.stored"}
NEXT_SIZE = {1: 2, 2: 4, 4: 1}  # of the next attempt; with these, means of equal gradients are exact
AFTER_GATHER = {"save.manifest", "save.guard", "save.marker", "save.history", "save.committed"}
COMMITTED = {"save.history", "save.committed", "save.landed", "retain.marker", "retain.data"}


def moments() -> dict[str, str]:
    """Every label in the code, and its module."""
    return {
        _label(path, call): path.stem
        for path in sorted(SOURCES.glob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "moment"
    }


def _label(path: Path, call: ast.Call) -> str:
    assert isinstance(call.args[0], ast.Constant), f"{path}:{call.lineno}: the campaign can't read this label"
    return str(call.args[0].value)


HELD = {label for label in moments() if label.startswith("hold.")}  # of copies: test_holding_ranks
MOMENTS = {label: module for label, module in moments().items() if label not in HELD}


def victims(label: str, world_size: int) -> range:
    """Ranks that come to it, or whose writers do."""
    if MOMENTS[label] in RANK_0_ONLY or label in OF_RANK_0:
        return range(1)
    return range(1, world_size) if label in OF_OTHERS else range(world_size)


def hardest(label: str) -> Death:
    """The one that is met by default: the machine of the last rank that comes to the moment."""
    world_size = 2 if label.startswith("save.") and MOMENTS[label] != "snapshot" else 1
    return Death(label, victims(label, world_size)[-1], world_size=world_size)


def every_death() -> Iterator[Death]:
    """The product."""
    for label, world_size, whole in itertools.product(MOMENTS, NEXT_SIZE, (True, False)):
        for rank in victims(label, world_size):
            yield Death(label, rank, whole, world_size=world_size)
            if MOMENTS[label] in WITHOUT_A_WRITER and whole:
                yield Death(label, rank, whole, asynchronous=False, world_size=world_size)


# Of writers alone, while training goes on; and of saves that have none.
MORE = [
    Death("save.claimed", 0, whole_machine=False, world_size=2),
    Death("save.written", 1, whole_machine=False, world_size=2),
    Death("save.stored", 1, whole_machine=False, world_size=2),
    Death("save.landed", 0, whole_machine=False, world_size=2),
    Death("save.landed", 1, whole_machine=False, world_size=2),
    Death("save.marker", asynchronous=False),
    Death("save.history", asynchronous=False),
]


# Of ranks alone, where an agent keeps what outlives them, and when all ranks have copied.
LANDING = [
    Death("save.claim", rank_alone=True),
    Death("save.write", 1, world_size=2, rank_alone=True),
    Death("save.stored", 1, world_size=2, rank_alone=True),
    Death("save.marker", 0, world_size=2, rank_alone=True),
]
# Also there: a rank that has not given its copy away, and a writer that dies while its rank lives.
LOST = [
    Death("save.copied", 0, whole_machine=False, world_size=2),
    Death("save.copied", 1, whole_machine=False, world_size=2),
    Death("save.written", 1, whole_machine=False, world_size=2),
]


def every_landing() -> Iterator[Death]:
    """The product, where it is sure that all ranks have copied: the others die a moment later."""
    for label in MOMENTS:
        if label.startswith("save.") and MOMENTS[label] not in RANKS_OWN:
            yield from (Death(label, rank, rank_alone=True) for rank in victims(label, 1))
        if label in AFTER_GATHER:
            yield from (Death(label, 0, world_size=size, rank_alone=True) for size in (2, 4))


def test_the_code_has_moments_of_every_kind() -> None:
    """None is read where there are none; each is met by default, and its dead ranks do come to it."""
    assert {label.partition(".")[0] for label in MOMENTS} == {"save", "retain", "load"}
    assert len(MOMENTS) > 15
    assert set(MOMENTS.values()) > RANKS_OWN | RANK_0_ONLY
    assert MOMENTS.keys() > OF_RANK_0 | OF_OTHERS | COMMITTED
    assert {hardest(label).moment for label in MOMENTS} == MOMENTS.keys()
    assert {str(death) for death in MORE} < {str(death) for death in every_death()}
    assert MOMENTS.keys() > AFTER_GATHER


@cache
def values_at(step: int) -> dict[str, Any]:
    """What training has at a step, with any number of ranks."""
    state = make_state("plain", 1, 1)
    train(state, step)
    return full_values(state)


class Campaign:
    """One store, its attempts, and the death of one of them; ``home``: what keeps what outlives ranks."""

    def __init__(self, directory: Path, death: Death, home: Home | None = None) -> None:
        self.directory, self.death, self.home = directory, death, home
        self.root, self.note = directory / "store", directory / "died"

    def attempt(self, number: int, *, dies: bool = False, world_size: int | None = None) -> list[Told]:
        death = self.death if dies else None
        world_size = world_size or self.death.world_size
        paths = str(self.root), str(self.note)
        if self.home is None:
            return run_attempt(world_size, life, self.directory, *paths, number, death, None)
        self.home.begin(number, world_size)
        try:
            return run_attempt(world_size, life, self.directory, *paths, number, death, self.home.path)
        finally:
            self.home.end(number)

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root, visibility_seconds=0.0)


def strays(root: Path) -> list[str]:
    """Processes of the test's attempts that still run, with their commands."""
    wanted, found = f"{HOME}={root}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(path.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # gone meanwhile, or not ours
            continue
    return found


@cache
def lived(world_size: int, directory: Path) -> Path:
    """The store of an attempt that has made ``SAVES`` checkpoints and ended well; to be copied."""
    campaign = Campaign(directory, Death("", world_size=world_size))
    directory.mkdir()
    assert campaign.attempt(1)
    return campaign.root


@pytest.fixture
def lived_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    base = tmp_path_factory.getbasetemp()
    return lambda world_size: lived(world_size, base / f"lived-{world_size}")


def play(
    directory: Path,
    death: Death,
    lived_store: Callable[[int], Path],
    next_size: int | None = None,
    home: Home | None = None,
) -> None:
    """An attempt dies of it; the next one finds the right step and values, and leaves a clean store."""
    campaign = Campaign(directory, death, home)
    if death.moment.startswith("load."):
        expected, number = die_loading(campaign, lived_store(death.world_size)), 3
    else:
        expected, number = die_saving(campaign), 2
    eventually(lambda: not strays(campaign.root))
    whole = survey(campaign.store).resume_points
    assert int(whole[0][5:13]) == expected
    for name in whole:
        assert verify.verify_checkpoint(campaign.store, name).outcome == verify.OK
    for told in campaign.attempt(number, world_size=next_size):
        assert told.step == expected
        assert_same(told.restored, values_at(expected))
        assert told.saved == dict.fromkeys(range(expected + 1, expected + SAVES + 1), True)
        assert_same(told.values, values_at(expected + SAVES))
        memory, storage = told.origins
        assert (memory > 0, storage > 0) == (death.rank_alone, not death.rank_alone)
    clean(campaign, expected + SAVES, number)


def die_saving(campaign: Campaign) -> int:
    """The step that must be found afterwards."""
    death = campaign.death
    campaign.note.touch()
    told = campaign.attempt(1, dies=True)
    assert campaign.note.exists(), "nothing died"
    expected = SAVES if death.moment in COMMITTED or death.rank_alone else SAVES - 1
    marker = campaign.root / f"step-{SAVES:08d}.1" / ".metadata"
    if death.rank_alone:
        eventually(marker.exists)
    committed = marker.exists()
    assert committed == (expected == SAVES)
    alone = not death.whole_machine and death.asynchronous and MOMENTS[death.moment] not in RANKS_OWN
    assert bool(told) == alone, "a rank must live on exactly if its writer alone has died"
    for one in told:
        assert one.saved == {1: True, 2: True, SAVES: committed}
        assert_same(one.values, values_at(SAVES))
        half_deleted = ("step-00000001.1",) if death.moment == "retain.data" else ()  # until the next sweep
        assert survey(campaign.store).incomplete == half_deleted
    return expected


def die_loading(campaign: Campaign, lived_store: Path) -> int:
    shutil.copytree(lived_store, campaign.root)
    before = contents(campaign.root)
    assert not campaign.attempt(2, dies=True)
    assert campaign.note.exists(), "nothing died"
    new = dict(contents(campaign.root).items() - before.items())
    assert all(name.startswith("pins/") or name == "records/00000002.json" for name in new)
    assert before.items() <= contents(campaign.root).items()
    return SAVES


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def clean(campaign: Campaign, step: int, record: int) -> None:
    """Nothing is left but what is to be kept, and nothing is held by the dead."""
    eventually(lambda: not strays(campaign.root))
    seen = survey(campaign.store)
    assert seen.incomplete == ()
    assert len(seen.complete) == KEEP_LAST
    assert campaign.store.entries("pins") == []
    assert set(seen.resume_points) == set(seen.complete)
    assert seen.resume_points[0].startswith(f"step-{step:08d}.")
    for name in seen.resume_points:
        assert verify.verify_checkpoint(campaign.store, name).outcome == verify.OK
    assert [name for name in contents(campaign.root) if ".tmp-" in name] == []


@pytest.mark.parametrize("death", [*map(hardest, MOMENTS), *MORE], ids=str)
def test_the_next_attempt_goes_on(death: Death, tmp_path: Path, lived_store: Callable[[int], Path]) -> None:
    """From the save if its marker is there, else from the one before: bit for bit, and nothing is left."""
    play(tmp_path, death, lived_store)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with a_home(monkeypatch) as home:
        yield home


@pytest.mark.parametrize("death", [*LANDING, *LOST], ids=str)
def test_what_is_copied_lands(
    death: Death, tmp_path: Path, lived_store: Callable[[int], Path], home: Home
) -> None:
    """A save whose ranks died is committed and resumed; one that lost a part is given up without a wait."""
    play(tmp_path, death, lived_store, home=home)


@pytest.mark.soak
@pytest.mark.parametrize("death", list(every_landing()), ids=str)
def test_every_landing(death: Death, tmp_path: Path, lived_store: Callable[[int], Path], home: Home) -> None:
    """The product of moments and sizes; the next attempt has another size."""
    play(tmp_path, death, lived_store, next_size=NEXT_SIZE[death.world_size], home=home)


@pytest.mark.soak
@pytest.mark.parametrize("death", list(every_death()), ids=str)
def test_every_death(death: Death, tmp_path: Path, lived_store: Callable[[int], Path]) -> None:
    """The product of moments, ranks, who dies and how it saves; the next attempt has another size."""
    play(tmp_path, death, lived_store, next_size=NEXT_SIZE[death.world_size])
