"""Heads put where the activations were; what a forward computes in its own code is changed in its traced graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx, nn

from anchorhead.conversion.sites import Site


def put(model: nn.Module, made: Iterable[tuple[Site, nn.Module]], graphs: dict[str, fx.Graph]) -> nn.Module:
    """The model with heads at their sites; the model itself is changed."""
    rewritten: dict[str, fx.Graph] = {}
    for site, head in made:
        model = _replace(model, site, head, graphs, rewritten)
    for path, graph in rewritten.items():
        model = _install(model, path, graph)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False  # torch's fast path has no heads
    return model


def _replace(model: nn.Module, site: Site, head: nn.Module, graphs: dict[str, fx.Graph],
             rewritten: dict[str, fx.Graph]) -> nn.Module:  # fmt: skip
    """Puts a head in its place; gates and calls change the traced forward of their owner, which is installed later."""
    owner: Any = model.get_submodule(site.owner)
    if site.kind == "module" and not site.name:
        return head
    if site.kind == "attribute":
        owner.activation = head
        owner.activation_relu_or_gelu = 0  # torch's fast path has activations of its own
        return model
    if site.kind == "module" and not site.gated:
        setattr(owner, site.name, head)
        if isinstance(owner, nn.TransformerEncoderLayer):
            owner.activation_relu_or_gelu = 0
        return model
    graph = rewritten.setdefault(site.owner, graphs[site.owner])
    name = site.name if site.kind == "module" else f"{site.name}_head"
    owner.add_module(name, head)
    for node in list(graph.nodes):
        if (node.op == "call_module" and node.target == site.name) or node.name == site.name:
            _rewire(graph, node, name, gated=site.gated)
    return model


def _rewire(graph: fx.Graph, node: fx.Node, name: str, *, gated: bool) -> None:
    with graph.inserting_after(node):
        if not gated:
            made = graph.call_module(name, (node.args[0],))
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            return
    product = next(iter(node.users))
    partner = next(a for a in product.args if a is not node)
    with graph.inserting_after(product):
        made = graph.call_module(name, (node.args[0], partner))
    product.replace_all_uses_with(made)
    graph.erase_node(product)
    graph.erase_node(node)


def _install(model: nn.Module, path: str, graph: fx.Graph) -> nn.Module:
    """The module at that path with the rewritten forward; it keeps its class's other methods and attributes."""
    owner = model.get_submodule(path)
    traced = fx.GraphModule(owner, graph, class_name=type(owner).__name__)
    traced.train(owner.training)
    if not path:
        return traced
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, traced)
    return model
