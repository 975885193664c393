"""`rtj suspend` and `rtj resume`: what is asked of the API server, and what is waited for."""

from __future__ import annotations

from typing import Any

import pytest
from job_objects import stored_job

from resumable_operator.errors import RetryableError
from resumable_operator.model import Condition, JobStatus

Raw = dict[str, Any]


class Patching:
    """An API that takes one patch and changes the jobs that are seen from then on."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.patches: list[tuple[str, Raw, str]] = []

    async def patch(self, resource: object, name: str, body: Raw, namespace: str) -> Raw:
        self.patches.append((name, body, namespace))
        stored, _ = self.session.states[0]
        return {**stored, "spec": {**stored["spec"], **body["spec"]}}


def job(
    suspend: bool, phase: str = "Running", suspended: str = "", generation: int = 1, message: str = ""
) -> Raw:
    """As stored; the operator has seen generation 1."""
    told = {"type": "Suspended", "status": suspended, "reason": "SpecSuspend", "message": message}
    conditions = (Condition.model_validate(told),) if suspended else ()
    status = JobStatus(phase=phase, reason="because", conditions=conditions, observed_generation=1)
    stored = stored_job(status, suspend=suspend)
    stored["metadata"]["generation"] = generation
    return stored


@pytest.fixture
def api(cluster):
    """Call it with the jobs that are seen one after the other."""

    def use(*jobs: Raw | None) -> Patching:
        session = cluster(*((stored, []) for stored in jobs))
        session.api = Patching(session)
        looks = list(jobs)

        async def look(name: str) -> Any:
            found = looks.pop(0) if len(looks) > 1 else looks[0]
            if isinstance(found, Exception):
                raise found
            return found

        session.job = look
        return session.api

    return use


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resumable_operator.cli.suspend.WAIT_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("command", "before", "message"),
    [
        ("suspend", False, "job train drains"),
        ("resume", True, "job train goes on from its newest checkpoint"),
    ],
)
def test_one_field_is_changed_and_it_is_said_how_to_watch(
    api, rtj, command: str, before: bool, message: str
) -> None:
    """Nothing else of the spec is touched."""
    asked = api(job(before))
    result = rtj(command, "train", "-n", "team")
    assert result.exit_code == 0, result.output
    assert asked.patches == [("train", {"spec": {"suspend": not before}}, "team")]
    first, second = result.output.splitlines()
    assert first.startswith(message)
    assert second == "watch it: rtj status train -n team --watch"


@pytest.mark.parametrize(
    ("command", "before", "message"),
    [("suspend", True, "has spec.suspend already"), ("resume", False, "is not suspended")],
)
def test_what_is_so_already_is_left_alone(api, rtj, command: str, before: bool, message: str) -> None:
    """A second call is no error: a script may repeat it."""
    asked = api(job(before))
    result = rtj(command, "train", "-n", "team")
    assert (result.exit_code, result.output, asked.patches) == (0, f"job train {message}\n", [])


@pytest.mark.parametrize("command", ["suspend", "resume"])
def test_a_job_that_has_ended_is_a_usage_error(api, rtj, command: str) -> None:
    """There is nothing to stop, and it will not go on."""
    asked = api(job(command == "resume", "Failed"))
    result = rtj(command, "train", "-n", "team")
    assert (result.exit_code, asked.patches) == (2, [])
    again = ". Delete it and create it again: it continues its checkpoints" if command == "resume" else ""
    assert result.output == f"Error: job train has ended (Failed): nothing to {command}{again}\n"


def test_waiting_ends_with_the_condition_of_this_spec(api, rtj) -> None:
    """Neither with one of the spec before, nor because the API server is away for a moment."""
    stale = job(True, "Running", "True", generation=2)
    away = RetryableError("get x: no answer")
    api(job(False), stale, away, job(True, "Draining"), job(True, "Suspended", "True"))
    result = rtj("suspend", "train", "-n", "team", "--wait")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "job train is suspended"
    assert "get x: no answer; trying again" in result.stderr
    assert "Draining: because" in result.stderr


def test_what_was_not_kept_is_told_by_who_waits(api, rtj) -> None:
    """With the condition's words; a job whose drain has saved everything has none."""
    lost = "steps 11 to 15 are in no checkpoint: the window was over"
    api(job(False), job(True, "Suspended", "True", message=f"suspended by spec.suspend; {lost}"))
    result = rtj("suspend", "train", "-n", "team", "--wait")
    assert result.stdout.splitlines()[-1] == f"job train is suspended; {lost}"
    api(job(False), job(True, "Suspended", "True", message="suspended by spec.suspend"))
    result = rtj("suspend", "train", "-n", "team", "--wait")
    assert result.stdout.splitlines()[-1] == "job train is suspended"


@pytest.mark.parametrize(
    ("later", "message"),
    [(job(False), "somebody has resumed it"), (job(True, "Succeeded"), "has ended (Succeeded)")],
)
def test_waiting_for_what_will_not_come_ends(api, rtj, later: Raw, message: str) -> None:
    """With the reason."""
    api(job(False), later)
    result = rtj("suspend", "train", "-n", "team", "--wait")
    assert result.exit_code == 2
    assert message in result.output


def test_a_run_directory_is_not_suspended_so(run, rtj) -> None:
    """It is said how that is done."""
    for command in ("suspend", "resume"):
        result = rtj(command, run.path)
        assert result.exit_code == 2
        assert "suspended by Ctrl-C" in result.output
