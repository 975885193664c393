"""Where to resume from, as a table of what the store shows and what the user asked for."""

from dataclasses import replace

import pytest

from resumable_training.checkpoint import resume
from resumable_training.checkpoint.chain import build_chain
from resumable_training.checkpoint.listing import Survey
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import Record, checkpoint_name

S = checkpoint_name
CONFIG = CheckpointConfig(directory="/c")


def seen(records: list[Record | None], *complete: str) -> Survey:
    by_number = dict(enumerate(records, 1))
    return Survey(by_number, complete, (), build_chain(by_number, complete))


FIRST = Record(1, "u", 1, None)
SECOND = Record(2, "u", 2, S(20, 1))
KNOWS = replace(CONFIG, known_checkpoint=True, newest_checkpoint=S(20, 1))
WISH = replace(CONFIG, resume_from="/other/ckpt")
GRANTED = Record(2, "u", 2, "/other/ckpt", deliberate=True, requested="/other/ckpt")

TABLE = [
    ("empty store", seen([]), CONFIG, (), resume.FRESH, ""),
    ("died before the first save", seen([FIRST]), CONFIG, (), resume.FRESH, ""),
    ("newest on the chain", seen([FIRST], S(10, 1), S(20, 1)), CONFIG, (), resume.NEWEST, S(20, 1)),
    (
        "zombie's is not chosen",
        seen([FIRST, SECOND], S(20, 1), S(90, 1)),
        CONFIG,
        (),
        resume.NEWEST,
        S(20, 1),
    ),
    ("damaged: next older", seen([FIRST], S(10, 1), S(20, 1)), CONFIG, (S(20, 1),), resume.NEWEST, S(10, 1)),
    ("all damaged", seen([FIRST], S(10, 1)), CONFIG, (S(10, 1),), resume.ALL_DAMAGED, ""),
    (
        "all damaged, the user's word",
        seen([FIRST], S(10, 1)),
        replace(CONFIG, start_fresh=True),
        (S(10, 1),),
        resume.FRESH,
        "",
    ),
    (
        "startFresh is a permission, not an order",
        seen([FIRST], S(10, 1)),
        replace(CONFIG, start_fresh=True),
        (),
        resume.NEWEST,
        S(10, 1),
    ),
    ("status knows one", seen([]), replace(CONFIG, known_checkpoint=True), (), resume.POOR_LISTING, ""),
    (
        "status knows one, the user's word",
        seen([]),
        replace(CONFIG, known_checkpoint=True, start_fresh=True),
        (),
        resume.FRESH,
        "",
    ),
    ("the records know one", seen([FIRST, SECOND]), CONFIG, (), resume.POOR_LISTING, ""),
    (
        "fresh by the user's word and died before a save: fresh again without it",
        seen([FIRST, Record(2, "u", 2, None, deliberate=True)], S(20, 1)),
        replace(CONFIG, known_checkpoint=True),
        (),
        resume.FRESH,
        "",
    ),
    (
        "an old listing lacks the one that status knows of",
        seen([FIRST], S(10, 1)),
        KNOWS,
        (),
        resume.POOR_LISTING,
        "",
    ),
    ("it was there, and damaged", seen([FIRST], S(10, 1)), KNOWS, (S(20, 1),), resume.NEWEST, S(10, 1)),
    (
        "all that status knows of is seen",
        seen([FIRST], S(10, 1), S(20, 1)),
        KNOWS,
        (),
        resume.NEWEST,
        S(20, 1),
    ),
    ("there is a newer one", seen([FIRST], S(20, 1), S(30, 1)), KNOWS, (), resume.NEWEST, S(30, 1)),
    (
        "status is behind, and retention has deleted what it knows of",
        seen([FIRST], S(30, 1), S(40, 1)),
        KNOWS,
        (),
        resume.NEWEST,
        S(40, 1),
    ),
    (
        "a roll-back went past it, and it was deleted",
        seen([FIRST, Record(2, "u", 1, S(10, 1), by_hand=True)], S(10, 1)),
        KNOWS,
        (),
        resume.NEWEST,
        S(10, 1),
    ),
    (
        "it is gone, and the user says from where",
        seen([FIRST], S(10, 1)),
        replace(KNOWS, resume_from="10"),
        (),
        resume.DELIBERATE,
        S(10, 1),
    ),
    (
        "it is gone, and the user takes what there is",
        seen([FIRST], S(10, 1)),
        replace(KNOWS, start_fresh=True),
        (),
        resume.NEWEST,
        S(10, 1),
    ),
    ("a wish", seen([FIRST], S(10, 1)), WISH, (), resume.DELIBERATE, "/other/ckpt"),
    ("a wish is granted once", seen([FIRST, GRANTED], S(10, 1), S(5, 2)), WISH, (), resume.NEWEST, S(5, 2)),
    (
        "granted, died before a save",
        seen([FIRST, GRANTED], S(10, 1)),
        CONFIG,
        (),
        resume.NEWEST,
        "/other/ckpt",
    ),
    (
        "the same wish of a job made anew is granted again",
        seen([FIRST, replace(GRANTED, job_uid="old")]),
        WISH,
        (),
        resume.DELIBERATE,
        "/other/ckpt",
    ),
    (
        "a wish withdrawn and made again is granted again",
        seen([FIRST, GRANTED, Record(3, "u", 3, S(5, 2))], S(5, 2)),
        WISH,
        (),
        resume.DELIBERATE,
        "/other/ckpt",
    ),
    ("a newer attempt is there", seen([Record(1, "u", 8, None)]), CONFIG, (), resume.SUPERSEDED, ""),
    (
        "an old job's higher attempt is no rival",
        seen([Record(1, "x", 8, None)]),
        CONFIG,
        (),
        resume.FRESH,
        "",
    ),
]


@pytest.mark.parametrize(
    ("about", "survey", "config", "rejected", "kind", "name"), TABLE, ids=[row[0] for row in TABLE]
)
def test_choice_table(
    about: str, survey: Survey, config: CheckpointConfig, rejected: tuple[str, ...], kind: str, name: str
) -> None:
    """Each row: what the store shows, the configuration, what proved damaged -> the choice."""
    choice = resume.choose(survey, config, "u", 7, rejected)
    assert (choice.kind, choice.name) == (kind, name)


def test_only_counted_attempts_are_old() -> None:
    """A newer attempt's record supersedes, unless nobody numbers attempts over all starts of the job."""
    survey = seen([Record(1, "u", 3, None)], S(10, 1))
    assert resume.choose(survey, CONFIG, "u", 2).kind == resume.SUPERSEDED
    assert resume.choose(survey, CONFIG, "u", None).name == S(10, 1)
