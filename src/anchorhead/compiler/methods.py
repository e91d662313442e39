"""The methods by their short names: the ways to fit a head, three routes for everything else, and the usual choice."""

from __future__ import annotations

from typing import Any

from anchorhead.compiler.circuit_route import Graph
from anchorhead.compiler.circuit_target import CircuitTarget
from anchorhead.compiler.grid_route import Grid, over_grid, worth_trying
from anchorhead.compiler.head_methods import Gamma, Gated, Kinked, Pieces, Smooth
from anchorhead.compiler.method import HeadMethod, Method, Wish
from anchorhead.compiler.nearest_anchors import Nearest
from anchorhead.compiler.one_variable import best_route
from anchorhead.compiler.target import Target
from anchorhead.compiler.two_layer_route import TwoLayer
from anchorhead.errors import AnchorheadError, InputError, ToleranceError
from anchorhead.model.compiled import CompiledModel
from anchorhead.tracing.opaque import Opaque


class Auto(Method):
    """The usual choice: kinked heads where there are kinks, gated ones otherwise; the cheaper of graph and grid."""

    name = "auto"
    takes = ("one", "several", "opaque")

    def compile(self, target: Any, wish: Wish) -> CompiledModel:
        if isinstance(target, Target):
            return best_route(target, wish)
        if isinstance(target, Opaque):
            return Grid().compile(target, wish)
        return Graph().compile(target, wish) if not over_grid(target) else _cheaper(target, wish)


HEADS: list[HeadMethod] = [Gated(), Smooth(), Gamma(), Kinked(), Pieces(), Nearest()]
METHODS: dict[str, Method] = {"auto": Auto(), **{m.name: m for m in HEADS}}
METHODS |= {"graph": Graph(), "grid": Grid(), "two_layer": TwoLayer()}


def named(method: Any) -> Method:
    """A method, or the one of that name."""
    if isinstance(method, Method):
        return method
    found = METHODS.get(method) if isinstance(method, str) else None
    if found is None:
        raise InputError(f"method={method!r} must be one of {', '.join(METHODS)}, or a Method of your own.")
    return found


def _cheaper(target: CircuitTarget, wish: Wish) -> CompiledModel:
    """The graph, unless a grid has fewer keys, or the graph cannot keep the tolerance and a grid can."""
    try:
        graph = Graph().compile(target, wish)
    except ToleranceError as refusal:
        try:
            return Grid().compile(target, wish)
        except AnchorheadError:
            raise refusal from None
    most = graph.resources.keys - 1
    try:
        if worth_trying(target, wish.tolerance(1e-6), most):
            return Grid(most).compile(target, wish)
    except AnchorheadError:
        pass
    return graph
