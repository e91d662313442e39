"""The kinds of chains, and one chain by its name: whatever it raises ends up in its result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path

import anchorhead as ah
from attack.algorithms import in_context, theorems
from attack.beside import distances, row_maps
from attack.compiling import compiled
from attack.judging import mutated_files
from attack.measuring import Result, TimeLimit
from attack.prompts import prompts

KINDS = {"heads": 6, "networks": 6, "modules": 3, "grids": 3, "in_context": 2, "prompts": 2, "theorems": 2,
         "row_maps": 2, "distances": 2, "files": 3}  # fmt: skip
"""The kinds, and how many of each come in a round."""
OWN: dict[str, Callable[[int, Result], object]] = {"in_context": in_context, "prompts": prompts, "theorems": theorems,
                                                   "row_maps": row_maps, "distances": distances}  # fmt: skip


def chain(name: str, report: Callable[[str], None] = lambda step: None) -> Result:
    """Runs the chain KIND:SEED; `report` hears of each step that might not come back."""
    kind, _, seed = name.partition(":")
    result, start = Result(name), time.process_time()
    try:
        if kind == "files":
            mutated_files(int(seed), result, report)
        elif kind in OWN:
            OWN[kind](int(seed), result)
        else:
            compiled(kind, int(seed), result)
    except ah.AnchorheadError as error:
        _ended(result, "refused", f"{type(error).__name__}: {error}"[:300])
    except TimeLimit:
        _ended(result, "slow", "took too long")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        result.violated(f"{type(error).__name__}: {error} at {Path(where.filename).name}:{where.lineno}")
    result.seconds = round(time.process_time() - start, 3)
    return result


def _ended(result: Result, status: str, reason: str) -> None:
    result.reason = reason.splitlines()[0]
    if result.status == "held":
        result.status = status
