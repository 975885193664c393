"""PURE: makes a pod pass the ``restricted`` Pod Security Standard, unless its template wants otherwise.

Each setting that the template makes wins, also a null, which leaves it to the cluster. (``kubectl apply``
drops nulls unless it is told to apply on the server.)
"""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]


def secure(spec: Raw, run_as_user: int | None) -> None:
    """Fill in what the pod and its containers leave open. ``run_as_user`` None: not who runs them."""
    spec["securityContext"] = _pod_context(spec.get("securityContext"), run_as_user)
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or []:
            container["securityContext"] = _container_context(container.get("securityContext"))


def own_context(run_as_user: int | None) -> Raw:
    """Of a container of ours, whatever the pod's is."""
    context = _container_context({"readOnlyRootFilesystem": True, "runAsNonRoot": True})
    context["seccompProfile"] = {"type": "RuntimeDefault"}
    if run_as_user is not None:
        context.update(runAsUser=run_as_user, runAsGroup=run_as_user)
    return context


def key_mode(spec: Raw) -> int:
    """For the file with the key: the pod's group may read it; where it has none, everybody in the pod."""
    return 0o440 if spec["securityContext"].get("fsGroup") is not None else 0o444


def _pod_context(own: Raw | None, run_as_user: int | None) -> Raw:
    defaults: Raw = {"seccompProfile": {"type": "RuntimeDefault"}}
    context = dict(own or {})
    if context.get("runAsUser") != 0:
        defaults["runAsNonRoot"] = True
    if run_as_user is not None:
        defaults["fsGroup"] = run_as_user
        if "fsGroup" not in context:
            defaults["fsGroupChangePolicy"] = "OnRootMismatch"  # walking a large volume takes many minutes
        if "runAsUser" not in context:
            defaults.update(runAsUser=run_as_user, runAsGroup=run_as_user)
    return _filled(context, defaults)


def _container_context(own: Raw | None) -> Raw:
    context = dict(own or {})
    defaults: Raw = {}
    if context.get("runAsUser") == 0:
        defaults["runAsNonRoot"] = False  # or the pod's own setting would forbid what is asked for here
    if not context.get("privileged"):
        capabilities = context.get("capabilities") or {}
        if "CAP_SYS_ADMIN" not in (capabilities.get("add") or []):  # the API server refuses the combination
            defaults["allowPrivilegeEscalation"] = False
        context["capabilities"] = _filled(capabilities, {"drop": ["ALL"]})
    return _filled(context, defaults)


def _filled(own: Raw, defaults: Raw) -> Raw:
    return {key: value for key, value in {**defaults, **own}.items() if value is not None}
