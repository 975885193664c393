"""What the operator must be allowed to do, looked up once before it starts to work.

A right that is missing would otherwise show only when it is needed, in the middle of somebody's recovery.
``process`` calls ``require``. The roles of the chart grant a little more, for what is seldom needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from resumable_operator.cluster.kube_api import KubeApi, Resource
from resumable_operator.errors import ClusterRefused, FatalError
from resumable_operator.keys import SECRET_NAME
from resumable_training.contract.labels import GROUP, PLURAL

logger = logging.getLogger(__name__)

REVIEWS = Resource("/apis/authorization.k8s.io/v1", "selfsubjectrulesreviews")
WHO = Resource("/apis/authentication.k8s.io/v1", "selfsubjectreviews")


@dataclass(frozen=True)
class Right:
    """Verbs on a resource; with ``name`` on that one object only."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    name: str = ""


ON_JOBS = (  # in every namespace that is served
    Right(GROUP, PLURAL, ("list", "watch")),
    Right(GROUP, f"{PLURAL}/status", ("update",)),
    Right("", "pods", ("list", "watch", "create", "delete")),
    Right("", "secrets", ("create",)),
)
ON_NODES = (Right("", "nodes", ("list", "watch")),)
ON_OWN_SECRET = (Right("", "secrets", ("create",)), Right("", "secrets", ("get",), SECRET_NAME))


def missing(rules: Iterable[Mapping[str, Any]], rights: Iterable[Right]) -> list[str]:
    """What of ``rights`` no rule grants, as ``verb resource``. Rules as in a SelfSubjectRulesReview."""
    known = list(rules)
    return [
        " ".join(filter(None, (verb, right.resource, right.name)))
        for right in rights
        for verb in right.verbs
        if not any(_grants(rule, right, verb) for rule in known)
    ]


def _grants(rule: Mapping[str, Any], right: Right, verb: str) -> bool:
    names = rule.get("resourceNames") or []
    return (
        _has(rule.get("verbs"), verb)
        and _has(rule.get("apiGroups"), right.group)
        and _has_resource(rule.get("resources"), right.resource)
        and (not names or right.name in names)
    )


def _has(values: Any, wanted: str) -> bool:
    return wanted in (values or ()) or "*" in (values or ())


def _has_resource(values: Any, wanted: str) -> bool:
    _, _, subresource = wanted.partition("/")
    return _has(values, wanted) or (subresource != "" and f"*/{subresource}" in (values or ()))


async def require(api: KubeApi, namespaces: tuple[str, ...], own_namespace: str) -> None:
    """Make sure that nothing needed is forbidden.

    Args:
        namespaces: those that are served; none: the whole cluster.

    Raises:
        FatalError: something is; the message names all of it, and the account.
        RetryableError: the API server could not be asked.
    """
    wanted = {own_namespace: ON_OWN_SECRET}
    served = ON_JOBS if namespaces else (*ON_JOBS, *ON_NODES)
    for namespace in namespaces or (own_namespace,):
        wanted[namespace] = (*wanted.get(namespace, ()), *served)
    lacking = []
    for namespace, rights in wanted.items():
        lacks = missing(await _rules(api, namespace), rights)
        where = f"in namespace {namespace}" if namespaces or rights == ON_OWN_SECRET else "in the cluster"
        lacking += [f"{', '.join(dict.fromkeys(lacks))} {where}"] if lacks else []
    if lacking:
        who = await _who(api)
        raise FatalError(
            f"{who} may not {'; nor '.join(lacking)}: "
            "grant it that, as the roles of the chart do (charts/resumable-training)"
        )


async def _rules(api: KubeApi, namespace: str) -> list[Mapping[str, Any]]:
    """The account's rules in a namespace; such that grant all if the server does not tell them all."""
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    try:
        answer = await api.create(REVIEWS, {**body, "spec": {"namespace": namespace}})
    except ClusterRefused as error:
        logger.debug("the rights of this account are not told: %s", error)
        answer = {}
    status = answer.get("status") or {"incomplete": True}
    if status.get("incomplete"):
        return [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    return list(status.get("resourceRules") or ())


async def _who(api: KubeApi) -> str:
    try:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = await api.create(WHO, body)
    except ClusterRefused:
        return "this account"
    return str(answer["status"]["userInfo"]["username"])
