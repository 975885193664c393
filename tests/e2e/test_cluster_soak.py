"""The exhaustive part of what is done to the operator on a cluster; run by ``make soak``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_run import ClusterRun, Operator
from kill_stories import STORIES, play
from mortal_operator import ANY, Death

from bed.control_plane import ControlPlane
from bed.nodes import Nodes

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

FEWEST_EFFECTS = 8


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_killed_at_every_write(
    control_plane: ControlPlane,
    nodes: Nodes,
    operator: Operator,
    make_namespace: Callable[[], str],
    tmp_path: Path,
    story: str,
    when: str,
) -> None:
    """Whichever write of a recovery is the operator's last, before or after it is done: the same end."""
    number, died = 0, True
    while died:
        number += 1
        run = ClusterRun(control_plane, nodes, operator, make_namespace())
        try:
            died = play(run, STORIES[story], tmp_path / str(number), Death(when, ANY, number))
        except BaseException as error:
            error.add_note(f"it died {when} write {number}\n{run.text()}")
            raise
        finally:
            run.remove()
    assert number > FEWEST_EFFECTS
