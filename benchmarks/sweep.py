"""Two workers against one on the same sweep, each in a folder of its own, workers' start included."""

import statistics
import tempfile
import time
from pathlib import Path

from anchorhead.lab.reproduce import reproduce


def seconds(only: str, workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        reproduce(Path(folder) / "results", quick=True, only=(only,), workers=workers)
        return time.perf_counter() - start


def main(tiny: bool = False) -> None:
    only, repeats = ("length", 1) if tiny else ("boundaries", 3)
    runs = [(seconds(only, 1), seconds(only, 2)) for _ in range(repeats)]
    one, two = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"{only}, quick: one worker {one:.1f} s, two {two:.1f} s, ratio {two / one:.2f}")
