"""Which head a name means, however it is written, and what is said where it is that of none.

A head is meant by the name of its number, by the part of the target that it is of, where that tells it from others, and
by every formula of the same form (`expression/normal.py`) as what it computes. Of that its name has what is short: here
it is written in the inputs as far as names go. What is only a part of what a head computes is said to be in that head.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from anchorhead.circuit.operands import written_length
from anchorhead.circuit.places import Place
from anchorhead.circuit.separate import multiplied_out
from anchorhead.errors import AnchorheadError
from anchorhead.expression.graph import Node, constant, fold, negate, ordered, substituted, variable
from anchorhead.expression.normal import form
from anchorhead.expression.parse import parse
from anchorhead.expression.primitives import add, mul
from anchorhead.model.head_mechanism import MOST_SAID, HeadMechanism, Stated

LONGEST_NAME = 200
"""Letters of what is read as a name, and operations of a formula that is looked for."""
MOST_TERMS = 20
"""Of the lines of a head whose formula is looked for."""
MOST_SEARCHED = 300
"""Heads among whose parts a name is looked for."""
ROW = re.compile(r"(.*softmax)\[[\d, ]*\](, entry \d+)?")


class Asked:
    """The heads of a mechanism, by what they compute; tokens: the inputs that each token of a prompt has."""

    def __init__(self, inputs: Sequence[str], tokens: Sequence[str], heads: Sequence[HeadMechanism]) -> None:
        self.heads, self.inputs = heads, tuple(inputs)
        self.tokens = frozenset(tokens) | {head.name for head in heads if head.place == Place.TOKEN.value}
        self.nodes = _formulas(inputs, heads)
        pools = [head for head in heads if head.kind == "pool" and head.where.startswith("attend(")]
        given = {head.name: _read(head.where) for head in pools}
        self.forms = {name: {self._form(node), self._form(_read(name)), self._form(given.get(name))}
                      for name, node in self.nodes.items()}  # fmt: skip

    def meant(self, name: Any) -> list[HeadMechanism]:
        """The heads that are called so, or by another name for the same number; of an attention also by its place."""
        found = {head.name for head in self.heads if head.kind == "attend" and name in head.addresses}
        if len(found) != 1:
            typed = self._form(_read(name))
            found = {other for other, forms in self.forms.items() if typed is not None and typed in forms}
        return [head for head in self.heads if head.name in found]

    def not_found(self, name: Any, layer: Any, layers: Sequence[int]) -> str:
        """Why there is no such head, and which there are; layers: those that write the name."""
        if not layers:
            return (
                self._input(name) or self._entries(name) or self._row(name) or self._part(name) or self._unknown(name)
            )
        if layer is None:
            return (f"No head computes {name!r}, an input that heads carry on: give layer={layers[0]}" +
                    "".join(f" or layer={other}" for other in layers[1:]) + ".")  # fmt: skip
        which = f"layer {layers[0]}" if len(layers) == 1 else f"each of the layers {', '.join(map(str, layers))}"
        return f"No head of layer={layer!r:.40} writes {name!r}; a head of {which} does."

    def _input(self, name: Any) -> str:
        """Of an input that no head carries on."""
        if name not in self.inputs:
            return ""
        k = self.inputs.index(name)
        return (
            f"No head writes {name!r:.80}, which is an input, number {k} of those that are given: with hook points it "
            f"is number {k} at hook_embed, in a bridge at blocks.0.hook_in."
        )

    def _entries(self, name: Any) -> str:
        """Of an attention whose values have several numbers."""
        entries = sorted({head.entry for head in self.heads if head.where == name and self.meant(head.addresses[1])})
        more = f", or so on up to {entries[-1]}" if len(entries) > MOST_SAID else ""
        which = " or ".join(f"`, entry {entry}`" for entry in entries[:MOST_SAID])
        if not entries:
            return ""
        return f"Each number of the values of {name!r:.80} has a head of its own: add {which}{more}."

    def _row(self, name: Any) -> str:
        """Of a row of a softmax that has heads for others."""
        found = ROW.fullmatch(name) if isinstance(name, str) else None
        rows = dict.fromkeys(head.where for head in self.heads if found and head.where.startswith(f"{found[1]}["))
        more = f", and {len(rows) - MOST_SAID} more" if len(rows) > MOST_SAID else ""
        if not rows:
            return ""
        return (
            f"No head of this model is called {name!r:.80}. Those of that softmax are "
            f"{', '.join(list(rows)[:MOST_SAID])}{more}; a row that sees one key has none, since what it gives is that "
            "key's value."
        )

    def _part(self, name: Any) -> str:
        """Of what is a part of what a head computes."""
        node = _read(name)
        typed = None if node is None or not node.args else self._form(node)
        for head in self.heads[:MOST_SEARCHED] if typed is not None else ():
            if head.kind != "carry" and any(self._form(part) == typed for part in ordered([self.nodes[head.name]])):
                return (f"No head of this model writes {name!r:.80} by itself: it is a part of what the head called "
                        f"{head.name!r:.80} computes, which {head.words}.")  # fmt: skip
        return ""

    def _unknown(self, name: Any) -> str:
        known = list(dict.fromkeys(head.name for head in self.heads if head.kind != "carry"))
        near = difflib.get_close_matches(str(name), known, MOST_SAID, 0.3) if len(known) > MOST_SAID else known
        more = "" if near == known else f", and {len(known)} in all, which print(model.mechanism) shows"
        return (f"No head of this model is called {name!r:.80}; those that compute something are "
                f"{', '.join(near or known[:MOST_SAID])}{more}.")  # fmt: skip

    def _form(self, node: Node | None) -> Hashable:
        if node is None:
            return None
        try:
            found = fold(node, _by_means)
            return form(multiplied_out(found, self.tokens) if self.tokens else found)
        except AnchorheadError:
            return None


def _read(text: Any) -> Node | None:
    """A name as a formula; None if it is none."""
    if not isinstance(text, str) or len(text) > LONGEST_NAME:
        return None
    try:
        return parse(text, pools=True).outputs[0]
    except AnchorheadError:
        return None


def _formulas(inputs: Sequence[str], heads: Sequence[HeadMechanism]) -> dict[str, Node]:
    """What the numbers are of the inputs, by name; of names, too, where that is long."""
    nodes = {name: variable(name) for name in inputs}
    for head in heads:
        if head.name not in nodes:
            made = _computed(head, nodes)
            if made is None or written_length(made) > LONGEST_NAME:
                made = _read(head.name)
            nodes[head.name] = variable(head.name) if made is None else made
    return nodes


def _computed(head: HeadMechanism, nodes: Mapping[str, Node]) -> Node | None:
    """What a head computes of numbers that are these; None where it is more than a name would say."""
    if sum(len(line.terms) for line in head.reads.values()) > MOST_TERMS:
        return None
    lines = {role: _line(line, nodes) for role, line in head.reads.items()}
    if head.kind in ("apply", "times"):
        found = substituted(parse(head.function, ("u",)).outputs[0], {"u": lines["u"]})
        return found if head.kind == "apply" else mul(found, lines["v"])
    if head.kind == "largest":
        return Node("max", tuple(lines.values()))
    if head.kind != "pool":
        return None
    size = sum(role.startswith("query") for role in lines)
    if not size and not head.reads["offset"].terms:
        return Node("mean", (lines["value"],))
    score = reduce(add, (mul(lines[f"query[{i}]"], lines[f"key[{i}]"]) for i in range(size)), lines["offset"])
    return Node("attend", (score, lines["value"]))


def _line(line: Stated, nodes: Mapping[str, Node]) -> Node:
    return reduce(add, (mul(_number(c), nodes[name]) for name, c in line.terms.items()), _number(line.bias))


def _number(value: float | int | str) -> Node:
    """As files write it, exactly."""
    return parse(value.removeprefix("=")).outputs[0] if isinstance(value, str) else constant(Fraction(value))


def _by_means(node: Node, args: list[Node]) -> Node:
    """Variances, deviations and covariances as the means that heads compute, differences as sums."""
    if node.op == "sub":
        return Node("add", (args[0], negate(args[1])))
    if node.op not in ("var", "std", "cov"):
        return Node(node.op, args, node.value)
    left, right = (Node("sub", (arg, Node("mean", (arg,)))) for arg in (args[0], args[-1]))
    found = Node("mean", (Node("pow", (left, constant(2))) if left is right else Node("mul", (left, right)),))
    return Node("sqrt", (found,)) if node.op == "std" else found
