"""Splitting a tolerance over the heads of a circuit so that the total number of keys is least.

To first order output o errs by  sum over heads g of S_og e_g, where e_g is what head g keeps and S_og how much of it
arrives, summed over the steps that use g. The number of keys grows like κ_g log(1/e_g), in n_g steps, so

    minimise  sum n_g κ_g log(1/e_g)   subject to  sum S_og e_g <= tol for all o

and where one output binds, Lagrange's condition reads  S_og e_g proportional to n_g κ_g: each head may spend in
proportion to what a digit costs it. Heads whose size does not depend on their error (a ReLU has two keys however sharp
it is) get a token share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.circuit.circuit import Attend, Circuit, Largest, Line, Step, Times
from anchorhead.circuit.rows import Use
from anchorhead.enclosure.exact import as_float
from anchorhead.enclosure.variation import steepest, value_range
from anchorhead.proof.flow import Flow, Pair

TOKEN = 0.02


def sensitivities(circuit: Circuit, uses: Sequence[Use], domains: Sequence[Pair], found: Sequence[Flow]) -> Array:
    """S as (outputs, heads + 1): heads with these domains, then one column for the maxima together."""
    count = len(domains) + 1
    arrives = [np.zeros(count) for _ in circuit.inputs]

    def along(line: Line) -> Array:
        total = np.zeros(count)
        for wire, c in line.terms.items():
            if arrives[wire].any():
                total += abs(as_float(c)) * arrives[wire]
        return total

    for i, step in enumerate(circuit.steps):
        sizes = _sizes([flow.arguments[i] for flow in found])
        arrives += [_through(step, uses[i], sizes, [along(line) for line in step.lines()], domains)] * step.width
    return np.array([along(line) for line in circuit.outputs])


def _through(step: Step, use: Use, sizes: list[Pair], lines: list[Array], domains: Sequence[Pair]) -> Array:
    one = np.zeros(len(domains) + 1)
    if isinstance(step, Largest):
        one[-1] = 1.0
        return np.max(lines, axis=0) + one
    if isinstance(step, Attend):
        return _attended(step, lines, sizes)
    one[use.head] = float(use.values[0])
    low, high = sizes[0]
    near = steepest(step.function, low, high)
    if use.kind == "plain":
        near = min(near, steepest(step.function, *domains[use.head]))
    total = one + near * lines[0]
    if isinstance(step, Times):
        values = value_range(step.function, low, high) or (0.0, 0.0)
        total = total * _size(sizes[1]) + _size(values) * lines[1]
    return total


def _attended(step: Attend, lines: list[Array], sizes: list[Pair]) -> Array:
    d, m = len(step.query), len(step.offsets)
    scores = []
    for j in range(m):
        total = lines[d + m * d + j].copy()
        for t in range(d):
            k = d + j * d + t
            total += _size(sizes[t]) * lines[k] + _size(sizes[k]) * lines[t]
        scores.append(total)
    values = list(range(d + m * d + m, len(lines)))
    spread = max(sizes[k][1] for k in values) - min(sizes[k][0] for k in values)
    return np.max([lines[k] for k in values], axis=0) + spread * np.max(scores, axis=0)


def _sizes(cells: Sequence[tuple[Pair, ...]]) -> list[Pair]:
    return [(min(c[k][0] for c in cells), max(c[k][1] for c in cells)) for k in range(len(cells[0]))]


def _size(pair: Pair) -> float:
    return max(abs(pair[0]), abs(pair[1]))


def shares(arrives: Array, costs: Sequence[float], budget: float, fixed: dict[int, float]) -> dict[int, float]:
    """e_g for every head that matters; `fixed` are heads whose error is given. Empty if those leave nothing."""
    taken = sum((arrives[:, g] * e for g, e in fixed.items()), np.zeros(len(arrives)))
    rest = budget - taken
    if rest.min() <= 0:
        return {}
    free = [g for g in range(arrives.shape[1]) if g not in fixed and arrives[:, g].max() > 1e-250]
    if not free:
        return dict(fixed)
    weights = {g: max(costs[g], TOKEN) for g in free}
    wanted = {g: weights[g] / arrives[:, g].max() for g in free}
    total = sum((arrives[:, g] * wanted[g] for g in free), np.zeros(len(arrives)))
    factor = float((rest / np.maximum(total, 1e-300)).min())
    return fixed | {g: factor * wanted[g] for g in free}
