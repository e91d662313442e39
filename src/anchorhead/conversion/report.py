"""What a conversion did: every activation with its head, every feed-forward block with its bound, what remains."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import nn

from anchorhead.conversion.linear import Around, row_sum
from anchorhead.conversion.makeup import Makeup, changes, makeup, standing
from anchorhead.display import gauge, page, sentence, table
from anchorhead.model.activation import Placed
from anchorhead.model.outside import WHOLE
from anchorhead.proof.certificate import end_text
from anchorhead.proof.composed import HeadOf, heads_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ALIKE = 8
"""Rows of one kind that are printed one by one."""
UNITS = {"gate": " for partners up to 1", "square": " for |x| up to 1"}
BOUNDS = ("error", "rounding", "relative", "least")
PAIRS = ("refused", "remaining", "attention")
NAMES = ("idle", "outside")
MEASURED = ("difference", "size")
NO_INPUTS = "no inputs are known that this model takes"


@dataclass(frozen=True)
class Replaced:
    """One nonlinear operation that is heads now.

    place: its path in the model. formula: what it computed, phi. kind: an activation, phi(u), a gate, phi(u) times a
    partner v, or a square, the ramp of u times v = u. For every u in `domain` the result is within
    (error + rounding (1 + |u|)) |v| + relative |phi(u) v| of phi(u) v, v = 1 where there is no partner, and `least`,
    for results that are no normal numbers: error is that of the heads' numbers as they are stored, rounding what
    evaluating them adds, relative the rounding of results to `dtype`,
    which the model has. heads: each by its role. neurons: how many it serves, None if not known. feeds: the linear
    layers that follow, and output_bound: how far their output moves at most, the largest row sum of their weights times
    the error, rounding apart; for a gate for partners of size one, for a square for u of that size, and None where
    something other than dropout stands between.
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

    @property
    def row(self) -> Replaced:
        """The report's row, from the heads, weights and dtype that the model has now."""
        found, near = self.module.bound, self.near
        direct = near.direct and near.feeds and self.module.proved
        return Replaced(
            place=self.place,
            formula=self.module.formula,
            kind=self.module.kind,
            dtype=self.module.dtype,
            **{name: getattr(found, name) for name in (*BOUNDS, "domain")},
            heads=heads_of(self.module.claims),
            neurons=near.neurons,
            feeds=", ".join(path for path, _ in near.feeds) or None,
            output_bound=max(row_sum(m) for _, m in near.feeds) * found.error if direct else None,
        )


@dataclass(eq=False)
class ConversionReport:
    """What was replaced, what could not be, and everything nonlinear that was left when the model was watched."""

    tol: float
    places: list[Place] = field(default_factory=list, repr=False)
    """Where heads stand."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Places of activations that are as they were, with the reason."""
    remaining: list[tuple[str, str]] = field(default_factory=list)
    """Modules in which something nonlinear ran that is neither a head nor the model's own attention, with what."""
    attention: list[tuple[str, str]] = field(default_factory=list)
    """Modules in which softmax attention ran, and their classes."""
    inputs: str = ""
    """The inputs on which the model was watched and compared with its original."""
    unwatched: str = NO_INPUTS
    """Why the model was not watched; empty if it was."""
    difference: float = float("nan")
    """The largest difference of an output from the original's on them when it was converted, and `size`, the largest
    output; not a number after heads were trained and proved again."""
    size: float = float("nan")
    idle: list[str] = field(default_factory=list)
    """Modules that did not run on them, of which nothing was seen."""
    outside: list[str] = field(default_factory=list)
    """Places of heads whose arguments left their interval on them."""
    code: dict[str, str] = field(default_factory=dict, repr=False)
    """A digest of the code that was converted, by class."""
    made: Makeup = field(default_factory=dict, repr=False)
    """What the model was made of when it was converted."""

    def settle(self, model: nn.Module) -> None:
        """This is the model of which the report is told, and what it is made of."""
        self._model: ref[nn.Module] | None = ref(model)
        self.made = makeup(model, self.places)

    @property
    def model(self) -> nn.Module | None:
        """The model, while there is one."""
        held = vars(self).get("_model")
        return None if held is None else held()

    def __getstate__(self) -> dict[str, Any]:
        """A copy is told of the model's copy."""
        return vars(self) | {"_model": self.model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _model=None if state["_model"] is None else ref(state["_model"]))

    @property
    def changed(self) -> list[str]:
        """What was changed in the model after it was converted: modules, hooks, functions, settings; not weights."""
        model = self.model
        return [] if model is None else changes(model, self.places, self.made)

    @property
    def replaced(self) -> list[Replaced]:
        """A row for each place whose heads are there, made of what the model is now: another dtype, trained weights."""
        model = self.model
        return [place.row for place in (self.places if model is None else standing(model, self.places))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConversionReport) and self.as_dict() == other.as_dict()

    @property
    def watched(self) -> bool:
        """Whether the model ran, as it is now, so that `remaining` is complete for what ran."""
        return not self._why_unwatched()

    def _why_unwatched(self) -> str:
        changed = self.changed
        return f"the model was changed after it was converted ({_some(changed)})" if changed else self.unwatched

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
        rows = [row.as_dict() for row in self.replaced]
        seen = {name: getattr(self, name) for name in (*PAIRS, *NAMES)}
        measured = {name: v if math.isfinite(v := getattr(self, name)) else None for name in MEASURED}
        return {"tol": self.tol, "replaced": rows, **seen, "inputs": self.inputs, **measured,
                "watched": self.watched, "unwatched": self._why_unwatched(), "pure": self.pure,
                "blocks": len(self.blocks), "neurons": self.neurons}  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any], places: list[Place]) -> ConversionReport:
        """What `as_dict` gave, with places made anew; raises a KeyError, TypeError or ValueError for others."""
        seen: dict[str, Any] = {name: [(str(a), str(b)) for a, b in data[name]] for name in PAIRS}
        seen |= {name: [str(place) for place in data[name]] for name in NAMES}
        seen |= {name: math.nan if data[name] is None else float(data[name]) for name in MEASURED}
        return cls(float(data["tol"]), places, inputs=str(data["inputs"]), unwatched=str(data["unwatched"]), **seen)

    def plot(self) -> Figure:
        """The proved error of every place, by what it computes, and what else was seen: no file and no window."""
        from anchorhead.conversion.portrait import portrait

        return portrait(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = self.replaced
        errors = [(formula, max(r.error for r in rows if r.formula == formula)) for formula in
                  dict.fromkeys(r.formula for r in rows if r.kind != "norm")]  # fmt: skip
        columns = ("place", "formula", "kind", "keys", "error", "dtype")
        cells = [(r.place, r.formula, r.kind, str(r.keys), f"{r.error:.2e}", r.dtype) for r in rows]
        refused = [f"NOT converted, {place}: {why}" for place, why in self.refused]
        return page("Converted to attention", sentence(self._first()),
                    gauge([*errors[:4], ("tol", self.tol)], "the largest proved error by formula, and the tolerance"),
                    table(columns, cells, f"{len(rows)} places") if rows else "",
                    sentence("\n".join([*refused, *self._seen()])))  # fmt: skip

    def __str__(self) -> str:
        lines = [self._first()]
        lines += [f"  {line}" for line in _lines(self.replaced)]
        beyond = [row.place for row in self.replaced if row.kind != "norm" and self.tol / 2 < row.error < math.inf]
        lines += [f"  with a larger error than tol: {_some(beyond)}"] if beyond else []
        lines += [f"  NOT converted, {place}: {why}" for place, why in self.refused]
        return "\n".join([*lines, *self._seen()])

    __repr__ = __str__

    def _first(self) -> str:
        norms = sum(row.kind == "norm" for row in self.replaced)
        also = f" and {norms} norms" if norms else ""
        return (
            f"{len(self.replaced) - norms} activations{also} are attention now, {len(self.blocks)} of them in "
            f"feed-forward blocks with {self.neurons:,} neurons; at most {self.keys} keys; tol {self.tol:g}"
        )

    def _seen(self) -> list[str]:
        """What watching gave, or that the model was not watched."""
        lines = [f"  outside its interval on these inputs: {place}" for place in self.outside]
        changed = self.changed
        if changed:
            what = (
                "what it computes, and what else in it is nonlinear, is not known; change the original and convert it"
            )
            return [f"  NOT watched, since {self._why_unwatched()}: {what}"]
        if self.inputs:
            lines.insert(0, self._compared())
        if not self.watched:
            compared = "" if self.inputs else ", nor whether it computes what the original does"
            advice = "; convert with inputs= to have that" if self.unwatched == NO_INPUTS else ""
            unknown = f"what else in it is nonlinear is not known{compared}{advice}"
            return [*lines, f"  NOT watched, since {self.unwatched}: {unknown}"]
        lines += _by_kind("remains", self.remaining)
        lines += _by_kind("softmax attention of its own", self.attention)
        lines += [f"  did not run, and was not seen: {_some(self.idle)}"] if self.idle else []
        pure = (
            "nothing else that is nonlinear ran" if self.remaining else "nothing nonlinear ran but heads and attention"
        )
        return [*lines, f"  complete for what ran on these inputs: {pure}"]

    def _compared(self) -> str:
        """With the original, as it was then; of heads that were trained since that says nothing."""
        if math.isnan(self.difference) or not all(place.module.proved for place in self.places):
            return (
                "  heads were trained since it was compared with the original, so that no difference from it is stated"
            )
        size = f"where they were up to {self.size:.3g}"
        return (
            f"  when it was converted the outputs differed by at most {self.difference:.2e}, {size}, on {self.inputs}"
        )


def _lines(rows: list[Replaced]) -> list[str]:
    """Rows for people; those that differ in their places and outputs only in one line, where they are many."""
    kinds: dict[str, list[Replaced]] = {}
    for row in rows:
        kinds.setdefault(_line(replace(row, place="", feeds=None, output_bound=None)), []).append(row)
    found: list[str] = []
    for line, alike in kinds.items():
        if len(alike) <= MOST_ALIKE:
            found += map(_line, alike)
            continue
        bounds = [row.output_bound for row in alike if row.output_bound]
        after = f"; outputs of the layers that follow move by at most {max(bounds):.2e}" if bounds else ""
        after += f"{UNITS.get(alike[0].kind, '')}, rounding apart" if bounds else ""
        found.append(f"{_some([row.place for row in alike])}{line}{after}")
    return found


def _line(r: Replaced) -> str:
    """A row for people."""
    gate, unit = " times its partner" if r.gated else "", UNITS.get(r.kind, "")
    what = f"{r.place}: {r.formula}{gate}, {' + '.join(str(head.keys) for head in r.heads)} keys"
    if not math.isfinite(r.error):
        return (
            f"{what}, unproved: numbers were changed after their proof; ah.recertify(model) proves trained heads again"
        )
    where = "R" if r.domain == WHOLE else f"[{r.domain[0]:.4g}, {r.domain[1]:.4g}]"
    if r.kind == "norm":
        return (
            f"{what}, proved to {r.relative:.1e} of the result in {r.dtype}, rounding included, mean squares in {where}"
        )
    after = f"; {r.feeds} moves by at most {r.output_bound:.2e}{unit}, rounding apart" if r.output_bound else ""
    if r.feeds and r.output_bound is None:
        after = f"; {r.feeds} follows, not directly, so no bound on its output is claimed"
    parts = [f"{r.rounding:.1e} (1 + |x|)"] * (r.rounding > 0) + [f"{r.relative:.1e} of the result"] * (r.relative > 0)
    return (
        f"{what}, proved {r.error:.2e} on {where} for the stored numbers{unit}, "
        f"{r.dtype} rounding adds at most {' and '.join(parts)}{after}"
    )


def _by_kind(title: str, rows: list[tuple[str, str]]) -> list[str]:
    kinds = dict.fromkeys(what for _, what in rows)
    return [f"  {title}, {kind}: {_some([place for place, what in rows if what == kind])}" for kind in kinds]


def _some(places: list[str]) -> str:
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{', '.join(places[:3])}{more}"
