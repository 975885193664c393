"""deploy/examples: what people copy works as it stands."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from resumable_operator.model import parse_spec
from resumable_training.contract import labels

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
EVERY_EXAMPLE = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
Object = dict[str, Any]


def _documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def _job(path: Path) -> Object:
    (job,) = [document for document in _documents(path) if document["kind"] == labels.KIND]
    return job


def test_all_ways_have_an_example() -> None:
    """A volume, object storage, a spot pool, and a script that knows nothing of us."""
    names = {path.stem for path in EXAMPLES}
    assert names == {"gpt-pvc", "gpt-s3", "spot-pool", "torchrun-script"}


@EVERY_EXAMPLE
def test_spec_is_valid(path: Path) -> None:
    """The models accept the spec, and it says what to run and where checkpoints go."""
    job = _job(path)
    assert job["apiVersion"] == f"{labels.GROUP}/{labels.VERSION}"
    spec = parse_spec(job["spec"])
    assert spec.command()[0] == "python"
    assert spec.workers.min_size < spec.workers.replicas, "an example that can't shrink shows nothing"
    assert spec.checkpoint.persistent_volume_claim or spec.checkpoint.s3


@EVERY_EXAMPLE
def test_claims_come_along(path: Path) -> None:
    """A claim that the job names is in the same file, and all workers can write to it."""
    storage = parse_spec(_job(path)["spec"]).checkpoint.persistent_volume_claim
    claims = {d["metadata"]["name"]: d for d in _documents(path) if d["kind"] == "PersistentVolumeClaim"}
    assert set(claims) == ({storage.claim_name} if storage else set())
    assert all(claim["spec"]["accessModes"] == ["ReadWriteMany"] for claim in claims.values())


@EVERY_EXAMPLE
def test_scripts_exist(path: Path) -> None:
    """What is run is a module of the library, with options that it has."""
    container = _job(path)["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][:2] == ["python", "-m"]
    source = ROOT / "worker" / (container["command"][2].replace(".", "/") + ".py")
    options = [word for word in container["args"] if word.startswith("--")]
    assert [option for option in options if f'"{option}"' not in source.read_text()] == []


@EVERY_EXAMPLE
def test_images_have_the_version(path: Path) -> None:
    """The image is the worker target of this version."""
    chart = yaml.safe_load((ROOT / "charts" / "resumable-training" / "Chart.yaml").read_text())
    (container,) = _job(path)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"resumable-training/worker:{chart['appVersion']}"


def test_spot_pool_is_one() -> None:
    """Tolerates spot taints, one worker per machine, with a drain that fits into the shortest notice."""
    job = _job(ROOT / "deploy" / "examples" / "spot-pool.yaml")
    spec = parse_spec(job["spec"])
    assert spec.recovery.drain_seconds <= 25
    pod = spec.template["spec"]
    assert {toleration["effect"] for toleration in pod["tolerations"]} == {"NoSchedule"}
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {labels.LABEL_JOB: job["metadata"]["name"]}
