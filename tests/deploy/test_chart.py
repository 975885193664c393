"""The chart as text: every mode renders, wrong values are refused in words, and it fits the operator."""

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from resumable_operator import keys, operator_options
from resumable_training.contract import labels

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "resumable-training"

NAMESPACED = "watchNamespaces={team-a,team-b}"
CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
    "PriorityClass",
}

Helm = Callable[..., subprocess.CompletedProcess[str]]
Object = dict[str, Any]
Render = Callable[..., list[Object]]


def _one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    (found,) = [o for o in objects if o["kind"] == kind and (name is None or o["metadata"]["name"] == name)]
    return found


def _operator(objects: list[Object]) -> Object:
    """The container of the operator's Deployment."""
    (container,) = _one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def _rules(role: Object) -> set[tuple[str, str, str, str]]:
    """(group, resource, verb, name) of everything that a role permits; "*" for every name."""
    return {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ["*"])
    }


MODES = {
    "default": [],
    "namespaced": [NAMESPACED],
    "namespaced, own": ["watchNamespaces={sys}"],
    "crd kept out": ["crds.install=false"],
    "no rights made": ["rbac.create=false", "serviceAccount.create=false"],
    "network policies": ["networkPolicy.enabled=true", "networkPolicy.namespaces={team-a}"],
    "monitors": ["metrics.podMonitor.enabled=true", "metrics.podMonitor.labels.release=prometheus"],
    "all monitoring": [
        "metrics.serviceMonitor.enabled=true",
        "metrics.prometheusRule.enabled=true",
        "metrics.prometheusRule.runbookPrefix=https://git.example/repo/blob/main/",
        "metrics.dashboards.enabled=true",
        "metrics.dashboards.folder=Training",
        "metrics.labels.release=prometheus",
    ],
    "placed": [
        "nodeSelector.pool=system",
        "tolerations[0].key=system",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key=zone",
        "priorityClassName=system-cluster-critical",
        "imagePullSecrets[0].name=registry",
        "extraEnv[0].name=HTTPS_PROXY",
        "extraEnv[0].value=http://proxy",
        "podAnnotations.team=ml",
        "podLabels.team=ml",
    ],
    "own address": ["bindAddress=$(POD_IP)"],
    "digest": [f"image.digest=sha256:{'0' * 64}"],
}


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
def test_every_mode_renders(render: Render, settings: list[str]) -> None:
    """Each mode gives objects with a kind and a name, each of them once."""
    objects = render(*settings)
    named = [
        (o["apiVersion"], o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects
    ]
    assert len(named) == len(set(named))
    assert _one(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert _one(objects, "Deployment")["spec"]["replicas"] == 1


def test_the_operator_leaves_a_lost_node_soon(render: Render) -> None:
    """Its jobs are often on the same node; Kubernetes' default is five minutes. Others' words are added."""
    for settings, seconds, more in (
        ([], 30, []),
        (["nodeLossSeconds=7", "tolerations[0].key=system"], 7, [{"key": "system"}]),
    ):
        pod = _one(render(*settings), "Deployment")["spec"]["template"]["spec"]
        lost = [
            {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute"}
            | {"tolerationSeconds": seconds}
            for taint in ("not-ready", "unreachable")
        ]
        assert pod["tolerations"] == [*lost, *more]


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
def test_lint_is_clean(helm: Helm, settings: list[str]) -> None:
    """`helm lint --strict` has nothing to say in any mode."""
    helm("lint", "--strict", CHART, *[option for setting in settings for option in ("--set", setting)])


REFUSED = {
    "a number of replicas": ("replicas=2", "replicas"),
    "a typo": ("networkPolicy.enable=true", "enable"),
    "a wrong level": ("log.level=loud", "log/level"),
    "a wrong format": ("log.format=xml", "log/format"),
    "a pull policy that does not exist": ("image.pullPolicy=Sometimes", "image/pullPolicy"),
    "a digest that is none": ("image.digest=latest", "image/digest"),
    "a namespace that can't be": ("watchNamespaces={Team_A}", "watchNamespaces/0"),
    "one namespace twice": ("watchNamespaces={a,a}", "watchNamespaces"),
    "one namespace as a word": ("watchNamespaces=team-a", "watchNamespaces"),
    "half an answer about the CRD": ("crds.install=maybe", "crds/install"),
    "root as the user of workers": ("workers.runAsUser=0", "workers/runAsUser"),
    "a node that is never given up": ("nodeLossSeconds=-1", "nodeLossSeconds"),
    "a negative grace": ("terminationGracePeriodSeconds=-1", "terminationGracePeriodSeconds"),
    "a probe that never runs": ("probes.liveness.periodSeconds=0", "probes/liveness/periodSeconds"),
    "an interval without a unit": ("metrics.podMonitor.interval=30", "metrics/podMonitor/interval"),
    "two monitors of one pod": (
        "metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true",
        "only one of them",
    ),
    "a prefix that is no directory": ("metrics.prometheusRule.runbookPrefix=https://git", "runbookPrefix"),
    "policies without namespaces": ("networkPolicy.enabled=true", "networkPolicy.namespaces"),
}


@pytest.mark.parametrize(("setting", "word"), REFUSED.values(), ids=REFUSED)
def test_wrong_values_are_refused(helm: Helm, setting: str, word: str) -> None:
    """A wrong value is an error that names it, not a broken installation."""
    result = helm("template", "rt", CHART, "--set", setting, check=False)
    assert result.returncode != 0
    assert word in result.stderr


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    """values.yaml and values.schema.json have the same names, as deep as the schema looks."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def differences(schema: Object, values: Object, path: str) -> list[str]:
        known = schema.get("properties", {})
        found = [f"{path}{name}" for name in set(known) ^ set(values)]
        for name in set(known) & set(values):
            if "properties" in known[name]:
                found += differences(known[name], values[name], f"{path}{name}.")
        return found

    # Helm's own, and what Kubernetes has a default for.
    optional = {
        "global",
        "probes.liveness.initialDelaySeconds",
        "probes.readiness.initialDelaySeconds",
        "resources.claims",
    }
    assert set(differences(schema, values, "")) == optional


def test_versions_agree() -> None:
    """The chart, its default image and the images' labels have the version of the package."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize(
    ("settings", "namespaces"),
    [([], ()), ([NAMESPACED], ("team-a", "team-b")), (["watchNamespaces={sys,other}"], ("sys", "other"))],
    ids=["cluster", "others", "own and other"],
)
def test_arguments_are_the_operators(
    render: Render, settings: list[str], namespaces: tuple[str, ...]
) -> None:
    """The operator accepts the rendered command line, and it means what the values say."""
    container = _operator(
        render(
            *settings, "log.level=debug", "agent.image=agent:1", "agent.imagePullPolicy=Never", "port=8081"
        )
    )
    assert container["command"] == ["python", "-m", "resumable_operator"]
    arguments = [argument.replace("$(POD_NAMESPACE)", "sys") for argument in container["args"]]

    @click.command()
    @operator_options.with_options
    def operator(**given: Any) -> operator_options.Options:
        return operator_options.read(given)

    options = operator.main(arguments, standalone_mode=False)
    assert options.namespaces == namespaces
    assert options.operator_namespace == "sys"
    assert (options.agent_image, options.agent_image_pull_policy) == ("agent:1", "Never")
    assert (options.log_format, options.log_level, options.port) == ("json", "debug", 8081)
    assert container["ports"] == [{"name": "http", "containerPort": options.port}]


def test_the_agent_comes_from_the_operators_image(render: Render) -> None:
    """Unless told otherwise, the image that workers take the agent from is the operator's, also by digest."""
    digest = f"sha256:{'1' * 64}"
    container = _operator(render("image.repository=registry/op", f"image.digest={digest}"))
    assert container["image"] == f"registry/op@{digest}"
    assert f"--agent-image=registry/op@{digest}" in container["args"]


@pytest.mark.parametrize("crds", ["auto", "false"])
def test_namespaced_mode_has_nothing_of_the_cluster(render: Render, crds: str) -> None:
    """With watchNamespaces there is no cluster-scoped object, and every object says its namespace."""
    objects = render(NAMESPACED, f"crds.install={crds}")
    assert {o["kind"] for o in objects} & CLUSTER_SCOPED == set()
    assert {o["metadata"].get("namespace") for o in objects} == {"sys", "team-a", "team-b"}
    roles = [o for o in objects if o["kind"] == "Role"]
    assert [rule for role in roles for rule in _rules(role) if rule[1] == "nodes"] == []


def test_namespaced_rights_are_the_same_in_each_namespace(render: Render) -> None:
    """Each watched namespace gets the cluster-wide rights minus nodes, bound to the operator's account."""
    cluster = _rules(_one(render(), "ClusterRole", "rt-resumable-training"))
    objects = render(NAMESPACED)
    for namespace in ("team-a", "team-b"):
        own = [o for o in objects if o["metadata"].get("namespace") == namespace]
        assert _rules(_one(own, "Role")) == {rule for rule in cluster if rule[1] != "nodes"}
        binding = _one(own, "RoleBinding")
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "rt-resumable-training", "namespace": "sys"}
        ]
        assert binding["roleRef"]["name"] == _one(own, "Role")["metadata"]["name"]


def test_rights_have_no_wildcard(render: Render) -> None:
    """No group, resource or verb is "*", and no Secret but the master key can be read."""
    objects = [*render(), *render(NAMESPACED)]
    rules = set().union(*(_rules(o) for o in objects if o["kind"] in ("Role", "ClusterRole")))
    assert [rule for rule in rules if "*" in rule[:3]] == []
    assert {rule for rule in rules if rule[1] == "secrets" and rule[2] != "create"} == {
        ("", "secrets", "get", keys.SECRET_NAME)
    }


def test_rbac_page_has_the_reason_for_every_verb(render: Render) -> None:
    """The table in docs/rbac.md has exactly the rights that the chart gives, each with a reason."""
    objects = render()
    cluster = _rules(_one(objects, "ClusterRole", "rt-resumable-training"))
    own = _rules(_one(objects, "Role", "rt-resumable-training-keys"))
    rows = re.findall(r"^\| `([\w/.]+)` \| `(\w+)` \| (.+?) \| (.+?) \|$", _page("rbac.md"), re.MULTILINE)
    given = {(resource, verb) for _, resource, verb, _ in cluster | own}
    assert {(resource, verb) for resource, verb, _, _ in rows} == given
    assert [row for row in rows if len(row[3].split()) < 3] == []


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_crd_is_kept(render: Render) -> None:
    """Uninstalling leaves the CRD, and with it all jobs; left out when told so and in namespaced mode."""
    crd = _one(render(), "CustomResourceDefinition")
    assert crd == yaml.safe_load((ROOT / "deploy" / "crd.yaml").read_text())
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert [o for o in render("crds.install=false") if o["kind"] == "CustomResourceDefinition"] == []
    assert [o for o in render(NAMESPACED) if o["kind"] == "CustomResourceDefinition"] == []
    assert (
        _one(render(NAMESPACED, "crds.install=true"), "CustomResourceDefinition")["metadata"]
        == crd["metadata"]
    )


def test_network_policy_lets_in_whom_it_should(render: Render) -> None:
    """Agents: the operator, other workers, Prometheus. The operator: Prometheus."""
    objects = render(NAMESPACED, "networkPolicy.enabled=true", "networkPolicy.namespaces={jobs}")
    policies = {o["metadata"]["namespace"]: o["spec"] for o in objects if o["kind"] == "NetworkPolicy"}
    assert set(policies) == {"sys", "jobs"}

    workers = policies["jobs"]
    ours = {"matchLabels": {labels.LABEL_MANAGED_BY: labels.MANAGED_BY}}
    assert workers["podSelector"] == ours
    operator, peers, prometheus = workers["ingress"]
    pod = _one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selector = operator["from"][0]["podSelector"]["matchLabels"]
    assert {**pod, **selector} == pod
    assert operator["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "sys"}
    assert operator["ports"] == [{"port": labels.AGENT_PORT_NAME}] == prometheus["ports"]
    assert peers == {"from": [{"podSelector": ours}]}

    assert policies["sys"]["podSelector"]["matchLabels"] == selector
    assert policies["sys"]["ingress"] == [{"from": prometheus["from"], "ports": [{"port": "http"}]}]


def test_network_policy_without_prometheus(render: Render) -> None:
    """With no namespace for Prometheus nobody may read metrics, and more rules of one's own are added."""
    objects = render(
        "networkPolicy.enabled=true",
        "networkPolicy.namespaces={jobs}",
        "networkPolicy.prometheus.namespace=",
        "networkPolicy.extraIngress[0].ports[0].port=6006",
    )
    policies = {o["metadata"]["namespace"]: o["spec"] for o in objects if o["kind"] == "NetworkPolicy"}
    assert policies["sys"]["ingress"] == []
    assert policies["jobs"]["ingress"][2:] == [{"ports": [{"port": 6006}]}]


def test_monitors_find_pods_and_ports(render: Render) -> None:
    """The PodMonitors select the operator's pod and all worker pods, by ports that these have."""
    objects = render("metrics.podMonitor.enabled=true", "metrics.podMonitor.labels.release=prometheus")
    own = _one(objects, "PodMonitor", "rt-resumable-training")
    workers = _one(objects, "PodMonitor", "rt-resumable-training-workers")
    assert own["metadata"]["labels"]["release"] == workers["metadata"]["labels"]["release"] == "prometheus"
    assert own["spec"]["podMetricsEndpoints"][0]["port"] == _operator(objects)["ports"][0]["name"]
    assert workers["spec"]["podMetricsEndpoints"][0]["port"] == labels.AGENT_PORT_NAME
    assert workers["spec"]["selector"]["matchLabels"] == {labels.LABEL_MANAGED_BY: labels.MANAGED_BY}
    assert workers["spec"]["namespaceSelector"] == {"any": True}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], ["in all namespaces", "kubectl apply -f deploy/examples/gpt-pvc.yaml"]),
        (
            [NAMESPACED],
            ["team-a, team-b", "kubectl -n team-a apply -f", "deploy/crd.yaml", "no right to look at nodes"],
        ),
    ],
    ids=["cluster", "namespaced"],
)
def test_notes_say_what_to_type(helm: Helm, settings: list[str], words: list[str]) -> None:
    """After an installation people read commands that fit the mode, for files that exist."""
    options = [option for setting in settings for option in ("--set", setting)]
    result = helm("install", "rt", CHART, "-n", "sys", "--dry-run=client", *options)
    notes = result.stdout.split("NOTES:")[1]
    assert [word for word in words if word not in notes] == []
    assert "deployment/rt-resumable-training" in notes
    assert [path for path in re.findall(r"-f (\S+)", notes) if not (ROOT / path).exists()] == []


def test_operator_serves_on_its_own_address_when_told(render: Render) -> None:
    """bindAddress reaches the command line, with the variable that it may name; else there is neither."""
    container = _operator(render("bindAddress=$(POD_IP)"))
    assert "--bind-address=$(POD_IP)" in container["args"]
    assert [entry["valueFrom"] for entry in container["env"] if entry["name"] == "POD_IP"] == [
        {"fieldRef": {"fieldPath": "status.podIP"}}
    ]
    assert "POD_IP" not in str(_operator(render()))


@pytest.mark.parametrize(
    ("value", "word"), [("2000", "2000"), ("null", "none"), ("1000650000", "1000650000")]
)
def test_settings_of_workers(render: Render, value: str, word: str) -> None:
    """User and pull secrets of workers reach the operator; null leaves the user to the cluster."""
    arguments = _operator(render(f"workers.runAsUser={value}", "workers.imagePullSecrets={a,b}"))["args"]
    assert f"--worker-user={word}" in arguments
    assert [a for a in arguments if "pull-secret" in a] == [
        "--worker-pull-secret=a",
        "--worker-pull-secret=b",
    ]
