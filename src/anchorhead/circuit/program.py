"""A circuit as plain data for a file, and back. Reading checks every part: nothing in a file is trusted or executed.

A number is a float or a whole number as it is, a fraction as "1/3", a closed formula as "=sqrt(2)"; a line is
[bias, wire, coefficient, wire, coefficient, ...]; functions are texts in the variable u, each written once.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from anchorhead.circuit.circuit import Apply, Attend, Circuit, Largest, Line, Step, Times
from anchorhead.enclosure.exact import Number
from anchorhead.errors import AnchorheadError, FileError
from anchorhead.expression.graph import Node
from anchorhead.expression.parse import parse

MOST_WIRES = 1_000_000
MOST_INPUTS = 100_000
FRACTION = re.compile(r"-?[0-9]{1,2000}/[0-9]{1,2000}")
LONGEST_LABEL = 2000


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
    label = "".join(c for c in step.label[:LONGEST_LABEL] if c.isprintable())
    if isinstance(step, Largest):
        return ["largest", label, [_line_out(line) for line in step.arguments]]
    if isinstance(step, Attend):
        rows = [[[_line_out(x) for x in row] for row in part] for part in (step.keys, step.values)]
        return ["attend", label, [_line_out(q) for q in step.query], rows[0],
                [_line_out(o) for o in step.offsets], rows[1]]  # fmt: skip
    function = functions.setdefault(step.function, len(functions))
    if isinstance(step, Apply):
        return ["apply", label, function, _line_out(step.argument)]
    return ["times", label, function, _line_out(step.argument), _line_out(step.partner)]


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


def circuit_digest(circuit: Circuit) -> str:
    """SHA-256 over the circuit as plain data, without the labels of its steps."""
    plain = to_program(circuit)
    plain["steps"] = [[step[0], *step[2:]] for step in plain["steps"]]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def from_program(data: Any) -> Circuit:
    """The circuit that the data describe; FileError where they describe none."""
    try:
        return _read(data)
    except AnchorheadError as error:
        raise FileError(f"The target stored in the file cannot be read: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise FileError(
            f"The target stored in the file is damaged ({str(error)[:200]!r}); compile the model again."
        ) from None


def _require(fits: bool, problem: str) -> None:
    if not fits:
        raise ValueError(problem)


def _read(data: Any) -> Circuit:
    inputs = tuple(_shown(name) for name in _listed(data["inputs"]))
    _require(0 < len(inputs) <= MOST_INPUTS and len(set(inputs)) == len(inputs), "inputs without or with equal names")
    functions = [_function(text) for text in _listed(data["functions"])]
    wires = len(inputs)
    steps: list[Step] = []
    for item in _listed(data["steps"]):
        step = _step_in(item, functions, wires)
        steps.append(step)
        wires += step.width
        _require(wires <= MOST_WIRES, "too many wires")
    outputs = tuple(_line_in(line, wires) for line in _listed(data["outputs"]))
    shapes = [tuple(_natural(n) for n in _listed(data[name])) for name in ("input_shape", "output_shape")]
    _require(len(outputs) > 0, "no outputs")
    _require(len(shapes[0]) > 0 and math.prod(shapes[0]) == len(inputs), "the shape does not fit the inputs")
    _require(math.prod(shapes[1]) == len(outputs), "the shape does not fit the outputs")
    return Circuit(inputs, tuple(steps), outputs, *shapes)


def _function(text: Any) -> Node:
    return parse(_text(text), ("u",)).node


def _step_in(item: Any, functions: Sequence[Node], wires: int) -> Step:
    sizes = {"apply": 4, "times": 5, "largest": 3, "attend": 6}
    kind = _listed(item)[0] if item else None
    _require(isinstance(kind, str) and len(item) == sizes.get(kind), "a step of no known kind")
    label = _shown(item[1])
    if kind in ("apply", "times"):
        number = _natural(item[2])
        _require(number < len(functions), "a step names a function that is not there")
        argument = _line_in(item[3], wires)
        if kind == "apply":
            return Apply(functions[number], argument, label)
        return Times(functions[number], argument, _line_in(item[4], wires), label)
    if kind == "largest":
        arguments = tuple(_line_in(line, wires) for line in _listed(item[2]))
        _require(len(arguments) > 1, "a maximum of fewer than two")
        return Largest(arguments, label)
    query = tuple(_line_in(q, wires) for q in _listed(item[2]))
    keys, values = (
        tuple(tuple(_line_in(x, wires) for x in _listed(row)) for row in _listed(rows)) for rows in (item[3], item[5])
    )
    offsets = tuple(_line_in(o, wires) for o in _listed(item[4]))
    _require(len(keys) == len(offsets) == len(values) > 0, "keys and values differ in number")
    _require({len(row) for row in keys} == {len(query)}, "queries and keys differ in size")
    _require(len({len(row) for row in values}) == 1 and len(values[0]) > 0, "values differ in size, or have none")
    return Attend(query, keys, offsets, values, label)


def _line_in(data: Any, wires: int) -> Line:
    _require(len(_listed(data)) % 2 == 1, "a line without a bias")
    terms = {}
    for wire, c in zip(data[1::2], data[2::2], strict=True):
        _require(_natural(wire) < wires, "a step uses a later one")
        terms[wire] = _number_in(c)
    _require(len(terms) == len(data) // 2, "a wire is named twice")
    return Line(terms, _number_in(data[0]))


def _number_in(value: Any) -> Number:
    if isinstance(value, str):
        if value.startswith("="):
            return parse(value[1:], ()).node
        _require(FRACTION.fullmatch(value) is not None, "a fraction that is none")
        return Fraction(value)
    _require(type(value) in (int, float) and math.isfinite(value), f"{value!r:.40} is not a finite number")
    return value


def _listed(value: Any) -> list[Any]:
    _require(isinstance(value, list), f"{value!r:.40} is not a list")
    return value


def _natural(value: Any) -> int:
    _require(type(value) is int and value >= 0, f"{value!r:.40} is not a whole number")
    return value


def _text(value: Any) -> str:
    _require(isinstance(value, str), f"{value!r:.40} is not a text")
    return value


def _shown(value: Any) -> str:
    """A text that messages may repeat: nothing in it but what can be printed."""
    _require(_text(value).isprintable() and len(value) <= LONGEST_LABEL, "a name that cannot be printed")
    return str(value)
