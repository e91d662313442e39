"""A circuit as plain data for a file, and back. Reading checks every part: nothing in a file is trusted or executed.

A number is a float or a whole number as it is, a fraction as "1/3", a closed formula as "=sqrt(2)"; a line is
[bias, wire, coefficient, wire, coefficient, ...]; functions are texts in the variable u, each written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from anchorhead.errors import AnchorheadError, FileError
from anchorhead.expression.circuit import Apply, Attend, Circuit, Largest, Line, Step, Times
from anchorhead.expression.exact import Number
from anchorhead.expression.graph import Node
from anchorhead.expression.parse import parse

MOST_WIRES = 1_000_000


def to_program(circuit: Circuit) -> dict[str, Any]:
    """The circuit as lists, numbers and texts."""
    functions: dict[Node, int] = {}
    steps = [_step_out(step, functions) for step in circuit.steps]
    return {
        "inputs": list(circuit.inputs),
        "functions": [str(function) for function in functions],
        "steps": steps,
        "outputs": [_line_out(line) for line in circuit.outputs],
        "input_shape": list(circuit.input_shape),
        "output_shape": list(circuit.output_shape),
    }


def _step_out(step: Step, functions: dict[Node, int]) -> list[Any]:
    if isinstance(step, Largest):
        return ["largest", step.label, [_line_out(line) for line in step.arguments]]
    if isinstance(step, Attend):
        rows = [[[_line_out(x) for x in row] for row in part] for part in (step.keys, step.values)]
        return ["attend", step.label, [_line_out(q) for q in step.query], rows[0],
                [_line_out(o) for o in step.offsets], rows[1]]  # fmt: skip
    function = functions.setdefault(step.function, len(functions))
    if isinstance(step, Apply):
        return ["apply", step.label, function, _line_out(step.argument)]
    return ["times", step.label, function, _line_out(step.argument), _line_out(step.partner)]


def _line_out(line: Line) -> list[Any]:
    out: list[Any] = [_number_out(line.bias)]
    for wire, c in line.terms.items():
        out += [wire, _number_out(c)]
    return out


def _number_out(number: Number) -> float | int | str:
    if isinstance(number, Node):
        return f"={number}"
    if isinstance(number, Fraction):
        value = float(number)
        return value if Fraction(value) == number else f"{number.numerator}/{number.denominator}"
    return number


def from_program(data: Any) -> Circuit:
    """The circuit that the data describe; FileError where they describe none."""
    try:
        return _read(data)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError, AssertionError) as error:
        raise FileError(f"The target stored in the file is damaged ({error}); compile the model again.") from None
    except AnchorheadError as error:
        raise FileError(f"The target stored in the file cannot be read: {error}") from None


def _read(data: Any) -> Circuit:
    inputs = tuple(_text(name) for name in data["inputs"])
    functions = [_function(text) for text in data["functions"]]
    wires = len(inputs)
    steps: list[Step] = []
    for item in data["steps"]:
        step = _step_in(item, functions, wires)
        steps.append(step)
        wires += step.width
        assert wires <= MOST_WIRES, "too many wires"
    outputs = tuple(_line_in(line, wires) for line in data["outputs"])
    shapes = [tuple(_natural(n) for n in data[name]) for name in ("input_shape", "output_shape")]
    assert outputs, "no outputs"
    assert math.prod(shapes[0]) == len(inputs), "the shape does not fit the inputs"
    assert math.prod(shapes[1]) == len(outputs), "the shape does not fit the outputs"
    return Circuit(inputs, tuple(steps), outputs, *shapes)


def _function(text: Any) -> Node:
    return parse(_text(text), ("u",)).node


def _step_in(item: Any, functions: Sequence[Node], wires: int) -> Step:
    kind, label = item[0], _text(item[1])
    if kind == "apply":
        return Apply(functions[_natural(item[2])], _line_in(item[3], wires), label)
    if kind == "times":
        return Times(functions[_natural(item[2])], _line_in(item[3], wires), _line_in(item[4], wires), label)
    if kind == "largest":
        arguments = tuple(_line_in(line, wires) for line in item[2])
        assert len(arguments) > 1, "a maximum of fewer than two"
        return Largest(arguments, label)
    assert kind == "attend", f"unknown step {kind!r}"
    query = tuple(_line_in(q, wires) for q in item[2])
    keys, values = (tuple(tuple(_line_in(x, wires) for x in row) for row in rows) for rows in (item[3], item[5]))
    offsets = tuple(_line_in(o, wires) for o in item[4])
    assert len(keys) == len(offsets) == len(values) > 0, "keys and values differ in number"
    assert {len(row) for row in keys} == {len(query)}, "queries and keys differ in size"
    assert len({len(row) for row in values}) == 1, "values differ in size"
    assert values[0], "values without entries"
    return Attend(query, keys, offsets, values, label)


def _line_in(data: Any, wires: int) -> Line:
    terms = {}
    for wire, c in zip(data[1::2], data[2::2], strict=True):
        assert _natural(wire) < wires, "a step uses a later one"
        terms[wire] = _number_in(c)
    assert len(terms) == len(data) // 2, "a wire is named twice"
    return Line(terms, _number_in(data[0]))


def _number_in(value: Any) -> Number:
    if isinstance(value, str):
        return parse(value[1:], ()).node if value.startswith("=") else Fraction(value)
    assert type(value) in (int, float), f"{value!r} is not a number"
    assert math.isfinite(value), "a number is not finite"
    return value


def _natural(value: Any) -> int:
    assert type(value) is int, f"{value!r} is not a whole number"
    assert value >= 0, f"{value!r} is negative"
    return value


def _text(value: Any) -> str:
    assert isinstance(value, str), f"{value!r} is not a text"
    return value
