"""The linear layers around an activation: which one feeds it, which one it feeds, and their row sums.

Where the forward of the module that holds the activation can be traced, its graph says so. Where the next layer is in
another module, as in BERT, or the forward cannot be traced, it is guessed by its size, and the guess is dropped unless
the layer took what the activation made when the model ran (`trial.py`). A bound on that layer's output is claimed only
if nothing but dropout, which does nothing in evaluation, and views stand between.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from anchorhead.conversion.activations import PASSIVE
from anchorhead.conversion.sites import Site, below
from anchorhead.conversion.sloped_ramp import SlopedRamp
from anchorhead.conversion.traced_forward import traced

VIEWS = ("view", "reshape", "contiguous", "flatten", "unflatten", "transpose", "permute", "squeeze", "unsqueeze", "to")
MIXING = ("matmul", "bmm", operator.matmul, torch.matmul, torch.bmm, torch.einsum, F.scaled_dot_product_attention)
"""Products after which numbers are no neurons of the activation any more: scores meet values there."""


def sizes(module: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear layer, torch's or the Conv1D of GPT-2, or one of others that says how many these
    are, as a quantised one, or one with an adapter; None for anything else."""
    weight = getattr(module, "weight", None)
    if type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2:
        return int(weight.shape[0]), int(weight.shape[1])
    named = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    return (named[0], named[1]) if isinstance(named[0], int) and isinstance(named[1], int) else None


def matrix(module: nn.Module) -> Tensor | None:
    """The matrix (outputs, inputs) by which a linear layer multiplies; None where that is not its weight alone."""
    weight: Any = getattr(module, "weight", None)
    conv = type(module).__name__ == "Conv1D"
    if not (conv or type(module).forward is nn.Linear.forward) or "forward" in vars(module):
        return None
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim != 2:
        return None
    weight = weight.detach()
    return weight.T if conv else weight


def row_sum(module: nn.Module) -> float | None:
    """The largest sum of absolute weights into one output; None where they cannot be read."""
    held = matrix(module)
    return None if held is None else float(held.double().abs().sum(1).max())


@dataclass(frozen=True)
class Around:
    """How many neurons an activation serves, the linear layers that follow it, and whether nothing stands between.

    guessed: by sizes alone, so that it holds if it was seen.
    """

    neurons: int | None
    feeds: tuple[tuple[str, nn.Module], ...] = ()
    direct: bool = False
    guessed: bool = False


def around(model: nn.Module, site: Site, graph: fx.Graph | None) -> Around:
    """The linear layers around an activation."""
    owner = model.get_submodule(site.owner)
    if isinstance(owner, SlopedRamp) and site.owner:
        path, _, name = site.owner.rpartition(".")
        return replace(around(model, replace(site, owner=path, name=name), None), direct=False)
    if isinstance(owner, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return Around(owner.linear2.in_features, ((below(site.owner, "linear2"), owner.linear2),), True)
    if isinstance(owner, nn.Sequential):
        return _in_row(owner, site)
    if graph is not None:
        return _in_graph(model, owner, site, graph)
    return _by_size(owner, site)


def _by_size(owner: nn.Module, site: Site) -> Around:
    """Two linear layers that fit each other in a module whose forward cannot be traced."""
    linears = [(name, child) for name, child in owner.named_children() if sizes(child) is not None]
    for (_, first), (name, second) in itertools.pairwise(linears):
        if (sizes(first) or (0, 0))[1] == _inputs(second):
            return Around(_inputs(second), ((below(site.owner, name), second),), guessed=True)
    return Around(None)


def _inputs(module: nn.Module) -> int | None:
    found = sizes(module)
    return None if found is None else found[0]


def _in_row(owner: nn.Sequential, site: Site) -> Around:
    """The next linear layer in a row of modules, and whether nothing but dropout is between; none beyond other weights,
    as of a convolution."""
    names = list(owner._modules)
    between = True
    for name in names[names.index(site.name) + 1 :]:
        module = owner.get_submodule(name)
        if sizes(module) is not None:
            return Around(_inputs(module), ((below(site.owner, name), module),), between)
        if any(p.ndim > 1 for p in module.parameters()):
            break
        between = between and isinstance(module, PASSIVE)
    before = [owner.get_submodule(name) for name in names[: names.index(site.name)]]
    width = next((found[1] for m in reversed(before) if (found := sizes(m)) is not None), None)
    return Around(width)


def _in_graph(model: nn.Module, owner: nn.Module, site: Site, graph: fx.Graph) -> Around:
    """The linear layers after an activation along the traced forward, or after the module that holds it."""
    nodes = [n for n in graph.nodes if n.name == site.name or (n.op == "call_module" and n.target == site.name)]
    starts = [next(iter(n.users)) if site.takes_user else n for n in nodes]
    feeds: dict[str, nn.Module] = {}
    direct = bool(starts)
    for start in starts:
        for user in start.users:
            node: fx.Node | None = user
            while node is not None and _passes(owner, node):
                node = next(iter(node.users), None)
            if node is not None and node.op == "call_module" and sizes(owner.get_submodule(str(node.target))):
                feeds[below(site.owner, str(node.target))] = owner.get_submodule(str(node.target))
            elif node is not None and node.op == "output" and len(nodes) == 1:
                return _outside(model, site, _before(owner, nodes[0]))
            else:
                direct = False
    if feeds:
        return Around(_inputs(next(iter(feeds.values()))), tuple(feeds.items()), direct)
    on = lambda n: [] if n.target in MIXING else list(n.users)
    later = _first_linear(owner, starts[0], on) if starts else None
    if later is not None:
        module = owner.get_submodule(later)
        return Around(_inputs(module), ((below(site.owner, later), module),), False)
    return Around(_before(owner, nodes[0]) if nodes else None)


def _passes(owner: nn.Module, node: fx.Node) -> bool:
    """Whether a node hands its input on unchanged: dropout, which is nothing in evaluation, and views."""
    if node.op == "call_module":
        return isinstance(owner.get_submodule(str(node.target)), PASSIVE)
    return node.target in VIEWS or node.target in (F.dropout, torch.reshape)


def _before(owner: nn.Module, node: fx.Node) -> int | None:
    name = _first_linear(owner, node, lambda n: n.all_input_nodes)
    found = None if name is None else sizes(owner.get_submodule(name))
    return None if found is None else found[1]


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


def _outside(model: nn.Module, site: Site, width: int | None) -> Around:
    """The activation is what its module returns: around that, in the same layer, the linear layer of that many inputs.

    Direct if it is the first thing that its own module does with its first argument, as in BERT.
    """
    owner = site.owner
    while owner and width is not None:
        owner = owner.rpartition(".")[0]
        near = model.get_submodule(owner)
        if isinstance(near, nn.ModuleList):
            break
        fits = [(below(owner, name), m) for name, m in near.named_modules() if _inputs(m) == width]
        feeding = [(path, m) for path, m in fits if not any(path.startswith(f"{other}.") for other, _ in fits)]
        if len(feeding) == 1:
            return Around(width, tuple(feeding), _comes_first(model, feeding[0][0]), guessed=True)
        if feeding:
            break
    return Around(width)


def _comes_first(model: nn.Module, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    graph = traced(model.get_submodule(parent))
    if graph is None:
        return False
    first = next((n for n in graph.nodes if n.op == "placeholder"), None)
    return first is not None and [n.target for n in first.users if n.op == "call_module"] == [name]
