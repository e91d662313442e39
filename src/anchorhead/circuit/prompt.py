"""Formulas of a prompt to a circuit: what `lower.py` does, and means, variances, covariances and attention over tokens.

A mean is affine in what it is of, so it is taken wire by wire: mean(2*x + y) = 2 mean(x) + mean(y), each made once.

*Variance and covariance* are  cov(a, b) = mean((a - mean a)(b - mean b)),  the products by heads of two keys. Against
mean(ab) - mean(a) mean(b) this has no cancellation, so that the interval [99, 101] costs no more digits than [-1, 1];
it takes one more mean. What is certain of such a mean beside its products' range, `spread.py` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anchorhead.circuit.apply import SQUARE, U
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line, combination
from anchorhead.circuit.lower import Builder
from anchorhead.circuit.operands import Operand
from anchorhead.circuit.places import Place, joined, places_of
from anchorhead.circuit.pool import Pool
from anchorhead.circuit.separate import separated
from anchorhead.circuit.step import Step
from anchorhead.expression.graph import Expression, Node

ROOT = Node("sqrt", (U,))


class PromptBuilder(Builder):
    """Makes the steps of a circuit whose first inputs are a token's, and the next, so many, the prompt's."""

    def __init__(self, inputs: Sequence[str], tokens: int, *, fuse: bool = True, state: int = 0) -> None:
        super().__init__(inputs, fuse=fuse, tokens=tokens)
        self._places = list(places_of(len(self.inputs), tokens, (), state))

    def _steps(self, step: Step) -> list[Line]:
        made = len(self.steps)
        found = super()._steps(step)
        if len(self.steps) > made:
            self._places += [step.place([self._place(line) for line in step.lines()])] * step.width
        return found

    def _place(self, line: Line) -> Place:
        return joined(self._places[wire] for wire in line.terms)

    def _node(self, node: Node, args: list[Operand], label: str) -> Operand:
        if node.op == "mean":
            return self.mean(args[0])
        if node.op == "attend":
            return self._attended(args[0], args[1], args[2::2], args[3::2], str(node.value))
        if node.op in ("var", "std", "cov"):
            found = self.covariance(args[0], args[-1], f"var{label[3:]}" if label.startswith("std(") else label)
            return self.unary(ROOT, found, label) if node.op == "std" else found
        return super()._node(node, args, label)

    def mean(self, operand: Operand, label: str = "") -> Line:
        """The mean over all tokens; without a label each is named after what it is of."""
        line = self.line(operand)
        means = [Line({wire: 1}) if self._places[wire] is not Place.TOKEN
                 else self._step(Pool((), (), Line({}), Line({wire: 1}), label or f"mean({self._names[wire]})"))
                 for wire in line.terms]  # fmt: skip
        return combination(list(line.terms.values()), means, line.bias)

    def covariance(self, left: Operand, right: Operand, label: str) -> Operand:
        """The covariance of two operands over all tokens."""
        a, b = (line + -self.mean(line) for line in (self.line(left), self.line(right)))
        if a.is_constant or b.is_constant:
            return Line({})
        ratio, inner = b.in_terms_of(a), f"{label}, token by token"
        if ratio is not None:
            return self.mean(self.unary(SQUARE, a, inner), label).scaled(ratio[0])
        return self.mean(self.product([a, b], inner), label)

    def _attended(self, value: Operand, offset: Operand, key: Sequence[Operand], query: Sequence[Operand],
                  label: str) -> Operand:  # fmt: skip
        of = self.line(value)
        if self._place(of) is not Place.TOKEN:
            return of
        queries, keys = (tuple(map(self.line, part)) for part in (query, key))
        return self._step(Pool(queries, keys, self.line(offset), of, label))


def lower_state(expression: Expression, tokens: int) -> Circuit:
    """The circuit of formulas that make a state anew, the variables after a token's: the prompt has it for all."""
    names = expression.variables
    state = len(names) - tokens
    builder = PromptBuilder(names, tokens, state=state)
    values = {name: Line({wire: 1}) for wire, name in enumerate(names)}
    outputs = [builder.lower(node, values) for node in expression.outputs]
    return replace(builder.circuit(outputs, (len(names),), (len(outputs),)), state=state)


def lower_prompt(expression: Expression, tokens: int, *, fuse: bool = True) -> Circuit:
    """The circuit of formulas whose first variables, so many, are a token's and the others a query's."""
    names = expression.variables
    builder = PromptBuilder(names, tokens, fuse=fuse)
    values = {name: Line({wire: 1}) for wire, name in enumerate(names)}
    outputs = [builder.lower(separated(node, names[:tokens]), values) for node in expression.outputs]
    return builder.circuit(outputs, (len(names),), (len(outputs),))
