"""Medians of interleaved runs: what is compared is timed turn by turn, so that a noisy machine hits all alike."""

import statistics
import time
from collections.abc import Callable


def ratio(base: Callable[[], object], run: Callable[[], object], repeats: int = 7) -> tuple[float, float]:
    """How long a run takes over the one before it, the median, and the least seconds of that one; after one warm-up.

    Of two that follow each other a noisy machine slows down both.
    """
    rounds = [(_seconds(base), _seconds(run)) for _ in range(repeats + 1)][1:]
    return statistics.median(after / before for before, after in rounds), min(before for before, _ in rounds)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def medians(*runs: Callable[[], object], repeats: int = 7) -> list[float]:
    """Median seconds of each run, interleaved, after one warm-up."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, kept in zip(runs, seconds, strict=True):
            kept.append(_seconds(run))
    return [statistics.median(kept) for kept in seconds]
