"""What every head of a model does: which numbers it reads, what it computes of them, and what it writes.

A layer's heads are numbered as in its literal form (`as_self_attention`, stock attention, hook points): first those
that carry a number on, then those of its steps, each of which writes one number of the state after the layer. Lines are
the target's own, with exact coefficients in the names of the wires (`circuit/names.py`), so that the mechanism is a
program for the target, and `error` is how far the number that a head writes may be from what the program has there.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from anchorhead.circuit.apply import U
from anchorhead.circuit.layout import states
from anchorhead.circuit.line import Line
from anchorhead.circuit.names import line_node, wire_names
from anchorhead.circuit.places import Place
from anchorhead.circuit.program import number_out
from anchorhead.digits import Up
from anchorhead.display import page, sentence, table
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.expression.graph import Node, constant, fold, negate, substituted
from anchorhead.expression.normal import form
from anchorhead.expression.parse import parse
from anchorhead.model.stated import Patches, Run, number, run
from anchorhead.proof.certificate import Certificate, end_text
from anchorhead.proof.network_claim import PlacedNetwork

MOST_SAID = 6
"""Terms of a line that words say, and names that an error does."""
EDITED = "Numbers were changed since this was proved: it says what the heads computed before, and no error is known."
LONGEST_NAME = 200
"""Letters of what is read as a name."""
OF = {"": "", Place.TOKEN: ", of each token", Place.PROMPT: ", of the prompt", Place.QUERY: ", of each query"}
"""Whose a number is, by its place, in words."""


@dataclass(frozen=True)
class Stated:
    """bias + sum of coefficient · name, exactly; numbers as a file writes them: "1/3", "=sqrt(2)"."""

    bias: float | int | str
    terms: dict[str, float | int | str]

    @classmethod
    def of(cls, line: Line, names: Sequence[str]) -> Stated:
        return cls(number_out(line.bias), {names[wire]: number_out(c) for wire, c in line.terms.items()})

    def words(self) -> str:
        """Numbers to four digits, and minus a name that has a minus as what it is."""
        parts = []
        for name, c in list(self.terms.items())[:MOST_SAID]:
            rest = name.removeprefix("-")
            falls = rest != name and _bracketed(rest) == rest
            parts.append((-number(c) if falls else number(c), f"*{rest if falls else _bracketed(name)}"))
        if self.bias != 0 or not parts:
            parts.append((number(self.bias), ""))
        terms = [f"{'-' if c < 0 else '+'} {abs(c):.4g}{name}".replace(" 1*", " ") for c, name in parts]
        if len(self.terms) > MOST_SAID:
            terms.insert(MOST_SAID, f"+ ... ({len(self.terms)} terms)")
        text = " ".join(terms)
        return text[2:] if text.startswith("+") else f"-{text[2:]}"


@dataclass(frozen=True)
class HeadMechanism:
    """One head. layer and head count from 0; kind is that of the circuit's step, or `carry`.

    function: in u, times v where the step is a product; empty for what is none. reads: the lines by their roles. where:
    what part of the target it comes from. keys: that it attends to. error: proved, of the number that it writes, times
    that number's absolute value where it is `relative`; `rounding`·(1 + |u|) is added where u may be any number, and
    zero elsewhere. proved_for: where u may be for that, in JSON null of a head that reads no u; beyond it nothing is
    known. An error is infinite, in JSON null, where it is not, or once the model's numbers are not those that were
    proved. place: of a model of a prompt, whether each token, the prompt or each query has such a number; empty for
    others. entry: of the values of an attention, which of their numbers it writes; 0 for all else.
    """

    layer: int
    head: int
    kind: str
    name: str
    words: str
    function: str
    reads: dict[str, Stated]
    where: str
    keys: int
    error: float
    proved_for: tuple[float, float] | None = None
    place: str = ""
    entry: int = 0
    relative: bool = False
    rounding: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        reads = {role: vars(line) for role, line in self.reads.items()}
        error, rounding = (value if math.isfinite(value) else None for value in (self.error, self.rounding))
        ends = None if self.proved_for is None else [end_text(end) for end in self.proved_for]
        return vars(self) | {"reads": reads, "error": error, "rounding": rounding, "proved_for": ends}

    @property
    def addresses(self) -> tuple[str, str]:
        """The part of the target that it is of, and which of its entries."""
        return self.where, f"{self.where}, entry {self.entry}"

    @property
    def kept(self) -> str:
        """The error in words."""
        grows = f" + {Up(self.rounding):.2e} (1 + |u|)" if self.rounding else ""
        return f"{Up(self.error):.2e}{' |number|' if self.relative else ''}{grows}"


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
        writing, sign = [head for head in self.heads if head.name == name] or self._meant(name), 1
        if not writing and isinstance(name, str):
            writing, sign = self._meant(f"-({name})"), -1
        found = [head for head in writing if (head.kind != "carry" if layer is None else head.layer == layer)]
        if isinstance(layer, bool) or not found:
            raise InputError(self._not_found(name, layer, [head.layer for head in writing]))
        return found[0], sign

    def _meant(self, name: Any) -> list[HeadMechanism]:
        """The heads whose names are the same formula, written otherwise; of an attention also the one place of the
        target that it is of, and over a prompt as the target has it, before its score was multiplied out."""
        placed = {head.name for head in self.heads if head.kind == "attend" and name in head.addresses}
        if len(placed) == 1:
            return [head for head in self.heads if head.name in placed]
        typed = _form(name)
        if typed is None:
            return []
        pools = [head for head in self.heads if head.kind == "pool"]
        given = {head.name: head.where for head in pools if head.where.startswith("attend(")}
        formulas = {text: _form(text) for text in {head.name for head in self.heads} | set(given.values())}
        return [head for head in self.heads
                if typed in (formulas[head.name], formulas[given.get(head.name, head.name)])]  # fmt: skip

    def unproved(self) -> Mechanism:
        """The same of numbers that it was not proved for: no error is known."""
        return replace(
            self, edited=True, heads=tuple(replace(head, error=math.inf, rounding=0.0) for head in self.heads)
        )

    def _not_found(self, name: Any, layer: Any, layers: list[int]) -> str:
        """Why there is no such head, and which there are; layers: those that write the name."""
        entries = sorted({head.entry for head in self.heads if head.where == name and self._meant(head.addresses[1])})
        if entries and not layers:
            more = f", or so on up to {entries[-1]}" if len(entries) > MOST_SAID else ""
            which = " or ".join(f"`, entry {entry}`" for entry in entries[:MOST_SAID])
            return f"Each number of the values of {name!r:.80} has a head of its own: add {which}{more}."
        if not layers:
            known = list(dict.fromkeys(head.name for head in self.heads if head.kind != "carry"))
            near = difflib.get_close_matches(str(name), known, MOST_SAID, 0.3) if len(known) > MOST_SAID else known
            more = "" if near == known else f", and {len(known)} in all, which print(model.mechanism) shows"
            return (f"No head of this model is called {name!r:.80}; those that compute something are "
                    f"{', '.join(near or known[:MOST_SAID])}{more}.")  # fmt: skip
        if layer is None:
            return (f"No head computes {name!r}, an input that heads carry on: give layer={layers[0]}" +
                    "".join(f" or layer={other}" for other in layers[1:]) + ".")  # fmt: skip
        which = f"layer {layers[0]}" if len(layers) == 1 else f"each of the layers {', '.join(map(str, layers))}"
        return f"No head of layer={layer!r:.40} writes {name!r}; a head of {which} does."

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


def mechanism(placed: PlacedNetwork, errors: Sequence[float]) -> Mechanism:
    """Of a network of heads, given the proved error of every wire."""
    circuit = placed.claim.circuit
    names, nodes = wire_names(circuit)
    heads: list[HeadMechanism] = []
    held = list(states(circuit, placed.plans))
    for layer, (plan, after) in enumerate(zip(placed.plans, held[1:], strict=True)):
        for head, wire in enumerate(after[: len(plan.kept)]):
            line = Stated.of(Line({wire: 1}), names)
            heads.append(HeadMechanism(layer, head, "carry", names[wire], f"carries {names[wire]} on", "",
                                       {"v": line}, "", 1, errors[wire], None, _place(placed, wire)))  # fmt: skip
        for i in (i for group in plan.groups for i in group):
            heads += [_head(placed, layer, after.index(wire), i, names, nodes, wire, errors[wire])
                      for wire in range(circuit.starts[i], circuit.starts[i] + circuit.steps[i].width)]  # fmt: skip
    outputs = tuple(Stated.of(line, names) for line in circuit.outputs)
    left = tuple(tuple(names[w] for w in wires) for wires in held[1:])
    return Mechanism(circuit.inputs, tuple(heads), left, outputs, circuit.tokens)


def _head(placed: PlacedNetwork, layer: int, head: int, i: int, names: Sequence[str], nodes: list[Node], wire: int,
          error: float) -> HeadMechanism:  # fmt: skip
    claim = placed.claim
    step, use = claim.circuit.steps[i], claim.wiring.uses[i]
    lines = list(step.lines())
    reads = {role: Stated.of(line, names) for role, line in zip(step.roles(), lines, strict=True)}
    formula = step.formula(lambda line: line_node(line, nodes)) if len(lines) <= MOST_SAID else None
    words = step.words([line.words() for line in reads.values()], str(formula or step.name))
    entry = wire - claim.circuit.starts[i]
    if step.width > 1:
        words += f": entry {entry} of its values"
    function = getattr(step, "function", None)
    return HeadMechanism(layer, head, step.name, names[wire], words, "" if function is None else str(function), reads,
                         step.label, step.keys(claim.heads, use), error, _proved_for(placed, i),
                         _place(placed, wire), entry)  # fmt: skip


def _form(name: Any) -> Hashable:
    """What a name says as a formula; None if it says none."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return None
    try:
        return form(fold(parse(name, pools=True).outputs[0], _by_means))
    except AnchorheadError:
        return None


def _by_means(node: Node, args: list[Node]) -> Node:
    """Variances, deviations and covariances as the means that heads compute, differences as sums."""
    if node.op == "sub":
        return Node("add", (args[0], negate(args[1])))
    if node.op not in ("var", "std", "cov"):
        return Node(node.op, args, node.value)
    left, right = (Node("sub", (arg, Node("mean", (arg,)))) for arg in (args[0], args[-1]))
    found = Node("mean", (Node("pow", (left, constant(2))) if left is right else Node("mul", (left, right)),))
    return Node("sqrt", (found,)) if node.op == "std" else found


def _place(placed: PlacedNetwork, wire: int) -> str:
    """Of a wire of a prompt's circuit."""
    circuit = placed.claim.circuit
    return circuit.places[wire].value if circuit.tokens else ""


def _proved_for(placed: PlacedNetwork, i: int) -> tuple[float, float] | None:
    """The u for which the head of step i is proved, which looks at t = (u - c)/r."""
    use = placed.claim.wiring.uses[i]
    if use.head < 0:
        return None
    head = placed.claim.heads[use.head]
    return use.centre + use.radius * head.low, use.centre + use.radius * head.high


def single_head(function: Node, variable: str, keys: int, certificate: Certificate) -> Mechanism:
    """Of one head for a function of one variable, of which that is certified."""
    text, proved = certificate.expression, certificate.level == "proved"
    in_u = substituted(function, {variable: U})
    words = f"computes {in_u} of u = {variable}" if variable not in ("u", "v") else f"computes {function}"
    line = Stated(0, {variable: 1})
    found = HeadMechanism(
        0, 0, "apply", text, words, str(in_u), {"u": line}, text, keys,
        certificate.bound if proved else math.inf, certificate.domain[0], relative=certificate.relative,
        rounding=0.0 if certificate.bounded or not proved else certificate.rounding,
    )  # fmt: skip
    return Mechanism((variable,), (found,), ((text,),), (Stated(0, {text: 1}),))


def _bracketed(name: str) -> str:
    """A name as a factor: in brackets where it has a sign outside of brackets of its own."""
    depth, plain = 0, True
    for letter in name:
        depth += (letter == "(") - (letter == ")")
        plain = plain and (depth > 0 or letter not in "+-")
    return name if plain else f"({name})"
