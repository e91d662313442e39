"""A loss's gradient, split into terms of one line each, and a head for every one of them.

Of labels that are one of two numbers a and b, any gradient g is such a sum, whatever y multiplies in it:
g(s, y) = g(s, a)(y - b)/(a - b) + g(s, b)(y - a)/(b - a), functions of s alone, and exactly so at both labels.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from flint import arb

from anchorhead.circuit.apply import U
from anchorhead.circuit.line import Line
from anchorhead.circuit.lower import lower
from anchorhead.compiler.compile import compile
from anchorhead.compiler.constant_values import carrying_model
from anchorhead.compiler.grid_route import Grid, values_of
from anchorhead.compiler.target import Target
from anchorhead.enclosure.balls import enclose, gradient_enclosure
from anchorhead.enclosure.exact import Number, as_ball, as_float, plus, simplified, times
from anchorhead.enclosure.precision import above, below, precision, upper
from anchorhead.enclosure.variation import steepest, value_range
from anchorhead.errors import AnchorheadError, InputError, ToleranceError
from anchorhead.expression import graph
from anchorhead.expression.graph import Expression, Node, ordered, substituted
from anchorhead.head.grid_fit import fit_grid, sampled_error
from anchorhead.head.grid_module import GridModule
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule
from anchorhead.in_context.bounds import Bounds
from anchorhead.in_context.heads import PAIRS, RELATIVE, Factor
from anchorhead.in_context.losses import VARIABLES, Loss
from anchorhead.in_context.terms import AROUND, Facts, Gradient, Law, Term
from anchorhead.model.grid_core import GridCore

MOST_GRID = 2048
"""Keys of a head over s and y: such heads are found and proved in seconds, larger ones in many minutes."""
TRIED, NEAR = 32, 1e-2
"""Keys of an axis in the quick fit by which a grid is judged to be of no use, and the share that it may miss."""
ALLOWED = (1, 1e8, 10, 100, 1e3, 1e4, 1e6)
"""Errors that are tried, in units of the least; the second is the largest, without which there is none."""
Part = tuple[Node, Line]
"""A function and the line that it looks at."""


class Sum(NamedTuple):
    """A gradient as a sum: of each part (p, q) with phi(u)·(p + q y), and what is affine in y alone."""

    carried: dict[Part, tuple[Number, Number]]
    constant: Number
    on_label: Number


def gradient_terms(loss: Loss, bounds: Bounds, off: float) -> Gradient:
    """The terms of a loss, each with a proved head on the declared bounds; see `Gradient` for off."""
    try:
        found = _summed(loss.expression) or _of_two_labels(loss)
        if found is None:
            return Gradient((_grid_term(loss, bounds, off),), off)
        terms = tuple(line_term(*part, carry, bounds, off) for part, carry in found.carried.items() if any(carry))
        constant, on_label = found.constant, found.on_label
        astray = _astray(constant), _astray(on_label)
        return Gradient(terms, off, as_float(constant), as_float(on_label), astray, PAIRS.get(loss.labels, ()))
    except (AnchorheadError, OverflowError) as error:
        said = "a number in it is too large for float64." if isinstance(error, OverflowError) else str(error)
        raise InputError(
            f"The gradient of the loss {loss.name}, {loss.gradient}, cannot be held for {bounds.described}, "
            f"|w·x| <= {bounds.s:g}: {said} Declare smaller bounds, for instance bounds={{'s': ...}}, the largest "
            "|w·x|."
        ) from error


def _summed(formula: Expression) -> Sum | None:
    """A formula in s and y as a sum of terms, if it is one."""
    circuit = lower(formula)
    output = circuit.outputs[0]
    carried: dict[Part, tuple[Number, Number]] = {}
    for step, wire in zip(circuit.steps, circuit.starts, strict=True):
        factors = step.factors()
        if factors is None or max([0, *factors[1].terms]) > 1 or set(factors[2].terms) - {1}:
            return None
        outside, function = _split(factors[0])
        partner = factors[2].scaled(times(output.terms.get(wire, 0), outside))
        _add(carried, (function, factors[1]), (partner.bias, partner.terms.get(1, 0)))
    rest = Line({w: c for w, c in output.terms.items() if w < 2}, output.bias)
    if 0 in rest.terms:
        _add(carried, (U, rest), (1, 0))
        rest = Line({}, 0)
    return Sum(carried, rest.bias, rest.terms.get(1, 0))


def _of_two_labels(loss: Loss) -> Sum | None:
    """The sum over both labels, where there are but two; see the top."""
    if loss.labels not in PAIRS:
        return None
    whole: dict[Part, tuple[Number, Number]] = {}
    constant: Number = 0
    on_label: Number = 0
    for label, other in itertools.permutations(map(Fraction, PAIRS[loss.labels])):
        own = -other / (label - other), 1 / (label - other)
        alone = substituted(loss.expression.outputs[0], {"y": graph.constant(label)})
        found = _summed(Expression((alone,), VARIABLES))
        if found is None:
            found = Sum({(substituted(alone, {"s": U}), Line({0: 1})): (1, 0)}, 0, 0)
        for part, (factor, _) in found.carried.items():
            _add(whole, part, (times(own[0], factor), times(own[1], factor)))
        constant, on_label = (
            plus(constant, times(own[0], found.constant)),
            plus(on_label, times(own[1], found.constant)),
        )
    return Sum(whole, constant, on_label)


def _add(carried: dict[Part, tuple[Number, Number]], part: Part, carry: tuple[Number, Number]) -> None:
    p, q = carried.get(part, (0, 0))
    carried[part] = plus(p, carry[0]), plus(q, carry[1])


def _astray(number: Number) -> float:
    """How far the stored float is from the number."""
    with precision():
        off = abs(as_ball(number) - arb(as_float(number)))
        return 0.0 if off == 0 else upper(off)


def _split(function: Node) -> tuple[Number, Node]:
    """A function as (c, f) with function = c·f: constants in closed form belong to the values, and heads are shared."""
    factor: Number = 1
    while function.op == "mul":
        left, right = function.args
        if not any(part.op == "variable" for part in ordered([left])):
            factor, function = times(factor, simplified(left)), right
        elif not any(part.op == "variable" for part in ordered([right])):
            factor, function = times(factor, simplified(right)), left
        else:
            break
    return factor, function


def line_term(function: Node, line: Line, carry: tuple[Number, Number], bounds: Bounds, off: float) -> Term:
    """The head for a function of u = a s + b y + c, where s is known up to `off`.

    What runs is the head at û = fl(â ŝ + b̂ y + ĉ), hats for what is stored or computed: ŝ and y are within their bounds
    and a billionth (`SLACK`), û within γ_3(|â ŝ| + |b̂ y| + |ĉ|) of the sum, in float64. So û - u is at most

        |â - a||ŝ| + |a| off + |b̂ - b||y| + |ĉ - c| + γ_3(|â ŝ| + |b̂ y| + |ĉ|)

    and phi moves by no more than that times its steepest slope on an interval that holds both.
    """
    exact = [line.terms.get(0, 0), line.terms.get(1, 0), line.bias]
    a, b, c = (as_float(number) for number in exact)
    s, y = bounds.s * AROUND, bounds.y * AROUND
    law = Law(function, line)
    with precision():
        spread = abs(arb(a)) * s + abs(arb(b)) * y
        rounded = 4 * arb(2.0**-53) * (spread + abs(arb(c))) + arb(2.0**-1000)
        low, high = below(arb(c) - spread - rounded), above(arb(c) + spread + rounded)
        apart = rounded + arb(_astray(exact[0])) * s + abs(as_ball(exact[0])) * off
        apart += arb(_astray(exact[1])) * y + arb(_astray(exact[2]))
        ends = law.interval(above(arb(s) + off), y)
        wide = min(low, ends[0]), max(high, ends[1])
        values, steep = value_range(function, *wide), 1.0 if function is U else steepest(function, *wide)
        if values is None or not math.isfinite(steep):
            raise InputError(f"{function} is not finite, or not of finite slope, for u in [{wide[0]:g}, {wide[1]:g}].")
        moved = upper(apart * arb(steep))
    numbers, error = _head(function, low, high)
    facts = Facts(error, moved, max(map(abs, values)), (_astray(carry[0]), _astray(carry[1])))
    stored = as_float(carry[0]), as_float(carry[1])
    return Term(numbers, (a, b, c), facts, stored, law, max(-low, high))


def _head(function: Node, low: float, high: float) -> tuple[HeadModule | GridModule, float]:
    """A head for the function on [low, high], and a bound on its error there, rounding included."""
    if function is U:
        factor = Factor(max(-low, high))
        return factor.head, factor.error
    tol = _on_the_line(function)
    declared = None if tol is not None else (low, high)
    if tol is None:
        tol = _carrying(function, low, high)
    numbers, exact, rounding, bounded = _carried(function, declared, tol)
    with precision():
        size = 1 + arb(max(-low, high))
        return HeadModule(numbers), exact if bounded else upper(arb(exact) + rounding * size)


@lru_cache(maxsize=500)
def _carried(function: Node, declared: tuple[float, float] | None, tol: float) -> tuple[Head, float, float, bool]:
    """The head's numbers, and what is proved of it: its bound, or on all of R its approximation and rounding."""
    model = carrying_model(Expression((function,), ("u",)), declared, tol, torch.float64)
    proof = model.certificate
    return model.head.numbers, proof.bound if proof.bounded else proof.approximation, proof.rounding, proof.bounded


@lru_cache(maxsize=500)
def _on_the_line(function: Node) -> float | None:
    """The tolerance of a head on all of R, for functions that settle on constants: one for all bounds, if any."""
    formula = Expression((function,), ("u",))
    ends = [Target(formula, -math.inf, math.inf).asymptote(sign) for sign in (-1, 1)]
    if any(end is None or end[0].gain != 0 for end in ends):
        return None
    for relative in (1, 10, 100, 1e3):
        try:
            carrying_model(formula, None, RELATIVE * relative, torch.float64)
            return RELATIVE * relative
        except ToleranceError:
            continue
        except AnchorheadError:
            return None
    return None


@lru_cache(maxsize=500)
def _carrying(function: Node, low: float, high: float) -> float:
    """The smallest tolerance that the search reaches on an interval, to a power of ten."""
    formula = Expression((function,), ("u",))
    values = value_range(function, low, high)
    if values is None or max(map(abs, values)) > 1e12:
        raise InputError(f"{function} is not finite, or larger than 1e12, for u in [{low:.4g}, {high:.4g}].")
    scale, found = max(map(abs, values)), list[float]()
    for relative in ALLOWED:
        try:
            carrying_model(formula, (low, high), RELATIVE * relative * scale, torch.float64)
            found.append(RELATIVE * relative * scale)
        except ToleranceError:
            pass
        except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
            if isinstance(error, AnchorheadError):
                raise
            raise InputError(f"No head was found for {function} on [{low:.4g}, {high:.4g}]: {error}.") from error
        if found and relative != ALLOWED[1]:
            break
        if not found and relative == ALLOWED[1]:
            raise InputError(
                f"no head with constant values was found for {function} on [{low:.4g}, {high:.4g}], not even to "
                f"{RELATIVE * relative:.0e} of its size."
            )
    return min(found)


def _grid_term(loss: Loss, bounds: Bounds, off: float) -> Term:
    """A function of s and y that is no sum of terms: one head over a tensor grid of keys."""
    reach, most = bounds.s * AROUND, bounds.y * AROUND
    box = {"s": (-reach, reach), "y": (-most, most)}
    node = loss.expression.outputs[0]
    with precision():
        s, y = arb(0, above(arb(reach) + off)), arb(0, most)
        size, slopes = upper(abs(enclose(node, {"s": s, "y": y}))), gradient_enclosure(node, {"s": s, "y": y})
        moved = upper(abs(slopes["s"]) * off)
    if not math.isfinite(size) or not math.isfinite(moved):
        raise InputError(f"{loss.gradient} is not finite, or not of finite slope, within the bounds.")
    missed = _missed(loss, tuple(box.values())) / max(size, 1e-6)
    sizes = [relative * max(size, 1e-6) for relative in (1e-3, 1e-10, 1e-8, 1e-6, 1e-4)]
    found = _grid(loss, box, sizes[0]) if missed <= NEAR else None
    if found is None:
        missing = f"a grid of {TRIED} x {TRIED} keys misses it by {missed:.1g} of its size"
        raise InputError(
            f"{loss.gradient} is no function of one combination of s and y. Where the labels are -1 and 1 alone, or 0 "
            "and 1, it need not be: say so by ah.in_context.Loss.of('log(1 + exp(-y*s))', labels='signs'), or "
            f"'zero_one'. With other labels it takes a grid over s and y, and is refused: "
            f"{missing if missed > NEAR else f'no grid of {MOST_GRID:,} keys is proved to be within {1e-3:g} of it'}."
        )
    finer = (_grid(loss, box, tol) for tol in sizes[1:])
    grid, bound = next((one for one in finer if one is not None), found)
    facts = Facts(bound, moved, size, (0.0, 0.0))
    return Term(grid, None, facts, (1.0, 0.0), Law(node, None), max(reach, most))


def _grid(loss: Loss, box: dict[str, tuple[float, float]], tol: float) -> tuple[GridModule, float] | None:
    """A grid of at most `MOST_GRID` keys that keeps the tolerance, if one is found, and what is proved of it."""
    try:
        model = compile(loss.gradient, box, tol=tol, method=Grid(MOST_GRID))
    except AnchorheadError:
        return None
    if not isinstance(model.network, GridCore) or model.certificate.level != "proved":
        return None
    return model.network.grid, model.certificate.bound


def _missed(loss: Loss, box: tuple[tuple[float, float], ...]) -> float:
    """By how much a quick fit over a grid errs, at samples."""
    f = values_of(loss.expression)
    return sampled_error(f, fit_grid(f, box, TRIED, goal=1e-4), box, 1 << 12)
