"""Runs what is missing of several experiments through one crew of workers, and writes results as they come."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from anchorhead.errors import AnchorheadError
from anchorhead.lab.experiment import Row, Task
from anchorhead.lab.ledger import Ledger
from anchorhead.lab.workers import Crew, work


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
