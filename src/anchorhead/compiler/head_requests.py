"""Which heads a circuit needs: for each step how it uses a head, and for each head the function and the interval.

Steps with the same function share a head on the hull of their intervals, unless that is much wider than each of them
and the function has no asymptotes: then every cluster of similar intervals has its own. Every product looks at its
argument scaled to [-1, 1], and so does every square, so that one odd head serves all of them (`proof/odd.py`). Where
the literal softmax is what counts, both look at it centred too, and their heads are fitted like others. A function that
ends at an end of its interval, as sqrt at 0, is looked up a little inside (`circuit/apply.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anchorhead.arithmetic import binary_ceiling, binary_floor
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.step import Pair, Use
from anchorhead.compiler.target import Target
from anchorhead.enclosure.singularities import singularities
from anchorhead.enclosure.variation import value_range
from anchorhead.errors import SingularityError
from anchorhead.expression.graph import Expression, Node
from anchorhead.proof.flow import Flow
from anchorhead.proof.network_claim import hull

WIDER = 4.0
MARGIN = 1e-3


@dataclass
class Request:
    """A head that is wanted: a function of u on an interval; `carries` if its values must carry a partner.

    kind: of its use. literal: whether it is to be good as a softmax. ends: whether the function ends at an end of the
    interval. unit: what its scores round by, where that is more than the dtype's own.
    """

    function: Node
    low: float
    high: float
    carries: bool
    steps: list[int] = field(default_factory=list)
    kind: str = "plain"
    literal: bool = False
    ends: bool = False
    unit: float = 0.0

    @property
    def odd(self) -> bool:
        """Whether it is u or u² on [-1, 1], relative to it."""
        return self.kind != "plain" and not self.literal

    @property
    def target(self) -> Target:
        return Target(Expression((self.function,), ("u",)), self.low, self.high)


@dataclass(frozen=True)
class Wanted:
    """Uses by step; `head` is an index into the requests."""

    requests: list[Request]
    uses: list[Use]
    sharp: list[int]
    """Steps with a β of their own."""

    @property
    def squeezed(self) -> bool:
        """Whether a function is looked up a little inside its interval."""
        return any(use.is_squeezed for use in self.uses)


def assign(circuit: Circuit, found: Sequence[Flow], squeeze: float, *, literal: bool = False,
           constant: float = 0.0) -> Wanted:  # fmt: skip
    """The heads that a circuit needs, given its ranges on every cell; for the literal evaluation where that is said.

    constant: if not zero, all of them are to have constant values, and their scores round by so much.

    squeeze: by how much, a power of two, functions that end are looked up inside.
    """
    ranges = [hull([flow.arguments[i][0] for flow in found]) for i in range(len(circuit.steps))]
    uses: list[Use] = [Use(step.name) for step in circuit.steps]
    clusters: dict[tuple[Node, bool], list[int]] = {}
    for i, step in enumerate(circuit.steps):
        wanted = step.wanted()
        if wanted is not None:
            kind, function, carries = wanted
            carries = carries or constant > 0
            scaled = _centred if literal and not constant else _scaled
            uses[i] = Use(kind) if kind == "plain" else scaled(kind, ranges[i])
            clusters.setdefault((function, carries), []).append(i)
    requests: list[Request] = []
    for (function, carries), steps in clusters.items():
        for members in _clusters(function, steps, uses, ranges):
            kind = uses[members[0]].kind
            request = (_request(circuit, function, carries, members, ranges) if kind == "plain"
                       else Request(function, -1.0, 1.0, carries, members, kind=kind))  # fmt: skip
            for i in members:
                uses[i] = replace(uses[i], head=len(requests))
                if request.ends:
                    uses[i] = replace(uses[i], centre=-squeeze * (request.low + request.high) / 2, radius=1 + squeeze)
            requests.append(replace(request, literal=literal, unit=constant))
    sharp = [i for i, step in enumerate(circuit.steps) if step.beta_for(1.0)]
    return Wanted(requests, uses, sharp)


def _scaled(kind: str, pair: Pair) -> Use:
    """A radius, a power of two, with [-radius, radius] a little wider than the interval."""
    return Use(kind, -1, 0.0, binary_ceiling(max(abs(pair[0]), abs(pair[1]), 2.0**-60) * (1 + 2.0**-9)))


def _centred(kind: str, pair: Pair) -> Use:
    """Centre and radius, in few bits, with [centre - radius, centre + radius] a little wider than the interval."""
    low, high = pair
    half = max((high - low) / 2, 2.0**-60, 2.0**-40 * max(abs(low), abs(high)))
    grain = binary_floor(half) / 16
    centre = round((low + high) / 2 / grain) * grain
    if abs(centre) / grain >= 2**11:  # far from zero and narrow: a coarser centre that still has few bits
        grain = binary_floor(abs(centre)) / 1024
        centre = round(centre / grain) * grain
    reach = max(high - centre, centre - low, half) * (1 + 2.0**-9)
    return Use(kind, -1, centre, binary_ceiling(reach))


def _clusters(function: Node, steps: list[int], uses: Sequence[Use], ranges: Sequence[Pair]) -> list[list[int]]:
    """Steps whose intervals one head can serve."""
    if len(steps) == 1 or uses[steps[0]].kind != "plain" or _settles(function):
        return [steps]
    found: list[list[int]] = []
    for i in sorted(steps, key=lambda i: ranges[i]):
        if found:
            low, high = hull([ranges[j] for j in [*found[-1], i]])
            widest = max(ranges[j][1] - ranges[j][0] for j in [*found[-1], i])
            if high - low <= WIDER * widest:
                found[-1].append(i)
                continue
        found.append([i])
    return found


def _settles(function: Node) -> bool:
    """Whether the function has an asymptote on both sides: then a wider interval costs nothing."""
    whole = Target(Expression((function,), ("u",)), -math.inf, math.inf)
    return all(whole.asymptote(sign) is not None for sign in (-1, 1))


def _request(circuit: Circuit, function: Node, carries: bool, members: list[int], ranges: Sequence[Pair]) -> Request:
    low, high = hull([ranges[i] for i in members])
    if all(_is_input(circuit, i) for i in members) and low < high:
        return Request(function, low, high, carries, members)
    for margin in (MARGIN, MARGIN**2, 1e-9):
        room = margin * max(high - low, 1e-3 * (abs(low) + abs(high)), 1e-3)
        try:
            singularities(function, "u", low - room, high + room)
        except SingularityError:
            continue
        return Request(function, low - room, high + room, carries, members)
    if value_range(function, low, high) is not None:
        return Request(function, low, high, carries, members, ends=True)
    label = circuit.steps[members[0]].label
    raise SingularityError(
        f"{label}: the argument of {function} may reach the interval [{low:.6g}, {high:.6g}], and the function is not "
        "finite a little beyond it, where rounding and the errors of heads before it may lead. Choose a smaller "
        "domain, "
        "or add a small number that keeps the argument away from the singularity."
    )


def _is_input(circuit: Circuit, index: int) -> bool:
    """Whether a step looks at an input as it is, which has no error."""
    first = next(circuit.steps[index].lines())
    return first.bias == 0 and list(first.terms.values()) == [1] and next(iter(first.terms)) < len(circuit.inputs)
