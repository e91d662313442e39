"""The certificate: what is claimed of a model, how well it is established, and under which assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from anchorhead.digits import Up, counted, interval
from anchorhead.display import beside, facts, gauge, page, sentence


@dataclass(frozen=True)
class Certificate:
    """What is known about |target - model|, or, where it is relative, about |model/target - 1|.

    level: `proved` (every box was checked in ball arithmetic), `conditional` (under a constant that the caller
        declared), `measured` (sampled only), `trivial` (nothing useful is known: the bound is what the declared ranges
        alone imply) or `unproved` (nothing is known: the numbers were changed since, or, where evaluation is
        `literal`, rounding in the literal softmax may lead an argument out of its head's domain).
    approximation: bound on |target - model| for the stored numbers, in exact arithmetic; on an unbounded domain but for
        what is proportional to |x|, where the slopes of the target's asymptotes are no numbers of `dtype`.
    rounding: bound on what evaluation in `dtype` adds, to any output; on an unbounded domain, that bound over 1 + |x|,
        with what such slopes differ by from those that are stored: for any evaluation, exact or not, |target - model|
        is at most approximation + rounding (1 + |x|).
    bound: on a bounded domain approximation + rounding; on an unbounded one the approximation.
    boxes: how many boxes the proof has.
    relative: whether all bounds are multiples of |target|, which has no zero in the domain.
    outputs: of a network, a grid or a look-up the bound of each output, one or several. Empty for one head, whose claim
        may be relative or on all of R: `allowed` has its error at an input, and `bound` the most on a bounded domain.
    variables: names of the inputs in the order of the model's last dimension, which is that of `domain`; empty if they
        have none.
    circuit: for a traced module the digest of what was traced, which the checker prints as the target's name.
    evaluation: `fast` where the bounds hold for what the model computes, and the softmax written out has others
        (`literal_certificate`); `literal` where they are those; empty where they hold for both.
    condition: what must hold beside that an input is in the domain, of it, or as declared of the target where that is
        only sampled, as a phrase; also among the assumptions.
    source: for a module the digest of its parameters when it was traced (`source_digest`); no checker can confirm it.

    >>> certificate = ah.compile("exp(x)", (-1, 1), tol=1e-6).certificate
    >>> certificate.level, certificate.bound <= 1e-6, certificate.domain
    ('proved', True, ((-1.0, 1.0),))
    """

    expression: str
    domain: tuple[tuple[float, float], ...]
    dtype: str
    level: str
    approximation: float
    rounding: float
    boxes: int
    assumptions: tuple[str, ...]
    outputs: tuple[float, ...] = ()
    variables: tuple[str, ...] = ()
    circuit: str = ""
    source: str = ""
    relative: bool = False
    evaluation: str = ""
    condition: str = ""

    @property
    def bounded(self) -> bool:
        """Whether the domain is bounded."""
        return all(math.isfinite(end) for pair in self.domain for end in pair)

    @property
    def bound(self) -> float:
        """The error that the model keeps; see the class."""
        return sum_above(self.approximation, self.rounding) if self.bounded else self.approximation

    def allowed(self, x: Any, target: Any) -> Any:
        """The error that is kept at inputs x, numbers or tensors, where the target has these values."""
        if self.relative:
            return self.bound * abs(target)
        return self.bound if self.bounded else self.approximation + self.rounding * (1 + abs(x))

    def in_digits(self, bound: float, form: str = ".3g") -> str:
        """A bound as text: rounded up; one that is only measured to nearest, and so said."""
        return f"about {bound:{form}}" if self.level == "measured" else f"{Up(bound):{form}}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite ends become strings."""
        values = asdict(self)
        values["domain"] = [[end_text(e) for e in pair] for pair in self.domain]
        for name in ("assumptions", "outputs", "variables"):
            values[name] = list(values[name])
        values["bound"] = self.bound
        if self.level == "unproved":
            values |= {name: None for name in ("approximation", "rounding", "bound")} | {"outputs": []}
        return values

    def unproved(self) -> Certificate:
        """The same claim of numbers that it was not proved for: no bound is known."""
        unknown = (math.inf,) * len(self.outputs)
        return replace(self, level="unproved", approximation=math.inf, rounding=math.inf, outputs=unknown)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        scale = " |target|" if self.relative else "" if self.bounded else " (1 + |x|)"
        rows = [
            ("target", self.expression),
            ("domain", self._where()),
            ("level", f"{self.level}, {counted(self.boxes, 'box')}"),
            ("bound", self.in_digits(self.bound) + (scale if self.relative else "")),
            ("approximation", self.in_digits(self.approximation) + (scale if self.relative else "")),
            ("rounding", f"{Up(self.rounding):.3g}{scale}, {self.dtype}"),
        ]
        each = [(f"bound of output {i}", self.in_digits(bound)) for i, bound in enumerate(self.outputs)]
        marks = [("approximation", self.approximation), ("rounding", self.rounding)]
        drawn = gauge(marks, "the parts of the bound, on a logarithmic scale")
        several = facts(each) if len(each) > 1 else ""
        assumed = sentence("\n".join(f"Assuming that {a}." for a in self.assumptions))
        return page("Certificate", sentence(str(self)), beside(facts(rows), drawn), several, assumed)

    def _where(self) -> str:
        """All of what an input must be."""
        return _where(self.domain, self.variables) + (f", where {self.condition}" if self.condition else "")

    def __repr__(self) -> str:
        return f"Certificate({self})"

    def __str__(self) -> str:
        if self.level == "unproved" and self.evaluation == "literal":
            return (
                f"unproved: nothing is known of the literal softmax of the model of {self.expression}, where rounding "
                'may lead out of the domain of a head; compile it with evaluation="literal"'
            )
        if self.level == "unproved":
            return (
                f"unproved: the model's numbers were changed since its error for {self.expression} was proved; save it "
                "and run ah.verify on the file to see whether the claim still holds"
            )
        where = self._where()
        if self.level == "trivial":
            return (
                f"nothing useful is known of |{self.expression} - model| on {where}, {self.dtype}: that it is at most "
                f"{Up(self.bound):.3g} follows from the declared bounds alone"
            )
        extra = "" if self.bounded else " (1 + |x|)"
        what = f"|model/({self.expression}) - 1|" if self.relative else f"|{self.expression} - model|"
        sampled = self.level == "measured"
        claimed = f"{self.in_digits(self.bound)} at the sampled points of" if sampled else f"<= {Up(self.bound):.3g} on"
        return (
            f"{self.level}: {what} {claimed} {where}, {self.dtype} "
            f"(approximation {self.in_digits(self.approximation)}, rounding {Up(self.rounding):.3g}{extra}, "
            f"{counted(self.boxes, 'box')}" + (f", {self.evaluation} evaluation)" if self.evaluation else ")")
        )


def sum_above(a: float, b: float) -> float:
    """The sum of two bounds as a float that is not below it."""
    total, large, small = a + b, max(a, b), min(a, b)
    return total if total - large >= small else math.nextafter(total, math.inf)


def rest_above(total: float, part: float) -> float:
    """What is left of a bound beside a part of it, as a float that is not below it; zero if nothing is."""
    return math.nextafter(total - part, math.inf) if total > part else 0.0


def most_above(totals: Sequence[float], parts: Sequence[float]) -> float:
    """The most that is left of a bound beside its part, of the bounds of several outputs."""
    return max((rest_above(total, part) for total, part in zip(totals, parts, strict=True)), default=0.0)


def _where(domain: tuple[tuple[float, float], ...], variables: tuple[str, ...]) -> str:
    if 1 < len(variables) <= 6:
        if len(set(domain)) == 1:
            return f"{interval(domain[0])} for ({', '.join(variables)})"
        return ", ".join(f"{name} in {interval(ends)}" for name, ends in zip(variables, domain, strict=True))
    names = [interval(pair) for pair in domain]
    if len(set(names)) == 1 and len(names) > 1:
        return f"{names[0]}^{len(names)}"
    return " x ".join(names) if len(names) <= 4 else f"a box in {len(names)} variables"


def end_text(value: float) -> float | str:
    """An end of an interval for JSON, which has no infinities."""
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
