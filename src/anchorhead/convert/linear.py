"""The linear layers around an activation: which one feeds it, which one it feeds, and their row sums.

Where the forward of the module that holds the activation can be traced, its graph says so. Where the next layer is in
another module, as in BERT, it is the nearest one around that takes as many inputs as there are neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, fx, nn

from anchorhead.convert.sites import Site


def sizes(module: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear layer, torch's or the Conv1D of GPT-2; None for anything else."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    weight = getattr(module, "weight", None)
    if type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2:
        return int(weight.shape[0]), int(weight.shape[1])
    return None


def row_sum(module: nn.Module) -> float:
    """The largest sum of absolute weights into one output."""
    weight: Any = module.weight
    axis = 1 if isinstance(module, nn.Linear) else 0
    return float(weight.detach().double().abs().sum(axis).max())


def around(model: nn.Module, site: Site, graph: fx.Graph | None) -> tuple[int | None, tuple[str, nn.Module] | None]:
    """How many neurons an activation serves, and the linear layer that follows it, with its path."""
    owner = model.get_submodule(site.owner)
    if site.kind == "attribute":
        linear: Any = owner.linear2
        return linear.in_features, (_path(site.owner, "linear2"), linear)
    before, after = None, None
    if isinstance(owner, nn.Sequential):
        before, after = _in_row(owner, site.name)
    elif graph is not None:
        before, after = _in_graph(owner, site, graph)
    if before is None:
        linears = [child for child in owner.children() if sizes(child) is not None]
        before = linears[0] if len(linears) == 1 else None
    if after is not None:
        found = owner.get_submodule(after)
        return _inputs(found), (_path(site.owner, after), found)
    if before is None:
        return None, None
    width = sizes(before)
    assert width is not None
    return width[1], _outside(model, site.owner, width[1])


def _inputs(module: nn.Module) -> int | None:
    found = sizes(module)
    return None if found is None else found[0]


def _in_row(owner: nn.Sequential, name: str) -> tuple[nn.Module | None, str | None]:
    """The linear layers before and after, in a row of modules."""
    names = list(owner._modules)
    at = names.index(name)
    linear = [n for n in names if sizes(owner.get_submodule(n)) is not None]
    before = [n for n in linear if names.index(n) < at]
    after = [n for n in linear if names.index(n) > at]
    return owner.get_submodule(before[-1]) if before else None, after[0] if after else None


def _in_graph(owner: nn.Module, site: Site, graph: fx.Graph) -> tuple[nn.Module | None, str | None]:
    """The linear layers before and after, along the traced forward."""
    nodes = [n for n in graph.nodes if n.name == site.name or (n.op == "call_module" and n.target == site.name)]
    if not nodes:
        return None, None
    before = _first_linear(owner, nodes[0], lambda n: n.all_input_nodes)
    after = _first_linear(owner, nodes[0], lambda n: list(n.users))
    return (None if before is None else owner.get_submodule(before)), after


def _first_linear(owner: nn.Module, start: fx.Node, step: Callable[[fx.Node], Iterable[fx.Node]]) -> str | None:
    """The nearest linear layer along the graph, breadth first."""
    queue, seen = list(step(start)), {start}
    while queue:
        node = queue.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if node.op == "call_module" and sizes(owner.get_submodule(str(node.target))) is not None:
            return str(node.target)
        queue += step(node)
    return None


def _outside(model: nn.Module, owner: str, width: int) -> tuple[str, nn.Module] | None:
    """Around the owner, but within the same layer: the linear layer with that many inputs."""
    while owner:
        owner = owner.rpartition(".")[0]
        around = model.get_submodule(owner)
        if isinstance(around, nn.ModuleList):
            return None
        feeding = [(_path(owner, name), m) for name, m in around.named_modules() if _inputs(m) == width]
        if feeding:
            return feeding[0] if len(feeding) == 1 else None
    return None


def _path(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name
