"""What a file states, read without trust: the statement about each head, the certificate, the numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

from anchorhead.certify.certificate import Certificate
from anchorhead.certify.flow import Use
from anchorhead.certify.network_claim import HeadClaim, NetworkClaim
from anchorhead.certify.statement import Statement
from anchorhead.errors import AnchorheadError, FileError, VerificationError
from anchorhead.expression.circuit import Apply, Attend, Circuit, Largest, Times, U
from anchorhead.expression.exact import stored
from anchorhead.expression.forms import lower
from anchorhead.expression.graph import Expression, Node
from anchorhead.expression.parse import parse
from anchorhead.expression.program import from_program
from anchorhead.network.file import HORNER_DEPTH, NUMBERS, ModelFile

MOST_KEYS = 100_000
SQUARE = parse("u**2").node


def head_claim(found: ModelFile) -> Statement:
    """The statement of a file that holds one head."""
    record = found.record
    found.require({*NUMBERS, "edges"})
    expression = _expression(text(record, "expression"), None)
    variable = text(record, "variable")
    if len(expression.outputs) != 1 or not set(expression.variables) <= {variable}:
        raise VerificationError(f"The stored expression {expression} is not a function of {variable} alone.")
    box = domain_of(record)
    if len(box) != 1:
        raise FileError("The domain of a function of one variable is one interval, and the file has several.")
    return _statement(found, "", record, expression.outputs[0], variable, box[0])


def network_claim(found: ModelFile) -> NetworkClaim:
    """The statement of a file that holds a network: its circuit, its heads, and how the steps use them."""
    record = found.record
    circuit = _circuit(record)
    box, stored_heads, stored_uses = domain_of(record), record.get("heads"), record.get("uses")
    if len(box) != len(circuit.inputs):
        raise FileError(f"The file has {len(box)} intervals for {len(circuit.inputs)} inputs.")
    if not isinstance(stored_heads, list) or not isinstance(stored_uses, list):
        raise FileError("The file lacks the list of its heads, or of their uses.")
    found.require({f"heads.{i}.{name}" for i in range(len(stored_heads)) for name in (*NUMBERS, "edges")})
    heads = tuple(_stored_head(found, i, part) for i, part in enumerate(stored_heads))
    if len(stored_uses) != len(circuit.steps):
        raise FileError(
            f"The file says how {len(stored_uses)} steps are computed, and its target has {len(circuit.steps)}."
        )
    uses = tuple(_use(item) for item in stored_uses)
    claim = NetworkClaim(circuit, box, text(record, "dtype"), heads, uses)
    _check_uses(claim)
    return claim


def _circuit(record: dict[str, Any]) -> Circuit:
    program = record.get("program")
    if program is not None:
        return from_program(program)
    if type(record.get("fused")) is not bool:
        raise FileError("The file does not say whether the functions of its target are fused.")
    return lower(expression_of(record), fuse=record["fused"])


def expression_of(record: dict[str, Any]) -> Expression:
    """The formulas in a file, which must be those that its certificate names."""
    expression = _expression(_texts(record, "expressions"), _texts(record, "variables"))
    if record.get("expression") != str(expression):
        raise VerificationError(f"The file's title is {record.get('expression')!r}, and its target is {expression}.")
    return expression


def _texts(record: dict[str, Any], name: str) -> list[str]:
    value = record.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise FileError(f"The file lacks the {name} of its target.")
    return value


def _expression(texts: str | list[str], names: list[str] | None) -> Expression:
    try:
        return parse(texts, names)
    except AnchorheadError as error:
        raise VerificationError(f"The stored expression cannot be read: {error}") from error


def _stored_head(found: ModelFile, index: int, part: Any) -> HeadClaim:
    if not isinstance(part, dict):
        raise FileError(f"The file's head {index} is not described.")
    try:
        function = _expression(text(part, "function"), ["u"]).node
        low, high = number(part, "low", negative=True), number(part, "high", negative=True)
        approximation, rounding = number(part, "approximation"), number(part, "rounding")
    except (KeyError, ValueError) as error:
        raise FileError(f"The description of head {index} in the file is incomplete: {error}.") from None
    if not low < high:
        raise FileError(f"The interval of head {index} in the file is empty.")
    record = found.record | {name: part.get(name) for name in ("uniform", "sizes")}
    statement = _statement(found, f"heads.{index}.", record, function, "u", (low, high))
    edges = found.numbers[f"heads.{index}.edges"]
    return HeadClaim(statement, edges, approximation, rounding, str(part.get("method", "")))


def _statement(found: ModelFile, prefix: str, record: dict[str, Any], function: Node, variable: str,
               ends: tuple[float, float]) -> Statement:  # fmt: skip
    """The statement about the numbers under a prefix, once they fit each other."""
    dtype = text(record, "dtype")
    numbers = {name: found.numbers[prefix + name] for name in NUMBERS}
    if dtype not in ("float64", "float32") or {found.dtypes[prefix + name] for name in NUMBERS} != {dtype}:
        raise VerificationError(f"The record says {dtype!r}, and the tensors are stored otherwise.")
    sizes, keys = record.get("sizes"), len(numbers["slopes"])
    if not (isinstance(sizes, list) and sizes and all(type(s) is int and s > 0 for s in sizes) and sum(sizes) == keys):
        raise VerificationError(f"The sizes of the pieces, {sizes!r}, do not add up to the {keys} keys.")
    lengths = [len(numbers[name]) for name in NUMBERS]
    if lengths != [keys] * 4 + [len(sizes)] * 2 or keys > MOST_KEYS:
        raise VerificationError("The tensors of the head do not fit each other in length.")
    if len(sizes) == 1 and (numbers["gate_slopes"], numbers["gate_levels"]) != ((0.0,), (0.0,)):
        raise VerificationError("A head of one piece has no gate, and this one's gate is not zero.")
    uniform = record.get("uniform")
    if type(uniform) is not bool or (uniform and not _evenly_spaced(numbers["slopes"], sizes)):
        raise VerificationError("The head says that its slopes are evenly spaced, and they are not.")
    levels = numbers["intercepts"]
    if uniform and max(levels) - min(levels[0], levels[-1]) >= HORNER_DEPTH[dtype]:
        raise VerificationError("The head says that it is evaluated by Horner's rule, and its coefficients overflow.")
    low, high = ends
    return Statement(function, variable, low, high, dtype, uniform=uniform and keys > 1, sizes=tuple(sizes), **numbers)


def _use(item: Any) -> Use:
    if not (isinstance(item, list) and len(item) == 5 and isinstance(item[0], str) and type(item[1]) is int):
        raise FileError("The file does not say how each step is computed.")
    numbers = item[2:]
    if not all(type(v) in (int, float) and math.isfinite(v) for v in numbers):
        raise FileError("The file says that a step is computed with numbers that are not finite.")
    return Use(item[0], item[1], *(float(v) for v in numbers))


def _check_uses(claim: NetworkClaim) -> None:
    """Every step is computed by a head for its own function."""
    for step, use in zip(claim.circuit.steps, claim.uses, strict=True):
        if isinstance(step, Attend):
            fits = use == Use("attend")
        elif isinstance(step, Largest):
            fits = use.kind == "largest" and use.sharpness > 0 and math.frexp(use.sharpness)[0] == 0.5
        else:
            fits = _fits(step, use, claim)
        if not fits:
            raise VerificationError(f"The step {step.label!r} is not computed by a head for its own function.")


def _fits(step: Apply | Times, use: Use, claim: NetworkClaim) -> bool:
    if not 0 <= use.head < len(claim.heads) or not (use.radius > 0 and math.frexp(use.radius)[0] == 0.5):
        return False
    if any(stored(value, claim.dtype) != value for value in use.values):
        return False  # the network could not hold them exactly
    statement = claim.heads[use.head].statement
    if isinstance(step, Times) and any(statement.gains):
        return False  # a partner is carried in constants only
    if use.kind == "plain":
        return statement.target is step.function and (use.centre, use.radius) == (0.0, 1.0)
    if use.kind == "identity":
        return step.function is U and statement.target is U
    squares = (SQUARE, parse("square(u)").node, parse("u*u").node)
    return use.kind == "square" and isinstance(step, Apply) and step.function in squares and statement.target is SQUARE


def certificate_of(found: ModelFile) -> Certificate:
    """The certificate as stored."""
    record = found.record
    stored = record.get("certificate")
    if not isinstance(stored, dict):
        raise FileError("The file has no certificate.")
    try:
        certificate = Certificate(
            expression=text(record, "expression"),
            domain=domain_of(record),
            dtype=text(record, "dtype"),
            level=text(stored, "level"),
            approximation=number(stored, "approximation"),
            rounding=number(stored, "rounding"),
            boxes=int(stored["boxes"]),
            assumptions=tuple(str(a) for a in stored["assumptions"]),
            outputs=tuple(_entry(v) for v in stored["outputs"]),
            variables=tuple(str(v) for v in stored["variables"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"The certificate in the file is incomplete: {error}.") from error
    for name in ("expression", "dtype", "domain"):
        if stored.get(name) != record.get(name):
            raise VerificationError(
                f"The certificate's {name} is {stored.get(name)!r}, and the file's {record.get(name)!r}."
            )
    if stored.get("bound") != certificate.bound:
        raise VerificationError(
            f"The certificate claims a bound of {stored.get('bound')!r}, and its approximation and rounding make "
            f"{certificate.bound!r}."
        )
    return certificate


def _evenly_spaced(slopes: tuple[float, ...], sizes: list[int]) -> bool:
    steps = {b - a for a, b in itertools.pairwise(slopes)}
    return len(sizes) == 1 and len(steps) <= 1 and all(step > 0 for step in steps)


def domain_of(record: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """The domain: a pair for each input."""
    pairs = record.get("domain")
    if not isinstance(pairs, list) or not pairs:
        raise FileError(f"The domain {pairs!r} in the file is not a list of intervals.")
    return tuple(_ends(pair) for pair in pairs)


def _ends(ends: Any) -> tuple[float, float]:
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(e, int | float | str) for e in ends):
        raise FileError(f"The domain {ends!r} in the file is not a pair of numbers.")
    try:
        low, high = float(ends[0]), float(ends[1])
    except ValueError:
        raise FileError(f"The domain {ends!r} in the file is not a pair of numbers.") from None
    if not low <= high:
        raise FileError(f"The domain {ends!r} in the file is empty.")
    return low, high


def text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise FileError(f"The record in the file lacks {name!r}.")
    return value


def number(record: dict[str, Any], name: str, *, negative: bool = False) -> float:
    return _entry(record[name], name, negative=negative)


def _entry(value: Any, name: str = "a bound", *, negative: bool = False) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or (value < 0 and not negative):
        raise ValueError(f"{name} is {value!r}")
    return float(value)
