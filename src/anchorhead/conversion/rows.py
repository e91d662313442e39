"""The rows of a conversion's report: every place where heads stand, with what is proved of it, and rows as lines."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from anchorhead.conversion.linear import Around, row_sum
from anchorhead.digits import Up
from anchorhead.model.activation import Placed
from anchorhead.model.outside import WHOLE
from anchorhead.proof.certificate import end_text
from anchorhead.proof.composed import HeadOf, heads_of
from anchorhead.proof.norm_heads import share_of

MOST_ALIKE = 3
"""Rows of one kind that are printed one by one."""
UNITS = {"gate": " for partners up to 1", "square": " for |x| up to 1"}
CENTRED = ", but for what rounding of x - mean in float64 adds: n 2^-52 |weight| mean|x| (1 + |y|)/σ, of n numbers"
"""What a norm that is centred adds (docs/mathematics.md, 3.10)."""
UNCLAIMED = "no bound on its output is claimed, since"
BOUNDS = ("error", "rounding", "relative", "least")


@dataclass(frozen=True)
class Replaced:
    """One nonlinear operation that is heads now.

    place: its path in the model. formula: what it computed, phi. kind: an activation, phi(u), a gate, phi(u) times a
    partner v, or a square, the ramp of u times v = u. For every u in `domain` the result is within
    (error + rounding (1 + |u|)) |v| + relative |phi(u) v| of phi(u) v, v = 1 where there is no partner, and `least`,
    for results that are no normal numbers: error is that of the heads' numbers as they are stored, rounding what
    evaluating them adds, and what slopes at infinity that are no numbers of their dtype differ by as stored, relative
    the rounding of results to `dtype`, which the model has. Of a norm, weight·y + bias with y what is normalised,
    relative is a share of |weight y| + |bias|, which without a bias is the result, and least is for weights up to 1,
    and else times |weight|; where it is centred, as all but rms_norm are, the rounding of x - mean in float64 comes on
    top, at most n 2^-52 |weight| mean|x| (1 + |y|)/σ, for n numbers with deviation σ.
    heads: each by its role. neurons: how many it serves, None if not known.
    feeds: the linear layers that follow, as the forward says or the run showed, and output_bound: how far their output
    moves at most, the largest row sum of their weights times the error, rounding apart; for a gate for partners of size
    one, for a square for u of that size, and None where something other than dropout stands between, where weights
    there are not finite (finite is False then), or where a layer multiplies by something else than its weight, as one
    that is quantised or has an adapter: unread says which.
    """

    place: str
    formula: str
    kind: str
    dtype: str
    error: float
    rounding: float
    relative: float
    least: float
    domain: tuple[float, float]
    heads: tuple[HeadOf, ...]
    neurons: int | None
    feeds: str | None
    output_bound: float | None
    unread: str = ""
    finite: bool = True

    @property
    def gated(self) -> bool:
        """Whether it carries a partner."""
        return self.kind == "gate"

    @property
    def keys(self) -> int:
        """Of all its heads."""
        return sum(head.keys for head in self.heads)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite ends become strings, bounds that are not known None."""
        values = asdict(self) | {"keys": self.keys}
        known = {name: v if math.isfinite(v := getattr(self, name)) else None for name in BOUNDS}
        return values | known | {"domain": list(map(end_text, self.domain)), "heads": list(map(asdict, self.heads))}


@dataclass(frozen=True)
class Place:
    """Where heads stand: what is there now, and the linear layers around it."""

    place: str
    module: Placed
    near: Around

    def seen(self, fed: set[tuple[str, str]]) -> Place:
        """Without layers that were guessed to follow, and were not seen to; fed: places with layers that were."""
        kept = not self.near.guessed or all((self.place, path) in fed for path, _ in self.near.feeds)
        return self if kept else replace(self, near=Around(None))

    @property
    def row(self) -> Replaced:
        """The report's row, from the heads, weights and dtype that the model has now."""
        found, near = self.module.bound, self.near
        direct = near.direct and near.feeds and self.module.proved
        sums = [row_sum(layer) for _, layer in near.feeds]
        known = [most for most in sums if most is not None]
        unread = [type(m).__name__ for (_, m), most in zip(near.feeds, sums, strict=True) if most is None]
        bounds = [most * found.error for most in known]
        finite = all(map(math.isfinite, known)) and (not direct or all(map(math.isfinite, bounds)))
        return Replaced(
            place=self.place,
            formula=self.module.formula,
            kind=self.module.kind,
            dtype=self.module.dtype,
            **{name: getattr(found, name) for name in (*BOUNDS, "domain")},
            heads=heads_of(self.module.claims),
            neurons=near.neurons,
            feeds=", ".join(path for path, _ in near.feeds) or None,
            output_bound=max(bounds) if direct and finite and not unread else None,
            unread=", ".join(dict.fromkeys(unread)),
            finite=finite,
        )


def lines(rows: list[Replaced]) -> list[str]:
    """Rows for people; those that differ in their places and outputs only in one line, where they are many."""
    kinds: dict[tuple[str, str], list[Replaced]] = {}
    for row in rows:
        line = _after(replace(row, feeds=None, output_bound=None))
        unclaimed = _unclaimed(row) if row.feeds is not None and row.output_bound is None else ""
        kinds.setdefault((line, unclaimed), []).append(row)
    found: list[str] = []
    for (line, unclaimed), alike in kinds.items():
        if len(alike) <= MOST_ALIKE:
            found += (f"{said(row.place)}{_after(row)}" for row in alike)
            continue
        bounds = [row.output_bound for row in alike if row.output_bound]
        after = f"; outputs of the layers that follow move by at most {Up(max(bounds)):.2e}" if bounds else ""
        after += f"{UNITS.get(alike[0].kind, '')}, rounding apart" if bounds else ""
        after += f"; a layer follows each, {unclaimed}" if unclaimed else ""
        found.append(f"{some([row.place for row in alike])}{line}{after}")
    return found


def _after(r: Replaced) -> str:
    """A row for people, after its place."""
    gate, unit = " times its partner" if r.gated else "", UNITS.get(r.kind, "")
    what = f": {r.formula}{gate}, {' + '.join(str(head.keys) for head in r.heads)} keys"
    if not math.isfinite(r.error):
        return (
            f"{what}, unproved: numbers were changed after their proof; ah.recertify(model) proves trained heads again"
        )
    where = "R" if r.domain == WHOLE else f"[{r.domain[0]:.4g}, {r.domain[1]:.4g}]"
    least = f", and {Up(r.least):.1e} where that underflows" if r.least > 0 else ""
    if r.kind == "norm":
        return (
            f"{what}, proved to {Up(r.relative):.1e} of {share_of(r.formula)} in {r.dtype}, mean squares in {where}, "
            f"rounding included{least} (times |weight| if above 1){'' if r.formula.startswith('rms_norm') else CENTRED}"
        )
    s = "" if ", " in (r.feeds or "") else "s"
    after = f"; {r.feeds} move{s} by at most {Up(r.output_bound):.2e}{unit}, rounding apart" if r.output_bound else ""
    if r.feeds and r.output_bound is None:
        after = f"; {r.feeds} follow{s}, {_unclaimed(r)}"
    parts = [f"{Up(r.rounding):.1e} (1 + |x|)"] * (r.rounding > 0)
    parts += [f"{Up(r.relative):.1e} of the result{least}"] * (r.relative > 0)
    return (
        f"{what}, proved {Up(r.error):.2e} on {where}{unit}, and rounding, of stored slopes and in {r.dtype}, adds at "
        f"most {' and '.join(parts)}{after}"
    )


def _unclaimed(r: Replaced) -> str:
    """Why nothing is claimed of the layers that follow."""
    if r.unread:
        return f"{UNCLAIMED} {r.unread} multiplies by something else than a weight that can be read"
    return f"{UNCLAIMED} {'something may stand between' if r.finite else 'weights there have no finite sum'}"


def said(place: str) -> str:
    """A path in the model, for people: that of the model itself is empty."""
    return place or "the model"


def some(places: list[str]) -> str:
    """Three names of many."""
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{', '.join(map(said, places[:3]))}{more}"
