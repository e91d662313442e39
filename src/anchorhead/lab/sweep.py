"""Runs what is missing of several experiments, and writes results as they come.

The work is done by processes of this machine, or by a Dask cluster; both as `concurrent.futures.Executor`. A worker
runs one task at a time on one thread, so that its sums are taken in the same order whoever it is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any

from anchorhead.errors import AnchorheadError, InputError
from anchorhead.lab.experiment import Row, Setting, Task
from anchorhead.lab.folder import stamp
from anchorhead.lab.ledger import Ledger
from anchorhead.progress import telling


@dataclass(frozen=True)
class Crew:
    """An executor, and how many tasks it runs at once."""

    executor: Executor
    size: int


@contextmanager
def crew(workers: int | None = None, scheduler: str | None = None) -> Iterator[Crew]:
    """`workers` processes, as many as cores unless given; or the cluster whose scheduler has this address."""
    if scheduler is not None:
        if workers is not None:
            raise InputError("Give --workers or --scheduler, not both: a cluster has the workers that it has.")
        with _cluster(scheduler) as found:
            yield found
        return
    count = workers if workers is not None else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    if count < 1:
        raise InputError(f"--workers {count} must be at least 1.")
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    with ProcessPoolExecutor(count, mp_context=context, initializer=_until_told, initargs=(told,)) as pool:
        try:
            yield Crew(pool, count)
        except BaseException:
            tell.close()  # workers end in the middle of what they do, instead of being waited for
            raise


def work(name: str, setting: Setting, seed: int) -> list[Row]:
    """Runs one task in a worker."""
    import torch
    from threadpoolctl import threadpool_limits

    from anchorhead.lab.experiments import named

    torch.set_num_threads(1)
    with telling(f"running {name}", False), threadpool_limits(1):  # the parent shows how the sweep stands
        return named(name).run(setting, seed)


def _until_told(told: Connection) -> None:
    """A worker ends when its parent says so, or is no more; Ctrl-C is the parent's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent: Any = multiprocessing.parent_process()

    def watch() -> None:
        wait_for([parent.sentinel, told])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _unheard() -> Iterator[None]:
    """Ctrl-C waits for a moment: a worker that is started now never hears it, not even while it imports."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _cluster(address: str) -> Iterator[Crew]:
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError('A Dask cluster needs dask: pip install "anchorhead[distributed]".') from error
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"No Dask scheduler answers at {address!r}: {error}.") from error
    with client:
        try:
            there = client.run(stamp)
        except Exception as error:
            raise AnchorheadError(f"The Dask workers at {address} cannot import anchorhead: {error!r}.") from error
        if not there:
            raise AnchorheadError(f"The Dask cluster at {address} has no workers; start some with `dask worker`.")
        here = stamp()
        other = next((w for w, found in there.items() if found != here), None)
        if other is not None:
            raise AnchorheadError(
                f"The Dask worker {other} has other software than this process, {there[other]} instead of {here}; "
                "results would not be the same. Install the same versions there."
            )
        size = sum(client.ncores().values())
        with client.get_executor(pure=False) as executor:
            yield Crew(executor, size)


@dataclass(frozen=True)
class State:
    """Where a sweep stands: by experiment how many tasks are done and how many there are, and what is running."""

    done: dict[str, int]
    total: dict[str, int]
    running: list[str] = field(default_factory=list)


Watch = Callable[[State], None]


def sweep(ledgers: list[Ledger], crew: Crew, watch: Watch | None = None) -> None:
    """Runs every missing task once. Each experiment's file is put in order when its last task is done."""
    waiting = [(ledger, task) for ledger in ledgers for task in ledger.missing()]
    running: dict[Future[list[Row]], tuple[Ledger, Task]] = {}
    _finish(ledgers)

    def say() -> None:
        if watch is not None:
            names = [f"{ledger.experiment.name}: {task}" for ledger, task in running.values()]
            watch(State({x.experiment.name: len(x.tasks) - len(x.missing()) for x in ledgers},
                        {x.experiment.name: len(x.tasks) for x in ledgers}, names))  # fmt: skip

    try:
        while waiting or running:
            while waiting and len(running) < crew.size:
                ledger, task = waiting.pop(0)
                with _unheard():
                    future = crew.executor.submit(work, ledger.experiment.name, task.setting, task.seed)
                running[future] = ledger, task
            say()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ledger, task = running.pop(future)
                ledger.add(task, _result(future, ledger, task))
                _finish([ledger])
        say()
    finally:
        for future in running:
            future.cancel()


def _finish(ledgers: list[Ledger]) -> None:
    for ledger in ledgers:
        if not ledger.missing():
            ledger.finish()


def _result(future: Future[list[Row]], ledger: Ledger, task: Task) -> list[Row]:
    kept = "What was finished is kept; the same command goes on from there."
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise AnchorheadError(
            f"A worker process ended while {ledger.experiment.name} ({task}) was running, perhaps for want of memory. "
            f"{kept} Fewer --workers need less memory."
        ) from error
    except Exception as error:
        raise AnchorheadError(f"{ledger.experiment.name} failed at {task}: {error!r}. {kept}") from error
