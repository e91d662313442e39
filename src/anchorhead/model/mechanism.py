"""What every head of a model does: which numbers it reads, what it computes of them, and what it writes.

A layer's heads are numbered as in its literal form (`as_self_attention`, stock attention, hook points): first those
that carry a number on, then those of its steps, each of which writes one number of the state after the layer. Lines are
the target's own, with exact coefficients in the names of the wires (`circuit/names.py`), so that the mechanism is a
program for the target, and `error` is how far the number that a head writes may be from what the program has there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from anchorhead.circuit.apply import U
from anchorhead.circuit.layout import states
from anchorhead.circuit.line import Line
from anchorhead.circuit.names import line_node, wire_names
from anchorhead.circuit.places import Place
from anchorhead.circuit.step import Pair
from anchorhead.display import page, sentence, table
from anchorhead.errors import InputError
from anchorhead.expression.graph import Node, substituted
from anchorhead.model.asked import Asked
from anchorhead.model.head_mechanism import MOST_SAID, HeadMechanism, Stated
from anchorhead.model.stated import Patches, Run, run
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.network_claim import PlacedNetwork, argument_ranges

EDITED = "Numbers were changed since this was proved: it says what the heads computed before, and no error is known."
OF = {"": "", Place.TOKEN: ", of each token", Place.PROMPT: ", of the prompt", Place.QUERY: ", of each query"}
"""Whose a number is, by its place, in words."""


@dataclass(frozen=True, repr=False)
class Mechanism:
    """What every head of a compiled model does: inputs by name, the heads of all layers in order, the names of the
    state after each, and the outputs' lines.

    tokens: how many inputs, the first ones, are those of each token of a prompt; the others are a query's. edited:
    whether the model's numbers are no longer those that compute this: it is then what they did when they were proved.

    >>> ah.compile("sin(3*x)", (-1, 1), tol=1e-4).mechanism.inputs
    ('x',)
    """

    inputs: tuple[str, ...]
    heads: tuple[HeadMechanism, ...]
    states: tuple[tuple[str, ...], ...]
    outputs: tuple[Stated, ...]
    tokens: int = 0
    edited: bool = False

    def head(self, name: str, layer: int | None = None) -> HeadMechanism:
        """The head that computes a number of that name, or the one that writes it in a layer, where it may be carried.

        A name may be written otherwise: `sin(3*x*y)` is the head called `sin(3*(x*y))`. It may be that of minus what
        a head writes: `min(x, y)` is the head called `-min(x, y)`, the largest of -x and -y; `signed` tells them apart.

        >>> model = ah.compile("sin(3*x*y) + exp(-x**2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-3)
        >>> [model.mechanism.head("exp(-1*x**2)", layer).kind for layer in (None, 0, 1)]
        ['apply', 'apply', 'carry']
        """
        return self.signed(name, layer)[0]

    def signed(self, name: str, layer: int | None = None) -> tuple[HeadMechanism, int]:
        """The head of that name, and -1 where it writes minus what the name says, else 1.

        >>> model = ah.compile("min(x, y)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-3)
        >>> model.mechanism.signed("min(x, y)")[1], model.mechanism.head("min(x, y)").words
        (-1, 'computes -min(x, y)')
        """
        writing, sign = [head for head in self.heads if head.name == name] or self._asked.meant(name), 1
        if not writing and isinstance(name, str):
            writing, sign = self._asked.meant(f"-({name})"), -1
        found = [head for head in writing if (head.kind != "carry" if layer is None else head.layer == layer)]
        if isinstance(layer, bool) or not found:
            raise InputError(self._asked.not_found(name, layer, [head.layer for head in writing]))
        return found[0], sign

    @cached_property
    def _asked(self) -> Asked:
        return Asked(self.inputs, self.inputs[: self.tokens], self.heads)

    def unproved(self) -> Mechanism:
        """The same of numbers that it was not proved for: no error is known."""
        return replace(
            self,
            edited=True,
            heads=tuple(replace(h, error=math.inf, patched_error=math.inf, rounding=0.0) for h in self.heads),
        )

    def run(self, x: Tensor, query: Tensor | None = None, mask: Tensor | None = None, *,
            patched: Patches | None = None) -> Run:  # fmt: skip
        """The program that the mechanism states, plainly in float64: outputs, and what every head is to write.

        x: (..., inputs), one number for every name of `inputs`; of a prompt (..., n, d), with (..., m, d) queries.
        patched: numbers in the place of what heads write, by name, or by (name, layer) where a head carries it.

        >>> model = ah.compile("sin(3*x*y) + exp(-x**2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-6)
        >>> x = torch.tensor([[0.5, -0.2]], dtype=torch.float64)
        >>> model.mechanism.run(x, patched={"x*y": 0.5}).outputs == torch.tensor(1.5).double().sin() + math.exp(-0.25)
        tensor([[True]])
        """
        return run(self, x, query, mask, patched or {})

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"inputs": list(self.inputs), "heads": [head.as_dict() for head in self.heads],
                "states": [list(names) for names in self.states],
                "outputs": [vars(line) for line in self.outputs], "edited": self.edited}  # fmt: skip

    def html(self) -> str:
        """The heads as a table, and the outputs as another."""
        rows = [(str(h.layer), str(h.head), h.name + OF[h.place], h.words, str(h.keys), h.kept)
                for h in self.heads]  # fmt: skip
        header, outputs = ("layer", "head", "writes", "what it does", "keys", "error"), self._outputs_said()
        return (
            (sentence(EDITED) if self.edited else "")
            + (table(header, rows, f"{len(rows)} heads") if rows else "")
            + table(("output", "is"), outputs, f"{len(outputs)} outputs")
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return page("What every head does", self.html())

    def _outputs_said(self) -> list[tuple[str, str]]:
        return [(str(k), line.words()) for k, line in enumerate(self.outputs)]

    def __str__(self) -> str:
        heads = [f"layer {h.layer}, head {h.head}  {h.name}{OF[h.place]}: {h.words}" for h in self.heads]
        said = [f"output {k}: {said}" for k, said in self._outputs_said()]
        return "\n".join([EDITED] * self.edited + heads + said)

    __repr__ = __str__


@dataclass(frozen=True)
class _Told:
    """Of every wire its name, as text and as a formula where it is short, and its errors at inputs of the domain and
    where numbers are patched; of every step the ranges of its lines, and where `model.attention` has its weights."""

    names: list[str]
    nodes: list[Node]
    errors: Sequence[float]
    patched: Sequence[float]
    ranges: list[list[Pair]]
    attention: dict[int, tuple[int, int]]


def mechanism(placed: PlacedNetwork, errors: Sequence[float], patched: Sequence[float]) -> Mechanism:
    """Of a network of heads, given the proved errors of every wire, at inputs and where numbers are patched."""
    claim, circuit = placed.claim, placed.claim.circuit
    ranges = argument_ranges(circuit, claim.box, claim.dtype)
    told = _Told(*wire_names(circuit), errors, patched, ranges, _attention(placed))
    heads: list[HeadMechanism] = []
    held = list(states(circuit, placed.plans))
    for layer, (plan, after) in enumerate(zip(placed.plans, held[1:], strict=True)):
        for head, wire in enumerate(after[: len(plan.kept)]):
            name, line = told.names[wire], Stated.of(Line({wire: 1}), told.names)
            heads.append(HeadMechanism(layer, head, "carry", name, f"carries {name} on", "", {"v": line}, "", 1,
                                       errors[wire], patched[wire], place=_place(placed, wire)))  # fmt: skip
        for i in (i for group in plan.groups for i in group):
            heads += [_head(placed, layer, after.index(wire), i, wire, told)
                      for wire in range(circuit.starts[i], circuit.starts[i] + circuit.steps[i].width)]  # fmt: skip
    outputs = tuple(Stated.of(line, told.names) for line in circuit.outputs)
    left = tuple(tuple(told.names[w] for w in wires) for wires in held[1:])
    return Mechanism(circuit.inputs, tuple(heads), left, outputs, circuit.tokens)


def _attention(placed: PlacedNetwork) -> dict[int, tuple[int, int]]:
    """Of every step, which entry of `model.attention` has its weights, a layer or of a prompt a group, and which head
    of that; numbers that one softmax gives are of one step."""
    groups = [list(plan.groups) for plan in placed.plans]
    if placed.claim.circuit.tokens:
        entries = [list(group) for layer in groups for group in layer]
    else:
        entries = [[i for group in layer for i in group] for layer in groups]
    return {i: (entry, row) for entry, steps in enumerate(entries) for row, i in enumerate(steps)}


def _head(placed: PlacedNetwork, layer: int, head: int, i: int, wire: int, told: _Told) -> HeadMechanism:
    claim = placed.claim
    step, use = claim.circuit.steps[i], claim.wiring.uses[i]
    lines = list(step.lines())
    reads = {role: Stated.of(line, told.names) for role, line in zip(step.roles(), lines, strict=True)}
    formula = step.formula(lambda line: line_node(line, told.nodes)) if len(lines) <= MOST_SAID else None
    words = step.words([line.words() for line in reads.values()], str(formula or step.name))
    entry = wire - claim.circuit.starts[i]
    if step.width > 1:
        words += f": entry {entry} of its values"
    function = getattr(step, "function", None)
    return HeadMechanism(
        layer, head, step.name, told.names[wire], words, "" if function is None else str(function), reads, step.label,
        step.keys(claim.heads, use), told.errors[wire], told.patched[wire],
        dict(zip(reads, told.ranges[i], strict=True)), told.attention[i], _place(placed, wire), entry,
    )  # fmt: skip


def _place(placed: PlacedNetwork, wire: int) -> str:
    """Of a wire of a prompt's circuit."""
    circuit = placed.claim.circuit
    return circuit.places[wire].value if circuit.tokens else ""


def single_head(function: Node, variable: str, keys: int, certificate: Certificate) -> Mechanism:
    """Of one head for a function of one variable, of which that is certified."""
    text, proved = certificate.expression, certificate.level == "proved"
    in_u = substituted(function, {variable: U})
    words = f"computes {in_u} of u = {variable}" if variable not in ("u", "v") else f"computes {function}"
    line = Stated(0, {variable: 1})
    error = certificate.bound if proved else math.inf
    found = HeadMechanism(
        0, 0, "apply", text, words, str(in_u), {"u": line}, text, keys, error, error, {"u": certificate.domain[0]},
        (0, 0), relative=certificate.relative,
        rounding=0.0 if certificate.bounded or not proved else certificate.rounding,
    )  # fmt: skip
    return Mechanism((variable,), (found,), ((text,),), (Stated(0, {text: 1}),))
