"""What a conversion did: every activation with its head, every feed-forward block with its bound, what remains."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from anchorhead.conversion.configured import computed, configured, functions_named
from anchorhead.conversion.instead import instead
from anchorhead.conversion.makeup import Makeup, changes, dtypes, makeup, not_finite, standing
from anchorhead.conversion.rows import UNITS, Place, Replaced, lines, said, some
from anchorhead.digits import Up, counted, exactly
from anchorhead.display import gauge, page, sentence, table
from anchorhead.proof.norm_heads import share_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIRS = ("refused", "remaining", "attention")
NAMES = ("idle", "outside")
MEASURED = ("difference", "size")
NO_INPUTS = "no inputs are known that this model takes"


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
    shared: dict[str, str] = field(default_factory=dict, repr=False)
    """Other paths of modules of the original that stand in several places."""
    made: Makeup = field(default_factory=Makeup, repr=False)
    """What the model was made of when it was converted."""
    computed_by: dict[str, str] = field(default_factory=dict, repr=False)
    """Which functions its configurations named for attention and experts when it was watched."""
    dtypes: dict[str, int] = field(default_factory=dict, repr=False)
    """How many of its parameters and places were of each dtype then."""
    seen_on: str = ""
    """The inputs on which it was watched again, if these are others."""
    item: Any = field(default=None, repr=False)
    """The inputs themselves, while they are known."""

    def settle(self, model: nn.Module) -> None:
        """This is the model of which the report is told, and what it is made of."""
        self._model: nn.Module | None = model
        self.made = makeup(model, self.places)
        self.computed_by = self.computed_by or functions_named(self.made.configured)
        self.dtypes = self.dtypes or dtypes(model)

    def watch(self, inputs: Any = None) -> ConversionReport:
        """Watches the model again, as it computes attention now and in its dtype now, and returns the report.

        inputs: as for `ah.convert`; without it those on which the model was watched, or others that it takes.
        """
        from anchorhead.conversion.trial import watch_again

        watch_again(self, inputs)
        return self

    @property
    def model(self) -> nn.Module | None:
        """The model, which its report keeps, so that what is said is of what it is; None until the conversion ends."""
        return vars(self).get("_model")

    @property
    def changed(self) -> list[str]:
        """What was changed in the model after it was converted: modules, hooks, functions, settings; not weights, nor
        the numbers of heads, which their rows tell of."""
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
        if changed:
            return f"the model was changed after it was converted ({some(changed)})"
        return self.unwatched or self._computed_otherwise()

    def _computed_otherwise(self) -> str:
        """That the model computes in another dtype than when it was watched, or attention or experts by others."""
        model = self.model
        found = self.dtypes if model is None else dtypes(model)
        if found != self.dtypes:
            same = set(found) == set(self.dtypes)
            now, was = (" and ".join(f"{n} times {name}" if same else name for name, n in sorted(counts.items()))
                        for counts in (found, self.dtypes))  # fmt: skip
            return f"it computes in {now} now and did in {was} when it was watched"
        named = self.computed_by if model is None else functions_named(configured(model), once=False)
        others = [f"{computed(name)} by {named[name]!r} now and was by {before!r} when it was watched"
                  for name, before in self.computed_by.items() if named.get(name, before) != before]  # fmt: skip
        return f"it computes {some(others)}" if others else ""

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
    def unused(self) -> list[str]:
        """Places whose heads did not run when the model was watched."""
        idle = tuple(f"{name}." for name in self.idle) if self.watched else ()
        return [r.place for r in self.replaced if f"{r.place}.".startswith(idle)]

    @property
    def not_finite(self) -> list[str]:
        """Weights of the model that hold numbers which are not finite, as after a training that diverged."""
        return [] if self.model is None else not_finite(self.model)

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
                "not_finite": self.not_finite, "watched": self.watched, "unwatched": self._why_unwatched(),
                "pure": self.pure,
                "seen": {"unwatched": self.unwatched, "computed_by": self.computed_by, "on": self.seen_on,
                         "dtypes": self.dtypes},
                "blocks": len(self.blocks), "neurons": self.neurons}  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any], places: list[Place]) -> ConversionReport:
        """What `as_dict` gave, with places made anew; raises a KeyError, TypeError or ValueError for others."""
        seen: dict[str, Any] = {name: [(str(a), str(b)) for a, b in data[name]] for name in PAIRS}
        seen |= {name: [str(place) for place in data[name]] for name in NAMES}
        seen |= {name: math.nan if data[name] is None else float(data[name]) for name in MEASURED}
        then = data["seen"]
        seen |= {"unwatched": str(then["unwatched"]), "seen_on": str(then["on"])}
        seen |= {"computed_by": {str(k): str(v) for k, v in then["computed_by"].items()}}
        seen |= {"dtypes": {str(k): int(v) for k, v in then["dtypes"].items()}}
        return cls(float(data["tol"]), places, inputs=str(data["inputs"]), **seen)

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
        cells = [(said(r.place), r.formula, r.kind, str(r.keys), f"{Up(r.error):.2e}", r.dtype) for r in rows]
        return page("Converted to attention", sentence("\n".join(self._summary())),
                    gauge([*errors[:4], ("tol", self.tol)], "the largest proved error by formula, and the tolerance"),
                    table(columns, cells, f"{len(rows)} places") if rows else "",
                    sentence("\n".join([*self._beyond(), *self._seen()])))  # fmt: skip

    def __str__(self) -> str:
        found = [*self._summary(), *(f"  {line}" for line in lines(self.replaced))]
        return "\n".join([*found, *self._beyond(), *self._seen()])

    __repr__ = __str__

    def _summary(self) -> list[str]:
        """What was replaced, the worst that is proved of it, and what is left, in a line each."""
        found = [self._first()]
        norms = {share_of(row.formula): row.relative for row in
                 sorted(self.replaced, key=lambda row: row.relative) if row.kind == "norm"}  # fmt: skip
        errors = {row.place: row.error for row in self.replaced if row.kind != "norm"}
        units = " and".join({UNITS[row.kind]: None for row in self.replaced if row.kind in UNITS})
        if not all(map(math.isfinite, [*norms.values(), *errors.values()])):
            found.append("numbers of heads were changed after their proof, so that not all of them is proved")
        elif norms or errors:
            worst = max(errors, key=errors.__getitem__, default="")
            parts = [f"{Up(errors[worst]):.2e}{units}, rounding apart, at {said(worst)}"] if errors else []
            shares = " or ".join(f"{Up(most):.1e} of {what}" for what, most in norms.items())
            parts += [f"of norms {shares}, as their lines say"] if norms else []
            found.append(f"largest proved error: {'; '.join(parts)}")
        kinds = list(dict.fromkeys(what.partition(" (")[0] for _, what in self.remaining))
        left = f"NOT pure: other nonlinear operations remain in {some(kinds)}, {counted(len(self.remaining), 'place')}"
        seen = left if self.remaining else "pure: affine maps, softmax attention and heads, as far as it was watched"
        return [*found, seen if self.watched else "whether it is pure is not known, since it was not watched"]

    def _first(self) -> str:
        rows, blocks, idle = self.replaced, len(self.blocks), len(self.unused)
        if not rows:
            why = "for the reasons below" if self.refused else "since no activation was found"
            return f"nothing was converted, {why}; tol {self.tol:g}"
        norms = sum(row.kind == "norm" for row in rows)
        counts = {"activation": len(rows) - norms, "norm": norms}
        what = " and ".join(counted(count, kind) for kind, count in counts.items() if count)
        of = f"{blocks} of {'the activations' if norms else 'them'} in feed-forward blocks"
        of = "in a feed-forward block" if len(rows) == 1 else of
        none = "it did not run" if len(rows) == 1 else "none of them ran"
        ran = f" ({none if idle == len(rows) else f'{idle} did not run'})" if idle else ""
        now = f"{what} {'is' if len(rows) == 1 else 'are'} attention now{ran}"
        now += f", {of} with {counted(self.neurons, 'neuron')}" if blocks else ""
        return f"{now}; at most {self.keys} keys; tol {self.tol:g}"

    def _beyond(self) -> list[str]:
        """Places that do not keep the tolerance, and activations that were left, as lines."""
        half = self.tol / 2
        kept = [row for row in self.replaced if row.kind != "norm" and row.error < math.inf]
        beyond = [row.place for row in kept if row.heads[0].error > half]
        above = f"above {exactly(half)}, half of tol, which is what stored numbers are to keep"
        found = [f"  with an error {above}: {some(beyond)}"]
        infinite = self.not_finite
        weights = f"  NOT finite: numbers in {some(infinite)}, nor what is computed with them, whatever heads keep to"
        refused = [f"  NOT converted, {place}: {why}" for place, why in self.refused]
        return found * bool(beyond) + [weights] * bool(infinite) + refused

    def _seen(self) -> list[str]:
        """What watching gave, or that the model was not watched."""
        found = [f"  outside its interval on these inputs: {said(place)}" for place in self.outside]
        changed = self.changed
        if changed:
            what = (
                "what it computes, and what else in it is nonlinear, is not known; change the original and convert it"
            )
            return [f"  NOT watched, since {self._why_unwatched()}: {what}"]
        if self.inputs:
            found.insert(0, self._compared())
        why = self._why_unwatched()
        if why:
            compared = "" if self.inputs else ", nor whether it computes what the original does"
            advice = "; convert with inputs= to have that" if why == NO_INPUTS else ""
            advice = advice if self.unwatched else "; report.watch() looks again"
            unknown = f"what else in it is nonlinear is not known{compared}{advice}"
            return [*found, f"  NOT watched, since {why}: {unknown}"]
        found += _by_kind("remains", self.remaining) + instead(self.remaining, {place for place, _ in self.refused})
        found += _by_kind("softmax attention of its own", self.attention)
        found += [f"  did not run, and was not seen: {some(self.idle)}"] if self.idle else []
        pure = (
            "nothing else that is nonlinear ran" if self.remaining else "nothing nonlinear ran but heads and attention"
        )
        return [*found, f"  complete for what ran on {self.seen_on or 'these inputs'} in evaluation mode: {pure}"]

    def _compared(self) -> str:
        """With the original, as it was then; of heads with other numbers since that says nothing."""
        if math.isnan(self.difference) or not all(place.module.proved for place in self.places):
            return (
                "  heads were changed since it was compared with the original, so that no difference from it is stated"
            )
        size = f"where they were up to {self.size:.3g}"
        return (
            f"  when it was converted the outputs differed by at most {self.difference:.2e}, {size}, on {self.inputs}"
        )


def _by_kind(title: str, rows: list[tuple[str, str]]) -> list[str]:
    kinds = dict.fromkeys(what for _, what in rows)
    return [f"  {title}, {kind}: {some([place for place, what in rows if what == kind])}" for kind in kinds]
