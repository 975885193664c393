"""The definition on a real API server: what it takes, what it refuses and in which words, what it shows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from job_specs import BAD, GOOD, MINIMAL, changed
from statuses import any_status, large_status

from bed.api import ApiError, Object, path
from bed.control_plane import ControlPlane
from bed.processes import wait_until
from resumable_operator.model import AttemptStatus, CheckpointStatus, Condition, JobStatus, parse_spec
from resumable_operator.stored import from_stored, to_stored
from resumable_training.contract.labels import GROUP, KIND, PLURAL, VERSION

API = f"{GROUP}/{VERSION}"
EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))
STORAGE = "the storage changes only while the job is suspended"


class Jobs:
    """Jobs in one namespace, as their user and as the operator."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self._collection = path(API, PLURAL, namespace)

    def create(self, spec: Any, name: str = "train", **params: Any) -> Object:
        body = {"apiVersion": API, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        return self.plane.api.create(self._collection, body, **params)

    def judge(self, spec: Any, name: str = "train") -> Object:
        """As `kubectl apply --dry-run=server`; raises ApiError when it is refused."""
        return self.create(spec, name, dryRun="All", fieldValidation="Strict")

    def patch(self, change: Any, name: str = "train") -> Object:
        return self.plane.api.patch(f"{self._collection}/{name}", change)

    def write_status(self, status: Object, name: str = "train") -> Object:
        where = f"{self._collection}/{name}"
        change = [{"op": "add", "path": "/status", "value": status}]
        return self.plane.api.patch_status(where, change, "json")

    def read(self, name: str = "train") -> Object:
        return self.plane.api.get(f"{self._collection}/{name}")

    def kubectl(self, *arguments: str, check: bool = True, **options: Any) -> str:
        done = self.plane.kubectl("-n", self.namespace, *arguments, check=check, **options)
        return done.stdout + done.stderr


def _has_explanation(plane: ControlPlane) -> bool:
    return plane.kubectl("explain", f"{PLURAL}.{GROUP}", check=False).returncode == 0


@pytest.fixture(scope="module")
def explained(control_plane: ControlPlane, job_kind: str) -> ControlPlane:
    """The control plane when it has published the schema, which takes a moment."""
    wait_until(lambda: _has_explanation(control_plane), 60, f"the schema of {job_kind} to be published")
    return control_plane


@pytest.fixture
def jobs(control_plane: ControlPlane, job_kind: str, namespace: str) -> Jobs:
    return Jobs(control_plane, namespace)


def _refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    assert caught.value.status in (400, 422), caught.value
    return caught.value.message


# ---- specs -----------------------------------------------------------------------------------------------


def test_good_specs_mean_the_same_to_both(jobs: Jobs) -> None:
    """What the API server takes, with its defaults put in, is what `rtj run` reads from the same text."""
    for name, spec in GOOD.items():
        stored = jobs.judge(spec)["spec"]
        assert parse_spec(stored) == parse_spec(spec), name


def test_bad_specs_are_refused_by_the_server(jobs: Jobs) -> None:
    """All that the models refuse, and what only a cluster minds, in words that name place and fix."""
    found = {name: _refusal(jobs.judge, bad.spec) for name, bad in BAD.items()}
    assert {name: text for name, text in found.items() if BAD[name].server not in text} == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_are_taken(jobs: Jobs, example: Path) -> None:
    """What people copy from deploy/examples passes every rule, as kubectl sends it."""
    assert "(server dry run)" in jobs.kubectl("create", "--dry-run=server", "-f", str(example))


@pytest.mark.parametrize("name", ["a" * 51, "a.b"])
def test_names_that_do_not_fit(jobs: Jobs, name: str) -> None:
    """Refused at once, not when the first pod can't be made."""
    assert "metadata.name must have at most 50 characters and no dots" in _refusal(jobs.judge, MINIMAL, name)


def test_the_longest_name(jobs: Jobs) -> None:
    """50 characters are fine."""
    jobs.judge(MINIMAL, "a" * 50)


def test_defaults_are_shown(jobs: Jobs) -> None:
    """`kubectl get -o yaml` shows what holds, not only what was written."""
    spec = jobs.judge(MINIMAL)["spec"]
    assert spec["checkpoint"]["interval"] == "auto"
    assert spec["recovery"]["budgets"]["userError"] == {"limit": 3, "windowSeconds": 86400}
    assert (spec["suspend"], spec["workers"]["spares"], spec["recovery"]["drainSeconds"]) == (False, 0, 60)


def test_the_template_is_kept_as_it_is(jobs: Jobs) -> None:
    """Fields that the definition does not list, at every depth, reach the operator."""
    spec = changed(
        {
            "template.metadata": {"annotations": {"a": "b"}},
            "template.spec.fromTheFuture": {"x": [1, {"y": None}]},
            "template.spec.containers.0.resources": {"limits": {"nvidia.com/gpu": 8}},
            "template.spec.containers.0.env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        }
    )
    assert jobs.judge(spec)["spec"]["template"] == spec["template"]


def test_typos_are_told_by_kubectl(jobs: Jobs) -> None:
    """`kubectl apply` names a field that is not known."""
    job = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": "train"},
        "spec": changed({"recovery.drainSecond": 5}),
    }
    said = jobs.kubectl("apply", "-f", "-", check=False, input=json.dumps(job))
    assert 'unknown field "spec.recovery.drainSecond"' in said


# ---- changes ---------------------------------------------------------------------------------------------

OTHER_CLAIM = {"spec": {"checkpoint": {"persistentVolumeClaim": {"claimName": "other"}}}}
OTHER_KIND = {"spec": {"checkpoint": {"persistentVolumeClaim": None, "s3": {"bucket": "abc"}}}}


@pytest.mark.parametrize("change", [OTHER_CLAIM, OTHER_KIND], ids=["claim", "kind"])
def test_storage_stays_while_the_job_runs(jobs: Jobs, change: Object) -> None:
    """It is refused with the way to do it; suspended, or in the change that suspends, it is taken."""
    jobs.create(MINIMAL)
    assert f"spec.checkpoint: Invalid value: {STORAGE}" in _refusal(jobs.patch, change)
    suspending = {"spec": {**change["spec"], "suspend": True}}
    assert jobs.patch(suspending)["spec"]["suspend"] is True
    back = {"checkpoint": {"persistentVolumeClaim": {"claimName": "third"}, "s3": None}, "suspend": False}
    assert jobs.patch({"spec": back})["spec"]["checkpoint"]["persistentVolumeClaim"]["claimName"] == "third"
    assert STORAGE in _refusal(jobs.patch, change)


def test_all_else_changes_while_the_job_runs(jobs: Jobs) -> None:
    """Save settings, limits, sizes and the template are no part of the storage."""
    jobs.create(MINIMAL)
    new = {
        "workers": {"replicas": 2, "min": 1},
        "checkpoint": {"interval": {"steps": 10}, "keep": 9, "adopt": True},
        "recovery": {"drainSeconds": 5},
    }
    assert jobs.patch({"spec": new})["spec"]["checkpoint"]["interval"] == {"steps": 10}
    assert (
        jobs.patch({"spec": {"checkpoint": {"interval": "auto"}}})["spec"]["checkpoint"]["interval"] == "auto"
    )


def test_scale(jobs: Jobs) -> None:
    """`kubectl scale` sets the replicas within the rules, and autoscalers find pods and selector."""
    jobs.create(changed({"workers": {"replicas": 4, "min": 2, "max": 8, "multipleOf": 2}}))
    assert "scaled" in jobs.kubectl("scale", "rtj/train", "--replicas=6")
    assert jobs.read()["spec"]["workers"]["replicas"] == 6
    said = jobs.kubectl("scale", "rtj/train", "--replicas=5", check=False)
    assert "replicas is not an allowed size: make it a multiple of multipleOf" in said
    said = jobs.kubectl("scale", "rtj/train", "--replicas=10", check=False)
    assert "replicas must lie between min and max" in said
    jobs.write_status(to_stored(JobStatus(replicas=3, selector="a=b")))
    scale = jobs.plane.api.get(path(API, PLURAL, jobs.namespace, "train", "scale"))
    assert (scale["spec"]["replicas"], scale["status"]) == (6, {"replicas": 3, "selector": "a=b"})


# ---- what is shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("rtj", "goes on while machines die"),
        ("rtj.spec.recovery", "no progress for this long"),
        ("rtj.spec.recovery.budgets.userError.limit", "one more fails the job"),
        ("rtj.spec.checkpoint.interval", "the word auto"),
        ("rtj.spec.checkpoint.interval.steps", "every so many steps"),
        ("rtj.spec.workers.processesPerWorker", "asks for gpus"),
        ("rtj.spec.template.spec.containers.command", "entrypoint is lost"),
        ("rtj.status.lastInterruption", "nobody planned"),
    ],
)
def test_explain_teaches(explained: ControlPlane, field: str, text: str) -> None:
    """`kubectl explain` has words for every field, at every depth."""
    said = explained.kubectl("explain", field).stdout
    assert text in re.sub(r"\s+", " ", said.lower())


def test_columns(jobs: Jobs) -> None:
    """`kubectl get rtj` says how a job is doing in one line, and -o wide why."""
    jobs.create(MINIMAL)
    status = JobStatus(
        phase="Recovering",
        reason="waiting for one worker",
        workers="3/4",
        goodput="93.1%",
        step=1234,
        attempt=AttemptStatus(number=7),
        checkpoint=CheckpointStatus(name="step-00001200.7", step=1200, samples=1, at=1.7e9),
    )
    jobs.write_status(to_stored(status))
    head, row = jobs.kubectl("get", "rtj").splitlines()
    assert head.split() == ["NAME", "PHASE", "WORKERS", "STEP", "CKPT", "ATTEMPT", "GOODPUT", "AGE"]
    assert row.split()[:7] == ["train", "Recovering", "3/4", "1234", "1200", "7", "93.1%"]
    assert "waiting for one worker" in jobs.kubectl("get", "rtj", "-o", "wide")
    assert "resumabletrainingjob.resumable.dev/train" in jobs.kubectl("get", "all")
    assert "train" in jobs.kubectl("get", "rtj", "--field-selector", "status.phase=Recovering")
    assert "No resources" in jobs.kubectl("get", "rtj", "--field-selector", "status.phase=Running")


def test_kubectl_waits_for_conditions_and_phases(jobs: Jobs) -> None:
    """Scripts need no polling of their own."""
    generation = jobs.create(MINIMAL)["metadata"]["generation"]
    ready = Condition(type="Ready", status="True", reason="Training", observed_generation=generation)
    jobs.write_status(to_stored(JobStatus(phase="Succeeded", conditions=(ready,))))
    assert "condition met" in jobs.kubectl("wait", "rtj/train", "--for=condition=Ready", "--timeout=20s")
    jobs.kubectl("wait", "rtj/train", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")


# ---- status ----------------------------------------------------------------------------------------------


def test_status_and_spec_have_separate_doors(jobs: Jobs) -> None:
    """A user's write leaves the status alone and a status write leaves the spec and its generation alone."""
    jobs.create({**MINIMAL})
    jobs.write_status({"phase": "Running"})
    after = jobs.patch({"spec": {"suspend": True}, "status": {"phase": "Failed"}})
    assert (after["status"], after["spec"]["suspend"]) == ({"phase": "Running"}, True)
    where = path(API, PLURAL, jobs.namespace, "train")
    change = {"spec": {"suspend": False}, "status": {"phase": "Draining"}}
    again = jobs.plane.api.patch_status(where, change)
    assert (again["spec"]["suspend"], again["status"]["phase"]) == (True, "Draining")
    assert again["metadata"]["generation"] == after["metadata"]["generation"] == 2


@pytest.mark.parametrize("workers", [3, 1000])
def test_statuses_survive_the_server(jobs: Jobs, workers: int) -> None:
    """What is read back is what was written, small or packed."""
    jobs.create(MINIMAL)
    status = large_status(workers)
    assert from_stored(jobs.write_status(to_stored(status))["status"]) == status
    assert from_stored(jobs.read()["status"]) == status


@given(status=any_status())
@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_status_survives_the_server(jobs: Jobs, status: JobStatus) -> None:
    """The definition takes every value that the models have, and changes none."""
    name, status = "any", status.model_copy(update={"replicas": 3})  # the scale subresource has 32 bits
    if jobs.plane.api.find(path(API, PLURAL, jobs.namespace, name)) is None:
        jobs.create(MINIMAL, name)
    assert from_stored(jobs.write_status(to_stored(status), name)["status"]) == status


def test_unknown_status_is_kept(jobs: Jobs) -> None:
    """A newer operator under an older definition loses nothing, at any depth."""
    jobs.create(MINIMAL)
    status = {
        "phase": "Pausing",
        "fromTheFuture": {"a": [1, None]},
        "attempt": {"number": 1, "shape": {"x": 1}, "members": [{"worker": "w", "rack": "r"}]},
        "conditions": [{"type": "Odd", "status": "Perhaps", "since": 5}],
    }
    assert jobs.write_status(status)["status"] == status


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"step": "many"}, "status.step"),
        ({"phase": 5}, "status.phase"),
        ({"attempt": {"number": "1"}}, "status.attempt.number"),
        ({"attempt": {"members": {"a": 1}}}, "status.attempt.members"),
        ({"attempt": {"silentSince": {"w": 5}}}, "status.attempt.silentSince.w"),
        ({"startedAt": "yesterday"}, "status.startedAt"),
        ({"incarnations": {"0": "one"}}, "status.incarnations.0"),
        ({"conditions": [{"status": "True"}]}, "status.conditions[0].type"),
        ({"conditions": [{"type": "A"}, {"type": "A"}]}, "status.conditions[1]"),
        ({"packed": {"a": 1}}, "status.packed"),
    ],
)
def test_wrongly_typed_status_is_refused(jobs: Jobs, status: Object, field: str) -> None:
    """A hand that edits the status can't leave what the operator can't read."""
    jobs.create(MINIMAL)
    assert field in _refusal(jobs.write_status, status)
