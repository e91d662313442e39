"""How much of every head's error arrives at the outputs of a circuit, to first order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from flint import arb

from anchorhead.arithmetic import Array
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.norm import Norm, norms
from anchorhead.circuit.step import Pair, Use
from anchorhead.enclosure.exact import as_float
from anchorhead.enclosure.precision import above, below
from anchorhead.proof.flow import Flow
from anchorhead.proof.network_claim import NetworkClaim, line_ranges


def sensitivities(circuit: Circuit, uses: Sequence[Use], domains: Sequence[Pair], found: Sequence[Flow]) -> Array:
    """S as (outputs, heads + 1): heads with these domains, then one column for steps with a β of their own."""
    count = len(domains) + 1
    return _carried(circuit, uses, domains, found, np.eye(count), np.zeros((circuit.wires, count)))


def moved_by(claim: NetworkClaim, found: Sequence[Flow], errors: Array) -> Array:
    """As (outputs, columns): by how much outputs move, where each wire errs by (wires, columns) of its own.

    Bounds if the functions after a wire are the target's: slopes and sizes are the largest on ranges with all errors
    included, so that both numbers, with the error and without, are in them.
    """
    domains = [(head.low, head.high) for head in claim.heads]
    none = np.zeros((len(domains) + 1, errors.shape[1]))
    uses = claim.wiring.uses
    meant = [replace(flow, arguments=[_meant(*pair) for pair in zip(uses, flow.arguments, strict=True)])
             for flow in found]  # fmt: skip
    return _carried(claim.circuit, uses, domains, meant, none, errors)


def _meant(use: Use, lines: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """The ranges of a step's lines, its first in the units of u where the network reads t = (u - c)/r in its place."""
    if use.kind not in ("identity", "square"):
        return lines
    (low, high), *rest = lines
    ends = [arb(use.centre) + arb(use.radius) * end for end in (low, high)]
    return (below(ends[0]), above(ends[1])), *rest


def _carried(circuit: Circuit, uses: Sequence[Use], domains: Sequence[Pair], found: Sequence[Flow], own: Array,
             errors: Array) -> Array:  # fmt: skip
    """What arrives at the outputs, of the errors `own` of heads and of those of wires."""
    arrives = np.zeros(errors.shape)

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
                norm = _through_norm(circuit, i, joint[i], uses, domains, found, along, own, errors)
                through = np.fmin(through, norm)
        new = slice(circuit.starts[i], circuit.starts[i] + step.width)
        arrives[new] = np.where(np.isnan(through), 0.0, through) + errors[new]  # nan: infinity of what does not arrive
    return np.array([along(line) for line in circuit.outputs])


def _through_norm(circuit: Circuit, i: int, norm: Norm, uses: Sequence[Use], domains: Sequence[Pair],
                  found: Sequence[Flow], along: Callable[[Line], Array], own: Array,
                  errors: Array) -> Array:  # fmt: skip
    """What arrives through a norm: what its entries have, by its slopes, and the heads of squares, root, quotient."""
    kept = {k: _own_share(circuit, k, uses[k], found) * own[uses[k].head] + errors[circuit.starts[k]]
            for k in [*norm.squares, norm.root] if k is not None}  # fmt: skip
    root = {} if norm.root is None else {circuit.starts[norm.root]: kept[norm.root]}
    step, use, sizes = circuit.steps[i], uses[i], line_ranges(found, i)
    added = [sum((abs(as_float(c)) * root[w] for w, c in line.terms.items() if w in root), np.zeros(own.shape[1]))
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
