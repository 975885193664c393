"""``rtj run``: train on this machine through failures, and continue a run that was stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from resumable_operator.cli import exitcodes
from resumable_operator.cli.display import cells, row
from resumable_operator.cli.document import read_document
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.output import make_console
from resumable_operator.cli.run_checks import (
    check_directory,
    check_program,
    check_runnable,
    resume_source,
    store_of,
)
from resumable_operator.cli.run_local import LocalRun, Setting, Stopped, rank_environment
from resumable_operator.cli.run_metrics import can_serve
from resumable_operator.cli.run_options import (
    Options,
    Wish,
    check_name,
    command_of,
    default_name,
    from_document,
    from_options,
)
from resumable_operator.cli.rundir import is_run
from resumable_operator.cluster.local_files import RunFiles
from resumable_operator.decide.kept import unsaved
from resumable_operator.errors import FatalError, UserError
from resumable_operator.model import Interruption, JobStatus
from resumable_operator.words import counted
from resumable_training.contract.metrics import INTERRUPTION_CAUSES

logger = logging.getLogger(__name__)

_COMPARED_BYTES = 1 << 16

EXAMPLES = """\b
Examples:
  rtj run train.py                                   one worker, one rank
  rtj run --workers 1:4 train.py -- --lr 3e-4        one to four workers
  rtj run --workers 2 --processes-per-worker 2 -m my.training
  rtj run job.yaml                                   the resource you give to Kubernetes

Ctrl-C commits a checkpoint and stops; the same command line continues from there.
"""


@click.command("run", context_settings={"allow_interspersed_args": False}, epilog=EXAMPLES)
@click.option("--workers", metavar="N | MIN:MAX | MIN:REPLICAS:MAX",
              help="How many workers: N, or from MIN to MAX as failures allow. Default: 1.")  # fmt: skip
@click.option("--replicas", type=click.IntRange(min=1), help="Workers wanted within MIN:MAX. Default: MAX.")
@click.option("--spares", type=click.IntRange(min=0),
              help="More workers, without ranks, ready to step in for a lost one. Default: 0.")  # fmt: skip
@click.option("--processes-per-worker", metavar="P", help="Ranks in each worker, or 'auto'. Default: 1.")
@click.option("--preload", metavar="MODULE", multiple=True,
              help="Import this beside torch before ranks are forked; may be given again.")  # fmt: skip
@click.option("--no-preload", is_flag=True, help="Start every rank from nothing.")
@click.option("-m", "--module", help="Run this Python module instead of a script.")
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False),
              help="Run directory: status, logs, checkpoints. Default: runs/<name>.")  # fmt: skip
@click.option("--name", help="Name of the job. Default: from the script's name.")
@click.option("--checkpoint-dir", type=click.Path(path_type=Path, file_okay=False),
              help="Where checkpoints go. Default: <run directory>/checkpoints.")  # fmt: skip
@click.option("--save-every-steps", type=click.IntRange(min=1), help="Save every so many steps.")
@click.option("--save-every-seconds", type=click.FloatRange(min=0, min_open=True),
              help="Save every so many seconds. Default: from measured costs and failures.")  # fmt: skip
@click.option("--memory-every", metavar="N",
              help="Copy the state into memory every N steps between saves, or 'auto'.")  # fmt: skip
@click.option("--keep", type=click.IntRange(min=2), help="Complete checkpoints to keep. Default: 3.")
@click.option("--resume-from", metavar="STEP|NAME|DIR|URL",
              help="Go on, once, from this checkpoint, or from the newest of this run or store.")  # fmt: skip
@click.option("--drain-seconds", type=click.FloatRange(min=0), help="Window of a planned end. Default: 60.")
@click.option("--shrink-after", type=click.FloatRange(min=0),
              help="Longest wait for a lost worker before going on smaller. Default: 30.")  # fmt: skip
@click.option("--grow-cooldown", type=click.FloatRange(min=0),
              help="Shortest time from the last start or restart of the ranks to a growth, in seconds."
                   " Default: 300.")  # fmt: skip
@click.option("--hang-seconds", type=click.FloatRange(min=0),
              help="No progress this long, outside of known phases, is a hang. Default: 300.")  # fmt: skip
@click.option(
    "--trace-samples", is_flag=True, help="Write the sample ids that each rank consumed (for audits)."
)
@click.option("--fresh", is_flag=True, help="Start over; an earlier run in the directory is moved aside.")
@click.option("--quiet", is_flag=True, help="Don't show the output of rank 0.")
@click.option("--metrics-port", type=click.IntRange(1, 65535),
              help="Serve the run's metrics for Prometheus on this port, path /metrics.")  # fmt: skip
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(
    module: str | None,
    directory: Path | None,
    name: str | None,
    checkpoint_dir: Path | None,
    trace_samples: bool,
    fresh: bool,
    quiet: bool,
    metrics_port: int | None,
    script: str | None,
    arguments: tuple[str, ...],
    resume_from: str | None,
    processes_per_worker: str | None,
    preload: tuple[str, ...],
    no_preload: bool,
    memory_every: str | None,
    **shape: Any,
) -> None:
    """Run SCRIPT (or -m MODULE, or JOB.yaml) with ARGUMENTS on this machine until it finishes.

    Each worker is a group of processes with an address of its own. When ranks or workers die, the job goes on
    from its newest checkpoint with the workers that are left. A script needs nothing but torchrun's variables
    (RANK, WORLD_SIZE, MASTER_ADDR, ...); with `import resumable_training` it gets exact resume.
    """
    cwd = Path.cwd()
    wanted = resume_source(resume_from, cwd) if resume_from is not None else None
    options = Options(
        processes_per_worker=_count_or_auto("--processes-per-worker", processes_per_worker),
        memory_every=_count_or_auto("--memory-every", memory_every),
        preload=preload or None,
        no_preload=no_preload or None,
        resume_from=wanted,
        **shape,
    )
    name = default_name(script, module) if name is None else check_name(name, "--name")
    root = (directory or Path("runs") / name).absolute()
    if script is not None and module is None and Path(script).suffix in (".yaml", ".yml"):
        wish = _read_document(Path(script), options, arguments, name, root, checkpoint_dir)
    else:
        check_program(script, module, cwd)
        store = (checkpoint_dir or RunFiles(root).checkpoints).absolute()
        wish = from_options(options, name, command_of(script, module, arguments, cwd), store, cwd)
    check_runnable(wish.spec, rank_environment())
    if metrics_port is not None and not is_run(root):  # else who has the directory may have the port, too
        asyncio.run(can_serve(metrics_port))
    check_directory(root, "run directory")
    if wish.spec.checkpoint.s3 is None:
        check_directory(store_of(wish.spec), "checkpoint directory")
    wish, gpus = _share_gpus(wish)
    sys.exit(_run(wish, Setting(root, fresh, quiet, trace_samples, gpus, metrics_port)))


def _run(wish: Wish, setting: Setting) -> int:
    console = make_console(lasting=True)
    for note in wish.notes:
        console.print(f"note: {note}")
    _log_to(setting.directory / "rtj.log")
    try:
        status = asyncio.run(_train(wish, setting, console))
    except Stopped:
        console.print(f"stopped at once; the same command line continues {setting.directory}")
        return exitcodes.INTERRUPTED
    except UserError as error:  # another program's directory, another process's directory
        raise UsageProblem(str(error)) from error
    except OSError as error:
        logger.exception("rtj run cannot go on")
        raise FatalError(f"{setting.directory}: rtj run cannot go on: {error}") from error
    summarize(console, status, setting)
    return exitcodes.for_status(status)


async def _train(wish: Wish, setting: Setting, console: Console) -> JobStatus:
    return await LocalRun(wish, setting, console).run()


def summarize(console: Console, status: JobStatus, setting: Setting) -> None:
    """What came of it, in a few lines."""
    share = cells(row(status, status.ledger.settled_at / 1000))["goodput"]
    lines = [
        f"{_outcome(status)}: step {status.step}, {counted(status.attempt.number, 'attempt')}, "
        f"{endings_told(status)}, goodput {share}"
    ]
    if status.phase == "Failed":
        lines += status.reason.splitlines()[:1]
        lines += failure_tail(status.last_interruption, _shown_live(status, setting))
    if status.phase == "Suspended":
        lost = unsaved(status)
        lines += [f"not everything is saved: {lost}"] if lost else []
        lines.append(f"the same command line continues {_resume_point(status)}")
    for line in [*lines, f"where the time went: rtj report {_short(setting.directory)}"]:
        console.print(line, soft_wrap=True)


def endings_told(status: JobStatus) -> str:
    """``interruptions: 1 crash, planned endings: 1 suspend``; nobody planned the former."""
    counts = sorted(status.interruption_counts.items())
    lost = ", ".join(f"{count} {cause}" for cause, count in counts if cause in INTERRUPTION_CAUSES)
    planned = ", ".join(f"{count} {cause}" for cause, count in counts if cause not in INTERRUPTION_CAUSES)
    return f"interruptions: {lost or 'none'}" + (f", planned endings: {planned}" if planned else "")


def _shown_live(status: JobStatus, setting: Setting) -> str | None:
    """Last output of rank 0 in the attempt that failed last, as it was shown; None when it was not."""
    failure = status.last_interruption
    if setting.quiet or failure is None:
        return None
    log = RunFiles(setting.directory).log(failure.attempt, 0)
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _COMPARED_BYTES))
        return file.read().decode(errors="replace")


def failure_tail(failure: Interruption | None, shown_live: str | None) -> list[str]:
    """Last lines of the rank that failed first, unless they, or rank 0's same, were on the screen already."""
    if failure is None:
        return []
    if shown_live is not None and (failure.rank == 0 or "\n".join(failure.tail) in shown_live):
        return []
    return [f"  [{failure.attempt}:{failure.rank}] {line}" for line in failure.tail]


def _resume_point(status: JobStatus) -> str:
    if status.checkpoint:
        return f"from checkpoint {status.checkpoint.name}"
    if status.uses_library is False:
        return "from what the script itself has saved"
    return "from the beginning"


def _outcome(status: JobStatus) -> str:
    drained = "stopped" if unsaved(status) else "drained"
    return {"Succeeded": "finished", "Failed": "failed", "Suspended": drained}.get(status.phase, status.phase)


def _read_document(
    path: Path,
    options: Options,
    arguments: tuple[str, ...],
    name: str,
    root: Path,
    checkpoint_dir: Path | None,
) -> Wish:
    given = options.given() + (["--checkpoint-dir"] if checkpoint_dir else []) + list(arguments)
    if given:
        raise UsageProblem(f"{given[0]} can't be given beside {path}: write it into its spec")
    store = RunFiles(root).checkpoints
    return from_document(read_document(path), name, store, Path.cwd(), os.environ)


def _count_or_auto(option: str, text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise UsageProblem(f"{option} must be a number from 1, or 'auto', not '{text}'")
    return int(text)


def _share_gpus(wish: Wish) -> tuple[Wish, tuple[str, ...]]:
    """Resolve 'auto' ranks, and give every worker GPUs of its own if there are enough."""
    gpus = _gpus()
    workers = wish.spec.workers
    machines = workers.max_size + workers.spares
    if workers.processes_per_worker == "auto":
        processes = max(1, len(gpus) // machines)
        shaped = workers.model_copy(update={"processes_per_worker": processes})
        wish = Wish(wish.name, wish.spec.model_copy(update={"workers": shaped}), wish.notes)
    else:
        processes = workers.processes_per_worker
    if not gpus or len(gpus) >= machines * processes:
        return wish, gpus
    note = f"{len(gpus)} GPUs for up to {machines * processes} ranks: every worker sees all of them"
    return Wish(wish.name, wish.spec, (*wish.notes, note)), ()


def _gpus() -> tuple[str, ...]:
    """Devices of this machine that CUDA would show, by the names it knows them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name for name in visible.split(",") if name.strip() not in ("", "-1"))
    count = sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    return tuple(str(number) for number in range(count))


def _log_to(path: Path) -> None:
    """Our own log goes to the run directory; the terminal shows what the job's user needs."""
    logging.raiseExceptions = False  # a full disk: no traceback for every line that is lost
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package = logging.getLogger("resumable_operator")
    package.addHandler(handler)
    package.setLevel(logging.INFO)


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
