"""From command lines and YAML documents to specs: what is accepted and what is said otherwise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from resumable_operator.cli.run_options import (
    Options,
    check_name,
    command_of,
    default_name,
    from_document,
    from_options,
    parse_workers,
    same_program,
)
from resumable_operator.decide.assign import store_root
from resumable_operator.errors import SpecError
from resumable_operator.model import JobSpec
from resumable_operator.spec import Preload

CWD = Path("/home/me")
STORE = Path("/runs/x/checkpoints")
PYTHON = [sys.executable, "-u"]


@pytest.mark.parametrize(
    ("text", "replicas", "expected"),
    [
        ("4", None, (4, 4, 4)),
        ("1:4", None, (1, 4, 4)),
        ("1:4", 2, (1, 2, 4)),
        ("1:3:8", None, (1, 3, 8)),
    ],
)
def test_workers(text: str, replicas: int | None, expected: tuple[int, int, int]) -> None:
    """N, MIN:MAX and MIN:REPLICAS:MAX."""
    found = parse_workers(text, replicas)
    assert (found["min"], found["replicas"], found["max"]) == expected


@pytest.mark.parametrize("text", ["", "a", "1:", ":3", "1:2:3:4", "-1", "1.5"])
def test_wrong_workers(text: str) -> None:
    """Anything else is an error that names the option."""
    with pytest.raises(SpecError, match="--workers"):
        parse_workers(text)


@pytest.mark.parametrize(
    ("script", "module", "arguments", "expected"),
    [
        ("train.py", None, (), [*PYTHON, "/home/me/train.py"]),
        ("/a/train.py", None, ("--", "--lr", "1"), [*PYTHON, "/a/train.py", "--lr", "1"]),
        ("train.py", None, ("--lr", "--", "x"), [*PYTHON, "/home/me/train.py", "--lr", "--", "x"]),
        (None, "my.training", (), [*PYTHON, "-m", "my.training"]),
        ("--lr", "my.training", ("1",), [*PYTHON, "-m", "my.training", "--lr", "1"]),
        ("nvidia-smi", None, ("-L",), ["nvidia-smi", "-L"]),
    ],
)
def test_command(
    script: str | None, module: str | None, arguments: tuple[str, ...], expected: list[str]
) -> None:
    """Python for scripts and modules, other programs as they are; one leading -- is ours."""
    assert command_of(script, module, arguments, CWD) == expected


def test_options_become_a_spec() -> None:
    """Every option that shapes the job arrives in the field that it names."""
    options = Options(
        workers="1:4",
        spares=1,
        processes_per_worker=2,
        preload=("my.model", "transformers"),
        no_preload=True,
        save_every_steps=10,
        save_every_seconds=60.0,
        keep=5,
        resume_from="1200",
        drain_seconds=1.0,
        shrink_after=2.0,
        grow_cooldown=3.0,
        hang_seconds=4.0,
    )
    spec = from_options(options, "train", ["python", "x.py"], STORE, CWD).spec
    assert spec.command() == ("python", "x.py")
    assert spec.worker_container()["workingDir"] == "/home/me"
    assert (spec.workers.min, spec.workers.replicas, spec.workers.processes_per_worker) == (1, 4, 2)
    assert spec.workers.spares == 1
    assert spec.workers.preload == Preload(enabled=False, modules=("my.model", "transformers"))
    assert spec.checkpoint.directory is not None
    assert spec.checkpoint.directory.path == str(STORE)
    assert spec.checkpoint.interval != "auto"
    assert (spec.checkpoint.interval.steps, spec.checkpoint.interval.seconds) == (10, 60.0)
    assert (spec.checkpoint.keep, spec.checkpoint.resume_from) == (5, "1200")
    recovery = spec.recovery
    assert (recovery.drain_seconds, recovery.shrink_after_seconds) == (1.0, 2.0)
    assert (recovery.grow_cooldown_seconds, recovery.hang_seconds) == (3.0, 4.0)


def test_no_options_mean_the_specs_defaults() -> None:
    """The command line has no defaults of its own besides one worker."""
    spec = from_options(Options(), "train", ["x"], STORE, CWD).spec
    assert spec.recovery == JobSpec.model_validate({"workers": {"replicas": 1}}).recovery
    assert (spec.workers.replicas, spec.checkpoint.interval, spec.checkpoint.keep) == (1, "auto", 3)
    assert spec.workers.preload == Preload()


def document(**changes: Any) -> dict[str, Any]:
    spec = {
        "workers": {"replicas": 2},
        "template": {"spec": {"containers": [{"command": ["python", "x.py"]}]}},
        **changes,
    }
    return {
        "apiVersion": "resumable.dev/v1alpha1",
        "kind": "ResumableTrainingJob",
        "metadata": {"name": "a"},
        "spec": spec,
    }


def test_document_and_bare_spec() -> None:
    """A whole resource has a name of its own; a bare spec takes the given one."""
    whole = from_document(document(), "given", STORE, CWD)
    bare = from_document(document()["spec"], "given", STORE, CWD)
    assert (whole.name, bare.name, whole.spec) == ("a", "given", bare.spec)


@pytest.mark.parametrize(
    "storage",
    [{}, {"persistentVolumeClaim": {"claimName": "c"}}, {"s3": {"bucket": "bucket"}}],
)
def test_storage_becomes_a_directory(storage: dict[str, Any]) -> None:
    """A claim or bucket is replaced, and the user is told; the other fields of checkpoint stay."""
    wish = from_document(document(checkpoint={**storage, "keep": 7}), "x", STORE, CWD)
    assert wish.spec.checkpoint.directory is not None
    assert (wish.spec.checkpoint.directory.path, wish.spec.checkpoint.keep) == (str(STORE), 7)
    assert any("checkpoints go to" in note for note in wish.notes) is bool(storage)


@pytest.mark.parametrize(
    "environment",
    [
        {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"},
    ],
)
def test_a_bucket_stays_where_there_are_credentials(environment: dict[str, str]) -> None:
    """The job's bucket is used as in a cluster, its endpoint becomes a variable of the ranks."""
    storage = {"bucket": "bucket", "prefix": "team", "endpoint": "http://s3:9000", "secretName": "keys"}
    wish = from_document(document(checkpoint={"s3": storage}), "x", STORE, CWD, environment)
    assert wish.spec.checkpoint.directory is None
    assert store_root(wish.spec.checkpoint) == "s3://bucket/team"
    assert {"name": "AWS_ENDPOINT_URL", "value": "http://s3:9000"} in wish.spec.worker_container()["env"]
    assert any("checkpoints go to object storage" in note for note in wish.notes)


def test_an_endpoint_of_the_container_wins() -> None:
    """As in a pod, a variable that the template sets is left alone."""
    own = [{"name": "AWS_ENDPOINT_URL", "value": "http://own"}]
    container = {"name": "worker", "command": ["python"], "env": own}
    template = {"spec": {"containers": [{"name": "side", "image": "x"}, container]}}
    storage = {"s3": {"bucket": "bucket", "endpoint": "http://s3"}}
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    wish = from_document(document(checkpoint=storage, template=template), "x", STORE, CWD, keys)
    assert wish.spec.worker_container()["env"] == own


@pytest.mark.parametrize("environment", [{}, {"AWS_ACCESS_KEY_ID": "key"}])
def test_without_credentials_the_reason_is_given(environment: dict[str, str]) -> None:
    """A Secret can't be read on one machine: the directory of the run takes the bucket's place."""
    wish = from_document(document(checkpoint={"s3": {"bucket": "models"}}), "x", STORE, CWD, environment)
    assert wish.spec.checkpoint.s3 is None
    assert any("AWS_SECRET_ACCESS_KEY are not set" in note for note in wish.notes)


def test_own_directory_is_kept() -> None:
    """A directory in the spec is used as it is."""
    wish = from_document(document(checkpoint={"directory": {"path": "/data/c"}}), "x", STORE, CWD)
    assert wish.spec.checkpoint.directory is not None
    assert wish.spec.checkpoint.directory.path == "/data/c"


def test_parts_without_effect_are_named() -> None:
    """Nothing in a template is ignored in silence."""
    template = {
        "spec": {
            "nodeSelector": {"a": "b"},
            "containers": [
                {"name": "side", "command": ["x"]},
                {"name": "worker", "image": "i", "command": ["y"], "env": [{"name": "A", "value": "1"}]},
            ],
        }
    }
    (note,) = from_document(document(template=template), "x", STORE, CWD).notes
    assert all(word in note for word in ("image", "nodeSelector", "sidecar"))
    assert "env" not in note


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "must hold one"),
        ({**document(), "spce": {}}, "spce"),
        ({**document(), "kind": "Job"}, "kind"),
        ({**document(), "apiVersion": "v1"}, "apiVersion"),
        ({**document(), "metadata": {"name": "A_b"}}, "DNS label"),
        ({"kind": "ResumableTrainingJob"}, "spec: is missing"),
        (document(workers={"replicas": 2, "min": 3}), "min"),
        (document(template={}), "containers"),
        (document(template={"spec": {"containers": [{"image": "i"}]}}), "command"),
        (document(checkpiont={}), "did you mean checkpoint"),
    ],
)
def test_wrong_documents(plain: Any, message: str) -> None:
    """The error names the field and, for a typo, the word that was meant."""
    with pytest.raises(SpecError, match=message):
        from_document(plain, "x", STORE, CWD)


def test_references_are_refused() -> None:
    """A variable from a Secret can't be had here; leaving it out in silence would be worse."""
    container = {"command": ["x"], "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {}}}]}
    with pytest.raises(SpecError, match="TOKEN"):
        from_document(document(template={"spec": {"containers": [container]}}), "x", STORE, CWD)


@pytest.mark.parametrize(
    ("script", "module", "expected"),
    [
        ("train.py", None, "train"),
        ("/a/Fine_Tune.v2.py", None, "fine-tune-v2"),
        (None, "pkg.examples.gpt", "gpt"),
        ("___.py", None, "job"),
        (None, None, "job"),
    ],
)
def test_default_name(script: str | None, module: str | None, expected: str) -> None:
    """A DNS label, whatever the script is called."""
    assert default_name(script, module) == expected


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (["/a/python", "-u", "/x.py", "--lr", "1"], ["/b/python3.11", "/x.py", "--lr", "2"], True),
        (["/a/python", "/x.py"], ["/a/python", "/y.py"], False),
        (["/a/python", "-u", "-m", "m", "1"], ["/a/python", "-m", "m"], True),
        (["/a/python", "-m", "m"], ["/a/python", "-m", "n"], False),
        (["prog", "a"], ["prog", "b"], True),
        (["prog"], ["other"], False),
    ],
)
def test_same_program(old: list[str], new: list[str], same: bool) -> None:
    """A run belongs to a script or module, not to its arguments nor to an interpreter's path."""

    def spec(command: list[str]) -> JobSpec:
        return from_options(Options(), "x", command, STORE, CWD).spec

    assert same_program(spec(old), spec(new)) is same


@pytest.mark.parametrize("name", ["", "A", "a/b", "../x", "a b", "a.b", "-a", "a-", "x\n", "ü", "x" * 51])
def test_names_that_workers_cannot_have(name: str) -> None:
    """A name becomes part of directories and, in a cluster, of hosts."""
    with pytest.raises(SpecError, match="--name"):
        check_name(name, "--name")


@pytest.mark.parametrize("stem", ["a" * 39 + "_b", "学习", "_", "x" * 300, "My Script"])
def test_default_name_is_a_name(stem: str) -> None:
    """Whatever a script is called, the job can be called after it."""
    name = default_name(f"{stem}.py", None)
    assert check_name(name, "name") == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": [1]}, "metadata: must be a mapping"),
        ({"metadata": "x"}, "metadata: must be a mapping"),
        ({1: 2, "a": 3}, "1: unknown field"),
        ({"kind": ["x"]}, "kind: must be"),
        ({"metadata": {"name": "x" * 300}}, "metadata.name"),
    ],
)
def test_documents_of_another_shape(change: dict[Any, Any], message: str) -> None:
    """Nothing in a document makes a traceback."""
    with pytest.raises(SpecError, match=message):
        from_document({**document(), **change}, "x", STORE, CWD)


def test_relative_store_is_one_directory() -> None:
    """Ranks may work elsewhere than ``rtj run``: a relative path would be another directory there."""
    wish = from_document(document(checkpoint={"directory": {"path": "ckpt"}}), "x", STORE, CWD)
    assert wish.spec.checkpoint.directory is not None
    assert wish.spec.checkpoint.directory.path == "/home/me/ckpt"


def test_namespace_has_no_effect() -> None:
    """An ignored field is named."""
    plain = document()
    plain["metadata"] = {"name": "x", "namespace": "prod"}
    assert any("namespace" in note for note in from_document(plain, "x", STORE, CWD).notes)
