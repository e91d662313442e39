"""The two routes for several variables: through the graph, or over the grid, whichever has fewer keys."""

from __future__ import annotations

import torch
from threadpoolctl import threadpool_limits

from anchorhead.compiler.circuit_route import compile_graph
from anchorhead.compiler.circuit_target import GraphTarget
from anchorhead.compiler.grid_route import MOST_KEYS, compile_grid, over_grid, worth_trying
from anchorhead.compiler.search import Progress
from anchorhead.errors import AnchorheadError, PrecisionError, ToleranceError
from anchorhead.model.compiled import CompiledModel

DTYPES = {torch.float64: "float64", torch.float32: "float32"}


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name, if there is a certified evaluation in it."""
    if dtype not in DTYPES:
        raise PrecisionError(f"dtype={dtype} has no certified evaluation; use torch.float64 or torch.float32.")
    return DTYPES[dtype]


def compile_routed(
    target: GraphTarget, method: str, tol: float, dtype: torch.dtype, progress: Progress | None
) -> CompiledModel:
    """Through the graph, or over the grid; with "auto" whichever has fewer keys."""
    report, name = progress or (lambda text: None), dtype_name(dtype)
    with threadpool_limits(1):
        if method == "grid":
            return compile_grid(target, tol, dtype, report)
        if method == "graph" or not over_grid(target):
            return compile_graph(target, tol, name, report)
        return _cheaper(target, tol, dtype, report)


def _cheaper(target: GraphTarget, tol: float, dtype: torch.dtype, progress: Progress) -> CompiledModel:
    """The graph, unless a grid has fewer keys, or the graph cannot keep the tolerance and a grid can."""
    try:
        graph = compile_graph(target, tol, dtype_name(dtype), progress)
    except ToleranceError as refusal:
        try:
            return compile_grid(target, tol, dtype, progress, most=MOST_KEYS)
        except AnchorheadError:
            raise refusal from None
    most = graph.resources.keys - 1
    try:
        if worth_trying(target, tol, most):
            return compile_grid(target, tol, dtype, progress, most=most)
    except AnchorheadError:
        pass
    return graph
