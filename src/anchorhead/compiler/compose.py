"""Circuit and tolerance to heads and a proof: ranges, heads wanted, shares of the tolerance, heads, composition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorhead.arithmetic import Array, binary_ceiling
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.norm import INVERSE_ROOTS
from anchorhead.circuit.pool import MOST_LITERAL
from anchorhead.circuit.rows import rounded
from anchorhead.circuit.step import HeadFacts, Kept, OutsideDomain, Pair, Use
from anchorhead.compiler.head_requests import Request, Wanted, assign
from anchorhead.compiler.method import Progress
from anchorhead.compiler.proved_heads import Choice, choose
from anchorhead.compiler.tolerance_shares import shares
from anchorhead.digits import Up
from anchorhead.errors import SingularityError, ToleranceError
from anchorhead.proof.certificate import most_above, sum_above
from anchorhead.proof.flow import Flow, Tracker
from anchorhead.proof.network_claim import NetworkClaim, flows, output_errors, worst
from anchorhead.proof.sensitivity import sensitivities

ROUNDS = 6
QUARTERS = 40
"""How often what heads may err is quartered until every head's argument stays inside its domain."""
SQUEEZES = tuple(2.0**-k for k in range(12, 52, 4))
SHARPEST = 2.0**60
SPARE = 1.05
"""What rounding in affine maps is taken for, since heads are not yet known that add to it."""
FAST = ', or leave evaluation="literal" out'
LARGEST_ERROR = 1e3
"""No head is asked for less than this, however large the tolerance is."""


@dataclass(frozen=True)
class Composed:
    """A claim with the bounds that follow from it, what each head contributes to the worst output, and in `reached` the
    largest bound, of the literal softmax too where that is to keep the tolerance."""

    claim: NetworkClaim
    choices: tuple[Choice, ...]
    approximation: list[float]
    total: list[float]
    reached: float
    contributions: list[float]

    @property
    def keys(self) -> int:
        """Keys of all heads, counted for every step that uses them."""
        pairs = zip(self.claim.circuit.steps, self.claim.wiring.uses, strict=True)
        return sum(step.keys(self.claim.heads, use) for step, use in pairs)


def compose(circuit: Circuit, box: Sequence[Pair], tol: float, dtype: str, progress: Progress,
            most: int | None = None, *, literal: bool = False, constant: float = 0.0,
            hurried: bool = False) -> Composed:  # fmt: skip
    """Heads for every step such that every output keeps tol, proved; ToleranceError with the node that prevents it.

    most: keys in all, where there is a limit. literal: whether the softmax written out is to keep tol too. constant: if
    not zero, all heads are to have constant values, and their scores round by so much. hurried: whether a function that
    takes pieces is one.
    """
    tracker = Tracker(circuit, dtype)
    try:
        found = flows(tracker, box)
    except SingularityError:
        flows(tracker, box, whole=True)  # says the same of the whole box, where that fails too
        raise
    work = _prepared(circuit, tuple(box), found, tol, dtype, progress, most, literal=literal, constant=constant)
    work.hurried = hurried
    aim, refusal = tol, ToleranceError("")
    for _ in range(ROUNDS):
        choices, sharpness = work.choices(aim)
        try:
            composed = work.composed(choices, sharpness)
        except OutsideDomain as reached:  # errors too large for a head further on: smaller ones stay inside
            aim, refusal = work.inside(aim), work.outside(reached)
            continue
        if composed.reached <= tol:
            return work.spent(composed, sharpness)
        aim *= 0.9 * tol / composed.reached
        refusal = work.refusal(composed.contributions, composed.reached)
        if not aim > 0:
            break
    raise refusal


def _prepared(circuit: Circuit, box: tuple[Pair, ...], found: Sequence[Flow], tol: float, dtype: str,
              progress: Progress, most: int | None, *, literal: bool, constant: float) -> _Work:  # fmt: skip
    """The heads that are wanted; functions that end at an end of their interval squeezed as little as tol allows."""
    tried: list[_Work] = []
    for squeeze in SQUEEZES:
        wanted = assign(circuit, found, squeeze, literal=literal, constant=constant)
        arrives = sensitivities(circuit, wanted.uses, [(r.low, r.high) for r in wanted.requests], found)
        try:
            tried.append(_Work(circuit, box, dtype, wanted, arrives, tol, progress, most,
                               literal=literal and not constant))  # fmt: skip
        except ToleranceError:
            if not tried:
                raise
            break  # squeezed by less than what rounding moves
        if not wanted.squeezed or tried[-1].rounding < tol / 2:
            break
    best = min(tried, key=lambda work: work.rounding)
    best.check_inside()
    best.check_rounding()
    return best


class _Work:
    """One circuit on its way to a proof."""

    def __init__(self, circuit: Circuit, box: tuple[Pair, ...], dtype: str, wanted: Wanted, arrives: Array, tol: float,
                 progress: Progress, most: int | None, *, literal: bool) -> None:  # fmt: skip
        self.most, self.hurried, self.literal = most, False, literal
        self.circuit, self.box, self.dtype, self.wanted = circuit, box, dtype, wanted
        self.arrives, self.tol, self.progress = arrives, tol, progress
        self.wiring = rounded(circuit, wanted.uses, dtype)
        self.costs = [self._cost(g) for g in range(len(wanted.requests))] + [0.0]
        self.forms = (False, True) if literal and circuit.tokens else (False,)  # those whose sums round by themselves
        self.rounding = max(self._rounding(literal=literal) for literal in self.forms)

    def _cost(self, g: int) -> float:
        """What a digit costs: keys for each of the steps, none where all pieces are straight."""
        request = self.wanted.requests[g]
        free = request.odd or (request.target.is_straight and not request.carries)
        return 0.0 if free else float(len(request.steps))

    def choices(self, aim: float) -> tuple[list[Choice], float]:
        """Heads for a total of `aim`; a head that cannot keep its share gets what it needs, from the others."""
        budget = aim - SPARE * self.rounding
        fixed: dict[int, float] = {}
        held: dict[int, Choice] = {}
        refused = ToleranceError("")
        for _ in range(3 * len(self.wanted.requests) + 2):
            wanted = shares(self.arrives, self.costs, budget, fixed)
            if not wanted and fixed:
                spent = self._spending(fixed)
                raise self.refusal(spent, aim - budget + max(spent, default=0.0), alone=True)
            found = self._choose_all(wanted, fixed, held)
            if not isinstance(found, ToleranceError):
                top = wanted.get(len(self.wanted.requests), math.inf)
                return found, self._sharpness(top)
            refused = found
        raise refused

    def inside(self, aim: float) -> float:
        """A smaller aim, at which errors as large as heads are asked to keep leave every argument where its head is
        proved, by quarters, without a search for heads."""
        spare = SPARE * self.rounding
        budget = aim - spare
        for _ in range(QUARTERS):
            budget = budget / 4
            try:
                self._follow(shares(self.arrives, self.costs, budget, {}), 1.0)
                break
            except OutsideDomain:
                continue
        return spare + budget

    def check_inside(self) -> None:
        """Refuses where rounding alone leads past where a head is proved, so that no heads would help."""
        try:
            self._follow({}, 0.0)
        except OutsideDomain as reached:
            raise self.outside(reached, "Rounding", ", however little heads err") from None

    def _follow(self, errors: dict[int, float], other: float) -> None:
        """Follows errors by request, and another of the rest, through the circuit."""
        facts = [HeadFacts(r.low, r.high, min(errors.get(g, other), LARGEST_ERROR), 0.0, r.odd)
                 for g, r in enumerate(self.wanted.requests)]  # fmt: skip
        for literal in self.forms:
            flows(self._tracker(facts, literal=literal), self.box)

    def _tracker(self, facts: Sequence[Kept], *, literal: bool) -> Tracker:
        """What follows the circuit through heads with these facts."""
        wiring = self.wiring.sharpened(self.wanted.sharp, SHARPEST)
        return Tracker(self.circuit, self.dtype, wiring, facts, literal=literal)

    def _choose_all(self, wanted: dict[int, float], fixed: dict[int, float],
                    held: dict[int, Choice]) -> list[Choice] | ToleranceError:  # fmt: skip
        """A head for every request; why not, where one could not keep its share, which is then fixed at what it can.

        held: heads of such requests; what they do keep is what they are given.
        """
        found = []
        for g in range(len(self.wanted.requests)):
            if g in held:
                found.append(held[g])
                continue
            error = min(wanted.get(g, 1.0), LARGEST_ERROR)
            try:
                found.append(self._chosen(g, error))
            except ToleranceError as refusal:
                best, why = refusal.best, self._unreachable(g, error, refusal)
                if not math.isfinite(best):
                    raise why from refusal
                fixed[g] = max(1.1 * best, 2 * fixed.get(g, 0.0))
                return why
            if g in fixed:
                held[g], fixed[g] = found[-1], found[-1].error
        return found

    def _chosen(self, g: int, error: float) -> Choice:
        """A head for a request, with what the other steps leave of the keys: two each where they are products."""
        request, most = self.wanted.requests[g], self.most
        if most is not None:
            others = sum(len(r.steps) * (2 if r.odd else 1) for r in self.wanted.requests if r is not request)
            most = (most - others) // len(request.steps)
        return choose(request, error, self.dtype, self._named(request), most, hurried=self.hurried)

    def _named(self, request: Request) -> Progress:
        return lambda text: self.progress(f"{self.circuit.steps[request.steps[0]].label}: {text}")

    def _sharpness(self, error: float) -> float:
        """A power of two at which every step with a β of its own keeps the error."""
        needed = [self.circuit.steps[i].beta_for(error) for i in self.wanted.sharp]
        return min(binary_ceiling(max(1.0, *needed)), SHARPEST) if needed else 0.0

    def _rounding(self, *, literal: bool) -> float:
        """What the affine maps and sums over tokens alone round at most, and what squeezing costs."""
        exact = HeadFacts(-math.inf, math.inf, 0.0, 0.0)
        tracker = self._tracker([exact] * len(self.wanted.requests), literal=literal)
        largest = max(worst([flow.output_errors for flow in flows(tracker, self.box)]), default=0.0)
        if not largest < math.inf:
            raise self._unbounded(tracker)
        return largest

    def check_rounding(self) -> None:
        """Refuses what rounding alone may exceed."""
        if SPARE * self.rounding >= self.tol:
            written = f" ({MOST_LITERAL:,} where softmax is written out)" if self.literal else ""
            sums = f" and sums over tokens{written}" if self.circuit.tokens else ""
            other = self.literal and SPARE * self._rounding(literal=False) < self.tol
            first = "Use a larger tol, a smaller domain, or a form whose large terms do not cancel" + FAST * other
            raise ToleranceError(
                f"tol={self.tol:g} is too little for {self.dtype} and this target as it is written: rounding in its "
                f"affine maps{sums} alone may reach {Up(self.rounding):.3g}, to which heads add. " + self._advice(first)
            )

    def _unbounded(self, tracker: Tracker) -> ToleranceError:
        """Which node's error has no finite bound."""
        found = flows(tracker, self.box, whole=True)[0]
        wire = next((w for w, e in enumerate(found.errors) if not e < math.inf), None)
        name = "an output" if wire is None else self.circuit.wire_name(wire)
        return ToleranceError(
            f"The errors before {name} have no finite bound there: the intervals of what it depends on are too wide "
            "for composition. "
            + self._advice("Choose a smaller domain, or rewrite the target so that they stay narrower")
        )

    def _advice(self, first: str) -> str:
        """What to do: first that, then a dtype that is wider, where there is one, and what helps norms."""
        wider = "" if self.dtype == "float64" else ", or dtype=torch.float64"
        if not any(getattr(step, "function", None) in INVERSE_ROOTS for step in self.circuit.steps):
            return f"{first}{wider}."
        return (
            f"{first}{wider}. A norm divides by what may be as small as the root of its eps: a larger eps, such as "
            "1e-2, helps most, or a domain near a point at which a layer norm's entries differ, or an RMS norm's are "
            "not all near 0."
        )

    def composed(self, choices: list[Choice], sharpness: float) -> Composed:
        """The bounds that follow from the heads."""
        wiring = self.wiring.sharpened(self.wanted.sharp, sharpness)
        claim = NetworkClaim(self.circuit, self.box, self.dtype, tuple(c.claim for c in choices), wiring)
        approximation = output_errors(claim, rounding=False)
        total = output_errors(claim, rounding=True)
        written = output_errors(claim.literal(), rounding=True) if self.literal and claim.evaluation else total
        errors = {g: c.error for g, c in enumerate(choices)}
        if self.wanted.sharp:
            steps = [self.circuit.steps[i] for i in self.wanted.sharp]
            errors[len(choices)] = min(step.own_error((), Use(step.name), (sharpness, 0.0, 0.0)) for step in steps)
        reached = sum_above(max(approximation), max(most_above(v, approximation) for v in (total, written)))
        return Composed(claim, tuple(choices), approximation, total, reached, self._spending(errors))

    def _spending(self, errors: dict[int, float]) -> list[float]:
        """What each head contributes to the output that errs most."""
        if not len(self.arrives):
            return []
        spent = np.zeros(self.arrives.shape)
        for g, e in errors.items():
            spent[:, g] = self.arrives[:, g] * e
        return list(map(float, spent[spent.sum(axis=1).argmax()]))

    def spent(self, composed: Composed, sharpness: float) -> Composed:
        """What is left of the tolerance, spent on heads with fewer keys, those of most steps first."""
        order = sorted(range(len(composed.choices)), key=lambda g: -self.costs[g])
        for g in order:
            left = 0.97 * (self.tol - composed.reached)
            reach = self.arrives[:, g].max()
            if not self.costs[g] or reach == 0 or left <= 0:
                continue
            error = composed.choices[g].error + left / reach
            if composed.choices[g].fewer > error:
                continue
            choices = list(composed.choices)
            try:
                choices[g] = self._chosen(g, error)
                other = self.composed(choices, sharpness)
            except (ToleranceError, OutsideDomain):
                continue
            if other.reached <= self.tol and other.keys < composed.keys:
                composed = other
        return composed

    def refusal(self, contributions: Sequence[float], reached: float, *, alone: bool = False) -> ToleranceError:
        """What prevents the tolerance; alone: heads that cannot keep their share, of which no network was made."""
        name, share = self._dominating(contributions)
        why = f"{name} dominates, with {share:.3g} of the {reached:.3g} that was reached"
        if not reached < math.inf:
            why = f"the errors that arrive have no finite bound, and {name} adds most to them"
        elif reached <= self.tol:
            why = f"what cannot be made smaller takes {reached:.3g} of it, {name} {share:.3g}, and heads need the rest"
        elif alone:
            why = f"{name} dominates, and as far as was looked its heads bring in no less than about {share:.3g}"
        advice = self._advice(f"Use a larger tol or a smaller domain{FAST * self.literal}")
        found = ToleranceError(f"tol={self.tol:g} cannot be reached in {self.dtype} by composition: {why}. {advice}")
        found.best = reached
        return found

    def _dominating(self, contributions: Sequence[float]) -> tuple[str, float]:
        if not contributions or not max(contributions):
            return "rounding", 0.0
        g = int(np.argmax(contributions))
        if g >= len(self.wanted.requests):
            return self.circuit.steps[self.wanted.sharp[0]].label, contributions[g]
        request = self.wanted.requests[g]
        more = f" (and {len(request.steps) - 1} like it)" if len(request.steps) > 1 else ""
        return self.circuit.steps[request.steps[0]].label + more, contributions[g]

    def _unreachable(self, g: int, error: float, refusal: ToleranceError) -> ToleranceError:
        request = self.wanted.requests[g]
        return ToleranceError(
            f"tol={self.tol:g} cannot be reached by composition: {self.circuit.steps[request.steps[0]].label} "
            f"dominates. Its head for {request.function} on [{request.low:.4g}, {request.high:.4g}] would have to keep "
            f"{error:.3g}, and: {refusal}"
        )

    def outside(self, reached: OutsideDomain, what: str = "The errors", when: str = "") -> ToleranceError:
        step, (low, high) = self.circuit.steps[reached.step], reached.needed
        return ToleranceError(
            f"{what} before {step.label} may push its argument out to [{low:.6g}, {high:.6g}], past where its head is "
            f"proved{when}. {self._advice('Use a smaller domain')}"
        )
