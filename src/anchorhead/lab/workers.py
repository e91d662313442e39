"""Who does the work: processes of this machine, or a Dask cluster; both as `concurrent.futures.Executor`.

A worker runs one task at a time on one thread, so that its sums are taken in the same order whoever it is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from anchorhead.errors import AnchorheadError, InputError
from anchorhead.lab.experiment import Row, Setting
from anchorhead.lab.stamp import stamp


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
    with threadpool_limits(1):
        return named(name).run(setting, seed)


def _until_told(told: Connection) -> None:
    """A worker ends when its parent says so, or is no more; Ctrl-C is the parent's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent: Any = multiprocessing.parent_process()

    def watch() -> None:
        wait([parent.sentinel, told])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
