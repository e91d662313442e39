"""Entries of the page for the heads of a saved network, each as a function of its own u.

Steps share a head that looks at t = (u - c)/r, c and r of their own: products and squares one on [-1, 1]. A network
computes α h(t) + β t + γ of it. For the keys (slope s, intercept b) and values (constant a, gain g) of h this is a head
in u with slopes s/r, intercepts b - s c/r, constants α a + γ - (α g + β) c/r and gains (α g + β)/r: the numbers of a
cache. Steps with the same head, c, r, α, β and γ are one entry; what is claimed is what their kind of step derives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anchorhead.circuit.apply import FunctionStep, Times
from anchorhead.circuit.largest import Largest
from anchorhead.circuit.names import wire_names
from anchorhead.circuit.step import Computed, Pair, Use, Values
from anchorhead.compiler.target import read_target
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import precision
from anchorhead.errors import InputError
from anchorhead.explore.numbers import claim, domain_text, entry, head_numbers
from anchorhead.expression.parse import parse
from anchorhead.head.head import Head
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_mechanism import Stated
from anchorhead.model.layered_core import LayeredCore
from anchorhead.proof.certificate import rest_above
from anchorhead.proof.network_claim import argument_ranges

MOST_HEADS = 24
"""Entries of a saved network that the page offers, the first ones."""
MOST_SAID = 4
"""Heads of an entry of which it is said what their u is."""
LEAD = 16.0
"""A maximum is drawn to where its largest argument leads by this over β: there it has all but 1e-7 of the weight."""


def network_entries(model: CompiledModel, core: LayeredCore) -> list[dict[str, Any]]:
    """The heads of the network that are functions of their own u, and maxima as one of the lead of an argument."""
    heads, maxima = _by_use(core), _maxima(core)
    if not heads and not maxima:
        raise InputError(
            f"The page draws heads that are functions of one number, and the network of {model.certificate.expression} "
            f"has none: {_without(core)} anchorhead show prints what it computes."
        )
    ranges = argument_ranges(core.circuit, core.placed.claim.box, core.placed.claim.dtype)
    drawn = [lambda steps=steps: _node_entry(model, core, steps, ranges) for steps in heads]
    drawn += [lambda steps=steps: _maximum_entry(model, core, steps) for steps in maxima]
    found = [draw() | {"of": model.certificate.expression} for draw in drawn[:MOST_HEADS]]
    if len(drawn) > MOST_HEADS:
        for each in found:
            each["notes"].append(f"Heads with the same numbers are one picture; the first {MOST_HEADS} are shown.")
    return found


def _without(core: LayeredCore) -> str:
    kinds = {step.name for step in core.circuit.steps}
    return f"its heads ({', '.join(sorted(kinds))}) have keys that depend on the input." if kinds else "it is affine."


def _by_use(core: LayeredCore) -> list[list[int]]:
    """The steps that use a head, those that use it alike together."""
    wiring = core.placed.claim.wiring
    found: dict[tuple[Use, Values], list[int]] = {}
    for i, (use, values) in enumerate(zip(wiring.uses, wiring.values, strict=True)):
        if use.head >= 0:
            found.setdefault((use, values), []).append(i)
    return [found[key] for key in sorted(found, key=lambda key: (key[0].head, found[key][0]))]


def _maxima(core: LayeredCore) -> list[list[int]]:
    """The steps that are maxima, those of as many arguments with the same β together."""
    found: dict[tuple[int, float], list[int]] = {}
    for i, step in enumerate(core.circuit.steps):
        if isinstance(step, Largest):
            found.setdefault((len(step.arguments), core.placed.claim.wiring.values[i][0]), []).append(i)
    return list(found.values())


def _maximum_entry(model: CompiledModel, core: LayeredCore, steps: list[int]) -> dict[str, Any]:
    """max(u, 0, ..., 0): a maximum by how far one of its arguments leads, the others alike."""
    claim_, known = core.placed.claim, model.certificate
    step, use, values = core.circuit.steps[steps[0]], claim_.wiring.uses[steps[0]], claim_.wiring.values[steps[0]]
    beta, others = values[0], [0.0] * (len(list(step.lines())) - 1)
    end = LEAD / beta
    computed = Computed(use, values, None, known.dtype, UNIT[known.dtype])
    [(_, total)] = step.follow([((-end, end), 0.0), *(((0.0, 0.0), 0.0) for _ in others)], (-end, end), computed)
    own = step.own_error(claim_.heads, use, values)
    stated = claim((-end, end), known.level, own, rest_above(total, own), known.dtype)
    keys = Head.of(slopes=[beta, *others], intercepts=[0.0, *others], constants=[0.0, *others], gains=[1.0, *others],
                   horner=False, dtype=known.dtype)  # fmt: skip
    head = head_numbers(keys, "maximum", stated) | {"saved": True}
    said = "u is how far one argument of the maximum is above the others, which are alike; scores are β times both."
    target = read_target(parse("relu(u)", ["u"]), (-end, end))
    return entry(target, [head], [_of(model, steps), said], 0) | _node(core, steps)


def _node_entry(model: CompiledModel, core: LayeredCore, steps: list[int], ranges: Sequence[Sequence[Pair]]
                ) -> dict[str, Any]:  # fmt: skip
    claimed, step = core.placed.claim, core.circuit.steps[steps[0]]
    use, values = claimed.wiring.uses[steps[0]], claimed.wiring.values[steps[0]]
    known = claimed.heads[use.head]
    if not isinstance(step, FunctionStep):
        raise InputError(f"The page draws functions of one number, and {step.name} is none.")
    low, high = ends = _ends((known.low, known.high), use)
    target = read_target(parse(str(step.function), ["u"]), ends)
    query = ((low - use.centre) / use.radius, (high - use.centre) / use.radius)
    computed = Computed(use, values, known, known.head.dtype, UNIT[known.head.dtype])
    with precision():
        own, total = (
            step.function_error((query, 0.0), ends, each)[1] for each in (replace(computed, unit=0.0), computed)
        )
    stated = claim(ends, model.certificate.level, own, rest_above(total, own), known.head.dtype)
    head = head_numbers(_in_u(core.heads()[use.head], use, values), known.method, stated) | {"saved": True}
    notes = [_of(model, steps), _looked_at(core, steps, ranges)]
    if isinstance(step, Times):
        notes.append(f"Values are drawn for v = 1: of {_node(core, steps)['node']} they are multiplied by v, a number "
                     "that the head reads beside u, so that it writes this function times v.")  # fmt: skip
    return entry(target, [head], notes, 0) | _node(core, steps)


def _ends(domain: Pair, use: Use) -> Pair:
    """The u for which a head is proved; where it is looked up inside an interval, that interval."""
    if use.is_squeezed:
        return domain
    return use.centre + use.radius * domain[0], use.centre + use.radius * domain[1]


def _in_u(head: Head, use: Use, values: Values) -> Head:
    """α h(t) + β t + γ as a head in u."""
    (scale, tilt, shift), centre, radius = values, use.centre, use.radius
    gains = [(scale * gain + tilt) / radius for gain in head.gains]

    def moved(levels: Sequence[float], slopes: Sequence[float]) -> tuple[float, ...]:
        return tuple(level - slope * centre for level, slope in zip(levels, slopes, strict=True))

    slopes, gates = (tuple(s / radius for s in each) for each in (head.slopes, head.gate_slopes))
    return replace(head, slopes=slopes, intercepts=moved(head.intercepts, slopes), gate_slopes=gates,
                   gate_levels=moved(head.gate_levels, gates), gains=tuple(gains),
                   constants=moved([scale * a + shift for a in head.constants], gains))  # fmt: skip


def _of(model: CompiledModel, steps: list[int]) -> str:
    """How many of the network's heads an entry shows."""
    count = model.resources.heads
    shown = "All" if len(steps) == count else f"{len(steps)} of the" if len(steps) > 1 else "One of the"
    some = "The only head" if count == 1 else f"{shown} {count} heads"
    alike = ", which have the same numbers" if len(steps) > 1 else ""
    known = model.certificate.level != "unproved"
    proved = ("; what is proved here is proved of this head, and anchorhead show prints what of it arrives at the "
              "network's output") if known else ", before its numbers were changed"  # fmt: skip
    return f"{some} of the network that approximates {model.certificate.expression}{alike}{proved}."


def _looked_at(core: LayeredCore, steps: list[int], ranges: Sequence[Sequence[Pair]]) -> str:
    """What u is, and between which numbers it stays."""
    names, _ = wire_names(core.circuit)
    said = []
    for i in steps[:MOST_SAID]:
        line = Stated.of(next(core.circuit.steps[i].lines()), names).words()
        said.append(f"of {names[core.circuit.starts[i]]} it is {line}, in {domain_text(*ranges[i][0])}")
    more = f"; and so on, {len(steps)} in all" if len(steps) > MOST_SAID else ""
    return f"u is what the head reads: {'; '.join(said)}{more}."


def _node(core: LayeredCore, steps: list[int]) -> dict[str, str]:
    """What the steps of a head write, by the names of the mechanism."""
    names, _ = wire_names(core.circuit)
    known = [names[core.circuit.starts[i]] for i in steps]
    more = f" and {len(known) - 1} more" if len(known) > 1 else ""
    return {"node": f"{known[0]}{more}" if known else ""}
