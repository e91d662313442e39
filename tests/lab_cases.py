"""A small experiment that counts its runs, and executors that finish in an order of their own."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Executor, Future
from typing import Any

from matplotlib.figure import Figure

from anchorhead.lab.experiment import Experiment, Row, Rows, Setting, Task

RUNS: Counter[str] = Counter()


def tasks(quick: bool) -> list[Task]:
    return [Task({"size": size, "how": how}, seed) for size in (1, 2.5) for how in ("a, b", 'c "d"') for seed in (3, 4)]


def run(setting: Setting, seed: int) -> list[Row]:
    """One to three rows of numbers that need all their digits."""
    RUNS[str(Task(setting, seed))] += 1
    size = float(setting["size"])
    return [
        {"third": size / 3 + seed * i, "word": f"x{i}", "none": float("nan"), "clock": random.random()}
        for i in range(int(size) + 1)
    ]


def figures(rows: Rows) -> dict[str, Figure]:
    return {"case": Figure()}


CASE = Experiment("case", "A case", "About a case.", tasks, run, figures, lambda rows: [], clocked=("clock",))


class Contrary(Executor):
    """Runs in this process what was submitted: when `window` tasks are held, all of them, in an order drawn at random.

    The number of tasks must be a multiple of the window, or the last of them would be held for ever.
    """

    def __init__(self, seed: int, window: int) -> None:
        self.draw, self.window = random.Random(seed), window
        self.held: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, fn, args))
        if len(self.held) == self.window:
            self._release()
        return future

    def _release(self) -> None:
        self.draw.shuffle(self.held)
        while self.held:
            future, fn, args = self.held.pop()
            try:
                future.set_result(fn(*args))
            except Exception as error:
                future.set_exception(error)
