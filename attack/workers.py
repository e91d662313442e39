"""A process that runs chains with bounded memory, watched from outside: a hang or a crash is a result too."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attack.kinds import chain
from attack.measuring import Result

MEMORY = 4 << 30
LONGEST = 120
"""Bytes that a worker may add to what it starts with, and seconds that a chain may take."""


def work(pipe: Any) -> None:
    """A worker: names of chains in, results out, and before each risky step a line that says which."""
    import torch

    torch.set_num_threads(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 1 << 20
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while (name := pipe.recv()) is not None:
        pipe.send(asdict(chain(name, pipe.send)))


class Worker:
    """A process, the chain it runs, since when, and its last word."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.chain, self.since, self.step = "", 0.0, ""

    def start(self, name: str) -> None:
        self.chain, self.since, self.step = name, time.monotonic(), ""
        self.pipe.send(name)

    def hear(self) -> dict[str, Any] | None:
        """The result, if there is one by now; of a process that died or hangs, that it did."""
        try:
            while self.pipe.poll():
                said = self.pipe.recv()
                if isinstance(said, dict):
                    return said
                self.step = said
        except (EOFError, OSError):
            return self.lost(f"the process died with {self.process.exitcode}")
        late = time.monotonic() - self.since > LONGEST
        return self.lost(f"took over {LONGEST} seconds") if late else None

    def lost(self, why: str) -> dict[str, Any]:
        self.process.kill()
        self.process.join()
        result = Result(self.chain, "slow", reason=why, seconds=round(time.monotonic() - self.since, 3))
        if self.step or "died" in why:
            result.violated(f"{why} at {self.step or 'compiling'}")
        return asdict(result)
