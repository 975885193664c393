"""The front door of the worker library: ``rt.start()`` and the ``Run`` it returns.

::

    run = rt.start()
    data = run.data(dataset, global_batch_size=64, micro_batch_size=8, seed=0)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in run.steps(data, until=2000):
        for batch in step:
            step.backward(loss_fn(model(batch)))
        optimizer.step(); scheduler.step(); optimizer.zero_grad()
        step.log(loss=loss)
"""

from __future__ import annotations

import atexit
import gc
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from resumable_training import process_group, rng, tracking
from resumable_training.begin import begin
from resumable_training.data.loader import LoaderOptions
from resumable_training.data.order import Stream
from resumable_training.data.position import BatchSizes, Data, IterableData, MapData, Place
from resumable_training.data.split import check_sizes
from resumable_training.errors import UserError
from resumable_training.evaluation import Evaluation, poll
from resumable_training.health.exits import before_the_end, end_at_once_on_error
from resumable_training.launch import SUPERVISED, read_launch
from resumable_training.loop import Step, run_steps
from resumable_training.saving import Engine, Saver
from resumable_training.session import Session

_LEAVE_SECONDS = 30.0
_LOOPBACK = "127.0.0.1"
_started: list[Run] = []


def start(
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    save_every_steps: int | None = None,
    save_every_seconds: float | None = None,
    keep_last: int | None = None,
    seed: int | None = None,
    start_timeout_seconds: float = 300.0,
    timeout_seconds: float = 1800.0,
) -> Run:
    """Begin this rank's part of the training: process group, device, drain requests.

    Under ``rtj`` the job's specification says where and when to save, and the first four arguments are
    ignored with a warning. Under ``torchrun`` and plain ``python`` they count; the directory may come from
    ``RESUMABLE_CHECKPOINT_DIR`` instead.

    Args:
        checkpoint_dir: where checkpoints go; shared by all ranks.
        save_every_steps: interval in steps; with ``save_every_seconds``, in seconds; with neither, automatic.
        keep_last: complete checkpoints to keep, at least 2.
        seed: of python's, numpy's and torch's generators, the same on all ranks until ``track``, where each
            rank gets its own. None leaves them to the script.
        start_timeout_seconds: for all ranks to come.
        timeout_seconds: of each collective of the default process group.

    Raises:
        UserError: called twice, or the environment or an argument is wrong.
        MasterBindFailed, StartTimeout, PeerLost: the group did not form.
    """
    if _started:
        raise UserError("rt.start() is called once in a process")
    launch = read_launch(os.environ, sys.argv[0])
    seed = None if seed is None else _whole("seed", seed)
    overrides = {
        "directory": os.fspath(checkpoint_dir) if checkpoint_dir is not None else None,
        "every_steps": None if save_every_steps is None else _whole("save_every_steps", save_every_steps),
        "every_seconds": save_every_seconds,
        "keep_last": None if keep_last is None else _whole("keep_last", keep_last),
    }
    gc.freeze()  # what imports have made stays: a collection that walks it takes a fifth of a second
    try:
        run = Run(begin(launch, overrides, seed, start_timeout_seconds, timeout_seconds))
    finally:
        end_at_once_on_error()  # last: init_process_group sets a hook that must run inside ours
    _started.append(run)
    before_the_end(run._fail)
    return run


class Run:
    """One rank's part of the training. Made by :func:`start`.

    ``extras``: a dict of plain values (numbers, strings, lists, dicts) that is saved and restored with the
    rest; the same on all ranks. What can't be saved is refused: before a loop's first step where it is there
    by then, else by the first save that meets it.
    """

    def __init__(self, session: Session, engine: Callable[..., Engine] | None = None) -> None:
        self._session = session
        self._make_engine = engine or _checkpoint_engine
        self._pid = os.getpid()
        self._closed = False
        atexit.register(self.close)

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        return self._session.launch.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in this attempt; another attempt may have another."""
        return self._session.launch.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and evaluates where one rank should."""
        return self._session.main

    @property
    def device(self) -> torch.device:
        """This rank's device; already torch's current one."""
        return self._session.device

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self._session.launch.attempt

    @property
    def step(self) -> int:
        """Steps done, over all attempts."""
        return self._session.step

    @property
    def epoch(self) -> int:
        """Epoch of the next sample."""
        return self._session.epoch

    @property
    def extras(self) -> dict[str, Any]:
        """Plain values saved with every checkpoint."""
        return self._session.extras

    @property
    def evaluation_cut(self) -> bool:
        """Whether the checkpoint that was restored was taken in the middle of an evaluation.

        That evaluation was not finished. A script whose training depends on it (a plateau schedule, early
        stopping) does it again before its loop.
        """
        return self._session.evaluation_cut

    def data(
        self,
        dataset: Any,
        *,
        global_batch_size: int,
        micro_batch_size: int | None = None,
        seed: int = 0,
        epochs: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        version: str = "",
        mesh: Any = None,
        name: str = "train",
        accept_changes: bool = False,
        **loader: Any,
    ) -> Data:
        """A training set with an exact position; the global batch stays the same at any number of ranks.

        Args:
            dataset: map-style (``__len__`` and ``__getitem__``): exact at any world size. Or an iterable with
                ``state_dict`` and ``load_state_dict``: ``data.position.IterableData`` says what is promised.
            global_batch_size: samples per optimizer step, over all ranks.
            micro_batch_size: most samples per forward and backward on one rank; default: the rank's share.
            seed: of the order, and of the samples' random augmentation.
            epochs: end after so many; None: never.
            shuffle: False: samples in the dataset's own order in every epoch.
            drop_last: leave out an epoch's last partial batch. By default it is filled from the next epoch:
                every sample comes exactly once an epoch, and only the last batch of all may be short.
            version: the user's word for what the data is; a change is refused at resume.
            mesh: one-dimensional ``DeviceMesh`` of the ranks that share the data; default: all ranks.
            name: tells several training sets of one run apart.
            accept_changes: go on although the data is not what the checkpoint was trained on.
            loader: ``num_workers, collate_fn, pin_memory, prefetch_factor, worker_init_fn,
                multiprocessing_context`` as for ``DataLoader``, and ``sample_rng`` (False: samples draw no
                random numbers, which saves time).

        Raises:
            UserError: an argument is wrong; a global batch smaller than the ranks.
            DataChanged: as ``version``.
        """
        session = self._session
        if name in session.datasets:
            raise UserError(
                f"run.data was called twice with the name {name!r}: give the second another name="
            )
        place = _place(mesh, self.rank, self.world_size)
        global_batch_size = _whole("global_batch_size", global_batch_size)
        seed = _whole("seed", seed)
        epochs = None if epochs is None else _whole("epochs", epochs)
        share = -(-global_batch_size // place.world_size)
        micro = share if micro_batch_size is None else _whole("micro_batch_size", micro_batch_size)
        if not isinstance(version, str):
            raise UserError(f"version must be a string, not {version!r}")
        options = _loader_options(loader)
        try:
            check_sizes(global_batch_size, micro, place.world_size)
            sizes = BatchSizes(global_batch_size, micro)
            data: Data
            if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
                stream = Stream(len(dataset), seed, shuffle, drop_last, epochs)
                stream.next_batch(0, global_batch_size)
                data = MapData(name, dataset, stream, sizes, place, options, version, accept_changes)
            else:
                _check_iterable(dataset, options, epochs, drop_last)
                data = IterableData(name, dataset, sizes, place, options.collate_fn, version, accept_changes)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(str(error)) from error
        session.datasets[name] = data
        if session.saver is not None:
            session.saver.restore_data(data)
        return data

    def track(self, **objects: Any) -> None:
        """Name everything that is saved (modules, optimizers, LR schedulers, others with ``state_dict``), and
        restore it from the resume point, if there is one. All ranks call it once, with the same names.

        Raises:
            UserError: an object can't be saved, or called twice.
            CheckpointError: no resume point can be told, or it does not fit what is tracked.
            DataChanged: the data is not what the checkpoint was trained on.
        """
        session = self._session
        if session.tracked is not None:
            raise UserError("run.track is called once, with everything in one call")
        session.tracked = tracking.sort_out(objects)
        session.sync = tracking.GradientSync(session.tracked)
        for optimizer in session.tracked.optimizers.values():
            optimizer.register_step_post_hook(session.count_optimizer_step)
        if session.main:
            tracking.check_synchronisation(session.sync, self.world_size, session.warn)
        session.clock.enter("restoring")
        if session.launch.checkpoint.directory:
            self._restore(session.tracked)
        elif session.main:
            session.warn("no checkpoint directory: nothing is saved (rt.start(checkpoint_dir=...))")
        if session.step == 0 and session.seed is not None:
            rng.seed_rank(session.seed, self.rank, 0)
        session.clock.enter("warmup")

    def _restore(self, tracked: tracking.Tracked) -> None:
        from resumable_training.checkpoint.state import TrainingState

        session = self._session
        launch = session.launch
        try:
            state = TrainingState(tracked.modules, tracked.optimizers, tracked.stateful)
        except (TypeError, ValueError) as error:
            raise UserError(f"run.track: {error}") from error
        engine = self._make_engine(
            config=launch.checkpoint,
            job=launch.job,
            job_uid=launch.job_uid,
            attempt=launch.attempt,
            counted=launch.mode == SUPERVISED,
            group=session.group.private,
            rank=self.rank,
            world_size=self.world_size,
            warn=session.warn,
            host=launch.master_address or _LOOPBACK,
        )
        saver = Saver(session, engine, state)
        saver.restore()
        session.saver = saver

    def ddp(self, model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
        """Wrap ``model`` in DDP so that a resume is bit for bit also with 3 and more ranks.

        DDP rebuilds its buckets after the first backward and then sums in another order; from 3 ranks on a
        throw-away pass has that done before it matters. ``options`` go to DDP.
        """
        return tracking.wrap_ddp(model, self.device, self.world_size, options)

    def steps(
        self, data: Data | None = None, until: int | None = None, *, stop_on_nonfinite: bool = False
    ) -> Iterator[Step]:
        """The steps that are still to do; saves when due, stops when asked to, commits at the end.

        Args:
            data: from :meth:`data`; None: steps without micro-batches.
            until: total number of steps of the job, over all attempts; None: until the data ends.
            stop_on_nonfinite: end the attempt with cause ``numeric`` when a loss is NaN or infinite, before
                it is applied.

        Leaving the loop by ``break`` commits nothing: call :meth:`save` on all ranks if that is wanted. The
        step that is left counts if its optimizer has stepped.
        """
        session = self._session
        if data is not None and session.datasets.get(data.name) is not data:
            raise UserError("run.steps takes what run.data returned")
        if until is None and data is None:
            raise UserError("run.steps without data needs until=")
        return run_steps(session, data, until, stop_on_nonfinite)

    def evaluating(self, batches: Iterable[Any] | None = None, *, main_only: bool = False) -> Evaluation:
        """Declare an evaluation: ``with run.evaluating():`` or ``for batch in run.evaluating(loader):``.

        Its time is counted apart and not taken for a hang, it leaves the random number generators as they
        were, and a drain can stop in it (before each batch of the second form, and at :meth:`poll`). Call it
        after the step's optimizer step. On several ranks at once, each must have as many batches as the
        others if the evaluation has collectives in it.

        Args:
            main_only: all ranks call it and only rank 0 evaluates (``with ... as mine: if mine:``), while the
                others wait where they can be stopped. Without it, ranks that do not call it run into the next
                step, or to where saves are agreed on, and a drain has to wait until rank 0 has finished
                evaluating and joined them.
        """
        return Evaluation(self._session, batches, main_only)

    def poll(self) -> None:
        """A place where a drain may stop, inside an evaluation or between loops.

        Raises:
            SystemExit: it stops here, with everything committed.
        """
        poll(self._session)

    def save(self) -> None:
        """Commit now, on all ranks, unless this step is saved already.

        Raises:
            UserError: called inside a step, or there is nothing to save with.
        """
        session = self._session
        if session.current is not None:
            raise UserError(
                "run.save() is for after the loop, or after leaving it by break: steps save themselves"
            )
        if session.saver is None:
            raise UserError(
                "there is nothing to save with: no checkpoint directory, or run.track was not called"
            )
        session.saver.commit()

    def _fail(self, code: int) -> None:
        """An error that nobody caught ends this process."""
        if self._session.saver is not None and not self._closed and os.getpid() == self._pid:
            self._session.saver.fail(code)

    def close(self) -> None:
        """Sign off; called at exit. After an unfinished loop it waits for nobody."""
        session = self._session
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if session.finished:
            session.clock.enter("closing")
            if session.saver is not None:
                session.saver.close()
            session.watcher.close()
            process_group.leave(session.group.store, self.rank, self.world_size, _LEAVE_SECONDS)
        else:
            self._leave_early()
        if session.trace is not None:
            session.trace.close()
        if session.link is not None:
            session.link.close()
        if session.finished and dist.is_initialized():
            dist.destroy_process_group()
        gc.freeze()  # the interpreter's last collection would walk all of torch: a second of every restart

    def _leave_early(self) -> None:
        """The watcher's thread ends, too: in the store's client it would abort the interpreter's exit."""
        session = self._session
        try:
            if session.steps_here:
                if session.saver is not None:
                    session.saver.leave()
                session.tell_of_early_end()
        finally:
            session.watcher.close()


def _place(mesh: Any, rank: int, world_size: int) -> Place:
    if mesh is None:
        return Place(rank, world_size)
    if mesh.ndim != 1:
        raise UserError(f'mesh must have one dimension, not {mesh.ndim}: pass mesh["dp"] or the like')
    return Place(mesh.get_local_rank(), mesh.size())


def _whole(name: str, value: Any) -> int:
    """Also NumPy's integers, which can't be saved and overflow; nothing that would be rounded."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise UserError(f"{name} must be a whole number, not {value!r}") from error


def _loader_options(given: dict[str, Any]) -> LoaderOptions:
    unknown = sorted(set(given) - set(LoaderOptions.__dataclass_fields__))
    if unknown:
        raise UserError(
            f"run.data does not know {', '.join(unknown)}; loader options are "
            f"{', '.join(LoaderOptions.__dataclass_fields__)}"
        )
    return LoaderOptions(**given)


def _check_iterable(dataset: Any, options: LoaderOptions, epochs: int | None, drop_last: bool) -> None:
    if not all(hasattr(dataset, name) for name in ("__iter__", "state_dict", "load_state_dict")):
        raise UserError(
            f"{type(dataset).__name__} is neither map-style (__len__ and __getitem__) nor an iterable with "
            "state_dict() and load_state_dict(): its position can't be saved"
        )
    if options.num_workers or epochs is not None or drop_last:
        raise UserError(
            "num_workers, epochs and drop_last are for map-style datasets: an iterable's state is its own"
        )


def _checkpoint_engine(**arguments: Any) -> Engine:
    from resumable_training.checkpoint import CheckpointEngine

    return CheckpointEngine(**arguments)
