"""The benchmark's training with torchft: a replica for each rank, gradients averaged by its manager.

A replica that comes back heals from another's weights, so nothing is saved here. Replica 0 traces the steps.
"""

import os
from datetime import timedelta

import body
import torch
from torchft import Manager, ProcessGroupGloo

TIMEOUT = timedelta(seconds=10)


def main() -> None:
    replica = int(os.environ["REPLICA_GROUP_ID"])
    body.trace_start(replica)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = body.Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    samples = body.Samples()

    def load(state):  # type: ignore[no-untyped-def]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"bench_{replica}",
        timeout=TIMEOUT,
        quorum_timeout=timedelta(seconds=60),
    )
    while True:
        manager.start_quorum()
        optimizer.zero_grad()
        manager.wait_quorum()
        ranks = max(1, manager.num_participants())
        share = body.GLOBAL_BATCH // ranks
        place = (manager.participating_rank() or 0) % ranks
        first = manager.current_step() * body.GLOBAL_BATCH + place * share
        for start in range(first, first + share, body.MICRO_BATCH):
            batch = torch.stack(
                [samples[i] for i in range(start, min(start + body.MICRO_BATCH, first + share))]
            )
            (model(batch).sum() / share).backward()
        average(manager, model)
        if manager.should_commit():
            optimizer.step()
            body.trace_step(manager.current_step(), replica, ranks)


def average(manager: Manager, model: torch.nn.Module) -> None:
    """All gradients as one tensor, averaged over the replicas that take part."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    manager.allreduce(flat).wait()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


if __name__ == "__main__":
    main()
