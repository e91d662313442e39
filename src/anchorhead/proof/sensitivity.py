"""How much of every head's error arrives at the outputs of a circuit, to first order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.norm import Norm, norms
from anchorhead.circuit.step import Pair, Use
from anchorhead.enclosure.exact import as_float
from anchorhead.proof.flow import Flow
from anchorhead.proof.network_claim import line_ranges


def sensitivities(circuit: Circuit, uses: Sequence[Use], domains: Sequence[Pair], found: Sequence[Flow]) -> Array:
    """S as (outputs, heads + 1): heads with these domains, then one column for steps with a β of their own."""
    count = len(domains) + 1
    own = np.eye(count)
    arrives = np.zeros((circuit.wires, count))

    def along(line: Line) -> Array:
        sizes = np.abs([as_float(c) for c in line.terms.values()])
        total: Array = np.add.reduce(sizes[:, None] * arrives[list(line.terms)], 0)  # in order, one after the other
        return total

    joint = norms(circuit)
    for i, step in enumerate(circuit.steps):
        use, sizes = uses[i], line_ranges(found, i)
        domain = domains[use.head] if use.head >= 0 else (0.0, 0.0)
        with np.errstate(invalid="ignore"):
            through = step.arrives(own[use.head], use, sizes, [along(line) for line in step.lines()], domain, _most)
            if i in joint:
                through = np.fmin(through, _through_norm(circuit, i, joint[i], uses, domains, found, along))
        new = slice(circuit.starts[i], circuit.starts[i] + step.width)
        arrives[new] = np.where(np.isnan(through), 0.0, through)  # what does not arrive, times infinity
    return np.array([along(line) for line in circuit.outputs])


def _through_norm(circuit: Circuit, i: int, norm: Norm, uses: Sequence[Use], domains: Sequence[Pair],
                  found: Sequence[Flow], along: Callable[[Line], Array]) -> Array:  # fmt: skip
    """What arrives through a norm: what its entries have, by its slopes, and the heads of squares, root, quotient."""
    own = np.eye(len(domains) + 1)
    kept = {k: _own_share(circuit, k, uses[k], found) * own[uses[k].head]
            for k in [*norm.squares, norm.root] if k is not None}  # fmt: skip
    root = {} if norm.root is None else {circuit.starts[norm.root]: kept[norm.root]}
    step, use, sizes = circuit.steps[i], uses[i], line_ranges(found, i)
    added = [sum((abs(as_float(c)) * root[w] for w, c in line.terms.items() if w in root), np.zeros(len(own)))
             for line in step.lines()]  # fmt: skip
    total = step.arrives(own[use.head], use, sizes, added, domains[use.head], _most)
    entries = [line_ranges(found, k)[0] for k in norm.squares]
    steep, slopes = norm.slope_by_sum(entries), norm.slopes(entries)
    for k, c, slope in zip(norm.squares, norm.coefficients, slopes, strict=True):
        total = total + steep * as_float(c) * kept[k] + slope * along(next(circuit.steps[k].lines()))
    return np.asarray(total)


def _own_share(circuit: Circuit, k: int, use: Use, found: Sequence[Flow]) -> float:
    return circuit.steps[k].own_share(use, line_ranges(found, k)[0])


def _most(lines: Sequence[Array]) -> Array:
    found: Array = np.max(lines, axis=0)
    return found
