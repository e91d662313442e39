"""Taylor series of a target in several variables along a direction, in ball arithmetic.

With x_i = b_i + d_i t for every variable, the outputs are functions of t alone; `directional_jet` gives coefficients
c_0, c_1, .. that enclose those of t -> f(b + t d) for every b in the balls of the base and every d in those of the
direction. At a point b the j-th is the homogeneous part of degree j of f's Taylor polynomial, evaluated at d. Over
a box with radii r it bounds Taylor's remainder: with b ranging over the box and d over the balls [-r_i, r_i],

    f(c + δ) - (the parts of degree below j at c, at δ)   lies in   [-1, 1]·|c_j|     for |δ_i| <= r_i,

since f(c + tδ) is a function of t on [0, 1] whose j-th coefficient is enclosed at every t. As in `balls.jet` series are
cut where derivatives are not finite, and where a kink may lie in the base to c_0, c_1 with all slopes in c_1.
"""

from __future__ import annotations

from collections.abc import Sequence

from flint import arb

from anchorhead.enclosure.balls import NAN, _expand, _longest, steps
from anchorhead.enclosure.series import Series
from anchorhead.expression.graph import Expression


def directional_jet(target: Expression, base: Sequence[arb], direction: Sequence[arb], order: int) -> list[list[arb]]:
    """Coefficients 0..order of each output; base and direction in the order of the target's variables."""
    listed, places = steps(target.outputs)
    seeds = {name: (b, d) for name, b, d in zip(target.variables, base, direction, strict=True)}
    length = order + 1
    results: list[Series] = []
    with _longest(length):
        for step in listed:
            if step.op == "variable":
                results.append(Series(list(seeds[step.value])[:length], length))
            else:
                results.append(_expand(step, results, "", NAN, length, {}))
    return [_finite(results[place]) for place in places]


def _finite(series: Series) -> list[arb]:
    coefficients = series.padded()
    for j, c in enumerate(coefficients):
        if not c.is_finite():
            return coefficients[:j] or [NAN]
    return coefficients
