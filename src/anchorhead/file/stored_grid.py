"""What a file states about a tensor grid, read without trust, and the check of its proof. Needs NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorhead.digits import above
from anchorhead.errors import FileError, VerificationError
from anchorhead.expression.graph import Expression
from anchorhead.file.container import ModelFile
from anchorhead.file.domain import domain_of
from anchorhead.file.entries import quoted
from anchorhead.file.stored import dtype_of, expression_of
from anchorhead.head.grid_head import MOST_AXES, GridHead
from anchorhead.proof.certificate import Certificate, sum_above
from anchorhead.proof.grid_proof import GridRefutation, prove_grid
from anchorhead.proof.grid_rounding import rounding_bound


@dataclass(frozen=True)
class GridClaim:
    """A grid's stored numbers, exactly; the formulas are None for a target that could not be looked into."""

    expression: Expression | None
    box: tuple[tuple[float, float], ...]
    head: GridHead
    dtype: str


def grid_claim(found: ModelFile) -> GridClaim:
    """The statement of a file that holds a grid."""
    record, box, dtype, outputs = found.record, domain_of(found.record), dtype_of(found), found.record.get("outputs")
    if len(box) > MOST_AXES or type(outputs) is not int or outputs < 1:
        raise FileError(f"The file says that its grid has {len(box)} axes and {quoted(outputs)} outputs.")
    names = ["values", *(f"axes.{i}.{n}" for i in range(len(box)) for n in ("slopes", "intercepts"))]
    found.require(dict.fromkeys(names, dtype))
    slopes, levels = (
        [np.array(found.numbers[f"axes.{i}.{n}"]) for i in range(len(box))] for n in ("slopes", "intercepts")
    )
    counts, values = [len(s) for s in slopes], np.array(found.numbers["values"])
    fits = counts == [len(c) for c in levels] and min(counts) > 0
    if not fits or len(values) != math.prod(counts) * outputs:
        raise FileError("The tensors of the grid do not fit each other in length.")
    head = GridHead(tuple(slopes), tuple(levels), values.reshape(*counts, outputs))
    expression = None if record.get("expressions") is None else expression_of(record)
    if expression is not None and (len(expression.variables), len(expression.outputs)) != (len(box), outputs):
        raise FileError("The formulas in the file do not have the variables and outputs of its grid.")
    return GridClaim(expression, box, head, dtype)


def shapes_of(record: dict[str, Any], inputs: int, outputs: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of one input and one output, which have that many numbers."""
    found = []
    for name, count in (("input_shape", inputs), ("output_shape", outputs)):
        shape = record.get(name)
        if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and n > 0 for n in shape):
            raise FileError(f"The {name} in the file is not a list of sizes.")
        if math.prod(shape) != count or (name == "input_shape" and not shape):
            raise FileError(f"The {name} in the file, {shape}, is not one of {count} numbers.")
        found.append(tuple(shape))
    return found[0], found[1]


def check_grid(found: ModelFile, certificate: Certificate) -> int:
    """The proof, once more from the formulas and the stored numbers; returns how many boxes it has."""
    claim = grid_claim(found)
    shapes_of(found.record, claim.head.axes, claim.head.outputs)
    if claim.expression is None:
        raise VerificationError("The file has no formulas, so that nothing can be proved of it.")
    rounding = rounding_bound(claim.head, claim.box, claim.dtype).bound
    if not rounding <= certificate.rounding:
        raise VerificationError(f"Rounding may reach {above(rounding, certificate.rounding)}.")
    proof = prove_grid(claim.expression, claim.box, claim.head, certificate.approximation)
    if isinstance(proof, GridRefutation):
        place = ", ".join(f"{v:.6g}" for v in proof.place)
        raise VerificationError(f"Near {place} the error may be {above(proof.error, certificate.approximation)}.")
    total = sum_above(proof.bound, rounding)
    if len(certificate.outputs) != claim.head.outputs or not total <= min(*certificate.outputs, certificate.bound):
        raise VerificationError("The certificate claims less for an output than what was proved.")
    return len(proof.boxes)
