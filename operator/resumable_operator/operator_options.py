"""Options of ``python -m resumable_operator``; each can be set by an environment variable."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import click

from resumable_operator.errors import UserError
from resumable_operator.jsonlog import LEVELS, LogFormat

PREFIX = "RESUMABLE_OPERATOR"
NO_USER = "none"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Options:
    """What the process was started with. Times in seconds."""

    namespaces: tuple[str, ...]  # empty: the whole cluster
    operator_namespace: str  # where the master key is
    agent_image: str
    agent_image_pull_policy: PullPolicy = "IfNotPresent"
    worker_pull_secrets: tuple[str, ...] = ()  # names, in the jobs' namespaces
    worker_user: int | None = 1000  # None: the cluster chooses
    log_format: LogFormat = "json"
    log_level: str = "info"
    bind_address: str = ""  # empty: all
    port: int = 8080
    jobs_at_once: int = 16
    relist_seconds: float = 30.0
    status_seconds: float = 30.0
    unreachable_seconds: float = 300.0  # how long to wait for the API server at the start

    @property
    def scope(self) -> str:
        return ", ".join(self.namespaces) or "the whole cluster"


class _Seconds(click.FloatRange):
    """A range that knows that "nan" and "inf" are no times."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a time", param, ctx)
        return float(seconds)


def _user(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """The number of a user; None for the word none."""
    if value == NO_USER:
        return None
    if not value.isdecimal() or not 1 <= int(value) < 2**31:
        raise click.BadParameter(f"{value!r} is neither the number of a user other than root nor {NO_USER}")
    return int(value)


def _option(name: str, *target: str, **settings: Any) -> Callable[[Any], Any]:
    variable = f"{PREFIX}_{name.lstrip('-').replace('-', '_').upper()}"
    settings.setdefault("envvar", variable)
    shown = settings.get("default") not in (None, "")
    return click.option(name, *target, show_default=shown, show_envvar=True, **settings)


_OPTIONS = (
    _option(
        "--namespace",
        "namespaces",
        multiple=True,
        envvar=f"{PREFIX}_NAMESPACES",
        help="Serve only this namespace, with no rights beyond it; repeat for several (in the variable: "
        "separated by blanks). Signals from nodes are then off. Default: the whole cluster.",
    ),
    _option(
        "--operator-namespace",
        envvar="POD_NAMESPACE",
        help="Namespace of the operator's own Secret. Default: that of its service account.",
    ),
    _option(
        "--agent-image", required=True, help="Image that workers take the agent from; usually the operator's."
    ),
    _option(
        "--agent-image-pull-policy",
        type=click.Choice(["Always", "IfNotPresent", "Never"]),
        default="IfNotPresent",
        help="Pull policy of the agent's init container.",
    ),
    _option(
        "--worker-pull-secret",
        "worker_pull_secrets",
        multiple=True,
        envvar=f"{PREFIX}_WORKER_PULL_SECRETS",
        help="Name of a Secret in the jobs' namespaces that worker pods pull images with, beside those of "
        "their template; repeat for several (in the variable: separated by blanks).",
    ),
    _option(
        "--worker-user",
        callback=_user,
        default="1000",
        help="User and group of workers whose template does not say; none: the cluster chooses (OpenShift).",
    ),
    _option("--log-format", type=click.Choice(["json", "text"]), default="json", help="Form of log lines."),
    _option("--log-level", type=click.Choice(LEVELS), default="info", help="Least level that is logged."),
    _option("--bind-address", default="", help="Address to serve on; empty: all."),
    _option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8080,
        help="Port of /healthz, /readyz and /metrics; 0: any free one.",
    ),
    _option(
        "--jobs-at-once", type=click.IntRange(1, 1000), default=16, help="Jobs reconciled at the same time."
    ),
    _option(
        "--relist-seconds",
        type=_Seconds(1, 3600),
        default=30.0,
        help="Time between two full comparisons with the API server.",
    ),
    _option(
        "--status-seconds",
        type=_Seconds(0.1, 3600),
        default=30.0,
        help="Longest time that a changed status stays unwritten. Of very many jobs that train (more than 40 "
        "times this number) longer: at most 40 statuses a second are written only to be up to date.",
    ),
    _option(
        "--unreachable-seconds",
        type=_Seconds(0, 86400),
        default=300.0,
        help="How long to wait for an API server that does not answer at the start.",
    ),
)


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command all options; it gets them as keywords for ``read``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read(given: dict[str, Any], namespace_file: Path = NAMESPACE_FILE) -> Options:
    """The options from what click has parsed.

    Raises:
        UserError: a namespace is no namespace's name, or the operator's own can't be found.
    """
    namespaces = tuple(dict.fromkeys(given.pop("namespaces")))
    own = given.pop("operator_namespace") or _own_namespace(namespace_file)
    for name in (*namespaces, own):
        if not _DNS_LABEL.fullmatch(name):
            raise UserError(f"{name!r} is not the name of a namespace")
    return Options(namespaces=namespaces, operator_namespace=own, **cast(Any, given))


def _own_namespace(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise UserError(
            "the operator's own namespace is not known: give --operator-namespace, or set POD_NAMESPACE "
            f"(there is no service account: {error.strerror}: {file})"
        ) from error
