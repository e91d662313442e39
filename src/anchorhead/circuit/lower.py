"""An expression to a circuit: functions of one line are fused, products carried, affine parts folded into lines.

On the way a value is an `Operand`: a line, or a `Pending` function of one line that no step computes yet. As long as
everything in a subexpression depends on one line (or on multiples of it), it stays one function of it and becomes one
head: sin(3*x)*exp(-x**2) costs what one function of x costs. Where two lines meet, pending functions are made steps;
in a product phi(u)·v the function stays in the head that carries v. Products of many factors are paired off in a
balanced tree, so that the circuit is as shallow as it can be. Equal steps are made once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from anchorhead.circuit.apply import Apply, Times, U
from anchorhead.circuit.attend import Attend
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.largest import Largest
from anchorhead.circuit.line import Line, combination
from anchorhead.circuit.operands import (
    LARGEST_FUNCTION,
    Operand,
    Pending,
    affine_parts,
    canonical,
    finite,
    folded,
    is_constant,
    is_smooth,
    written_length,
)
from anchorhead.circuit.step import Step
from anchorhead.enclosure.exact import Number, as_node, largest, simplified, times
from anchorhead.errors import ExpressionError
from anchorhead.expression.graph import Expression, Node, constant, ordered, substituted
from anchorhead.expression.primitives import add, mul
from anchorhead.expression.text import texts

PRODUCT = frozenset(("mul", "div"))
RECIPROCAL = Node("div", (constant(1), U))


class Builder:
    """Makes the steps of one circuit; `fuse=False` makes a step of every function instead of fusing them."""

    def __init__(self, inputs: Sequence[str], *, fuse: bool = True, tokens: int = 0) -> None:
        self.inputs = tuple(inputs)
        self.fuse, self.tokens = fuse, tokens
        self.steps: list[Step] = []
        self._wires = len(self.inputs)
        self._names = list(self.inputs)
        self._known: dict[Step, int] = {}
        self._lines: dict[Pending, Line] = {}

    def circuit(self, outputs: Iterable[Operand], taken: tuple[int, ...], given: tuple[int, ...]) -> Circuit:
        """The finished circuit for inputs and outputs of the shapes, without steps that no output needs."""
        lines = tuple(map(self.line, outputs))
        return _needed(Circuit(self.inputs, tuple(self.steps), lines, taken, given, self.tokens))

    def line(self, operand: Operand) -> Line:
        """The operand as a line; a step is made for a pending function, without what is affine in it."""
        if isinstance(operand, Line):
            return operand
        if operand not in self._lines:
            self._lines[operand] = self._made(operand)
        return self._lines[operand]

    def _made(self, operand: Pending) -> Line:
        slope, bias, factor, core = affine_parts(operand.function)
        if core is None:
            return operand.argument.scaled(slope).shifted(bias)
        step = self._step(Apply(canonical(core), operand.argument, operand.label))
        if slope == bias == 0:
            return step.scaled(factor)
        return operand.argument.scaled(slope).shifted(bias) + step.scaled(factor)

    def _step(self, step: Step) -> Line:
        return self._steps(step)[0]

    def _steps(self, step: Step) -> list[Line]:
        start = self._known.get(step)
        if start is None:
            start = self._known[step] = self._wires
            self.steps.append(step)
            self._names += [step.label] * step.width
            self._wires += step.width
        return [Line({start + i: 1}) for i in range(step.width)]

    def lower(self, node: Node, values: Mapping[str, Operand], label: str | None = None) -> Operand:
        """The node at the operands that its variables stand for; label names its steps, or each its own text."""
        parts = ordered([node])
        uses = Counter(arg for part in parts for arg in part.args)
        inside = {arg for part in parts for arg in part.args if {part.op, arg.op} <= PRODUCT and uses[arg] == 1}
        done: dict[Node, Operand] = {}
        names = texts(node) if label is None else {}
        for part in parts:
            name = names.get(part, label or "")
            if part in inside:
                continue  # its factors belong to the product around it, so that the whole product is balanced
            if part.op == "variable":
                done[part] = values[str(part.value)]
            elif part.op in PRODUCT:
                found = [(done[f], inverse) for f, inverse in _factors(part, uses)]
                factors = [self.unary(RECIPROCAL, operand, name) if inverse else operand for operand, inverse in found]
                done[part] = self.product(factors, name)
            else:
                done[part] = self._node(part, [done[arg] for arg in part.args], name)
        return done[node]

    def _node(self, node: Node, args: list[Operand], label: str) -> Operand:
        if not args:
            return Line({}, simplified(node))
        if node.op == "neg":
            return self.scale(args[0], -1)
        if node.op in ("add", "sub"):
            return self.sum([1, 1 if node.op == "add" else -1], args, 0, label)
        moving = [i for i, arg in enumerate(args) if not is_constant(arg)]
        if len(moving) <= 1:
            place = moving[0] if moving else 0
            closed = [as_node(arg.bias) if isinstance(arg, Line) else U for arg in args]
            template = Node(node.op, [*closed[:place], U, *closed[place + 1 :]], node.value)
            return self.unary(template, args[place], label)
        if node.op in ("max", "min"):
            return self.largest(args, label, sign=1 if node.op == "max" else -1)
        if node.op == "clip":
            return self.largest([self.largest(args[:2], label), args[2]], label, sign=-1)
        if node.op == "pow":  # a**b = exp(b log a)
            exponent = f"log({label})"
            logarithm = self.unary(Node("log", (U,)), args[0], f"a factor of {exponent}")
            return self.unary(Node("exp", (U,)), self.product([args[1], logarithm], exponent), label)
        raise ExpressionError(f"{label} is a function of two variables that cannot be compiled: {node.op}.")

    def unary(self, function: Node, operand: Operand, label: str) -> Operand:
        """function(operand), the function an expression in u."""
        if isinstance(operand, Pending):
            inner = substituted(function, {"u": operand.function})
            if not self.fuse or written_length(inner) > LARGEST_FUNCTION:
                return self.unary(function, self.line(operand), label)
            return Pending(inner, operand.argument, label)
        if operand.is_constant:
            return Line({}, finite(simplified(folded(substituted(function, {"u": as_node(operand.bias)})))))
        return Pending(function, operand, label)

    def scale(self, operand: Operand, factor: Number) -> Operand:
        if isinstance(operand, Line):
            return operand.scaled(factor)
        return Pending(mul(as_node(factor), operand.function), operand.argument, operand.label)

    def sum(self, coefficients: Sequence[Number], operands: Sequence[Operand], bias: Number, label: str) -> Operand:
        """bias + sum of coefficient · operand; one function if all of them depend on one line."""
        argument = self._common(operands)
        if argument is None or not any(isinstance(operand, Pending) for operand in operands):
            return combination(coefficients, [self.line(operand) for operand in operands], bias)
        total = as_node(bias)
        for c, operand in zip(coefficients, operands, strict=True):
            if c != 0:
                total = add(total, mul(as_node(c), self._in(argument, operand)))
        if written_length(total) > LARGEST_FUNCTION:
            return combination(coefficients, [self.line(operand) for operand in operands], bias)
        return Pending(total, argument, label)

    def product(self, operands: Sequence[Operand], label: str) -> Operand:
        """The product; factors that depend on one line are one function, the rest are paired off."""
        factor: Number = 1
        groups: list[Operand] = []
        for operand in operands:
            if isinstance(operand, Line) and operand.is_constant:
                factor = times(factor, operand.bias)
                continue
            for i, other in enumerate(groups):
                argument = self._common([other, operand])
                if argument is not None:
                    function = mul(self._in(argument, other), self._in(argument, operand))
                    if written_length(function) > LARGEST_FUNCTION:
                        continue
                    groups[i] = Pending(function, argument, label)
                    break
            else:
                groups.append(operand)
        if not groups:
            return Line({}, factor)
        while len(groups) > 1:
            paired = [self._pair(a, b, label) for a, b in zip(groups[::2], groups[1::2], strict=False)]
            groups = paired + groups[2 * len(paired) :]
        return self.scale(groups[0], factor)

    def _pair(self, a: Operand, b: Operand, label: str) -> Operand:
        """phi(u)·v for operands of different lines: the simpler smooth function carries the other as its partner."""
        pending = [f for f in (a, b) if isinstance(f, Pending) and is_smooth(f.function) and self.fuse]
        if not pending:
            left, right = self.line(a), self.line(b)
            if left.is_constant or right.is_constant:
                return self.product([left, right], label)
            first, second = sorted((left, right), key=lambda x: sorted(x.terms))
            return self._step(Times(U, first, second, self._product_label(first, second, label)))
        carrier = min(pending, key=lambda f: len(ordered([f.function])))
        partner = self.line(b if carrier is a else a)
        return self._step(Times(canonical(carrier.function), carrier.argument, partner, label))

    def _product_label(self, a: Line, b: Line, label: str) -> str:
        """The product of two wires by their names, where that is short; else the label of the whole product."""
        names = [self._names[w] for line in (a, b) for w in line.terms]
        return f"{names[0]}*{names[1]}" if len(names) == 2 and sum(map(len, names)) < 40 else label

    def largest(self, operands: Sequence[Operand], label: str, sign: int = 1) -> Operand:
        """The largest of the operands, or with sign -1 the smallest."""
        argument = self._common(operands)
        if argument is not None:
            found = Node("max" if sign > 0 else "min", [self._in(argument, operand) for operand in operands])
            if written_length(found) <= LARGEST_FUNCTION:
                return Pending(found, argument, label)
        lines = [self.line(operand).scaled(sign) for operand in operands]
        kept = list(dict.fromkeys(line for line in lines if not line.is_constant))
        constants = [line.bias for line in lines if line.is_constant]
        if constants:
            kept.append(Line({}, largest(constants)))
        if len(kept) == 1:
            return kept[0].scaled(sign)
        return self._step(Largest(tuple(kept), label)).scaled(sign)

    def attend(
        self,
        query: Sequence[Operand],
        keys: Sequence[Sequence[Operand]],
        offsets: Sequence[Operand],
        values: Sequence[Sequence[Operand]],
        label: str,
    ) -> list[Operand]:
        """sum_j softmax_j(query · key_j + offset_j) value_j, one operand for each entry of a value."""
        key_rows, rows = (tuple(tuple(map(self.line, row)) for row in table) for table in (keys, values))
        made = Attend(tuple(map(self.line, query)), key_rows, tuple(map(self.line, offsets)), rows, label)
        return list(self._steps(made))

    def _common(self, operands: Sequence[Operand]) -> Line | None:
        """The one line that all operands depend on, if there is one and functions may be fused."""
        pending = [operand.argument for operand in operands if isinstance(operand, Pending)]
        if pending and not self.fuse:
            return None
        lines = [operand for operand in operands if isinstance(operand, Line) and not operand.is_constant]
        if not (pending or lines):
            return None
        base, *others = pending + lines
        return base if all(line.in_terms_of(base) is not None for line in others) else None

    def _in(self, argument: Line, operand: Operand) -> Node:
        """The operand as an expression in u = argument."""
        line = operand if isinstance(operand, Line) else operand.argument
        if line.is_constant:
            return as_node(line.bias)
        found = line.in_terms_of(argument)
        if found is None:
            raise ExpressionError("A part was taken for a function of one combination of the inputs, and is not one.")
        inner = add(mul(as_node(found[0]), U), as_node(found[1]))
        return inner if isinstance(operand, Line) else substituted(operand.function, {"u": inner})


def lower(expression: Expression, *, fuse: bool = True) -> Circuit:
    """The circuit of an expression: one input wire a variable, one output a formula."""
    builder = Builder(expression.variables, fuse=fuse)
    values = {name: Line({wire: 1}) for wire, name in enumerate(expression.variables)}
    outputs = [builder.lower(node, values) for node in expression.outputs]
    return builder.circuit(outputs, (len(values),), (len(outputs),))


def _factors(node: Node, uses: Mapping[Node, int]) -> list[tuple[Node, bool]]:
    """The factors of a product, and whether each divides; products used once more elsewhere stay whole."""
    found: list[tuple[Node, bool]] = []
    stack = [(node, False)]
    while stack:
        part, inverse = stack.pop()
        if part is not node and (part.op not in PRODUCT or uses[part] > 1):
            found.append((part, inverse))
            continue
        left, right = part.args
        stack += [(right, inverse != (part.op == "div")), (left, inverse)]
    return found


def _needed(circuit: Circuit) -> Circuit:
    """The circuit without steps that no output depends on, wires renumbered."""
    wanted = {w for line in circuit.outputs for w in line.terms}
    kept: list[int] = []
    for i in reversed(range(len(circuit.steps))):
        step, start = circuit.steps[i], circuit.starts[i]
        if any(start + k in wanted for k in range(step.width)):
            kept.append(i)
            wanted |= {w for line in step.lines() for w in line.terms}
    kept.reverse()
    if len(kept) == len(circuit.steps):
        return circuit
    wires = [*range(len(circuit.inputs))]
    wires += [circuit.starts[i] + k for i in kept for k in range(circuit.steps[i].width)]
    new = {wire: place for place, wire in enumerate(wires)}
    steps = tuple(circuit.steps[i].mapped(lambda line: line.on_wires(new)) for i in kept)
    outputs = tuple(line.on_wires(new) for line in circuit.outputs)
    return replace(circuit, steps=steps, outputs=outputs)
