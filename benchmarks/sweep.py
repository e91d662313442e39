"""Two workers against one on the same sweep, each in a folder of its own, workers' start included."""

import statistics
import tempfile
import time
from pathlib import Path

from anchorhead.lab.reproduce import reproduce

ONLY = ("boundaries",)


def seconds(workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        reproduce(Path(folder) / "results", quick=True, only=ONLY, workers=workers)
        return time.perf_counter() - start


def main() -> None:
    runs = [(seconds(1), seconds(2)) for _ in range(3)]
    one, two = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"{', '.join(ONLY)}, quick: one worker {one:.1f} s, two {two:.1f} s, ratio {two / one:.2f}")


if __name__ == "__main__":
    main()
