"""The benchmark's training with the worker library: the five lines instead of the bookkeeping."""

import body
import torch

import resumable_training as rt


def main() -> None:
    body.trace_start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = rt.start()
    model = run.ddp(body.Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = run.data(
        body.Samples(), global_batch_size=body.GLOBAL_BATCH, micro_batch_size=body.MICRO_BATCH, seed=0
    )
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(data, until=body.UNTIL):
        for batch in step:
            step.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        body.trace_step(step.number, run.rank, run.world_size)


if __name__ == "__main__":
    main()
