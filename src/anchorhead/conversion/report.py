"""What a conversion did: every activation with its head, every feed-forward block with its bound, what remains."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Replaced:
    """One activation that is a head now.

    place: its path in the model. formula: what it computed. keys, error: of the head, the error proved for the numbers
    as stored in `dtype`; rounding: what evaluating adds, as a multiple of 1 + |x| where the domain is unbounded.
    domain: where that is proved. neurons: how many it serves, None if not known. gated: it carries a partner. feeds:
    the linear layers that follow, and output_bound: how far their output moves at most, the largest row sum of their
    weights times the error, rounding apart; for a gated head for partners of size one, and None where something other
    than dropout stands between.
    """

    place: str
    formula: str
    method: str
    keys: int
    error: float
    rounding: float
    domain: tuple[float, float]
    dtype: str
    neurons: int | None
    gated: bool
    feeds: str | None
    output_bound: float | None


@dataclass
class ConversionReport:
    """What was replaced, what could not be, and everything nonlinear that is left, by name."""

    tol: float
    replaced: list[Replaced] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Places of activations that are as they were, with the reason."""
    remaining: list[tuple[str, str]] = field(default_factory=list)
    """Places of other nonlinear parts, with what they are."""

    @property
    def blocks(self) -> list[Replaced]:
        """The feed-forward blocks: heads that feed a linear layer."""
        return [r for r in self.replaced if r.feeds is not None]

    @property
    def neurons(self) -> int:
        """Neurons of all feed-forward blocks."""
        return sum(r.neurons or 0 for r in self.blocks)

    @property
    def keys(self) -> int:
        """The most keys that a head has."""
        return max((r.keys for r in self.replaced), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite ends become strings."""
        rows = [
            asdict(r) | {"domain": [str(e) if abs(e) == float("inf") else e for e in r.domain]} for r in self.replaced
        ]
        return {"tol": self.tol, "replaced": rows, "refused": self.refused, "remaining": self.remaining,
                "blocks": len(self.blocks), "neurons": self.neurons}  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{len(self.replaced)} activations are attention now, {len(self.blocks)} of them in feed-forward blocks "
            "with "
            f"{self.neurons:,} neurons; at most {self.keys} keys; tol {self.tol:g}"
        ]
        for r in self.replaced:
            where = "R" if r.domain == (-float("inf"), float("inf")) else f"[{r.domain[0]:.4g}, {r.domain[1]:.4g}]"
            unit = " for partners up to 1" if r.gated else ""
            after = f"; {r.feeds} moves by at most {r.output_bound:.2e}{unit}, rounding apart" if r.output_bound else ""
            if r.feeds and r.output_bound is None:
                after = f"; {r.feeds} follows, not directly, so no bound on its output is claimed"
            gate = " times its partner" if r.gated else ""
            above = ", above tol" if r.error > self.tol else ""
            scale = "" if where != "R" else " (1 + |x|)"
            lines.append(
                f"  {r.place}: {r.formula}{gate}, {r.keys} keys, proved {r.error:.2e} on {where}{above} for the stored "
                f"numbers, {r.dtype} rounding adds at most {r.rounding:.1e}{scale}{after}"
            )
        lines += [f"  NOT converted, {place}: {why}" for place, why in self.refused]
        for kind in dict.fromkeys(what for _, what in self.remaining):
            places = [place for place, what in self.remaining if what == kind]
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            lines.append(f"  remains, {kind}: {', '.join(places[:3])}{more}")
        return "\n".join(lines)
