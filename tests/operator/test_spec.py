"""Reading a spec: what is taken and what is refused, with which words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_specs import BAD, GOOD, MINIMAL, changed

from resumable_operator.errors import SpecError
from resumable_operator.model import JobSpec, parse_spec


@pytest.mark.parametrize("name", GOOD)
def test_good_specs_are_taken(name: str) -> None:
    """A spec of the table is read, and what it became is read as the same."""
    spec = parse_spec(GOOD[name])
    assert parse_spec(spec.plain()) == spec


@pytest.mark.parametrize("name", BAD)
def test_bad_specs_are_refused_with_a_reason(name: str) -> None:
    """The message names the field and what is wrong; what only a cluster minds is fit for `rtj run`."""
    bad = BAD[name]
    if bad.models is None:
        parse_spec(bad.spec)
        return
    with pytest.raises(SpecError) as caught:
        parse_spec(bad.spec)
    assert bad.models in str(caught.value)


def test_null_is_the_same_as_nothing() -> None:
    """As for the API server, a null leaves the default in place, at every depth."""
    assert parse_spec(GOOD["nulls"]) == parse_spec(MINIMAL)


def test_a_null_does_not_hide_a_typo() -> None:
    """A name that is not known is told also when its value is null."""
    with pytest.raises(
        SpecError, match=r"spec\.recovery\.drainSecond: unknown field; did you mean drainSeconds"
    ):
        parse_spec(changed({"recovery.drainSecond": None}))


def test_nulls_of_the_template_are_kept() -> None:
    """What is passed on to Kubernetes is passed on as it is."""
    spec = parse_spec(changed({"template.spec.affinity": None}))
    assert spec.template["spec"]["affinity"] is None


def _paths(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    found = {}
    for name, item in value.items():
        if name != "template":
            found |= _paths(item, f"{path}.{name}" if path else name)
    return found


def _taken(path: str, spec: dict[str, Any]) -> Any:
    """The value that the spec has at a path; None: refused."""
    try:
        return _paths(parse_spec(spec).plain())[path]
    except SpecError:
        return None


SCALARS = {
    name: value
    for name, value in _paths(JobSpec.model_validate(MINIMAL).plain()).items()
    if value is not None
}


@pytest.mark.parametrize("path", SCALARS)
@given(
    odd=st.sampled_from(["1", "true", "", 1.5, -1, [], {}, True, float("inf"), float("nan"), 10**400, "\0"])
)
def test_nothing_is_converted(path: str, odd: Any) -> None:
    """Each field keeps what it was given or refuses it: no text becomes a number, no number a truth."""
    spec = changed({path: odd})
    taken = _taken(path, spec)
    assert taken is None or (taken, type(taken) is bool) == (odd, type(odd) is bool)


@pytest.mark.parametrize(
    ("spec", "lines"),
    [
        pytest.param(
            {"worker": {}, "checkpoint": {"intervall": "auto"}, "recovery": {"hangSecond": 3, "odd": 1}},
            [
                "spec.checkpoint.intervall: unknown field; did you mean interval?",
                "spec.recovery.hangSecond: unknown field; did you mean hangSeconds?",
                "spec.recovery.odd: unknown field",
                "spec.worker: unknown field; did you mean workers?",
            ],
            id="typos, and not what is missing because of them",
        ),
        pytest.param(
            {
                "workers": {"replicas": 2, "min": 3, "max": 1},
                "checkpoint": {"s3": {"bucket": "abc"}, "directory": {"path": "/x"}},
            },
            [
                "spec.workers: min (3) is above max (1): lower min or raise max",
                "spec.checkpoint: give exactly one storage: s3 and directory are given, leave out one",
            ],
            id="two fields that contradict others",
        ),
        pytest.param(
            {"workers": {"replicas": 1}, "checkpoint": {"interval": {"step": 3}}},
            ["spec.checkpoint.interval.step: unknown field; did you mean steps?"],
            id="not the alternative that was not meant",
        ),
        pytest.param(
            {"workers": {"replicas": 1, "sizes": ["1"] * 12}},
            [f"spec.workers.sizes.{index}: Input should be a valid integer" for index in range(10)]
            + ["and 2 more"],
            id="not endless",
        ),
    ],
)
def test_all_that_is_wrong_is_told_at_once(spec: Any, lines: list[str]) -> None:
    """As the API server does: typos first, each with its field."""
    with pytest.raises(SpecError) as caught:
        parse_spec(spec)
    assert list(caught.value.lines) == lines
    assert str(caught.value) == "; ".join(lines)
