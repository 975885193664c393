"""Ranks die with copies in memory: what all of them hold becomes a checkpoint, anything else is dropped.

Each attempt goes on from where the one before it is found, so that one death costs half a second. The agent
of these tests would wait for two minutes for what can't come: nobody may have to.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from campaign_programs import Home, a_home, run_attempt
from holding_programs import COPIES, RANK, WRITER, Death, Found, count_arenas, late_death, life
from test_async import eventually
from test_campaign import HELD, strays, values_at
from test_ranks import assert_same

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore

BOTH = (RANK, WRITER)
BETWEEN_STEPS = [
    Death("nobody", lands=False, kills=()),
    Death("rank 1", lands=True),
    Death("rank 0", lands=True, victim=0),
    Death("rank 1 before it copies", lands=False, before=True, copies=(0,)),
    Death("rank 0 before it copies", lands=False, before=True, victim=0, copies=(1,)),
    Death("rank 1 with its writer", lands=False, kills=BOTH),
    Death("rank 0 with its writer", lands=False, victim=0, kills=BOTH),
    Death("rank 1, which has another writer", lands=True, kills=BOTH, then="copy"),
    Death("rank 0, which has another writer", lands=True, victim=0, kills=BOTH, then="copy"),
    Death("rank 1, behind", True, moment="save.copied", then="copy next", writer_first=True),
    Death("rank 0, behind", True, 0, moment="save.copied", then="copy next", writer_first=True),
    Death("rank 1 after a save that is newer", lands=False, then="save"),
    Death("rank 1 in its copy for a save", False, before=True, moment="save.copied", then="save next"),
    Death("rank 0 in its copy for a save", False, 0, before=True, moment="save.copied", then="save next"),
    Death("rank 1, which drops what it holds", lands=False, then="drop"),
    Death("rank 0, which drops what it holds", lands=False, victim=0, then="drop"),
    Death("rank 0 where nothing can be stored", lands=False, victim=0, then="block"),
    Death("rank 1 before any save", lands=False, before=True, copies=(0,), saves=False),
    Death("rank 1 before any save, with copies", lands=True, saves=False),
]
LATE = [
    Death("rank 1, whose GPUs are at it", lands=False, late=(1,), caught_up=False),
    Death("rank 1 while those of rank 0 are at it", lands=False, late=(0,), caught_up=False),
    Death("rank 1, which holds an older step", lands=False, before=True, late=(1,)),
    Death("rank 0, which holds an older step", lands=False, before=True, victim=0, late=(0,)),
    Death("rank 0 while rank 1 holds an older step", lands=False, before=True, victim=0, late=(1,)),
    Death("rank 1 where both hold an older step", lands=True, late=(0, 1)),
]
WHOLE = {"hold.written", "hold.landed", "save.history"}  # from here on it is copied, or committed
BROKEN = {"save.copy", "save.copied", "hold.write"}  # it is not held yet, and the one before still is
AT_MOMENTS = [
    Death(
        f"{moment} of rank {victim}",
        lands=moment in WHOLE,
        before=moment in BROKEN,
        victim=victim,
        moment=moment,
    )
    for moment in ("save.copy", "save.copied", *sorted(HELD), "save.written", "save.history", "save.marker")
    for victim in (1, 0)
    if (moment, victim) not in {("save.history", 1), ("save.marker", 1)}  # rank 0 commits
]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with a_home(monkeypatch) as home:
        yield home


def attempt(
    home: Home, directory: Path, number: int, world_size: int, death: Death | None = None
) -> list[Found]:
    home.begin(number, world_size)
    arguments = str(directory / "store"), home.path, number, death
    try:
        return run_attempt(world_size, life, directory, *arguments)
    finally:
        home.end(number)


def play(
    home: Home, directory: Path, deaths: Sequence[Death], world_size: int, next_size: int | None = None
) -> None:
    """Attempts that end like that, one after another; the last one only looks."""
    store, step = LocalStore(directory / "store", visibility_seconds=0.0), 0
    for number, death in enumerate(deaths, 1):
        told = attempt(home, directory, number, world_size, death)
        assert bool(told) == (not death.kills), death
        step += death.steps
        eventually(lambda: not strays(directory / "store"))
        newest = survey(store).resume_points[0]
        assert int(newest[5:13]) == step, f"{death}: {home.said}"
        assert verify.verify_checkpoint(store, newest).outcome == verify.OK
    for found in attempt(home, directory, len(deaths) + 1, next_size or world_size):
        assert found.step == step
        assert_same(found.values, values_at(step))
        from_memory = deaths[-1].lands or deaths[-1].before  # else what lies there is of another step
        assert (found.memory_bytes > 0, found.storage_bytes > 0) == (from_memory, not from_memory)


def test_ranks_that_die_between_steps(tmp_path: Path, home: Home) -> None:
    """Only the steps since the last copy are lost that all ranks hold, or those since the newest save."""
    play(home, tmp_path, BETWEEN_STEPS, 2)


def test_ranks_that_hold_different_steps(tmp_path: Path, home: Home) -> None:
    """Where GPUs lag unequally: never a mixture. The step that is whole on all ranks, or the newest save."""
    play(home, tmp_path, LATE, 2)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("victim", [1, 0])
def test_a_save_while_one_rank_is_behind(victim: int, late: int, tmp_path: Path, home: Home) -> None:
    """Its GPUs are at the newest copy yet. Ranks do not meet for a save: all still hold the one before."""
    death = Death("", False, victim, (), "save.copied", then="save next", late=(late,), caught_up=False)
    assert attempt(home, tmp_path, 1, 2, death) == []
    eventually(lambda: not strays(tmp_path / "store"))
    for found in attempt(home, tmp_path, 2, 2):
        assert found.step == COPIES - 1, home.said
        assert_same(found.values, values_at(COPIES - 1))


@pytest.mark.parametrize(("arenas", "two"), [(3.5, False), (4.5, True)])
def test_all_ranks_of_a_machine_have_two_arenas_or_none(
    arenas: float, two: bool, tmp_path: Path, home: Home
) -> None:
    """Whoever comes first: else its memory was spent in vain. ``arenas``: that there is room for."""
    home.begin(1, 2)
    try:
        found = run_attempt(2, count_arenas, tmp_path, str(tmp_path / "store"), home.path, 1, arenas)
    finally:
        home.end(1)
    assert found == ([2, 2] if two else [1, 1])


def test_deaths_at_each_moment_of_a_copy(tmp_path: Path, home: Home) -> None:
    """A copy counts from where it is whole, and a checkpoint from its marker on."""
    one_each = AT_MOMENTS[::2]
    assert {death.moment for death in one_each} > HELD
    assert {death.victim for death in one_each} == {0, 1}
    play(home, tmp_path, one_each, 2)


def test_one_rank_and_then_two(tmp_path: Path, home: Home) -> None:
    """What one rank held is resumed by two, with not one byte from storage; what lies as it was planned
    before is not held."""
    again = Death("where it is planned anew", False, victim=0, moment="save.copy", then="save anew")
    play(home, tmp_path, [again, Death("the only rank", lands=True, victim=0)], 1, next_size=2)


@pytest.mark.parametrize("victim", [1, 0])
def test_a_rank_that_dies_after_the_last_collective_of_a_step(
    victim: int, tmp_path: Path, home: Home
) -> None:
    """Its peers notice before they copy over what they hold: the step before lands, and no more is lost.

    Where one rank can't copy, none does.
    """
    copied = tmp_path / "copied"
    home.begin(1, 2)
    try:
        arguments = str(tmp_path / "store"), home.path, 1, victim, str(copied)
        assert run_attempt(2, late_death, tmp_path, *arguments) == []
    finally:
        home.end(1)
    step = int(copied.read_text(encoding="utf-8"))
    eventually(lambda: not strays(tmp_path / "store"))
    for found in attempt(home, tmp_path, 2, 2):
        assert found.step == step, home.said
        assert_same(found.values, values_at(step))


@pytest.mark.soak
def test_deaths_of_each_rank_at_each_moment_of_a_copy(tmp_path: Path, home: Home) -> None:
    """The other half of them, too."""
    play(home, tmp_path, AT_MOMENTS, 2)


@pytest.mark.soak
@pytest.mark.parametrize("victim", range(4))
def test_four_ranks(victim: int, tmp_path: Path, home: Home) -> None:
    """Whoever dies; the next attempt has one rank."""
    deaths = [
        Death("with its writer", lands=False, victim=victim, kills=BOTH),
        Death(
            "before it copies", lands=False, before=True, victim=victim, copies=tuple({0, 1, 2, 3} - {victim})
        ),
        Death("alone", lands=True, victim=victim),
    ]
    play(home, tmp_path, deaths, 4, next_size=1)
