"""Addresses of the bed's nodes and pods."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from bed.kubelet_addresses import EACH, WISH, Addresses

PLAIN = {"metadata": {}}


def test_none_is_given_twice_however_many() -> None:
    """A long run has hundreds of nodes and thousands of pods; each address is a valid one of the block."""
    addresses = Addresses()
    nodes = [addresses.for_node() for _ in range(3 * EACH)]
    pods = [addresses.for_pod(PLAIN) for _ in range(9 * EACH)]
    assert len({IPv4Address(address) for address in nodes + pods}) == len(nodes + pods)
    assert all(address.startswith(f"127.{addresses.block}.") for address in nodes + pods)
    assert (nodes[0], pods[0]) == (f"127.{addresses.block}.0.1", f"127.{addresses.block}.1.1")


def test_a_pod_may_wish_for_an_address() -> None:
    """One that another had; the count goes on without it."""
    addresses = Addresses()
    first = addresses.for_pod(PLAIN)
    assert addresses.for_pod({"metadata": {"annotations": {WISH: first}}}) == first
    assert addresses.for_pod(PLAIN) != first


@pytest.mark.parametrize(("nodes", "rows"), [(0, 1), (1, 1), (EACH, 1), (EACH + 1, 2)])
def test_a_block_that_is_used_up_says_so(nodes: int, rows: int) -> None:
    """Nodes come from one end and pods from the other: where they would meet is the end."""
    addresses = Addresses()
    given = {addresses.for_node() for _ in range(nodes)}
    for _ in range((256 - rows) * EACH):
        address = addresses.for_pod(PLAIN)
        assert address not in given
        IPv4Address(address)
    with pytest.raises(RuntimeError, match="start a new bed"):
        addresses.for_pod(PLAIN)
