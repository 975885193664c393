"""Statuses for tests of how they are kept: any that the models allow, and large ones of a long life."""

from __future__ import annotations

import random
import types
import typing
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel, PlainSerializer

from resumable_operator.model import (
    AttemptStatus,
    BudgetStatus,
    CheckpointStatus,
    Condition,
    Evidence,
    Interruption,
    JobStatus,
    LedgerStatus,
    MemberStatus,
)
from resumable_training.contract.metrics import RECOVERY_STAGES

NOW = 1795987823.1234567
_TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line {}, in <module>
    main()
  File "/workspace/train.py", line {}, in main
    loss = step(model, batch)
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line {}, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
RuntimeError: CUDA error: an illegal memory access was encountered at 0x{:x}
[rank{}]:[W1129 21:10:23.{}] Warning: destroy_process_group() was not called before program exit"""


def any_status() -> st.SearchStrategy[JobStatus]:
    """Every field of the status, with values that JSON has; made from the models: new fields count."""
    return _model(JobStatus)


def _model(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(model, include_extras=True)
    fields = {name: _values(hints[name]) for name in model.model_fields}
    return st.fixed_dictionaries(fields).map(lambda values: model(**values))


def _values(kind: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if any(isinstance(item, PlainSerializer) for item in getattr(kind, "__metadata__", ())):
        return st.floats(1.7e9, 1.9e9)  # a time
    if origin is typing.Annotated:
        return _values(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(st.none() if item is type(None) else _values(item) for item in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        key = (
            (lambda one: one.type) if arguments[0] is Condition else None
        )  # to the server that list is a map
        return st.lists(_values(arguments[0]), max_size=3, unique_by=key).map(tuple)
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _model(kind)
    return _SCALARS[kind]


_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(0, 2**53),
    float: st.floats(0, 1e12),
    str: st.text(max_size=20),
}


def large_status(workers: int, seed: int = 0, endings: int = 50) -> JobStatus:
    """A long-lived job of so many workers, in mid-attempt: what can't be guessed in it is random."""
    dice = random.Random(seed)
    members = tuple(_member(dice, place) for place in range(workers))
    past = tuple(_ending(dice, number) for number in range(endings))
    return JobStatus(
        phase="Running",
        reason="1000 of 1000 workers train",
        conditions=(
            Condition(
                type="Ready", status="True", reason="Training", message="all well", last_transition=NOW
            ),
        ),
        workers=f"{workers}/{workers}",
        goodput="93.1%",
        size=workers,
        replicas=workers,
        selector="resumable.dev/job-uid=0d2f9c64-8f3b-4a7e-9d0f-9d6d1a1d2e3f",
        step=123456,
        samples=123456 * 4096,
        loss=2.345678,
        attempt=AttemptStatus(
            number=endings + 1,
            digest=f"{dice.getrandbits(64):016x}",
            members=members,
            state="running",
            world_size=8 * workers,
            master_port=20000,
            reserved_at=NOW,
            outcomes={member.worker: "failed" for member in members},
            silent_since=dict.fromkeys((member.worker for member in members), NOW),
            evidence=tuple(_witness(dice, place) for place in range(16)),
        ),
        incarnations={str(member.place): member.incarnation for member in members},
        cursors={f"{dice.getrandbits(128):032x}": dice.randint(1, 100_000) for _ in range(workers)},
        checkpoint=CheckpointStatus(name="step-00123400.57", step=123400, samples=505446400, at=NOW),
        budgets=BudgetStatus(preemption=tuple(NOW + 60 * number for number in range(endings))),
        interruptions=past,
        interruption_counts={"node_lost": endings},
        last_interruption=past[-1] if past else None,
        ledger=LedgerStatus(started_at=1, settled_at=12, phases={"productive": 10, "queued": 1}),
    )


def _member(dice: random.Random, place: int) -> MemberStatus:
    incarnation = dice.randint(1, 30)
    address = [dice.randint(0, 255) for _ in range(3)]
    return MemberStatus(
        worker=f"llama-{place}-{incarnation}",
        place=place,
        incarnation=incarnation,
        address="10." + ".".join(map(str, address)),
        agent_port=8470,
        first_rank=8 * place,
        ranks=8,
        node="ip-10-" + "-".join(map(str, address)) + ".eu-west-1.compute.internal",
    )


def _output(dice: random.Random) -> tuple[str, ...]:
    numbers = [dice.randint(1, 2000) for _ in range(3)]
    text = _TRACEBACK.format(*numbers, dice.getrandbits(48), dice.randint(0, 8000), dice.randint(0, 999999))
    return tuple((text + "\n" + text).splitlines())


def _witness(dice: random.Random, place: int) -> Evidence:
    return Evidence(
        at=NOW + dice.random(),
        cause="crash",
        worker=f"llama-{place}-1",
        rank=8 * place,
        code=1,
        message=f"rank {8 * place} on llama-{place}-1: exit code 1",
        tail=_output(dice),
    )


def _ending(dice: random.Random, number: int) -> Interruption:
    return Interruption(
        attempt=number + 1,
        cause="node_lost",
        worker=f"llama-{dice.randint(0, 999)}-1",
        message=f"node ip-10-{dice.randint(0, 255)} of llama-{dice.randint(0, 999)}-1 is lost",
        tail=_output(dice),
        at=NOW - 3600 * (50 - number) + dice.random(),
        detect_seconds=dice.random(),
        recover_seconds=10 * dice.random(),
        stages={stage: dice.randint(0, 10**7) / 1000 for stage in RECOVERY_STAGES},
        rework_steps=dice.randint(0, 100),
        resumed_step=dice.randint(0, 123400),
        size_before=1000,
        size_after=1000,
    )
