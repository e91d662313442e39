"""What a diagnosis says: the error, what was promised, and a finding for each cause."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from anchorhead.digits import Up
from anchorhead.display import gauge, page, sentence, table

Kind = Literal[
    "uniform attention", "boundary artefacts", "interpolation drift", "underflow or saturation", "edited numbers"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Finding:
    """One way in which the attention fails: which, at which head and place, the numbers, and what to change."""

    kind: Kind
    where: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.where}): {self.evidence} {self.advice}"

    __repr__ = __str__


@dataclass(frozen=True)
class Diagnosis:
    """What was found on some inputs.

    error: the largest distance from the target, NaN or infinite where an output is; where there is no target to look
    into, from what `against` says. bound: what was promised there: the network's own bound. edited: whether its
    stored numbers are not those that were built or proved, so that the bound is not proved of them.
    examined: how many inputs were looked at. dtype, score_factor: how the network was run, and what its
    scores were multiplied by.

    >>> model = ah.compile("exp(x)", (-1, 1))
    >>> ah.diagnose(model, torch.linspace(-1, 1, 9, dtype=torch.float64)).healthy
    True
    """

    findings: tuple[Finding, ...]
    error: float
    bound: float
    examined: int
    dtype: str
    score_factor: float
    against: str = "the target"
    edited: bool = False

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an error or a bound that is no finite number becomes text."""
        return {
            "healthy": self.healthy,
            "error": _plain(self.error),
            "bound": _plain(self.bound),
            "examined": self.examined,
            "dtype": self.dtype,
            "score_factor": self.score_factor,
            "against": self.against,
            "edited": self.edited,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        first, rows = str(self).partition("\n")[0], [(f.kind, f.where, f.evidence, f.advice) for f in self.findings]
        return page("Diagnosis", sentence(first),
                    gauge([("error", self.error), ("bound", self.bound)], "on a logarithmic scale"),
                    table(("finding", "where", "evidence", "advice"), rows) if rows else "")  # fmt: skip

    def __str__(self) -> str:
        how = f"{self.dtype}" + (f", scores times {self.score_factor:g}" if self.score_factor != 1 else "")
        figures = f"error {self.error:.3g}, bound {Up(self.bound):.3g}, {self.examined:,} inputs, {how}"
        if self.against != "the target":
            figures += f"; compared with {self.against}"
        if self.edited:
            figures += "; its numbers are not those that were built, so that the bound is not proved of them"
        if self.healthy:
            return f"healthy: {figures}"
        count = "1 finding" if len(self.findings) == 1 else f"{len(self.findings)} findings"
        return "\n".join([f"{count}: {figures}", *(f"- {finding}" for finding in self.findings)])

    __repr__ = __str__


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
