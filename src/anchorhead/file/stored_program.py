"""The program that a file holds, read without trust: its network, and the tokens, each of which must be one of it.

Which instruction does what follows from the network (`proof/instructions.py`); the tokens' numbers are those of the
file. How far they lie from the network's is for the proof to bound; that they write nothing else is seen here.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from anchorhead.circuit.apply import Apply
from anchorhead.circuit.pool import Pool
from anchorhead.circuit.program import from_program
from anchorhead.errors import AnchorheadError, FileError
from anchorhead.file.container import ModelFile
from anchorhead.file.entries import quoted
from anchorhead.file.stored import flag, number, stored_map, stored_network
from anchorhead.proof.instructions import Instructions, Layout, laid_out
from anchorhead.proof.interpretation import Interpreted, network_circuit
from anchorhead.proof.network_claim import NetworkClaim

MOST_TURNS = 100_000


def stored_program(found: ModelFile) -> Interpreted:
    """The program of a file; FileError where its parts contradict each other."""
    claim = stored_network(found, ("keys.0.", "values.0.")).claim
    turns, gap = found.record.get("turns"), number(found.record, "gap")
    if turns is not None and (type(turns) is not int or not 1 <= turns <= MOST_TURNS):
        raise FileError(f"The file's turns are {quoted(turns)}, which no program has.")
    if not (1 <= gap <= 2.0**40 and math.frexp(gap)[0] == 0.5):
        raise FileError(f"The gap of the program in the file is {gap:g}, and must be a power of two.")
    target = from_program(found.record.get("target"))
    if len(target.inputs) != len(claim.box) or (turns and len(target.outputs) + target.tokens != len(target.inputs)):
        raise FileError("The target of the program in the file has other inputs or outputs than the program.")
    try:
        meant = network_circuit(target, claim.box, turning=turns is not None)
    except AnchorheadError as error:
        raise FileError(f"The target of the program in the file has no network: {error}") from error
    if meant != claim.circuit:
        raise FileError("The network in the file is not one of its program's target.")
    _check_constant(claim)
    layout = laid_out(claim.circuit, claim.wiring, turning=turns is not None)
    watched = flag(found.record, "watched")
    return Interpreted(target, claim, layout, _tokens(found, claim, layout), gap, turns, watched)


def _check_constant(claim: NetworkClaim) -> None:
    """Every step is a mean, or a function of one line by a head of constant values, to which nothing is added."""
    parts = zip(claim.circuit.steps, claim.wiring.uses, claim.wiring.values, strict=True)
    for step, use, values in parts:
        if isinstance(step, Pool) and step.is_mean:
            continue
        fits = isinstance(step, Apply) and use.head >= 0 and claim.heads[use.head].constant_values
        if not fits or values[1:] != (0.0, 0.0) or claim.heads[use.head].relative:
            raise FileError(f"The step {step.label[:80]!r} of the network in the file is none that a program can have.")


def _tokens(found: ModelFile, claim: NetworkClaim, layout: Layout) -> Instructions:
    keys, values = (stored_map(found, prefix) for prefix in ("keys.0.", "values.0."))
    sizes = [claim.heads[claim.wiring.uses[planned.step].head].keys for planned in layout.planned]
    starts = tuple(itertools.accumulate(sizes, initial=0))
    for name, rows in (("keys", keys), ("values", values)):
        problem: Any = rows.problem(2 * layout.registers)
        if problem is None and len(rows.bias) != starts[-1]:
            problem = f"there are {len(rows.bias)}, and the network has {starts[-1]}"
        if problem is not None:
            raise FileError(f"The {name} of the program in the file are not those of its tokens: {problem}.")
    code, held = Instructions(starts, keys, values), range(2 * layout.registers)
    for i, planned in enumerate(layout.planned):
        for k in range(starts[i], starts[i + 1]):
            if values.bias[k] != 0 or not planned.writes.keys() >= values.row(k, held).terms.keys():
                raise FileError(f"Token {k} of the program in the file writes where its instruction does not.")
    return code
