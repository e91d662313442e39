"""Functions of a prompt, compiled: formulas with means and attention over tokens, to one network for every length.

The formulas become a circuit whose wires are a token's, the prompt's or a query's (`circuit/prompt.py`), and from there
on everything is as for any circuit: heads, composition of errors, file and checker. That the certificate does not
depend on the number of tokens is a property of one kind of step, `circuit/pool.py`. (docs/mathematics.md 3.9)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from anchorhead.circuit.pool import LENGTHS
from anchorhead.circuit.prompt import lower_prompt
from anchorhead.compiler.circuit_route import composed_graph, stated
from anchorhead.compiler.circuit_target import CircuitTarget, name_of, source_digest
from anchorhead.compiler.method import Wish
from anchorhead.errors import InputError
from anchorhead.expression.domain import Pair, read_box, shown
from anchorhead.expression.graph import Expression
from anchorhead.expression.parse import parse
from anchorhead.file.stored import shapes_text
from anchorhead.model.outside import check_policy
from anchorhead.model.prompt_core import PromptCore, PromptModel, exact_answer
from anchorhead.progress import Progress, telling
from anchorhead.proof.network_claim import PlacedNetwork

Ranges = Mapping[str, tuple[float, float]]


def compile(
    target: str | Sequence[str] | Callable[..., Any],
    tokens: Ranges,
    query: Ranges | None = None,
    *,
    tol: float = 1e-6,
    dtype: torch.dtype = torch.float64,
    outside: str = "warn",
    evaluation: str = "fast",
    limit: int | None = None,
    progress: bool | Progress = True,
) -> PromptModel:
    """A function of a prompt as softmax attention, with a proof of its error for prompts of every length.

    target: a formula, or a list of them, one for each output, in a token's variables and a query's. mean(...), var, std
        and cov are over the prompt's tokens, all with equal weights, and attend(score, value) is the mean of values
        with weights softmax(score). An output may not depend on single tokens. Or a torch module or function of tokens,
        (n, t) or (batch, n, t), that treats all alike: it is traced, and means over tokens are its only way from them.
    tokens: the variables of a token with their intervals, such as {"x": (-1, 1), "y": (-1, 1)}, in the order of the
        last dimension of `tokens`. query: likewise of a query, where there are any.
    tol: the error to keep, rounding included; with evaluation="literal" by the softmax written out as well, whose sums
        are over up to 65,536 tokens. outside, evaluation, limit, progress: as for `ah.compile`.

    `model(tokens, query=None, mask=None)` takes tokens (..., n, t), for every n from 1, and query (..., m, k), and
    gives (..., m, outputs), or (..., outputs) where there is no query.

    >>> tokens, query = {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}
    >>> slope = ah.in_context.compile("q*cov(x, y)/(var(x) + 0.2)", tokens, query, tol=1e-3)
    >>> slope(torch.zeros(5, 2, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)).abs().item() < 1e-3
    True
    """
    check_policy(outside)
    if evaluation not in ("fast", "literal"):
        raise InputError(f'evaluation={evaluation!r:.40} must be "fast" or "literal".')
    own, asked = _ranges(tokens, "tokens"), _ranges({} if query is None else query, "query")
    if not own:
        raise InputError('tokens= names no variable; a token has at least one, as in tokens={"x": (-1, 1)}.')
    twice = sorted(own.keys() & asked.keys())
    if twice:
        raise InputError(f"{', '.join(twice)} is a variable of a token and of a query; name them apart.")
    with telling("compiling a function of a prompt", progress) as tell, threadpool_limits(1):
        wish = Wish(tol, None, dtype, None, tell, limit, literal=evaluation == "literal")
        found = _module(target, own, asked) if callable(target) else _formulas(target, own | asked, len(own))
        composed, source = composed_graph(found, wish)
    model = PromptModel(PromptCore(PlacedNetwork.of(composed.claim), source), stated(found, composed), "prompt")
    model.outside = outside
    return model


def _ranges(given: Any, name: str) -> dict[str, Pair]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InputError(f'{name}={shown(given)} must name variables with their intervals, as {{"x": (-1, 1)}}.')
    return dict(zip(given, read_box(given, tuple(given)), strict=True)) if given else {}


def _formulas(target: Any, box: dict[str, Pair], tokens: int) -> CircuitTarget:
    texts = target.text if isinstance(target, Expression) else target
    if not (isinstance(texts, str) or (isinstance(texts, list | tuple) and all(isinstance(t, str) for t in texts))):
        raise InputError(f"target={shown(target)} must be a formula, a list of formulas, or a function of tokens.")
    expression = parse(texts, tuple(box), pools=True)
    circuit = lambda fuse: lower_prompt(expression, tokens, fuse=fuse)
    return CircuitTarget(str(expression), tuple(box.values()), circuit, expression, (LENGTHS,))


def _module(target: Callable[..., Any], own: dict[str, Pair], asked: dict[str, Pair]) -> CircuitTarget:
    from anchorhead.tracing.calling import require_instance
    from anchorhead.tracing.prompt import TokenFunction

    require_instance(target)
    if asked:
        raise InputError("A module or function is of tokens alone; leave query= out, or give a formula.")
    called = TokenFunction(target, tuple(own))
    circuit = cache(called.circuit)
    first = circuit(True)
    low, high = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*own.values(), strict=True))
    said = called.check(low, high, lambda tokens: exact_answer(first, tokens, None, None)[0])
    name = f"{name_of(target)} ({shapes_text(first)})"
    return CircuitTarget(name, tuple(own.values()), circuit, None, (LENGTHS, *said), source_digest(target))
