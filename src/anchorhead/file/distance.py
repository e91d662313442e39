"""A distance with its proof: what a user holds, writes to a file, and has checked.

The file holds both functions as they were given (formulas, the numbers of heads, tables, polynomials), and the boxes.
The checker reads them without trust, proves the upper end on every box and beyond the last ones, the lower end at the
place that is named, and what rounding adds. docs/format.md describes the file.
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass, field
from typing import Any

from anchorhead.digits import Down, Up, above, counted, exactly, interval
from anchorhead.dtypes import NAMES
from anchorhead.enclosure.precision import PRECISION, precision
from anchorhead.errors import AnchorheadError, FileError, InputError, VerificationError
from anchorhead.expression.graph import Expression
from anchorhead.expression.parse import parse
from anchorhead.file.container import ModelFile, printable
from anchorhead.file.entries import count, flag, listed, number, one_of, real
from anchorhead.file.stored import domain_of, stored_head
from anchorhead.head.head import NUMBERS
from anchorhead.proof.box_distance import Box, BoxDifference, leaves
from anchorhead.proof.certificate import end_text, sum_above
from anchorhead.proof.curve import Curve, Formula, HeadCurve
from anchorhead.proof.difference import Difference
from anchorhead.proof.distance import MOST_BITS, rounding_of, seen_at
from anchorhead.proof.piecewise import Piecewise, Table
from anchorhead.proof.rounding import ASSUMPTIONS

MOST_BOXES = 1 << 18


@dataclass(frozen=True)
class Distance:
    """The largest |f - g| on a domain, or the largest |f - g|/|g| if relative, lies in [lower, upper]; see `distance`.

    at: where it is at least `lower`: a number, or one for each variable; infinite where that is a limit.
    rounding: what the two ends owe to rounding, and to the certificates of models that are more than one head; on an
        unbounded domain what rounding may add over 1 + |x|, which the ends then leave out.
    boxes: of the proof. assumptions: what it rests on. level: `proved`, or `conditional` where it rests on the
        certificate of a model, which its file does not hold. missed: where the two ends are further apart than was
        asked, by more than rounding, after how much work; a file does not hold it.
    """

    f: str
    g: str
    domain: Box
    lower: float
    upper: float
    at: float | tuple[float, ...]
    relative: bool = False
    rounding: float = 0.0
    boxes: int = 0
    variables: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    level: str = "proved"
    missed: str = field(default="", compare=False)
    payload: tuple[dict[str, Any], dict[str, Any]] = field(default=({}, {}), repr=False, compare=False)

    @property
    def bound(self) -> float:
        """The upper end."""
        return self.upper

    @property
    def bounded(self) -> bool:
        """Whether the domain is bounded."""
        return all(math.isfinite(end) for pair in self.domain for end in pair)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite numbers become strings."""
        at = [end_text(v) for v in self.at] if isinstance(self.at, tuple) else end_text(self.at)
        names = ("level", "f", "g", "relative", "lower", "upper", "rounding", "boxes")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        values["domain"] = [[end_text(end) for end in pair] for pair in self.domain]
        return values | {"at": at, "variables": list(self.variables), "assumptions": list(self.assumptions)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the distance with its proof to a file, which `ah.verify` checks."""
        from anchorhead.file.save import write

        record, arrays = self.payload
        if not record:
            raise InputError("A distance that was read from a file has its proof there; copy that file.")
        write(record | {"claim": self.as_dict()}, arrays, path)

    def __str__(self) -> str:
        what = f"|({self.f}) - ({self.g})|" + (f" / |{self.g}|" if self.relative else "")
        places = self.at if isinstance(self.at, tuple) else (self.at,)
        place = ", ".join(f"{name} = {exactly(value)}" for name, value in zip(self.variables, places, strict=True))
        shown = [interval(pair) for pair in self.domain]
        where = " x ".join(shown) + (f" for ({', '.join(self.variables)})" if len(shown) > 1 else "")
        scale = "" if self.bounded else " (1 + |x|)"
        extra = f", rounding {Up(self.rounding):.2e}{scale}" if self.rounding else ""
        return (
            f"{self.level}: the largest {what} on {where} lies in [{Down(self.lower):.6g}, "
            f"{Up(self.upper):.6g}], at {place} ({counted(self.boxes, 'box')}{extra})"
            + (f"; {self.missed}" if self.missed else "")
        )


def widened(lower: float, upper: float, added: float) -> tuple[float, float]:
    """The ends of an enclosure, further apart by what is added to each."""
    return (max(0.0, math.nextafter(lower - added, -math.inf)) if added else lower), sum_above(upper, added)


def total_rounding(difference: Difference, edges: Any, low: float, high: float) -> float:
    """What rounding of both adds, on the boxes; over 1 + |x| on an unbounded domain."""
    f, g = difference.f, difference.g
    if difference.relative and isinstance(g, HeadCurve):
        raise InputError("A relative distance is one from a formula or a table, and the second is a model; swap them.")
    parts = (rounding_of(one, other, edges, low, high, difference.relative) for one, other in ((f, g), (g, f)))
    return sum_above(*parts)


def variable_of(f: Curve, g: Curve) -> tuple[str, ...]:
    """The name of the variable of two curves."""
    return next(((c.variable,) for c in (f, g) if isinstance(c, Formula)), ("x",))


def assumed(*curves: Curve) -> tuple[str, ...]:
    """What is assumed of the arithmetic in which heads run."""
    return tuple(ASSUMPTIONS) if any(isinstance(curve, HeadCurve) for curve in curves) else ()


def check_distance(found: ModelFile) -> Distance:
    """Everything that a file says of a distance, checked."""
    claim: Any = found.record.get("claim")
    curves = listed(found.record, "curves")
    if not isinstance(claim, dict) or len(curves) != 2 or not all(isinstance(curve, dict) for curve in curves):
        raise FileError("The file does not hold two functions and what is claimed of their distance.")
    lower, upper = number(claim, "lower"), number(claim, "upper")
    if not lower <= upper:
        raise VerificationError(f"The file claims a distance from {lower:.6g} to {upper:.6g}, which is empty.")
    apart = number(found.record, "apart")
    checked = (_check_box if all(c.get("kind") == "formulas" for c in curves) else _check_curves)(found, claim, apart)
    rests = checked.assumptions
    if apart:
        said = listed(claim, "assumptions")
        if not all(printable(text, 1000) for text in said):
            raise FileError("The assumptions in the file are not a list of sentences.")
        rests = tuple(dict.fromkeys((*rests, *said)))
    return Distance(**{**vars(checked), "assumptions": rests, "level": "conditional" if apart else "proved"})


def _check_curves(found: ModelFile, claim: dict[str, Any], apart: float) -> Distance:
    stored = found.record["curves"]
    names = {f"curves.{i}.{name}": dtype for i, part in enumerate(stored) for name, dtype in _tensors(part).items()}
    found.require(names | {"edges": "float64"})
    f, g = (_curve(found, f"curves.{i}.", part) for i, part in enumerate(stored))
    difference, edges = Difference(f, g, flag(claim, "relative")), found.numbers["edges"]
    (low, high), *more = domain_of({"domain": claim.get("domain")})
    if more or not 2 <= len(edges) <= MOST_BOXES or any(not a < b for a, b in itertools.pairwise(edges)):
        raise VerificationError("The boxes of the proof are not in order, or the domain is not one interval.")
    for curve in (f, g):
        if not isinstance(curve, HeadCurve) and not curve.low <= low < high <= curve.high:
            raise VerificationError(f"The domain goes beyond that of {curve.name}.")
        try:
            curve.check(low, high)
        except AnchorheadError as error:
            raise VerificationError(f"A stored formula is not defined on the whole domain: {error}") from error
    at = _place(claim.get("at"))
    with precision(_bits(found, len(edges))):
        exact, limits = _check_ends(difference, edges, low, high)
        boxes = list(itertools.pairwise(edges))
        exact = max(exact, *(difference.on_box(a, b) for a, b in boxes))
        for end in (low, high):
            exact = max(exact, difference.at_end(end)[1] if math.isfinite(end) else 0.0)
        seen = limits[int(math.copysign(1, at))] if math.isinf(at) else seen_at(difference, boxes, at, low, high)
    rounding = total_rounding(difference, edges, low, high)
    added = sum_above(apart, rounding if math.isfinite(low) and math.isfinite(high) else 0.0)
    ends = _require(claim, seen, exact, added)
    return Distance(f.name, g.name, ((low, high),), *ends, at, difference.relative, sum_above(apart, rounding),
                    len(edges) - 1, variable_of(f, g), assumed(f, g))  # fmt: skip


def _bits(found: ModelFile, edges: int) -> int:
    """In how many bits the boxes are checked: more than usual where the functions cancel, of fewer boxes."""
    bits = count(found.record, "bits", MOST_BITS) if "bits" in found.record else PRECISION
    if edges * bits > MOST_BOXES * PRECISION:
        raise FileError(f"The file has {edges:,} ends of boxes for {bits} bits, more than are checked.")
    return max(bits, PRECISION)


def _check_ends(difference: Difference, edges: Any, low: float, high: float) -> tuple[float, dict[int, float]]:
    """The boxes end where the domain does, or where tails take over: what those add, and their limits."""
    worst, limits = 0.0, {-1: 0.0, 1: 0.0}
    for sign, end, edge in ((-1, low, edges[0]), (1, high, edges[-1])):
        if math.isfinite(end):
            if edge != end:
                raise VerificationError(f"The boxes end at {edge:g}, and the domain at {end:g}.")
            continue
        known = difference.beyond(sign, sign * edge) if sign * edge >= 1 else None
        if known is None:
            raise VerificationError(f"Beyond {edge:g} nothing is known of the difference, and the domain goes on.")
        worst, limits[sign] = max(worst, known.error), known.limit
    return worst, limits


def _check_box(found: ModelFile, claim: dict[str, Any], apart: float) -> Distance:
    names = listed(found.record, "variables")
    nodes = [_expression(part, names) for part in found.record["curves"]]
    found.require({"cuts": "int32"})
    box, relative, cuts = domain_of({"domain": claim.get("domain")}), flag(claim, "relative"), found.integers("cuts")
    at = tuple(_place(v) for v in listed(claim, "at"))
    inside = len(at) == len(box) and all(a <= v <= b for v, (a, b) in zip(at, box, strict=True))
    if len(box) != len(names) or not inside or not all(map(math.isfinite, itertools.chain(*box))):
        raise VerificationError("The box or the place in the file is not one of its variables.")
    if not 1 <= len(cuts) <= MOST_BOXES:
        raise FileError("The file holds no boxes, or more than can be checked.")
    f, g = (node.outputs[0] for node in nodes)
    difference = BoxDifference(f, g, tuple(names), relative)
    with precision():
        try:
            bounds = [difference.on_box(leaf)[0] for leaf in leaves(box, cuts)]
        except ValueError as problem:
            raise VerificationError(f"The boxes in the file are not those of a proof: {problem}.") from None
        ends = _require(claim, difference.at(at), max(bounds), apart)
    return Distance(str(nodes[0]), str(nodes[1]), box, *ends, at, relative, apart, len(bounds), tuple(names))


def _require(claim: dict[str, Any], seen: float, exact: float, added: float) -> tuple[float, float]:
    """The ends that are claimed, once what was checked implies them."""
    lower, upper = widened(seen, exact, added)
    if not upper <= claim["upper"]:
        raise VerificationError(f"The difference may be {above(upper, claim['upper'])}.")
    if not lower >= claim["lower"]:
        raise VerificationError(f"At the place in the file it is {lower:.6g}, below the claimed {claim['lower']:.6g}.")
    return float(claim["lower"]), float(claim["upper"])


def _place(value: Any) -> float:
    infinite = {"inf": math.inf, "-inf": -math.inf}
    known = isinstance(value, str) and value in infinite
    return infinite[value] if known else real(value, "The place in the file", negative=True)


def _expression(part: dict[str, Any], names: list[Any]) -> Expression:
    text = part.get("formula")
    if not isinstance(text, str) or not all(isinstance(name, str) for name in names):
        raise FileError("The file lacks a formula, or its variables.")
    try:
        return parse(text, names)
    except AnchorheadError as error:
        raise FileError(f"The formula in the file cannot be read: {error}") from error


def _tensors(part: dict[str, Any]) -> dict[str, str]:
    """The tensors of a function, and their dtypes."""
    kinds = {"formula": (), "head": NUMBERS, "table": ("values",), "piecewise": ("breaks", "coefficients")}
    kind = one_of(part, "kind", list(kinds))
    return dict.fromkeys(kinds[kind], one_of(part, "dtype", NAMES) if kind == "head" else "float64")


def _curve(found: ModelFile, prefix: str, part: dict[str, Any]) -> Curve:
    kind = part["kind"]
    if kind == "formula":
        expression = _expression(part, [part.get("variable")])
        return Formula(expression.outputs[0], expression.variables[0])
    if kind == "head":
        return HeadCurve(stored_head(found, prefix, part, part["dtype"]))
    try:
        if kind == "table":
            low, high = (number(part, name, negative=True) for name in ("low", "high"))
            return Table(low, high, found.numbers[prefix + "values"], str(part.get("interpolation")))
        return _piecewise(found, prefix, part)
    except InputError as error:
        raise FileError(f"A table or polynomial in the file is none: {error}") from error


def _piecewise(found: ModelFile, prefix: str, part: dict[str, Any]) -> Piecewise:
    lengths, sides = listed(part, "lengths"), listed(part, "infinite")
    numbers = found.numbers[prefix + "coefficients"]
    fits = all(type(n) is int and n > 0 for n in lengths) and sum(lengths) == len(numbers) and len(sides) == 2
    if not fits or not all(side in (None, "inf", "-inf") for side in sides):
        raise FileError("The pieces in the file do not fit their coefficients.")
    first, last = ([float(side)] if side else [] for side in sides)
    breaks = [*first, *found.numbers[prefix + "breaks"], *last]
    starts = list(itertools.accumulate(lengths, initial=0))
    rows = [numbers[a:b] for a, b in itertools.pairwise(starts)]
    return Piecewise(breaks, rows, local=flag(part, "local"))
