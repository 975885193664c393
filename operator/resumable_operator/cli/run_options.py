"""PURE: from the command line or a YAML document of ``rtj run`` to a job's name and spec."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resumable_operator.errors import SpecError
from resumable_operator.model import JobSpec, parse_spec
from resumable_training.contract.labels import GROUP, KIND, VERSION

LONGEST_NAME = 50  # of 63 that a host's name may have: place and incarnation are added
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
_ROLE_VARIABLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
NO_EFFECT_IN_CONTAINER = (
    "image",
    "imagePullPolicy",
    "resources",
    "volumeMounts",
    "ports",
    "securityContext",
    "envFrom",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
)


@dataclass(frozen=True)
class Wish:
    """What is to run: a job's name and spec, and what the user should be told about them."""

    name: str
    spec: JobSpec
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """The options of ``rtj run`` that make a spec. None: the spec's own default."""

    workers: str | None = None
    replicas: int | None = None
    spares: int | None = None
    processes_per_worker: int | str | None = None
    preload: tuple[str, ...] | None = None
    no_preload: bool | None = None
    save_every_steps: int | None = None
    save_every_seconds: float | None = None
    memory_every: int | str | None = None
    keep: int | None = None
    resume_from: str | None = None
    drain_seconds: float | None = None
    shrink_after: float | None = None
    grow_cooldown: float | None = None
    hang_seconds: float | None = None

    def given(self) -> list[str]:
        """The options that were given, as written on the command line."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]


def parse_workers(text: str, replicas: int | None = None) -> dict[str, int]:
    """``N``, ``MIN:MAX`` or ``MIN:REPLICAS:MAX`` as fields of ``spec.workers``.

    Raises:
        SpecError: it is none of these.
    """
    if not re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9}){0,2}", text):
        raise SpecError("--workers", f"'{text}' is not N, MIN:MAX or MIN:REPLICAS:MAX")
    numbers = [int(part) for part in text.split(":")]
    least, most = numbers[0], numbers[-1]
    wanted = numbers[1] if len(numbers) == 3 else most
    return {"replicas": wanted if replicas is None else replicas, "min": least, "max": most}


def command_of(script: str | None, module: str | None, arguments: tuple[str, ...], cwd: Path) -> list[str]:
    """The argv of one rank. Python runs ``.py`` files and modules, unbuffered; all else runs as it is."""
    rest = list(arguments[1:] if arguments[:1] == ("--",) else arguments)
    if module is not None:
        return [sys.executable, "-u", "-m", module, *([script] if script else []), *rest]
    assert script is not None
    path = cwd / script
    if script.endswith(".py"):
        return [sys.executable, "-u", str(path), *rest]
    return [str(path) if path.is_file() else script, *rest]


def from_options(options: Options, name: str, command: list[str], directory: Path, cwd: Path) -> Wish:
    """A job that runs ``command`` and keeps its checkpoints in ``directory``.

    Raises:
        SpecError: names the field that is wrong.
    """
    checkpoint: dict[str, Any] = {"directory": {"path": str(directory)}}
    interval = _given({"steps": options.save_every_steps, "seconds": options.save_every_seconds})
    if interval:
        checkpoint["interval"] = interval
    checkpoint |= _given(
        {"memoryEverySteps": options.memory_every, "keep": options.keep, "resumeFrom": options.resume_from}
    )
    recovery = {
        "drainSeconds": options.drain_seconds,
        "shrinkAfterSeconds": options.shrink_after,
        "growCooldownSeconds": options.grow_cooldown,
        "hangSeconds": options.hang_seconds,
    }
    workers: dict[str, Any] = dict(parse_workers(options.workers or "1", options.replicas))
    workers |= _given({"processesPerWorker": options.processes_per_worker, "spares": options.spares})
    preload = _given({"enabled": False if options.no_preload else None, "modules": options.preload})
    if preload:
        workers["preload"] = preload
    container = {"name": "worker", "command": command, "workingDir": str(cwd)}
    spec = {
        "workers": workers,
        "template": {"spec": {"containers": [container]}},
        "checkpoint": checkpoint,
        "recovery": _given(recovery),
    }
    return Wish(name, parse_spec(spec))


def from_document(
    document: Any, name: str, directory: Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> Wish:
    """A ``ResumableTrainingJob`` (or a bare spec) made to run on one machine. Paths are taken from ``cwd``.

    ``environment``: of the ranks; object storage is used where it has credentials for it.

    Raises:
        SpecError: names the field that is wrong.
    """
    if not isinstance(document, dict):
        raise SpecError("spec", "the file must hold one ResumableTrainingJob, or its spec")
    plain = document
    if "kind" in document or "spec" in document:
        name, plain = _unwrap(document, name)
    spec = parse_spec(plain)
    spec.command()  # raises when the template has none
    container = spec.worker_container()
    _refuse_references(container)
    remote = spec.checkpoint.s3 is not None and has_credentials(environment or {})
    notes = _notes(spec, container, remote)
    if "namespace" in (document.get("metadata") or {}):
        notes.append("metadata.namespace has no effect on one machine")
    return Wish(name, _with_endpoint(spec) if remote else _stored_in(spec, directory, cwd), tuple(notes))


def has_credentials(environment: Mapping[str, str]) -> bool:
    """Whether an S3 client finds credentials in it; a Secret can't be read on one machine."""
    keys = all(environment.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    return keys or any(environment.get(name) for name in _ROLE_VARIABLES)


def _with_endpoint(spec: JobSpec) -> JobSpec:
    """The endpoint becomes a variable, as in a pod."""
    endpoint = spec.checkpoint.s3.endpoint if spec.checkpoint.s3 else None
    container = spec.worker_container()
    names = {entry.get("name") for entry in container.get("env") or ()}
    if endpoint is None or ENDPOINT_VARIABLE in names:
        return spec
    plain = spec.plain()
    containers = plain["template"]["spec"]["containers"]
    own = next(one for one in containers if one == container)
    own["env"] = [*(own.get("env") or []), {"name": ENDPOINT_VARIABLE, "value": endpoint}]
    return parse_spec(plain)


def _stored_in(spec: JobSpec, directory: Path, cwd: Path) -> JobSpec:
    """The spec with its checkpoints in a directory that is the same one for ranks that work elsewhere."""
    stored = spec.checkpoint.model_dump(by_alias=True, exclude_none=True)
    for other in ("persistentVolumeClaim", "s3"):
        stored.pop(other, None)
    own = spec.checkpoint.directory
    stored["directory"] = {"path": str(cwd / own.path if own else directory)}
    return parse_spec({**spec.plain(), "checkpoint": stored})


def default_name(script: str | None, module: str | None) -> str:
    """A name for the job, from what it runs: a DNS label, as Kubernetes wants it."""
    stem = module.rpartition(".")[2] if module else Path(script or "job").stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].rstrip("-") or "job"


def check_name(name: str, field: str) -> str:
    """``name``, if it can be part of the names of workers, their directories and, in a cluster, their hosts.

    Raises:
        SpecError: it can't.
    """
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or len(name) > LONGEST_NAME:
        rule = f"a DNS label of at most {LONGEST_NAME} characters (lower-case letters, digits, '-')"
        raise SpecError(field, f"'{name}' is not {rule}")
    return name


def same_program(old: JobSpec, new: JobSpec) -> bool:
    """Whether both specs run the same script, module or program (its arguments may differ)."""
    return _program(old.command()) == _program(new.command())


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    """Interpreter's path left out: another environment may continue a run."""
    words = list(command)
    if re.fullmatch(r"python[0-9.]*", Path(words[0]).name):
        words = [word for word in words[1:] if word != "-u"]
        return ("python", *words[: 2 if words[:1] == ["-m"] else 1])
    return (words[0],)


def _unwrap(document: dict[str, Any], default: str) -> tuple[str, Any]:
    unknown = sorted(str(key) for key in set(document) - {"apiVersion", "kind", "metadata", "spec", "status"})
    if unknown:
        raise SpecError(unknown[0], "unknown field beside apiVersion, kind, metadata and spec")
    if document.get("kind", KIND) != KIND:
        raise SpecError("kind", f"must be {KIND}, not {document['kind']}")
    if document.get("apiVersion", f"{GROUP}/{VERSION}") != f"{GROUP}/{VERSION}":
        raise SpecError("apiVersion", f"must be {GROUP}/{VERSION}, not {document['apiVersion']}")
    if "spec" not in document:
        raise SpecError("spec", "is missing")
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise SpecError("metadata", f"must be a mapping, not {metadata!r:.60}")
    return check_name(str(metadata.get("name", default)), "metadata.name"), document["spec"]


def _refuse_references(container: dict[str, Any]) -> None:
    for entry in container.get("env") or ():
        if "valueFrom" in entry:
            where = f"spec.template.spec.containers[].env[{entry.get('name')}]"
            raise SpecError(where, "valueFrom can't be resolved on one machine; give a value")


def _notes(spec: JobSpec, container: dict[str, Any], remote: bool) -> list[str]:
    """What a cluster would do with this spec and one machine does not."""
    notes = []
    unused = [name for name in NO_EFFECT_IN_CONTAINER if name in container]
    pod = spec.template["spec"]
    unused += [name for name in pod if name != "containers"]
    if len(pod["containers"]) > 1:
        unused.append("sidecar containers")
    if unused:
        notes.append(f"on one machine these parts of the template have no effect: {', '.join(unused)}")
    if spec.ttl_seconds_after_finished is not None:
        notes.append("ttlSecondsAfterFinished has no effect: the run directory stays until you remove it")
    storage = spec.checkpoint.persistent_volume_claim or spec.checkpoint.s3
    if remote:
        notes.append("checkpoints go to object storage, with the credentials of this environment")
    elif storage is not None:
        kind = "persistentVolumeClaim" if spec.checkpoint.persistent_volume_claim else "s3"
        why = " (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set)" if kind == "s3" else ""
        notes.append(f"checkpoints go to a directory of the run instead of {kind}{why}")
    return notes


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
