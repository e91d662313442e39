"""What a conversion did: every activation with its head, every feed-forward block with its bound, what remains."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

PAIRS = ("refused", "remaining", "attention")
NAMES = ("idle", "outside")
MEASURED = ("difference", "size")


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
    """What was replaced, what could not be, and everything nonlinear that was left when the model was watched."""

    tol: float
    replaced: list[Replaced] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Places of activations that are as they were, with the reason."""
    remaining: list[tuple[str, str]] = field(default_factory=list)
    """Modules in which something nonlinear ran that is neither a head nor the model's own attention, with what."""
    attention: list[tuple[str, str]] = field(default_factory=list)
    """Modules in which softmax attention ran, and their classes."""
    inputs: str = ""
    """The inputs on which the model was watched and compared with its original."""
    unwatched: str = "no inputs are known that this model takes"
    """Why the model was not watched; empty if it was."""
    difference: float = float("nan")
    """The largest difference of an output from the original's on them, and `size`, the largest output."""
    size: float = float("nan")
    idle: list[str] = field(default_factory=list)
    """Modules that did not run on them, of which nothing was seen."""
    outside: list[str] = field(default_factory=list)
    """Places of heads whose arguments left their interval on them."""

    @property
    def watched(self) -> bool:
        """Whether the model ran, so that `remaining` is complete for what ran."""
        return not self.unwatched

    @property
    def pure(self) -> bool:
        """Whether nothing but affine maps, softmax attention and heads was seen; `remaining` names what else was."""
        return self.watched and not self.remaining

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
        seen = {name: getattr(self, name) for name in (*PAIRS, *NAMES)}
        measured = {name: v if math.isfinite(v := getattr(self, name)) else None for name in MEASURED}
        return {"tol": self.tol, "replaced": rows, **seen, "inputs": self.inputs, **measured,
                "watched": self.watched, "unwatched": self.unwatched, "pure": self.pure, "blocks": len(self.blocks),
                "neurons": self.neurons}  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any], replaced: list[Replaced]) -> ConversionReport:
        """What `as_dict` gave, with rows that were made anew; raises a KeyError, TypeError or ValueError for others."""
        seen: dict[str, Any] = {name: [(str(a), str(b)) for a, b in data[name]] for name in PAIRS}
        seen |= {name: [str(place) for place in data[name]] for name in NAMES}
        seen |= {name: math.nan if data[name] is None else float(data[name]) for name in MEASURED}
        return cls(float(data["tol"]), replaced, inputs=str(data["inputs"]), unwatched=str(data["unwatched"]), **seen)

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
        return "\n".join([*lines, *self._seen()])

    def _seen(self) -> list[str]:
        """What watching gave, or that the model was not watched."""
        lines = [f"  outside its interval on these inputs: {place}" for place in self.outside]
        if self.inputs:
            size = f"where they are up to {self.size:.3g}"
            lines.insert(0, f"  the outputs differ by at most {self.difference:.2e}, {size}, on {self.inputs}")
        if not self.watched:
            compared = "" if self.inputs else ", nor whether it computes what the original does"
            return [
                *lines,
                f"  NOT watched, since {self.unwatched}: what else in it is nonlinear is not known{compared}; convert "
                "with inputs= to have that",
            ]
        lines += _by_kind("remains", self.remaining)
        lines += _by_kind("softmax attention of its own", self.attention)
        lines += [f"  did not run, and was not seen: {_some(self.idle)}"] if self.idle else []
        pure = (
            "nothing else that is nonlinear ran" if self.remaining else "nothing nonlinear ran but heads and attention"
        )
        return [*lines, f"  complete for what ran on these inputs: {pure}"]


def _by_kind(title: str, rows: list[tuple[str, str]]) -> list[str]:
    kinds = dict.fromkeys(what for _, what in rows)
    return [f"  {title}, {kind}: {_some([place for place, what in rows if what == kind])}" for kind in kinds]


def _some(places: list[str]) -> str:
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{', '.join(places[:3])}{more}"
