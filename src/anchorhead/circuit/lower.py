"""An expression to a circuit: functions of one line are fused, products carried, affine parts folded into lines.

On the way a value is a *form*: a `Line`, or a `Pending` function of one line that no step computes yet. As long as
everything in a subexpression depends on one line (or on multiples of it), it stays one function of it and becomes one
head: sin(3*x)*exp(-x**2) costs what one function of x costs. Where two lines meet, pending functions are made steps;
in a product phi(u)·v the function stays in the head that carries v. Products of many factors are paired off in a
balanced tree, so that the circuit is as shallow as it can be. Equal steps are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from anchorhead.circuit.apply import Apply, Times, U
from anchorhead.circuit.attend import Attend
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.forms import (
    LARGEST_FUNCTION,
    Form,
    Pending,
    affine_parts,
    canonical,
    finite,
    folded,
    is_constant,
    is_smooth,
    substituted,
    written_length,
)
from anchorhead.circuit.largest import Largest
from anchorhead.circuit.line import Line, combination
from anchorhead.circuit.step import Step
from anchorhead.enclosure.exact import Number, as_node, largest, simplified, times
from anchorhead.errors import ExpressionError
from anchorhead.expression.graph import Expression, Node, constant, ordered
from anchorhead.expression.primitives import add, mul
from anchorhead.expression.text import texts

PRODUCT = frozenset(("mul", "div"))
RECIPROCAL = Node("div", (constant(1), U))


class Builder:
    """Makes the steps of one circuit; `fuse=False` makes a step of every function instead of fusing them."""

    def __init__(self, inputs: Sequence[str], *, fuse: bool = True) -> None:
        self.inputs = tuple(inputs)
        self.fuse = fuse
        self.steps: list[Step] = []
        self._wires = len(self.inputs)
        self._names = list(self.inputs)
        self._known: dict[Step, int] = {}

    def input(self, index: int) -> Line:
        return Line({index: 1})

    def circuit(
        self,
        outputs: Iterable[Form],
        input_shape: tuple[int, ...] | None = None,
        output_shape: tuple[int, ...] | None = None,
    ) -> Circuit:
        """The finished circuit, without steps that no output needs."""
        lines = tuple(self.line(form) for form in outputs)
        shape = (len(self.inputs),) if input_shape is None else input_shape
        found = (len(lines),) if output_shape is None else output_shape
        return _needed(Circuit(self.inputs, tuple(self.steps), lines, shape, found))

    def line(self, form: Form) -> Line:
        """The form as a line; a step is made for a pending function, without what is affine in it."""
        if isinstance(form, Line):
            return form
        slope, bias, factor, core = affine_parts(form.function)
        if core is None:
            return form.argument.scaled(slope).shifted(bias)
        step = self._step(Apply(canonical(core), form.argument, form.label))
        if slope == bias == 0:
            return step.scaled(factor)
        return form.argument.scaled(slope).shifted(bias) + step.scaled(factor)

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

    def lower(self, node: Node, values: Mapping[str, Form], label: str | None = None) -> Form:
        """The node at the forms that its variables stand for; label names its steps, or each its own text."""
        uses: dict[Node, int] = {}
        for part in ordered([node]):
            for arg in part.args:
                uses[arg] = uses.get(arg, 0) + 1
        inside = {arg for part in uses for arg in part.args if {part.op, arg.op} <= PRODUCT and uses[arg] == 1}
        if node.op in PRODUCT:
            inside |= {arg for arg in node.args if arg.op in PRODUCT and uses[arg] == 1}
        done: dict[Node, Form] = {}
        names = texts(node) if label is None else {}
        for part in ordered([node]):
            name = names.get(part, label or "")
            if part in inside:
                continue  # its factors belong to the product around it, so that the whole product is balanced
            if part.op == "variable":
                done[part] = values[str(part.value)]
            elif part.op in PRODUCT:
                found = [(done[f], inverse) for f, inverse in _factors(part, uses)]
                factors = [self.unary(RECIPROCAL, form, name) if inverse else form for form, inverse in found]
                done[part] = self.product(factors, name)
            else:
                done[part] = self._node(part, [done[arg] for arg in part.args], name)
        return done[node]

    def _node(self, node: Node, args: list[Form], label: str) -> Form:
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
            logarithm = self.unary(Node("log", (U,)), args[0], label)
            return self.unary(Node("exp", (U,)), self.product([args[1], logarithm], label), label)
        raise ExpressionError(f"{label} is a function of two variables that cannot be compiled: {node.op}.")

    def unary(self, function: Node, form: Form, label: str) -> Form:
        """function(form), the function an expression in u."""
        if isinstance(form, Pending):
            inner = substituted(function, {"u": form.function})
            if not self.fuse or written_length(inner) > LARGEST_FUNCTION:
                return self.unary(function, self.line(form), label)
            return Pending(inner, form.argument, label)
        if form.is_constant:
            return Line({}, finite(simplified(folded(substituted(function, {"u": as_node(form.bias)})))))
        return Pending(function, form, label)

    def scale(self, form: Form, factor: Number) -> Form:
        if isinstance(form, Line):
            return form.scaled(factor)
        return Pending(mul(as_node(factor), form.function), form.argument, form.label)

    def sum(self, coefficients: Sequence[Number], forms: Sequence[Form], bias: Number, label: str) -> Form:
        """bias + sum of coefficient · form; one function if all of them depend on one line."""
        argument = self._common(forms)
        if argument is None or not any(isinstance(form, Pending) for form in forms):
            return combination(coefficients, [self.line(form) for form in forms], bias)
        total = as_node(bias)
        for c, form in zip(coefficients, forms, strict=True):
            if c != 0:
                total = add(total, mul(as_node(c), self._in(argument, form)))
        if written_length(total) > LARGEST_FUNCTION:
            return combination(coefficients, [self.line(form) for form in forms], bias)
        return Pending(total, argument, label)

    def product(self, forms: Sequence[Form], label: str) -> Form:
        """The product; factors that depend on one line are one function, the rest are paired off."""
        factor: Number = 1
        groups: list[Form] = []
        for form in forms:
            if isinstance(form, Line) and form.is_constant:
                factor = times(factor, form.bias)
                continue
            for i, other in enumerate(groups):
                argument = self._common([other, form])
                if argument is not None:
                    function = mul(self._in(argument, other), self._in(argument, form))
                    if written_length(function) > LARGEST_FUNCTION:
                        continue
                    groups[i] = Pending(function, argument, label)
                    break
            else:
                groups.append(form)
        if not groups:
            return Line({}, factor)
        while len(groups) > 1:
            paired = [self._pair(a, b, label) for a, b in zip(groups[::2], groups[1::2], strict=False)]
            groups = paired + groups[2 * len(paired) :]
        return self.scale(groups[0], factor)

    def _pair(self, a: Form, b: Form, label: str) -> Form:
        """phi(u)·v for forms of different lines: the simpler smooth function carries the other as its partner."""
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

    def largest(self, forms: Sequence[Form], label: str, sign: int = 1) -> Form:
        """The largest of the forms, or with sign -1 the smallest."""
        argument = self._common(forms)
        if argument is not None:
            found = Node("max" if sign > 0 else "min", [self._in(argument, form) for form in forms])
            if written_length(found) <= LARGEST_FUNCTION:
                return Pending(found, argument, label)
        lines = [self.line(form).scaled(sign) for form in forms]
        kept = list(dict.fromkeys(line for line in lines if not line.is_constant))
        constants = [line.bias for line in lines if line.is_constant]
        if constants:
            kept.append(Line({}, largest(constants)))
        if len(kept) == 1:
            return kept[0].scaled(sign)
        return self._step(Largest(tuple(kept), label)).scaled(sign)

    def attend(
        self,
        query: Sequence[Form],
        keys: Sequence[Sequence[Form]],
        offsets: Sequence[Form],
        values: Sequence[Sequence[Form]],
        label: str,
    ) -> list[Form]:
        """sum_j softmax_j(query · key_j + offset_j) value_j, one form for each entry of a value."""
        made = Attend(
            tuple(self.line(q) for q in query),
            tuple(tuple(self.line(k) for k in row) for row in keys),
            tuple(self.line(o) for o in offsets),
            tuple(tuple(self.line(v) for v in row) for row in values),
            label,
        )
        return list(self._steps(made))

    def _common(self, forms: Sequence[Form]) -> Line | None:
        """The one line that all forms depend on, if there is one and functions may be fused."""
        pending = [form.argument for form in forms if isinstance(form, Pending)]
        if pending and not self.fuse:
            return None
        lines = [form for form in forms if isinstance(form, Line) and not form.is_constant]
        if not (pending or lines):
            return None
        base, *others = pending + lines
        return base if all(line.in_terms_of(base) is not None for line in others) else None

    def _in(self, argument: Line, form: Form) -> Node:
        """The form as an expression in u = argument."""
        line = form if isinstance(form, Line) else form.argument
        if line.is_constant:
            return as_node(line.bias)
        found = line.in_terms_of(argument)
        if found is None:
            raise ExpressionError("A part was taken for a function of one combination of the inputs, and is not one.")
        inner = add(mul(as_node(found[0]), U), as_node(found[1]))
        return inner if isinstance(form, Line) else substituted(form.function, {"u": inner})


def lower(expression: Expression, *, fuse: bool = True) -> Circuit:
    """The circuit of an expression: one input wire a variable, one output a formula."""
    builder = Builder(expression.variables, fuse=fuse)
    values = {name: builder.input(i) for i, name in enumerate(expression.variables)}
    return builder.circuit([builder.lower(node, values) for node in expression.outputs])


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
    new = {w: w for w in range(len(circuit.inputs))}
    wire = len(circuit.inputs)
    for i in kept:
        for k in range(circuit.steps[i].width):
            new[circuit.starts[i] + k] = wire + k
        wire += circuit.steps[i].width
    steps = tuple(circuit.steps[i].mapped(lambda line: line.on_wires(new)) for i in kept)
    outputs = tuple(line.on_wires(new) for line in circuit.outputs)
    return Circuit(circuit.inputs, steps, outputs, circuit.input_shape, circuit.output_shape)
