"""The Kubernetes cluster passes the conformance suite: real API server and watches, pods as processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from conformance import AdoptionConformance, ClusterConformance
from kube_world import KubernetesWorld, kube

from bed.control_plane import ControlPlane
from bed.fixtures import AddNode
from bed.nodes import Nodes


class TestConformance(ClusterConformance):
    """All of it."""


class TestAdoption(AdoptionConformance):
    """All of it, by operators limited to the namespace: others' jobs have no part in their moments."""

    @pytest.fixture
    async def world(
        self, control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, namespace: str, job_kind: str
    ) -> AsyncIterator[KubernetesWorld]:
        node = await asyncio.to_thread(add_node)
        async with kube(control_plane.kubeconfig, namespaces=(namespace,), watch=True) as made:
            yield KubernetesWorld(made, control_plane, nodes, namespace, node)
