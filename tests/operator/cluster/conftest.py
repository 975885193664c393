"""Fixtures of more than one file about the Kubernetes cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kube_world import KubernetesWorld, kube

from bed.control_plane import ControlPlane
from bed.fixtures import AddNode
from bed.nodes import Nodes


@pytest.fixture
async def world(
    control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, namespace: str, job_kind: str
) -> AsyncIterator[KubernetesWorld]:
    """A watched cluster, a namespace and a node that the test may harm."""
    node = await asyncio.to_thread(add_node)
    async with kube(control_plane.kubeconfig, watch=True) as made:
        yield KubernetesWorld(made, control_plane, nodes, namespace, node)
