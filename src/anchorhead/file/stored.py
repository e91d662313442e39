"""What a file states, read without trust: its target, the statement about each head, the numbers that the model uses.

Everything is read once, here, from the form that `file/container.py` checked; `load` builds its modules from what this
file returns, and the checker proves just that. Where parts of a file contradict each other nothing is returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.doubling import Angle, doubled
from anchorhead.circuit.layout import LayerPlan, problem_with, rows_of, states
from anchorhead.circuit.lower import lower
from anchorhead.circuit.places import Place
from anchorhead.circuit.program import circuit_digest, from_program
from anchorhead.circuit.prompt import lower_prompt
from anchorhead.circuit.rows import StoredMap, Wiring, wiring_of
from anchorhead.circuit.step import Use, Values
from anchorhead.dtypes import NAMES
from anchorhead.errors import AnchorheadError, FileError, VerificationError
from anchorhead.expression.graph import Expression
from anchorhead.expression.parse import parse
from anchorhead.file.container import ModelFile, printable
from anchorhead.file.domain import domain_of
from anchorhead.file.entries import flag, listed, number, quoted, real
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.near_keys import MANY
from anchorhead.proof.approximation import MOST_WORK
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.network_claim import NetworkClaim, PlacedNetwork

LEVELS = ("proved", "conditional", "measured", "trivial", "unproved")
MOST_KEYS = 1 << 14
MOST_BOXES = 1 << 16


def dtype_of(found: ModelFile) -> str:
    """The dtype that a model computes in."""
    dtype = found.record.get("dtype")
    if dtype not in NAMES:
        raise FileError(f"The file's dtype is {quoted(dtype)}, and must be {' or '.join(NAMES)}.")
    return str(dtype)


def method_of(record: dict[str, Any]) -> str:
    """How a model or a head was made: a name, which says nothing about what it is."""
    method = record.get("method")
    if not (isinstance(method, str) and len(method) <= 40 and method.isidentifier()):
        raise FileError(f"The file's method is {quoted(method)}, which is not the name of one.")
    return method


def evaluation_of(claimed: dict[str, Any]) -> str:
    """Of which evaluation a claim is: `fast`, or empty, of both."""
    evaluation = claimed.get("evaluation", "")
    if evaluation not in ("", "fast"):
        raise FileError(f"A claim in the file is of the evaluation {quoted(evaluation)}, neither fast nor empty.")
    return str(evaluation)


def head_claim(found: ModelFile) -> HeadClaim:
    """What a file that holds one head claims of it."""
    dtype = dtype_of(found)
    found.require({name: dtype for name in NUMBERS} | {"edges": "float64"})
    expression, box = expression_of(found.record), domain_of(found.record)
    if len(expression.outputs) != 1 or len(expression.variables) != 1 or len(box) != 1:
        raise FileError("A head is one function of one variable on one interval, and the file says otherwise.")
    certificate = certificate_of(found)
    head = stored_head(found, "", found.record, dtype)
    claim = HeadClaim(expression.outputs[0], expression.variables[0], *box[0], head, method_of(found.record),
                      found.numbers["edges"], certificate.approximation, certificate.rounding,
                      certificate.relative, certificate.evaluation)  # fmt: skip
    if claim.relative and not claim.bounded:
        raise FileError("The file claims a relative error on an unbounded domain, where none is proved.")
    _require_bounded_work([claim])
    return claim


def stored_network(found: ModelFile, beside: Sequence[str] = ()) -> PlacedNetwork:
    """The statement of a file that holds a network: its circuit, its heads, and the maps between them.

    beside: the prefixes of other maps in the file.
    """
    record, dtype = found.record, dtype_of(found)
    circuit, box = circuit_of(record), domain_of(record)
    if len(box) != len(circuit.inputs):
        raise FileError(f"The file has {len(box)} intervals for {len(circuit.inputs)} inputs.")
    described, uses = listed(record, "heads"), tuple(_use(item) for item in listed(record, "uses"))
    groups = [_groups(layer) for layer in listed(record, "layers")]
    maps = [f"maps.{i}." for i in range(len(groups) + 1)]
    found.require(
        {f"heads.{i}.{name}": dtype for i in range(len(described)) for name in NUMBERS}
        | {f"heads.{i}.edges": "float64" for i in range(len(described))}
        | {prefix + name: dtype for prefix in (*maps, *beside) for name in ("entries", "bias")}
        | {prefix + name: "int32" for prefix in (*maps, *beside) for name in ("columns", "starts")}
        | {f"layers.{i}.kept": "int32" for i in range(len(groups))}
        | {name: dtype for name in ("scales", "tilts", "shifts")}
    )
    heads = tuple(_stored_head(found, i, part) for i, part in enumerate(described))
    _require_bounded_work(heads)
    plans = tuple(LayerPlan(g, found.integers(f"layers.{i}.kept")) for i, g in enumerate(groups))
    if len(uses) != len(circuit.steps) or not all(-1 <= use.head < len(heads) for use in uses):
        raise FileError(f"The file says how {len(uses)} steps use its heads, and its target has {len(circuit.steps)}.")
    problem = problem_with(circuit, plans, [use.head for use in uses])
    if problem is not None:
        raise FileError(f"The network in the file is not one of its target: {problem}.")
    stored = tuple(stored_map(found, prefix) for prefix in maps)
    _check_maps(circuit, plans, stored)
    wiring = wiring_of(circuit, plans, stored, uses, _values(found, len(circuit.steps)))
    if any(w >= start for rows, start in zip(wiring.rows, circuit.starts, strict=True) for r in rows for w in r.terms):
        raise FileError("A step of the network in the file reads what the target computes only after it.")
    if circuit.tokens:
        _check_places(circuit, wiring)
    claim = NetworkClaim(circuit, box, dtype, heads, wiring)
    _check_uses(claim)
    return PlacedNetwork(claim, plans, stored)


def _angles(record: dict[str, Any]) -> list[list[int]]:
    """Which steps of the formulas' circuit are chains of doublings: step, turns, halvings."""
    found = record.get("doubled", [])
    if not isinstance(found, list) or not all(
        isinstance(item, list) and len(item) == 3 and all(type(n) is int and abs(n) < 2**60 for n in item)
        for item in found
    ):
        raise FileError("The file does not say in whole numbers which angles are doubled.")
    return found


def circuit_of(record: dict[str, Any]) -> Circuit:
    """The target of a network: the circuit in the file, which must be that of its formulas where it has any."""
    stored = from_program(record.get("program"))
    if record.get("expressions") is None:
        return stored
    if type(record.get("fused")) is not bool:
        raise FileError("The file does not say whether the functions of its target are fused.")
    expression, fused = expression_of(record), record["fused"]
    meant = lower_prompt(expression, stored.tokens, fuse=fused) if stored.tokens else lower(expression, fuse=fused)
    try:
        meant = doubled(meant, [Angle(*item) for item in _angles(record)])
    except ValueError as problem:
        raise FileError(f"The file doubles {problem}.") from None
    if not stored.input_shape:  # of every number by itself
        meant = replace(meant, input_shape=(), output_shape=())
    if meant != stored:
        raise VerificationError("The circuit in the file is not that of its formulas.")
    return meant


def expression_of(record: dict[str, Any]) -> Expression:
    """The formulas in a file, in its variables."""
    texts, names = listed(record, "expressions"), listed(record, "variables")
    if not texts or not all(isinstance(text, str) for text in [*texts, *names]):
        raise FileError("The file lacks the formulas of its target, or their variables.")
    program = record.get("program")
    try:
        return parse(texts, names, pools=isinstance(program, dict) and "tokens" in program)
    except AnchorheadError as error:
        raise FileError(f"The formula in the file cannot be read: {error}") from error


def _groups(layer: Any) -> tuple[tuple[int, ...], ...]:
    fits = isinstance(layer, list) and all(
        isinstance(group, list) and all(type(i) is int for i in group) for group in layer
    )
    if not fits:
        raise FileError("The file does not say which steps its layers evaluate.")
    return tuple(tuple(group) for group in layer)


def stored_map(found: ModelFile, prefix: str) -> StoredMap:
    """An affine map by the prefix of its tensors; whether it fits is another question."""
    columns, starts = (found.integers(prefix + name) for name in ("columns", "starts"))
    return StoredMap(found.numbers[prefix + "entries"], columns, starts, found.numbers[prefix + "bias"])


def _check_maps(circuit: Circuit, plans: tuple[LayerPlan, ...], maps: tuple[StoredMap, ...]) -> None:
    """Every map reads the state that it stands before, and has the rows that are read from it."""
    wanted = [sum(len(rows_of(circuit, group)) for group in plan.groups) for plan in plans] + [len(circuit.outputs)]
    for i, (held, stored, count) in enumerate(zip(states(circuit, plans), maps, wanted, strict=True)):
        problem = stored.problem(len(held))
        if problem is None and len(stored.bias) != count:
            problem = f"it has {len(stored.bias)} rows, and {count} are read"
        if problem is not None:
            raise FileError(f"The affine map {i} in the file is not one: {problem}.")


def _check_places(circuit: Circuit, wiring: Wiring) -> None:
    """Every row reads what there is in its place: of a token or a query its own, and the prompt's."""
    read = [(row, place) for i, (step, rows) in enumerate(zip(circuit.steps, wiring.rows, strict=True))
            for row, place in zip(rows, step.read_at(circuit.place(i)), strict=True)]  # fmt: skip
    for row, place in read + [(row, circuit.answers) for row in wiring.outputs]:
        if any(circuit.places[wire] not in (place, Place.PROMPT) for wire in row.terms):
            raise FileError("A step of the network in the file reads a number that its place in the prompt lacks.")


def _values(found: ModelFile, steps: int) -> list[Values]:
    parts = [found.numbers[name] for name in ("scales", "tilts", "shifts")]
    if any(len(part) != steps for part in parts):
        raise FileError(f"The file does not hold a scale, a tilt and a shift for each of its {steps} steps.")
    return list(zip(*parts, strict=True))


def _stored_head(found: ModelFile, index: int, part: Any) -> HeadClaim:
    if not isinstance(part, dict):
        raise FileError(f"The file's head {index} is not described.")
    function = part.get("function")
    if not isinstance(function, str):
        raise FileError(f"The file does not say what head {index} computes.")
    target = expression_of({"expressions": [function], "variables": ["u"]}).node
    low, high = (number(part, name, negative=True) for name in ("low", "high"))
    approximation, rounding = number(part, "approximation"), number(part, "rounding")
    if not low < high:
        raise FileError(f"The interval of head {index} in the file is empty.")
    head, edges = stored_head(found, f"heads.{index}.", part, dtype_of(found)), found.numbers[f"heads.{index}.edges"]
    return HeadClaim(target, "u", low, high, head, method_of(part), edges, approximation, rounding,
                     flag(part, "relative"), evaluation_of(part))  # fmt: skip


def stored_head(found: ModelFile, prefix: str, part: dict[str, Any], dtype: str) -> Head:
    """The head of the numbers under a prefix, once they fit each other."""
    numbers = {name: found.numbers[prefix + name] for name in NUMBERS}
    sizes, keys = part.get("sizes"), len(numbers["slopes"])
    if not (isinstance(sizes, list) and sizes and all(type(s) is int and s > 0 for s in sizes) and sum(sizes) == keys):
        raise VerificationError(f"The sizes of the pieces, {quoted(sizes)}, do not add up to the {keys} keys.")
    if [len(numbers[name]) for name in NUMBERS] != [keys] * 4 + [len(sizes)] * 2:
        raise VerificationError("The tensors of the head do not fit each other in length.")
    if len(sizes) == 1 and (numbers["gate_slopes"], numbers["gate_levels"]) != ((0.0,), (0.0,)):
        raise VerificationError("A head of one piece has no gate, and this one's gate is not zero.")
    uniform = part.get("uniform")
    head = Head(**numbers, horner=uniform is True, sizes=tuple(sizes), dtype=dtype)
    if type(uniform) is not bool or (uniform and not head.evenly_spaced):
        raise VerificationError(
            "The head says that it is evaluated by Horner's rule, and its slopes are not evenly spaced, or its "
            "coefficients overflow."
        )
    return head


def _require_bounded_work(heads: Sequence[HeadClaim]) -> None:
    """A proof that no compiler would have found, and that would take hours to check, is refused at once.

    Of a head of many keys those count that matter on a box, which only the checker asks for.
    """
    sizes = [(claim.head.keys, len(claim.edges), claim.parts) for claim in heads]
    keys, boxes, work = (max((k for k, _, _ in sizes), default=0), max((b for _, b, _ in sizes), default=0),
                         sum(b * ((k if k <= MANY else 0) + parts) for k, b, parts in sizes))  # fmt: skip
    if keys > MOST_KEYS or boxes > MOST_BOXES or work > MOST_WORK:
        raise too_much(keys, boxes)


def too_much(keys: int, boxes: int) -> FileError:
    """The refusal of a proof that is too large to be checked."""
    return FileError(
        f"The file's largest head has {keys:,} keys and {boxes:,} boxes; at most {MOST_KEYS:,} keys and "
        f"{MOST_BOXES:,} boxes are checked, and {MOST_WORK:,} keys that matter and parts of the functions over all "
        "boxes."
    )


def _use(item: Any) -> Use:
    if not (isinstance(item, list) and len(item) == 4 and isinstance(item[0], str) and type(item[1]) is int):
        raise FileError("The file does not say how each step is computed.")
    return Use(item[0], item[1], *(real(v, "A centre or radius in the file", negative=True) for v in item[2:]))


def _check_uses(claim: NetworkClaim) -> None:
    """Every step is computed by a head for its own function."""
    wiring = claim.wiring
    for step, use, values in zip(claim.circuit.steps, wiring.uses, wiring.values, strict=True):
        if not step.fits(use, values, claim.heads):
            raise VerificationError(f"The step {step.label[:80]!r} is not computed by a head for its own function.")


def certificate_of(found: ModelFile) -> Certificate:
    """What the file claims of its model; only `checker.py` says whether it is so."""
    record, claimed = found.record, found.record.get("certificate")
    method_of(record)
    if not isinstance(claimed, dict):
        raise FileError("The file has no certificate.")
    level, boxes, said = claimed.get("level"), claimed.get("boxes"), claimed.get("assumptions")
    if level not in LEVELS or type(boxes) is not int or boxes < 0:
        raise FileError("The certificate in the file does not say how well it is established, and by how many boxes.")
    if not isinstance(said, list) or not all(printable(text, 1000) for text in said):
        raise FileError("The assumptions in the file are not a list of sentences.")
    source = record.get("source", "")
    if not printable(source):
        raise FileError("The digest of the source in the file is not a text.")
    return Certificate(
        domain=domain_of(record),
        dtype=dtype_of(found),
        level=str(level),
        approximation=number(claimed, "approximation"),
        rounding=number(claimed, "rounding"),
        boxes=boxes,
        assumptions=tuple(said),
        outputs=tuple(real(v, "The bound of an output in the file") for v in listed(claimed, "outputs")),
        source=source,
        relative=flag(claimed, "relative"),
        evaluation=evaluation_of(claimed),
        condition=said[0] if level == "conditional" and said else "",
        **_title(record),
    )


def _title(record: dict[str, Any]) -> dict[str, Any]:
    """What the target is called, and its variables: read off the target where the file holds one."""
    if record.get("expressions") is not None:
        expression = expression_of(record)
        return {"expression": str(expression), "variables": expression.variables}
    if record.get("program") is None:
        return {"expression": _name(record)}
    circuit = from_program(record["program"])
    return {"expression": f"{_name(record)} ({shapes_text(circuit)})", "circuit": circuit_digest(circuit)}


def _name(record: dict[str, Any]) -> str:
    name = record.get("name")
    if not printable(name):
        raise FileError("The file does not name its target.")
    return str(name)


def shapes_text(circuit: Circuit) -> str:
    """Shapes of one input and one output, as titles have them."""
    sizes = (" x ".join(map(str, shape)) or "1" for shape in (circuit.input_shape, circuit.output_shape))
    return ("n x " if circuit.tokens else "") + " -> ".join(sizes)
