"""The routes for a function of one variable, which compete on keys: one head, pieces joined by gates, the graph.

A single head has one layer, so it is taken where it is small, and where the graph, with a layer for each function in a
row, does not save a third of its keys. tanh(5 cos(30x)) is two small heads in a row and a hopeless single one; gelu is
one. Over decades keys in geometric progression are tried, too. Pieces are the fallback: every continuous function on a
bounded interval is reached by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from anchorhead.compiler.circuit_route import Graph
from anchorhead.compiler.circuit_target import elementwise
from anchorhead.compiler.head_methods import DECADES, Gamma, Pieces, usual
from anchorhead.compiler.method import Wish
from anchorhead.compiler.refusals import BelowDtype, RoundsMore
from anchorhead.compiler.search import Search
from anchorhead.compiler.target import Target
from anchorhead.enclosure.zeros import zero
from anchorhead.errors import AnchorheadError, ToleranceError
from anchorhead.model.compiled import CompiledModel
from anchorhead.progress import LOG

ENOUGH = 16
"""A head of so few keys is taken without looking further."""
MANY = 64
"""A formula of more functions than this is not taken apart."""
MOST_DECADES = 64.0
"""With more, a head has fewer than two keys for each."""
WORTH = 64
"""The most keys of a single head before other routes are looked at."""


def best_route(target: Target, wish: Wish) -> CompiledModel:
    """The model with the fewest keys, or a single head where it is not much larger."""
    if wish.keys is not None or wish.largest_value is not None or not target.bounded:
        return usual(target).compile(target, wish)
    refusals: list[AnchorheadError] = []

    def tried(route: Callable[[], CompiledModel], in_hand: CompiledModel | None = None) -> CompiledModel | None:
        try:
            return route()
        except AnchorheadError as refusal:
            LOG.info("%s: a route is refused: %s", target.expression, refusal)
            refusals.append(refusal)
        except KeyboardInterrupt:
            if in_hand is None:
                raise
            return in_hand
        return None

    hurried = replace(wish, hurried=True)
    graph = tried(lambda: _taken_apart(target, hurried)) if _turns_often(target, wish) else None
    head = tried(lambda: _by_itself(target, hurried, graph), graph)
    if (head is None or head.resources.keys > ENOUGH) and _over_decades(target):
        fewer = wish.limit if head is None else head.resources.keys - 1
        head = tried(lambda: Gamma(by_size=True).compile(target, replace(hurried, limit=fewer)), head or graph) or head
    if head is not None and (graph is not None or head.resources.keys <= ENOUGH):
        return head
    if graph is None:
        graph = tried(lambda: _taken_apart(target, wish if head is None else hurried, head), head)
    if graph is not None:
        return graph
    below = next((refusal for refusal in refusals if isinstance(refusal, BelowDtype)), None)
    if head is None and below is None:
        head = tried(lambda: Pieces().compile(target, wish))
    if head is None:
        raise below or _nearest(refusals)
    return head


def _nearest(refusals: list[AnchorheadError]) -> AnchorheadError:
    """The last refusal, or one that says how heads round that are near enough, where none came nearer."""
    rounds = [refusal for refusal in refusals if isinstance(refusal, RoundsMore)]
    best = min((r.best for r in refusals if isinstance(r, ToleranceError)), default=math.inf)
    return next((refusal for refusal in rounds if refusal.best <= best), refusals[-1])


def _over_decades(target: Target) -> bool:
    """Whether the variable goes over decades and the target has no zero, so that it may be fitted relative to it."""
    if target.relative or target.kinks or not DECADES <= target.decades <= MOST_DECADES:
        return False
    return zero(target.node, target.variable, target.low, target.high) is None


def _turns_often(target: Target, wish: Wish) -> bool:
    """Whether the target goes up and down more often than a head of so few keys can: the graph is then first."""
    if target.relative:
        return False
    search = Search(target, usual(target).scaled_fit(target), wish.tolerance(1e-6), wish.dtype, wish.progress)
    return search.goal.error > 0 and search.estimate(ENOUGH) == math.inf


def _by_itself(target: Target, wish: Wish, graph: CompiledModel | None) -> CompiledModel:
    """A single head, of less than half as many keys again as the graph has."""
    if target.relative:
        return usual(target).compile(target, replace(wish, hurried=False))
    most = WORTH if graph is None else min(WORTH, (3 * graph.resources.keys - 1) // 2)
    return usual(target).compile(target, replace(wish, limit=min(most, wish.limit or most)))


def _taken_apart(target: Target, wish: Wish, head: CompiledModel | None = None) -> CompiledModel:
    """Through the graph, with a third fewer keys than the head."""
    if target.relative:
        raise ToleranceError("Errors are carried through a graph as they are, not in units of the target.")
    several = elementwise(target)
    if len(several.circuit(False).steps) > MANY:
        raise ToleranceError(f"{target.expression} is made of more than {MANY} functions, too many to take it apart.")
    fewer = wish.limit if head is None else 2 * head.resources.keys // 3
    return Graph(apart=True).compile(several, replace(wish, limit=fewer))
