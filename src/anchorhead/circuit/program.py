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

from anchorhead.circuit.circuit import KINDS, Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.places import Place, joined
from anchorhead.circuit.step import Step
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
        **({"tokens": circuit.tokens} if circuit.tokens else {}),
        **({"state": circuit.state} if circuit.state else {}),
    }


def _step_out(step: Step, functions: dict[Node, int]) -> list[Any]:
    label = "".join(c for c in step.label[:LONGEST_LABEL] if c.isprintable())
    return [step.name, label, *step.written(_line_out, lambda node: functions.setdefault(node, len(functions)))]


def _line_out(line: Line) -> list[Any]:
    out: list[Any] = [number_out(line.bias)]
    for wire, c in line.terms.items():
        out += [wire, number_out(c)]
    return out


def number_out(number: Number) -> float | int | str:
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


def _listed(value: Any) -> list[Any]:
    _require(isinstance(value, list), f"{value!r:.40} is not a list")
    return value


def _read(data: Any) -> Circuit:
    inputs = tuple(_shown(name) for name in _listed(data["inputs"]))
    _require(0 < len(inputs) <= MOST_INPUTS and len(set(inputs)) == len(inputs), "inputs without or with equal names")
    reader = Reader([_function(text) for text in _listed(data["functions"])], len(inputs))
    steps = tuple(reader.step(item) for item in _listed(data["steps"]))
    outputs = reader.lines(data["outputs"])
    taken, given = (tuple(_natural(n) for n in _listed(data[name])) for name in ("input_shape", "output_shape"))
    _require(len(outputs) > 0, "no outputs")
    _require(math.prod(taken) == len(inputs), "the shape does not fit the inputs")
    _require(bool(taken) or not given, "a number that becomes a tensor")
    _require(math.prod(given) == len(outputs), "the shape does not fit the outputs")
    tokens = _natural(data.get("tokens", 0))
    _require(tokens <= len(inputs) and (tokens > 0 or not any(step.name == "pool" for step in steps)), "no tokens")
    state = _natural(data.get("state", 0))
    _require(tokens + state <= len(inputs) and (tokens > 0 or not state), "a state without tokens")
    found = Circuit(inputs, steps, outputs, taken, given, tokens, state)
    if tokens:
        places = joined(found.places[wire] for line in outputs for wire in line.terms)
        _require(places in (Place.PROMPT, found.answers), "an output of every token")
    return found


def _function(text: Any) -> Node:
    return parse(_text(text), ("u",)).node


class Reader:
    """Reads the parts of steps one after the other: a line may name the inputs and the wires of steps before it."""

    def __init__(self, functions: Sequence[Node], wires: int) -> None:
        self.functions, self.wires = functions, wires

    def step(self, item: Any) -> Step:
        """The next step; its wires can be named from now on."""
        found = KINDS.get(item[0]) if _listed(item) and isinstance(item[0], str) else None
        if found is None or len(item) != found.items:
            raise ValueError("a step of no known kind")
        step = found.read(item[2:], _shown(item[1]), self)
        self.wires += step.width
        _require(self.wires <= MOST_WIRES, "too many wires")
        return step

    def line(self, data: Any) -> Line:
        """[bias, wire, coefficient, ...] as a line."""
        _require(len(_listed(data)) % 2 == 1, "a line without a bias")
        terms = {}
        for wire, c in zip(data[1::2], data[2::2], strict=True):
            _require(_natural(wire) < self.wires, "a step uses a later one")
            terms[wire] = _number_in(c)
        _require(len(terms) == len(data) // 2, "a wire is named twice")
        return Line(terms, _number_in(data[0]))

    def lines(self, data: Any) -> tuple[Line, ...]:
        """A list of lines."""
        return tuple(self.line(item) for item in _listed(data))

    def function(self, number: Any) -> Node:
        """A function by its number."""
        _require(_natural(number) < len(self.functions), "a step names a function that is not there")
        return self.functions[number]

    listed, require = staticmethod(_listed), staticmethod(_require)


def _number_in(value: Any) -> Number:
    if isinstance(value, str):
        if value.startswith("="):
            return parse(value[1:], ()).node
        _require(FRACTION.fullmatch(value) is not None, "a fraction that is none")
        return Fraction(value)
    _require(type(value) in (int, float) and math.isfinite(value), f"{value!r:.40} is not a finite number")
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
