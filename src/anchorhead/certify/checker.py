"""The independent checker: a file in, a verdict out. It needs python-flint and the file, neither compiler nor torch.

It parses the stored expression, takes the stored numbers as they are, and goes through the proof: the boxes must
cover the domain without a gap, every box must keep the claimed approximation (`approximation.py`), on unbounded
sides the asymptotes must take over where the boxes end (`far.py`), and rounding must be as claimed
(`rounding.py`). What the file says about itself is never trusted: a claim that does not follow from the numbers
is refused, whatever its digest.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

from anchorhead.certify.approximation import box_error
from anchorhead.certify.certificate import Certificate
from anchorhead.certify.far import Far, far
from anchorhead.certify.rounding import ASSUMPTIONS, Rounding, rounding_on
from anchorhead.certify.statement import Statement, precision
from anchorhead.errors import AnchorheadError, FileError, VerificationError
from anchorhead.expression.parse import parse
from anchorhead.expression.singular import singularities
from anchorhead.network.file import HORNER_DEPTH, NUMBERS, ModelFile, read

Progress = Callable[[int, int], None]
MOST_KEYS = 100_000


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Certificate:
    """Checks the proof in a saved model and returns its certificate.

    Raises `VerificationError` with the first claim that does not hold, or `FileError` if the file is damaged.
    progress: called with boxes done and boxes in all.
    """
    found = read(path)
    claim, certificate = claim_of(found), certificate_of(found)
    if certificate.level != "proved":
        raise VerificationError(f"{path} is {certificate.level}, not proved: there is no proof to check.")
    edges = found.numbers["edges"]
    low, high = _check_cover(claim, edges)
    _check_defined(claim)
    _check_boxes(claim, edges, certificate.approximation, progress)
    distant = _check_far(claim, low, high, certificate.approximation)
    _check_rounding(claim, edges, distant, certificate.rounding)
    if certificate.boxes != len(edges) - 1:
        raise VerificationError(
            f"The certificate counts {certificate.boxes} boxes, and the proof has {len(edges) - 1}."
        )
    if not set(ASSUMPTIONS) <= set(certificate.assumptions):
        raise VerificationError("The certificate leaves out an assumption that its rounding bound rests on.")
    return certificate


def claim_of(found: ModelFile) -> Statement:
    """The statement that a file makes about its own numbers."""
    record = found.record
    try:
        expression = parse(_text(record, "expression"))
    except AnchorheadError as error:
        raise VerificationError(f"The stored expression cannot be read: {error}") from error
    variable = _text(record, "variable")
    if len(expression.outputs) != 1 or not set(expression.variables) <= {variable}:
        raise VerificationError(f"The stored expression {expression} is not a function of {variable} alone.")
    dtype = _text(record, "dtype")
    numbers = {name: found.numbers[name] for name in NUMBERS}
    if dtype not in ("float64", "float32") or {found.dtypes[name] for name in NUMBERS} != {dtype}:
        raise VerificationError(f"The record says {dtype!r}, and the tensors are stored otherwise.")
    sizes = record.get("sizes")
    keys = len(numbers["slopes"])
    if not (isinstance(sizes, list) and sizes and all(type(s) is int and s > 0 for s in sizes) and sum(sizes) == keys):
        raise VerificationError(f"The sizes of the pieces, {sizes!r}, do not add up to the {keys} keys.")
    lengths = [len(numbers[name]) for name in NUMBERS]
    if lengths != [keys] * 4 + [len(sizes)] * 2 or keys > MOST_KEYS:
        raise VerificationError("The tensors of the head do not fit each other in length.")
    if len(sizes) == 1 and (numbers["gate_slopes"], numbers["gate_levels"]) != ((0.0,), (0.0,)):
        raise VerificationError("A head of one piece has no gate, and this one's gate is not zero.")
    uniform = record.get("uniform")
    if type(uniform) is not bool or (uniform and not _evenly_spaced(numbers["slopes"], sizes)):
        raise VerificationError("The head says that its slopes are evenly spaced, and they are not.")
    levels = numbers["intercepts"]
    if uniform and max(levels) - min(levels[0], levels[-1]) >= HORNER_DEPTH[dtype]:
        raise VerificationError("The head says that it is evaluated by Horner's rule, and its coefficients overflow.")
    low, high = _domain(record)
    return Statement(expression.outputs[0], variable, low, high, dtype, uniform=uniform and keys > 1,
                     sizes=tuple(sizes), **numbers)  # fmt: skip


def certificate_of(found: ModelFile) -> Certificate:
    """The certificate as stored."""
    record = found.record
    stored = record.get("certificate")
    if not isinstance(stored, dict):
        raise FileError("The file has no certificate.")
    try:
        certificate = Certificate(
            expression=_text(record, "expression"),
            domain=(_domain(record),),
            dtype=_text(record, "dtype"),
            level=_text(stored, "level"),
            approximation=_number(stored, "approximation"),
            rounding=_number(stored, "rounding"),
            boxes=int(stored["boxes"]),
            assumptions=tuple(str(a) for a in stored["assumptions"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"The certificate in the file is incomplete: {error}.") from error
    for name in ("expression", "dtype", "domain"):
        said = stored.get(name) if name != "domain" else (stored.get("domain") or [None])[0]
        if said != record.get(name):
            raise VerificationError(f"The certificate's {name} is {said!r}, and the file's {record.get(name)!r}.")
    if stored.get("bound") != certificate.bound:
        raise VerificationError(
            f"The certificate claims a bound of {stored.get('bound')!r}, and its approximation and rounding make "
            f"{certificate.bound!r}."
        )
    return certificate


def _check_cover(claim: Statement, edges: tuple[float, ...]) -> tuple[float, float]:
    """The boxes run from end to end of the domain, or on unbounded sides out to where the asymptotes begin."""
    if len(edges) < 2 or any(not a < b for a, b in itertools.pairwise(edges)):
        raise VerificationError("The boxes of the proof are not in order.")
    low, high = edges[0], edges[-1]
    for name, edge, end, sign in (("lower", low, claim.low, -1), ("upper", high, claim.high, 1)):
        if math.isfinite(end) and edge != end:
            raise VerificationError(f"The boxes end at {edge:g}, and the {name} end of the domain is {end:g}.")
        if math.isinf(end) and sign * edge < 1:
            raise VerificationError(f"The boxes end at {edge:g}, too near for asymptotes to take over.")
    return low, high


def _check_defined(claim: Statement) -> None:
    """The target is defined on the whole domain: balls speak only of points where it is."""
    try:
        singularities(claim.target, claim.variable, claim.low, claim.high)
    except AnchorheadError as error:
        raise VerificationError(f"The stored expression is not defined on the whole domain: {error}") from error


def _check_boxes(claim: Statement, edges: tuple[float, ...], bound: float, progress: Progress | None) -> None:
    with precision():
        for i, (a, b) in enumerate(itertools.pairwise(edges)):
            error = box_error(claim, a, b)
            if not error <= bound:
                raise VerificationError(
                    f"On the box [{a:.17g}, {b:.17g}] the error may be {error:.3g}, above the claimed {bound:.3g}."
                )
            if progress is not None:
                progress(i + 1, len(edges) - 1)


def _check_far(claim: Statement, low: float, high: float, bound: float) -> list[tuple[int, float, Far]]:
    found = []
    for sign, end, start in ((-1, claim.low, -low), (1, claim.high, high)):
        if math.isinf(end):
            distant = far(claim, sign, start)
            if not distant.error <= bound:
                side = "right" if sign > 0 else "left"
                raise VerificationError(
                    f"Far out on the {side}, beyond {start:g}, the error may be {distant.error:.3g}, above the claimed "
                    f"{bound:.3g}."
                )
            found.append((sign, start, distant))
    return found


def _check_rounding(
    claim: Statement, edges: tuple[float, ...], distant: list[tuple[int, float, Far]], bound: float
) -> None:
    with precision():
        rounding = rounding_on(claim, edges, relative=bool(distant))
        for sign, start, found in distant:
            rounding = max(rounding, Rounding(claim).beyond(sign, start) + found.drift)
    if not rounding <= bound:
        raise VerificationError(f"Rounding in {claim.dtype} may reach {rounding:.3g}, above the claimed {bound:.3g}.")


def _evenly_spaced(slopes: tuple[float, ...], sizes: list[int]) -> bool:
    steps = {b - a for a, b in itertools.pairwise(slopes)}
    return len(sizes) == 1 and len(steps) <= 1 and all(step > 0 for step in steps)


def _domain(record: dict[str, Any]) -> tuple[float, float]:
    ends = record.get("domain")
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(e, int | float | str) for e in ends):
        raise FileError(f"The domain {ends!r} in the file is not a pair of numbers.")
    try:
        low, high = float(ends[0]), float(ends[1])
    except ValueError:
        raise FileError(f"The domain {ends!r} in the file is not a pair of numbers.") from None
    if not low < high:
        raise FileError(f"The domain {ends!r} in the file is empty.")
    return low, high


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise FileError(f"The record in the file lacks {name!r}.")
    return value


def _number(record: dict[str, Any], name: str) -> float:
    value = record[name]
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return float(value)
