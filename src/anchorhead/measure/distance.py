"""`ah.distance`: how far two functions are apart on a domain, between any samples too.

Each may be a formula, a Python function or module of one number, a compiled model, a head, or what someone else made:
`Piecewise`, `Table`, or a file of either. Functions of one variable are curves (`proof/curve.py`); of a model with one
head the head itself is looked at, and its rounding is added. Any other model is its target, within its certificate:
the ends of the enclosure are moved apart by that bound. Formulas in several variables are enclosed on boxes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anchorhead.compiler.target import expression_of, read_interval
from anchorhead.digits import Up
from anchorhead.enclosure.precision import PRECISION
from anchorhead.errors import InputError, ShapeError, VerificationError
from anchorhead.expression.domain import read_box, real, shown
from anchorhead.expression.graph import Expression, Node, variables_of
from anchorhead.expression.parse import parse
from anchorhead.file.distance import Distance, assumed, total_rounding, variable_of, widened
from anchorhead.head.head import Head
from anchorhead.measure.table_file import read_table
from anchorhead.progress import LOG, Progress, telling
from anchorhead.proof.box_distance import LEAF, BoxDifference, enclose_box_distance
from anchorhead.proof.certificate import sum_above
from anchorhead.proof.curve import Curve, Formula, HeadCurve
from anchorhead.proof.difference import Difference
from anchorhead.proof.distance import enclose_finely

if TYPE_CHECKING:
    from anchorhead.model.compiled import CompiledModel


class Given(NamedTuple):
    """What was given: a curve, or a formula in several variables, on a domain of its own if it has one.

    apart: how far the thing itself may be from it, by its certificate, which `rests` names.
    """

    what: Curve | Expression
    domain: tuple[tuple[float, float], ...] | None = None
    apart: float = 0.0
    rests: str = ""


def distance(
    f: Any,
    g: Any,
    domain: Any = None,
    relative: bool = False,
    *,
    tol: float = 1e-3,
    progress: bool | Progress = True,
) -> Distance:
    """A proved enclosure of the largest |f - g| on a domain, and where it is attained.

    f, g: a formula as text, a Python function or module of one number, a compiled model, `ah.Piecewise`, `ah.Table`, or
    the `Path` of a saved model or of a table as CSV or JSON. domain: as for `ah.compile`; None is where both are
    defined, for two formulas the whole line. relative: the largest |f - g|/|g| instead. tol: how near the two ends
    shall be, as a part of the distance; where so many boxes do not suffice, they are further apart. progress: as for
    `ah.compile`.

    >>> found = ah.distance("gelu_tanh(x)", "gelu(x)")
    >>> print(f"{found.lower:.3g} {found.upper:.3g}")
    0.000473 0.000474
    """
    if type(relative) is not bool:
        raise InputError(f"relative={shown(relative)} must be True or False.")
    if not 1e-9 <= real(tol) <= 1:
        raise InputError(f"tol={shown(tol)} is the width of the enclosure as a part of the distance; give 1e-9 to 1.")
    tol = real(tol)
    first, second = _given(f), _given(g)
    apart = sum_above(first.apart, second.apart)
    if apart and relative:
        raise InputError("A relative distance of a model of more than one head is not known; leave relative out.")
    rests = tuple(given.rests for given in (first, second) if given.rests)
    named = {n for given in (first, second) if isinstance(given.what, Formula) for n in variables_of([given.what.node])}
    one = isinstance(first.what, Curve) and isinstance(second.what, Curve) and len(named) <= 1
    of = _of_curves if one else _of_boxes
    with telling("measuring a distance", progress) as tell:
        found = of(first, second, domain, relative, tol, apart, rests, tell)
    LOG.info("%s", found)
    return found


def _given(target: Any) -> Given:
    if isinstance(target, Curve):
        return Given(target)
    if isinstance(target, Head):
        return Given(HeadCurve(target))
    if isinstance(target, Path):
        return _given(read_table(target))
    if not isinstance(target, str | Expression):
        from anchorhead.model.compiled import CompiledModel  # which brings torch; formulas do without
        from anchorhead.model.network import Network

        if isinstance(target, CompiledModel):
            return _model(target)
        if isinstance(target, Network):
            raise InputError(
                "A distance is that of functions of numbers, and this is a network on sequences. Give a head of a "
                "theorem's network, network.scalar_heads()[0], which is a function of the number that it looks at."
            )
    expression = expression_of(target)
    if len(expression.outputs) != 1:
        raise ShapeError(f"A distance is that of one output, and {shown(target)} has {len(expression.outputs)}.")
    return Given(_formula(expression))


def _formula(expression: Expression, name: str = "") -> Curve | Expression:
    if len(expression.variables) > 1:
        return expression
    return Formula(expression.outputs[0], (*expression.variables, "x")[0], name)


def _model(model: CompiledModel) -> Given:
    """One head as it is now; of other models the target, and the certificate's bound."""
    from anchorhead.model.head_core import HeadCore

    claimed = model.certificate
    if isinstance(model.network, HeadCore):
        return Given(HeadCurve(model.network.head.numbers, f"the model of {claimed.expression}"), claimed.domain)
    if claimed.level != "proved":
        raise VerificationError(f"The model of {claimed.expression} is {claimed.level}, and a distance needs a proof.")
    if claimed.circuit or not claimed.variables or len(claimed.outputs) > 1:
        raise InputError(
            f"The distance of {claimed.expression} cannot be had: of models of more than one head only those of one "
            "formula with one output have one. Its own certificate says how far it is from its target."
        )
    said = f"the certificate of the model of {claimed.expression} holds: at most {Up(claimed.bound):.6g} from it"
    what = _formula(parse(claimed.expression, claimed.variables), f"the model of {claimed.expression}")
    return Given(what, claimed.domain, claimed.bound, said)


def _of_curves(first: Given, second: Given, domain: Any, relative: bool, tol: float, apart: float,
               rests: tuple[str, ...], progress: Progress) -> Distance:  # fmt: skip
    f, g = (given.what for given in (first, second))
    if not (isinstance(f, Curve) and isinstance(g, Curve)):
        raise InputError("Two functions of one variable are needed.")
    low, high = _interval(first, second, f, g, domain)
    for curve in (f, g):
        curve.check(low, high)
    difference = Difference(f, g, relative)
    found = enclose_finely(difference, low, high, tol, progress)
    rounding = total_rounding(difference, found.edges, low, high)
    added = sum_above(apart, rounding if math.isfinite(low) and math.isfinite(high) else 0.0)
    stored = [curve.payload() for curve in (f, g)]
    record = {"kind": "distance", "apart": apart, "curves": [described for described, _ in stored],
              **({"bits": found.bits} if found.bits > PRECISION else {})}  # fmt: skip
    arrays = {f"curves.{i}.{name}": array for i, (_, numbers) in enumerate(stored) for name, array in numbers.items()}
    arrays["edges"] = np.array(found.edges)
    return Distance(f.name, g.name, ((low, high),), *widened(found.lower, found.upper, added), found.at, relative,
                    sum_above(apart, rounding), len(found.edges) - 1, variable_of(f, g), (*assumed(f, g), *rests),
                    "conditional" if apart else "proved",
                    missed=_missed(found.lower, found.upper, tol, len(found.edges) - 1, found.bits),
                    payload=(record, arrays))  # fmt: skip


def _interval(first: Given, second: Given, f: Curve, g: Curve, domain: Any) -> tuple[float, float]:
    """The domain that was given, once both are defined there; or all of where they are."""
    own = [given.domain[0] if given.domain else (c.low, c.high) for given, c in ((first, f), (second, g))]
    low, high = max(a for a, _ in own), min(b for _, b in own)
    if domain is None:
        if not low < high:
            raise InputError(f"{f.name} and {g.name} are defined on intervals that do not meet; give others.")
        return low, high
    names = [n for curve in (f, g) for n in _names(curve)]
    asked = next(iter(domain), "") if isinstance(domain, Mapping) else ""
    ends = read_interval(domain, asked if asked in names else names[0])
    for curve, given in ((f, first), (g, second)):
        limits = given.domain[0] if given.apart and given.domain else (curve.low, curve.high)
        if not limits[0] <= ends[0] < ends[1] <= limits[1]:
            raise InputError(
                f"The domain [{ends[0]:g}, {ends[1]:g}] goes beyond [{limits[0]:g}, {limits[1]:g}], where {curve.name} "
                "is known; give a smaller one."
            )
    return ends


def _of_boxes(first: Given, second: Given, domain: Any, relative: bool, tol: float, apart: float,
              rests: tuple[str, ...], progress: Progress) -> Distance:  # fmt: skip
    names = tuple(dict.fromkeys(n for given in (first, second) for n in _names(given.what)))
    f, g = (_node(given.what) for given in (first, second))
    box = _box(first, second, names, domain)
    found = enclose_box_distance(BoxDifference(f, g, names, relative), box, tol, progress)
    texts = [str(Expression((node,), names)) for node in (f, g)]
    said = [f"the model of {text}" if given.apart else text for text, given in zip(texts, (first, second), strict=True)]
    record = {"kind": "distance", "apart": apart, "variables": list(names),
              "curves": [{"kind": "formulas", "formula": text} for text in texts]}  # fmt: skip
    arrays = {"cuts": np.array(found.cuts, np.int32)}
    return Distance(said[0], said[1], box, *widened(found.lower, found.upper, apart), found.at, relative, apart,
                    found.cuts.count(LEAF), names, rests, "conditional" if apart else "proved",
                    missed=_missed(found.lower, found.upper, tol, found.cuts.count(LEAF), PRECISION),
                    payload=(record, arrays))  # fmt: skip


def _box(first: Given, second: Given, names: tuple[str, ...], domain: Any) -> tuple[tuple[float, float], ...]:
    """The domain that was given, once every model is proved there; or where they all are, variable by variable."""
    own = [dict(zip(_names(given.what), given.domain, strict=True)) for given in (first, second) if given.domain]
    known = {n: (max(o[n][0] for o in own if n in o), min(o[n][1] for o in own if n in o))
             for n in names if any(n in o for o in own)}  # fmt: skip
    box = tuple(known[n] for n in names) if domain is None and len(known) == len(names) else read_box(domain, names)
    for name, (low, high) in zip(names, box, strict=True):
        least, most = known.get(name, (-math.inf, math.inf))
        if not least < most:
            raise InputError(f"The models are proved on intervals of {name} that do not meet; compile one anew.")
        if not least <= low <= high <= most:
            raise InputError(
                f"The domain [{low:g}, {high:g}] of {name} goes beyond [{least:g}, {most:g}], where the model is "
                "proved; give a smaller one."
            )
    return box


def _missed(lower: float, upper: float, tol: float, boxes: int, bits: int) -> str:
    """What is to be said of ends that are further apart than was asked."""
    if upper <= max(lower * (1 + tol), math.ulp(0.0)):
        return ""
    return f"further apart than tol={tol:g} asks, after {boxes:,} boxes in {bits} bits"


def _names(what: Curve | Expression) -> tuple[str, ...]:
    return what.variables if isinstance(what, Expression) else (what.variable,) if isinstance(what, Formula) else ("x",)


def _node(what: Curve | Expression) -> Node:
    if isinstance(what, Expression):
        return what.outputs[0]
    if isinstance(what, Formula):
        return what.node
    raise InputError(f"{what.name} is a function of one variable, and the other has several; both must be formulas.")
