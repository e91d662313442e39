"""The routes for a function of one variable, which compete on keys: one head, pieces joined by gates, the graph.

A single head has one layer, so it is taken where it is small, and where the graph, with a layer for each function in a
row, does not save a third of its keys. tanh(5 cos(30x)) is two small heads in a row and a hopeless single one; gelu is
one. Pieces are the fallback: every continuous function on a bounded interval is reached by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anchorhead.compiler.circuit_route import Graph
from anchorhead.compiler.circuit_target import elementwise
from anchorhead.compiler.head_methods import Pieces, usual
from anchorhead.compiler.method import Wish
from anchorhead.compiler.search import BelowDtype
from anchorhead.compiler.target import Target
from anchorhead.errors import AnchorheadError, ToleranceError
from anchorhead.model.compiled import CompiledModel

ENOUGH = 16
"""A head of so few keys is taken without looking further."""
MANY = 64
"""A formula of more functions than this is not taken apart."""
WORTH = 64
"""The most keys of a single head before other routes are looked at."""


def best_route(target: Target, wish: Wish) -> CompiledModel:
    """The model with the fewest keys, or a single head where it is not much larger."""
    if wish.keys is not None or not target.bounded:
        return usual(target).compile(target, wish)
    refusals: list[AnchorheadError] = []

    def tried(route: Callable[[], CompiledModel]) -> CompiledModel | None:
        try:
            return route()
        except AnchorheadError as refusal:
            refusals.append(refusal)
            return None

    small = wish if target.relative else replace(wish, limit=min(WORTH, wish.limit or WORTH), hurried=True)
    head = tried(lambda: usual(target).compile(target, small))
    if head is not None and head.resources.keys <= ENOUGH:
        return head
    try:
        graph = tried(lambda: _taken_apart(target, wish, head))
    except KeyboardInterrupt:
        if head is None:
            raise
        return head
    if graph is not None:
        return graph
    below = next((refusal for refusal in refusals if isinstance(refusal, BelowDtype)), None)
    if head is None and below is None:
        head = tried(lambda: Pieces().compile(target, wish))
    if head is None:
        raise below or refusals[-1]
    return head


def _taken_apart(target: Target, wish: Wish, head: CompiledModel | None) -> CompiledModel:
    """Through the graph, with a third fewer keys than the head."""
    if target.relative:
        raise ToleranceError("Errors are carried through a graph as they are, not in units of the target.")
    several = elementwise(target)
    if len(several.circuit(False).steps) > MANY:
        raise ToleranceError(f"{target.expression} is made of more than {MANY} functions, too many to take it apart.")
    fewer = wish.limit if head is None else 2 * head.resources.keys // 3
    return Graph(apart=True).compile(several, replace(wish, limit=fewer))
