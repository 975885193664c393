"""Rights that are needed, found in what the API server says of an account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from resumable_operator import rights
from resumable_operator.cluster.kube_api import Resource
from resumable_operator.errors import ClusterRefused, FatalError
from resumable_operator.keys import SECRET_NAME
from resumable_operator.rights import ON_JOBS, ON_NODES, ON_OWN_SECRET, Right
from resumable_training.contract.labels import GROUP, PLURAL

Rule = Mapping[str, Any]
PODS = Right("", "pods", ("list", "watch"))
STATUS = Right(GROUP, f"{PLURAL}/status", ("update",))
ONE_SECRET = Right("", "secrets", ("get",), "one")


def rule(*verbs: str, group: str = "", resource: str = "pods", names: tuple[str, ...] = ()) -> Rule:
    return {"verbs": verbs, "apiGroups": [group], "resources": [resource], "resourceNames": names}


TABLE: dict[str, tuple[list[Rule], Right, list[str]]] = {
    "granted": ([rule("list", "watch")], PODS, []),
    "by two rules": ([rule("list"), rule("watch")], PODS, []),
    "one verb": ([rule("list")], PODS, ["watch pods"]),
    "nothing": ([], PODS, ["list pods", "watch pods"]),
    "all verbs": ([rule("*")], PODS, []),
    "all resources": ([rule("list", "watch", resource="*")], PODS, []),
    "all groups": ([rule("list", "watch", group="*")], PODS, []),
    "another group": ([rule("list", "watch", group="metrics.k8s.io")], PODS, ["list pods", "watch pods"]),
    "some objects only": ([rule("list", "watch", names=("a",))], PODS, ["list pods", "watch pods"]),
    "this object": ([rule("get", resource="secrets", names=("one", "two"))], ONE_SECRET, []),
    "another object": ([rule("get", resource="secrets", names=("two",))], ONE_SECRET, ["get secrets one"]),
    "any object": ([rule("get", resource="secrets")], ONE_SECRET, []),
    "subresource": ([rule("update", group=GROUP, resource=f"{PLURAL}/status")], STATUS, []),
    "subresource of all": ([rule("update", group=GROUP, resource="*/status")], STATUS, []),
    "not its subresource": (
        [rule("update", group=GROUP, resource=PLURAL)],
        STATUS,
        [f"update {PLURAL}/status"],
    ),
}


@pytest.mark.parametrize(("rules", "right", "lacking"), TABLE.values(), ids=TABLE.keys())
def test_missing(rules: list[Rule], right: Right, lacking: list[str]) -> None:
    """Rules grant what Kubernetes' own rules of matching say."""
    assert rights.missing(rules, [right]) == lacking


def granting(*wanted: Right) -> list[Rule]:
    return [
        rule(
            *right.verbs,
            group=right.group,
            resource=right.resource,
            names=(right.name,) if right.name else (),
        )
        for right in wanted
    ]


class FakeApi:
    """Answers reviews: rules by namespace."""

    def __init__(self, **rules: list[Rule]) -> None:
        self.rules = rules
        self.incomplete = False
        self.refuses = False
        self.asked: list[str] = []

    async def create(self, resource: Resource, body: Mapping[str, Any], *_: Any) -> Mapping[str, Any]:
        if self.refuses:
            raise ClusterRefused("Forbidden", "create selfsubjectrulesreviews: forbidden")
        if resource == rights.WHO:
            return {"status": {"userInfo": {"username": "system:serviceaccount:system:operator"}}}
        namespace = body["spec"]["namespace"]
        self.asked.append(namespace)
        return {"status": {"resourceRules": self.rules.get(namespace, []), "incomplete": self.incomplete}}


async def require(api: FakeApi, *namespaces: str) -> None:
    await rights.require(api, namespaces, "system")  # type: ignore[arg-type]


async def test_all_granted() -> None:
    """With all it needs it goes on, in the whole cluster and in namespaces."""
    await require(FakeApi(system=granting(*ON_JOBS, *ON_NODES, *ON_OWN_SECRET)))
    api = FakeApi(system=granting(*ON_OWN_SECRET), a=granting(*ON_JOBS), b=granting(*ON_JOBS))
    await require(api, "a", "b")
    assert sorted(api.asked) == ["a", "b", "system"]


async def test_its_own_namespace_served() -> None:
    """A namespace that is served and its own needs both, and is asked about once."""
    api = FakeApi(system=granting(*ON_JOBS))
    with pytest.raises(FatalError, match=f"get secrets {SECRET_NAME} in namespace system"):
        await require(api, "system")
    assert api.asked == ["system"]


async def test_all_that_is_missing_is_named() -> None:
    """One message has the account, every missing verb, and where."""
    api = FakeApi(system=granting(*ON_OWN_SECRET), a=granting(ON_JOBS[0]), b=granting(*ON_JOBS[:2]))
    with pytest.raises(FatalError) as caught:
        await require(api, "a", "b")
    text = str(caught.value)
    assert text.startswith(
        f"system:serviceaccount:system:operator may not update {PLURAL}/status, list pods, watch pods, "
        "create pods, delete pods, create secrets in namespace a; nor list pods,"
    )


async def test_nodes_are_needed_cluster_wide() -> None:
    """Serving the whole cluster needs nodes; serving namespaces does not."""
    api = FakeApi(system=granting(*ON_JOBS, *ON_OWN_SECRET))
    with pytest.raises(FatalError, match="may not list nodes, watch nodes in the cluster"):
        await require(api)
    await require(api, "system")


async def test_what_the_server_does_not_tell() -> None:
    """Where rules come from elsewhere, or may not be asked for, nothing is concluded."""
    api = FakeApi()
    api.incomplete = True
    await require(api)
    api.incomplete, api.refuses = False, True
    await require(api)
