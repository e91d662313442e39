"""Heads put where the activations were; what a forward computes in its own code is changed in its traced graph."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterable
from typing import Any, cast

from torch import fx, nn
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from anchorhead.conversion.lines import name_of, with_lines
from anchorhead.conversion.norms import norm_call
from anchorhead.conversion.sites import Site, is_product
from anchorhead.conversion.source_calls import source_forward
from anchorhead.model.activation import ActivationHead, GateHead, Placed, SquareHead
from anchorhead.model.norm import NormHead

PLACED: dict[str, type[Placed]] = {
    "activation": ActivationHead,
    "gate": GateHead,
    "square": SquareHead,
    "norm": NormHead,
}
"""What stands in a place, by its kind: everything that conversion puts in."""


def put(model: nn.Module, made: Iterable[tuple[Site, nn.Module]], graphs: dict[str, fx.Graph]) -> nn.Module:
    """The model with heads at their sites; the model itself is changed."""
    rewritten: dict[str, fx.Graph] = {}
    in_source: dict[str, list[str]] = {}
    for site, head in made:
        if site.kind == "source":
            model.get_submodule(site.owner).add_module(site.name if site.gated else f"{site.name}_head", head)
            in_source.setdefault(site.owner, []).append(site.name)
        else:
            model = _replace(model, site, head, graphs, rewritten)
    for path, names in in_source.items():
        owner: Any = model.get_submodule(path)
        owner.__class__ = _with_source(cast(Any, type(owner)), tuple(names))
    for path, graph in rewritten.items():
        _install(model, path, graph)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False  # torch's fast path has no heads
    return model


def _replace(model: nn.Module, site: Site, head: nn.Module, graphs: dict[str, fx.Graph],
             rewritten: dict[str, fx.Graph]) -> nn.Module:  # fmt: skip
    """Puts a head in its place; gates and calls change the traced forward of their owner, which is installed later."""
    owner: Any = model.get_submodule(site.owner)
    vars(head).update(in_place=site.in_place, carries=site.carries)
    if site.kind == "module" and not site.name:
        keep_hooks(owner, head)
        return head
    if site.kind == "attribute":
        owner.activation = head
        vars(owner)["activation"] = head  # a decoder layer's copy takes relu where it does not find its own there
        owner.activation_relu_or_gelu = 0  # torch's fast path has activations of its own
        return model
    if site.kind == "module" and not site.gated:
        keep_hooks(getattr(owner, site.name), head)
        setattr(owner, site.name, head)
        if isinstance(owner, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            vars(owner)[site.name] = head
            owner.activation_relu_or_gelu = 0
        return model
    graph = rewritten.setdefault(site.owner, graphs[site.owner])
    name = site.name if site.kind == "module" else f"{site.name}_head"
    owner.add_module(name, head)
    for node in list(graph.nodes):
        if site.norm is not None and node.name == site.name:
            _rewire_norm(graph, node, name)
        elif (node.op == "call_module" and node.target == site.name) or node.name == site.name:
            _rewire(graph, node, name, site)
    return model


def _rewire_norm(graph: fx.Graph, node: fx.Node, name: str) -> None:
    """The head in the place of the call, and weight and bias of the call after it."""
    call: Any = norm_call(node)
    with graph.inserting_before(node):
        made = graph.call_module(name, (node.args[0] if node.args else node.kwargs["input"],))
        made = made if call.weight is None else graph.call_function(operator.mul, (made, call.weight))
        made = made if call.bias is None else graph.call_function(operator.add, (made, call.bias))
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _rewire(graph: fx.Graph, node: fx.Node, name: str, site: Site) -> None:
    """The head in the place of its node, or of the product or square that takes it; of two activations that gate each
    other the first does."""
    user = next(iter(node.users), None)
    if not site.takes_user or user is None or (site.gated and not is_product(user, node)):
        with graph.inserting_after(node):
            made = graph.call_module(name, (node.args[0],))
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        return
    partners = [a for a in user.args if a is not node] if site.gated else []
    with graph.inserting_after(user):
        made = graph.call_module(name, (node.args[0], *partners[:1]))
    user.replace_all_uses_with(made)
    graph.erase_node(user)
    graph.erase_node(node)


def keep_hooks(before: nn.Module, after: nn.Module) -> None:
    """Hooks of users stay; what they compute is seen when the model is watched."""
    for name, value in vars(before).items():
        if name.startswith(("_forward_hooks", "_forward_pre_hooks", "_backward", "_is_full_backward")):
            vars(after)[name] = copy.copy(value)  # the module may be held elsewhere, and have others later


def _install(model: nn.Module, path: str, graph: fx.Graph) -> None:
    """The module at that path gets its own class with the rewritten forward; nothing else of it changes."""
    owner: Any = model.get_submodule(path)
    code = graph.python_code(root_module="self")
    text = with_lines(_format_import_block(code.globals, sys_importer) + code.src, graph)
    owner.__class__ = _rewritten(cast(Any, type(owner)), text)


@functools.cache
def _with_source(base: Any, names: tuple[str, ...]) -> type[nn.Module]:
    """A subclass whose forward has heads in the place of some calls in its source."""

    def reduced(self: nn.Module, protocol: object) -> tuple[Any, ...]:
        return _made_of_source, (base, names), self.__dict__

    return _named_as(base, {"forward": source_forward(base, names), "__reduce_ex__": reduced})


def _named_as(base: Any, space: dict[str, Any]) -> type[nn.Module]:
    """A subclass with the name of its base, file included: by that the transformers library knows what a class can."""
    return type(base.__name__, (base,), space | {"__module__": base.__module__, "__qualname__": base.__qualname__})


def _made_of_source(base: Any, names: tuple[str, ...]) -> nn.Module:
    kind = _with_source(base, names)
    return kind.__new__(kind)


@functools.cache
def _rewritten(base: Any, text: str) -> type[nn.Module]:
    """A subclass with this text as its forward; its instances are copied and pickled by base and text."""
    names: dict[str, Any] = {}
    exec(compile(text, name_of(text), "exec"), names)

    def reduced(self: nn.Module, protocol: object) -> tuple[Any, ...]:
        return _made, (base, text), self.__dict__

    return _named_as(base, {"forward": names["forward"], "__reduce_ex__": reduced})


def _made(base: Any, text: str) -> nn.Module:
    kind = _rewritten(base, text)
    return kind.__new__(kind)
