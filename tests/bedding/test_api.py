"""The bed's client says what the server said: objects, events, and errors with their causes."""

import pytest

from bed.api import Api, ApiError, path
from bed.control_plane import ControlPlane


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("v1", "nodes"), "/api/v1/nodes"),
        (("v1", "pods", "ns", "p", "log"), "/api/v1/namespaces/ns/pods/p/log"),
        (("apps/v1", "deployments", None, None), "/apis/apps/v1/deployments"),
        (
            ("apps/v1", "deployments", "ns", "web", "scale"),
            "/apis/apps/v1/namespaces/ns/deployments/web/scale",
        ),
        (("v1", "nodes", None, "a b?"), "/api/v1/nodes/a%20b%3F"),
    ],
)
def test_paths_are_the_servers(arguments: tuple, expected: str) -> None:
    """Core and grouped, namespaced and not; names cannot break out of their place."""
    assert path(*arguments) == expected


def _config_map(name: str, **data: str) -> dict:
    return {"metadata": {"name": name, "labels": {"of": "test"}}, "data": data}


def test_objects_make_the_round(control_plane: ControlPlane, namespace: str) -> None:
    """Create, list by label, patch, update with precondition, delete, and find nothing."""
    api, where = control_plane.api, path("v1", "configmaps", namespace)
    one = path("v1", "configmaps", namespace, "one")
    made = api.create(where, _config_map("one", a="1"))
    assert [item["metadata"]["name"] for item in api.list(where, labelSelector="of=test")] == ["one"]
    assert api.patch(one, {"data": {"b": "2"}})["data"] == {"a": "1", "b": "2"}
    assert api.patch(one, [{"op": "remove", "path": "/data/a"}], "json")["data"] == {"b": "2"}
    with pytest.raises(ApiError) as caught:
        api.update(one, made)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    api.delete(one)
    assert api.find(one) is None


def test_status_is_patched_apart(control_plane: ControlPlane) -> None:
    """patch_status goes to the subresource: spec in it is ignored by the server."""
    api, where = control_plane.api, path("v1", "nodes", name="status-only")
    api.create(path("v1", "nodes"), {"metadata": {"name": "status-only"}})
    try:
        ready = {"type": "Ready", "status": "True"}
        node = api.patch_status(
            where, {"status": {"conditions": [ready]}, "spec": {"podCIDR": "10.0.0.0/24"}}
        )
        assert [c["type"] for c in node["status"]["conditions"]] == ["Ready"]
        assert "podCIDR" not in node["spec"]
    finally:
        api.delete(where)


def test_watch_begins_with_what_is_there(control_plane: ControlPlane, namespace: str) -> None:
    """Existing objects come as ADDED, then what happens; the end of time is the end of the iteration."""
    api, where = control_plane.api, path("v1", "configmaps", namespace)
    api.create(where, _config_map("one"))
    seen = []
    for event in api.watch(where, seconds=30, labelSelector="of=test"):
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if len(seen) == 1:
            api.create(where, _config_map("two"))
        elif len(seen) == 2:
            api.delete(f"{where}/one")
        else:
            break
    assert seen == [("ADDED", "one"), ("ADDED", "two"), ("DELETED", "one")]
    assert list(api.watch(where, seconds=1, labelSelector="of=nobody")) == []


def test_invalid_objects_name_the_field(control_plane: ControlPlane, namespace: str) -> None:
    """A 422 carries its causes."""
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], "restartPolicy": "Sometimes"}}
    with pytest.raises(ApiError) as caught:
        control_plane.api.create(path("v1", "pods", namespace), pod)
    assert caught.value.status == 422
    assert {"spec.restartPolicy", "spec.containers[0].image"} <= {c["field"] for c in caught.value.causes}


def test_dead_servers_are_unreachable(control_plane: ControlPlane) -> None:
    """No answer is an ApiError too."""
    with pytest.raises(ApiError) as caught:
        Api("https://127.0.0.1:1", "token", control_plane.ca_file).get("/version")
    assert (caught.value.status, caught.value.reason) == (0, "Unreachable")


def test_another_authority_is_not_trusted(control_plane: ControlPlane) -> None:
    """The client verifies the server's certificate by the CA that it is given, and nothing else."""
    stranger = Api(control_plane.url, control_plane.admin_token, None)
    with pytest.raises(ApiError, match="certificate"):
        stranger.get("/version")
