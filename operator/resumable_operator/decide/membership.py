"""Who takes part in the next attempt, with which ranks; and its reservation."""

from __future__ import annotations

from resumable_operator.decide.assign import (
    contract_members,
    processes_per_worker,
    settings_digest,
    store_root,
)
from resumable_operator.decide.avoid import avoided
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.health import warming
from resumable_operator.decide.interruptions import sized
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.validity import blocked
from resumable_operator.decide.views import heard_state
from resumable_operator.model import AttemptStatus, MemberStatus
from resumable_operator.words import counted
from resumable_training.contract.assignment import membership_digest

LARGEST_NUMBER = 2**53


def choose_members(
    ready: list[Worker],
    size: int,
    previous: tuple[MemberStatus, ...],
    ranks: int,
    avoided: tuple[str, ...] = (),
    warming: frozenset[str] = frozenset(),
) -> tuple[MemberStatus, ...]:
    """``size`` of the ready workers: not on avoided nodes if that can be, then those that took part before,
    then those that need not import anything first, then low places.

    Ranks go in order of place, so that the same workers get the same ranks again.
    """
    before = {member.worker for member in previous}

    def rank(worker: Worker) -> tuple[bool, bool, bool, int]:
        name = worker.name
        return worker.node in avoided, name not in before, name in warming, worker.place

    order = sorted(ready, key=rank)
    chosen = order[:size]
    chosen.sort(key=lambda worker: (worker.place, worker.incarnation))
    return tuple(
        MemberStatus(
            worker=worker.name,
            place=worker.place,
            incarnation=worker.incarnation,
            address=worker.address,
            agent_port=worker.agent_port,
            first_rank=index * ranks,
            ranks=ranks,
            node=worker.node,
        )
        for index, worker in enumerate(chosen)
    )


def next_number(draft: Draft) -> int:
    """One more than any that status or an agent knows: never used before. Nobody has come as far as
    ``LARGEST_NUMBER``: beyond it there is a slip of somebody's hand, and no number could follow."""
    agents = draft.observation.agents.values()
    told = [agent.state.attempt for agent in agents if agent.state]
    ended = [ending.attempt for ending in draft.status.interruptions]
    known = (draft.attempt.number, *told, *ended)
    return 1 + max((number for number in known if 0 <= number < LARGEST_NUMBER), default=0)


def _held_port(draft: Draft, members: tuple[MemberStatus, ...]) -> int:
    """The master port that rank 0's agent holds ready; 0: it must be asked first."""
    state = heard_state(draft, members[0].worker)
    port = state.next_port if state is not None else 0
    return port if 0 < port < 65536 and port != draft.attempt.master_port else 0


def reserve_attempt(draft: Draft, ready: list[Worker], size: int, reason: str) -> None:
    """Write down the next attempt: number, members, digest. Sending follows, now or in a later pass."""
    ranks = processes_per_worker(draft.spec)
    if blocked(draft) and draft.attempt.processes:  # a bad spec changes nothing
        ranks = draft.attempt.processes
    members = choose_members(ready, size, draft.attempt.members, ranks, avoided(draft), warming(draft))
    number, size_before = next_number(draft), len(draft.attempt.members)
    if not draft.status.store:
        draft.set(store=store_root(draft.spec.checkpoint))
    draft.set(
        attempt=AttemptStatus(
            number=number,
            digest=membership_digest(draft.observation.job.uid, number, contract_members(members)),
            members=members,
            state="forming",
            master_port=_held_port(draft, members),
            world_size=ranks * size,
            reserved_at=draft.now,
            processes=ranks,
            settings_digest=settings_digest(draft.spec),
            start_step=0,
        ),
        size=size,
        below_target_since=None,
        below_min_since=None,
        backoff_until=None,
    )
    sized(draft, size, size_before)
    draft.tell(
        "Normal",
        "AttemptReserved",
        f"attempt {number}: {counted(size, 'worker')}, {counted(ranks * size, 'rank')}; {reason}",
    )
