"""Medians of interleaved runs: what is compared is timed turn by turn, so that a noisy machine hits all alike."""

import statistics
import time
from collections.abc import Callable


def medians(*runs: Callable[[], object], repeats: int = 7) -> list[float]:
    """Median seconds of each run, interleaved, after one warm-up."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, kept in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in seconds]
