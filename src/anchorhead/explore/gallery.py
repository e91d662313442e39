"""Entries of the page: a formula of one variable with every head of the gallery that exists for it, or a saved model.

Each (method, number of keys) is compiled and proved by itself. What is refused is left out, and a method that is
left out altogether says why. A saved head stands beside the gallery's; those of a saved network stand one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anchorhead.circuit.apply import Times
from anchorhead.circuit.largest import Largest
from anchorhead.circuit.names import wire_names
from anchorhead.circuit.step import Computed
from anchorhead.compiler.compile import compile_formula
from anchorhead.compiler.head_methods import usual
from anchorhead.compiler.methods import HEADS
from anchorhead.compiler.target import Domain, Target, expression_of, read_target
from anchorhead.dtypes import UNIT
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.explore.numbers import NEAR, claim, domain_text, finite_ends, head_numbers, model_numbers, samples
from anchorhead.explore.theorems import theorem_entries
from anchorhead.expression.domain import window
from anchorhead.expression.graph import Expression
from anchorhead.expression.parse import parse
from anchorhead.head.head import Head
from anchorhead.in_context.load import load
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.mapped_core import MappedCore
from anchorhead.progress import Progress
from anchorhead.proof.certificate import rest_above

FAST = ("gated", "smooth", "kinked")
SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Keys of the fast heads."""
PAPER_SIZES = (4, 8, 16, 32, 64)
"""Keys of the paper's head."""
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
"""For kinked heads whose number of keys does not depend on the error."""
ENOUGH = 1e-11
"""A bound below which more keys show nothing more."""
SMALL = 1e-6
"""A bound at which three sizes without progress mean that there is none to come."""
TELLING = 1e-4
"""The page opens with the smallest fast head that keeps this."""
MOST_HEADS = 24
"""Heads of a saved network that the page offers, the first ones."""
LEAD = 16.0
"""A maximum is drawn to where its largest argument leads by this over β: there it has all but 1e-7 of the weight."""


def formula_entry(formula: str, domain: Domain = None, progress: Progress | None = None) -> dict[str, Any]:
    """The entry of a formula; AnchorheadError if it is not of one variable, or no head exists for it."""
    expression = one_variable(formula)
    target, notes = _on_domain(expression, domain)
    heads, refused = compiled_heads(target, progress)
    if not heads:
        raise InputError(f"No head could be compiled for {formula}: {refused[0]}")
    return entry(target, heads, notes + refused, start(heads)) | {"name": formula}


def one_variable(formula: str) -> Expression:
    """The formula, parsed; refused if it has several variables or outputs."""
    expression = expression_of(formula)
    if len(expression.variables) > 1:
        names = ", ".join(expression.variables)
        raise InputError(
            f"{formula} has the variables {names}, and the page draws functions of one. Fix the others at numbers, or "
            'save the network, anchorhead compile "..." -o model.safetensors, and explore that file: its heads are '
            "functions of one variable each."
        )
    return expression


def _on_domain(expression: Expression, domain: Domain) -> tuple[Target, list[str]]:
    """The target on the domain; without one, on all of R or, where no head reaches that, on a window."""
    if domain is not None:
        return read_target(expression, domain), []
    try:
        target = read_target(expression, None)
        usual(target).fit(target)
    except AnchorheadError as refusal:
        target = read_target(expression, (-NEAR, NEAR))
        where = domain_text(-NEAR, NEAR)
        return target, [f"This page takes {where}, since no domain was given and R cannot be had: {refusal}"]
    return target, []


def compiled_heads(target: Target, progress: Progress | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The numbers of every head that exists, and a sentence for each method that does not."""
    heads: list[dict[str, Any]] = []
    notes: list[str] = []
    for method in (*FAST, "nearest"):
        if method == "kinked" and not target.kinks:
            continue
        on = target if method in ("gated", "kinked") or target.bounded else _bounded(target)
        found, refusal = _of_method(on, method, progress or (lambda text: None))
        heads += found
        if not found:
            notes.append(f"{method} is not among the heads: {_why(on, method, refusal)}")
    return heads, notes


def _why(target: Target, method: str, refusal: str) -> str:
    if method == "gated" and target.kinks:
        where = domain_text(target.low, target.high)
        return f"none was proved on {where}, since the function has a kink; kinked heads are made for that."
    return refusal


def _bounded(target: Target) -> Target:
    """The same function on a window, for heads with constant values."""
    return Target(target.expression, *window(target.low, target.high, NEAR))


def _of_method(target: Target, method: str, progress: Progress) -> tuple[list[dict[str, Any]], str]:
    """Heads by size until they are good enough or stop improving; two refusals in a row end it."""
    found: list[dict[str, Any]] = []
    bounds: list[float] = []
    refusals: list[str] = []
    try:
        wanted = list(_wanted(target, method))
    except AnchorheadError as refusal:
        return [], str(refusal)
    for keys, tol in wanted:
        progress(f"{target.expression}: {method}, " + (f"{keys} keys" if tol is None else f"within {tol:g}"))
        try:
            model = compile_formula(target.expression, (target.low, target.high), method=method, keys=keys, tol=tol)
        except AnchorheadError as refusal:
            refusals.append(str(refusal))
            if len(refusals) > 1:
                break
            continue
        refusals.clear()
        found.append(model_numbers(model, tol))
        bounds.append(model.certificate.bound)
        if bounds[-1] < ENOUGH or (len(bounds) > 3 and min(bounds[-3:]) >= min(bounds[:-3]) < SMALL):
            break
    return found, refusals[0] if refusals else ""


def _wanted(target: Target, method: str) -> Iterator[tuple[int | None, float | None]]:
    """Numbers of keys, or tolerances where the number is fixed."""
    fit = next(m for m in HEADS if m.name == method).fit(target)
    if method == "kinked" and target.is_straight:
        yield from ((None, tol) for tol in TOLERANCES)
    elif method == "gated" and target.is_straight:
        yield 1, None  # one line is the function
    else:
        sizes = PAPER_SIZES if method == "nearest" else SIZES
        yield from ((keys, None) for keys in sizes if fit.least <= keys <= fit.most)


def start(heads: list[dict[str, Any]]) -> int:
    """Where the page opens: the first fast head whose error is just too small to see in the curve."""
    order = ("kinked", "gated", "smooth", "nearest")
    method = next(m for m in order if any(h["method"] == m for h in heads))
    of_method = [i for i, h in enumerate(heads) if h["method"] == method]
    return next((i for i in of_method if heads[i]["claim"]["approximation"] <= TELLING), of_method[-1])


def entry(target: Target, heads: list[dict[str, Any]], notes: list[str], first: int) -> dict[str, Any]:
    """All that the page needs to know of one function."""
    return {
        "name": str(target.expression),
        "variable": target.variable,
        "domain": finite_ends(target.low, target.high),
        **samples(target),
        "heads": heads,
        "notes": notes,
        "start": first,
    }


def file_entries(path: Path, progress: Progress | None = None) -> list[dict[str, Any]]:
    """The entries of a saved model."""
    model = load(path)
    if not isinstance(model, CompiledModel):
        return theorem_entries(model)
    if isinstance(model.network, MappedCore):
        raise InputError(
            f"{path} holds {model.certificate.expression} under the row map {model.network.row_map.name}, and the page "
            "draws softmax attention. model.plot() draws it."
        )
    if not model.input_shape:
        return [_head_entry(model, progress)]
    if isinstance(model.network, LayeredCore):
        return _network_entries(model, model.network)
    raise InputError(
        f"{path} holds {model.certificate.expression}, sampled over a grid of keys; the page draws heads of one "
        "variable. Explore a model that was compiled from a formula or a traced function instead."
    )


def _head_entry(model: CompiledModel, progress: Progress | None) -> dict[str, Any]:
    """The saved head first, then what the compiler finds for the same function and domain."""
    certificate = model.certificate
    target = read_target(parse(certificate.expression, certificate.variables), certificate.domain[0])
    saved = model_numbers(model) | {"saved": True}
    try:
        others, notes = compiled_heads(target, progress)
    except AnchorheadError as refusal:
        others, notes = [], [f"Only the saved head is shown, since no other could be compiled: {refusal}"]
    return entry(target, [saved, *others], notes, 0)


def _network_entries(model: CompiledModel, core: LayeredCore) -> list[dict[str, Any]]:
    """Each head of the network as a function of its own u, and each maximum as one of the lead of an argument."""
    heads, maxima = range(len(core.placed.claim.heads)), _maxima(core)
    count = len(heads) + len(maxima)
    if not count:
        raise InputError(
            f"The page draws heads that are functions of one number, and the network of {model.certificate.expression} "
            f"has none: {_without(core)} anchorhead show prints what it computes."
        )
    notes = [
        f"One of {count} heads of the network that approximates {model.certificate.expression}; what is proved here is "
        "proved of this head, and anchorhead show prints what of it arrives at the network's output."
    ]
    if count > MOST_HEADS:
        notes.append(f"The first {MOST_HEADS} heads are shown.")
    drawn = [lambda i=i: _node_entry(model, core, i, notes) for i in heads]
    drawn += [lambda steps=steps: _maximum_entry(model, core, steps, notes) for steps in maxima]
    return [draw() for draw in drawn[:MOST_HEADS]]


def _without(core: LayeredCore) -> str:
    kinds = {step.name for step in core.circuit.steps}
    return f"its heads ({', '.join(sorted(kinds))}) have keys that depend on the input." if kinds else "it is affine."


def _maxima(core: LayeredCore) -> list[list[int]]:
    """The steps that are maxima, those of as many arguments with the same β together."""
    found: dict[tuple[int, float], list[int]] = {}
    for i, step in enumerate(core.circuit.steps):
        if isinstance(step, Largest):
            found.setdefault((len(step.arguments), core.placed.claim.wiring.values[i][0]), []).append(i)
    return list(found.values())


def _maximum_entry(model: CompiledModel, core: LayeredCore, steps: list[int], notes: list[str]) -> dict[str, Any]:
    """max(u, 0, ..., 0): a maximum by how far one of its arguments leads, the others alike."""
    claim_, known = core.placed.claim, model.certificate
    step, use, values = core.circuit.steps[steps[0]], claim_.wiring.uses[steps[0]], claim_.wiring.values[steps[0]]
    beta, others = values[0], [0.0] * (len(list(step.lines())) - 1)
    end = LEAD / beta
    computed = Computed(use, values, None, known.dtype, UNIT[known.dtype])
    [(_, total)] = step.follow([((-end, end), 0.0), *(((0.0, 0.0), 0.0) for _ in others)], (-end, end), computed)
    own = step.own_error(claim_.heads, use, values)
    stated = claim((-end, end), known.level, own, rest_above(total, own), known.dtype)
    keys = Head.of(slopes=[beta, *others], intercepts=[0.0, *others], constants=[0.0, *others], gains=[1.0, *others],
                   horner=False, dtype=known.dtype)  # fmt: skip
    head = head_numbers(keys, "maximum", stated) | {"saved": True}
    said = "u is how far one argument of the maximum is above the others, which are alike; scores are β times both."
    target = read_target(parse("relu(u)", ["u"]), (-end, end))
    return entry(target, [head], [*notes, said], 0) | _node(core, steps)


def _node(core: LayeredCore, steps: list[int]) -> dict[str, str]:
    """What the steps of a head write, by the names of the mechanism."""
    names, _ = wire_names(core.circuit)
    known = [names[core.circuit.starts[i]] for i in steps]
    more = f" and {len(known) - 1} more" if len(known) > 1 else ""
    return {"node": f"{known[0]}{more}" if known else ""}


def _node_entry(model: CompiledModel, core: LayeredCore, index: int, notes: list[str]) -> dict[str, Any]:
    known, wiring = core.placed.claim.heads[index], core.placed.claim.wiring
    target = read_target(parse(str(known.function), ["u"]), (known.low, known.high))
    bounds = (model.certificate.level, *known.absolute, model.certificate.dtype)
    stated = claim((target.low, target.high), *bounds)
    steps = [i for i, use in enumerate(wiring.uses) if use.head == index]
    gated = [i for i in steps if isinstance(core.circuit.steps[i], Times)]
    said = [f"Values are drawn for v = 1: of {_node(core, gated)['node']} they are multiplied by v, a number that the "
            "head reads beside u, so that it writes this function times v."] if gated else []  # fmt: skip
    shown = entry(target, [head_numbers(core.heads()[index], known.method, stated) | {"saved": True}], notes + said, 0)
    return shown | _node(core, steps)
