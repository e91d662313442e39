"""Where a model's pointwise nonlinearities are: modules, attributes that hold functions, calls inside forward.

A module's forward is read twice: its source is scanned for the names of nonlinear functions (`forward_source.py`), so
that nothing is missed silently, and where there is something to replace, or an activation may gate a partner, it is
traced by torch.fx with its children as they are, which gives the calls themselves and what multiplies what. A forward
that tracing would freeze is left as it is: its child activations are still replaced, its calls are reported.
"""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass

import torch
from torch import fx, nn

from anchorhead.conversion.activations import FUNCTIONS, METHODS, formula_of, formula_of_call, is_activation
from anchorhead.conversion.forward_source import (
    ACTIVATION_NAMES,
    NONLINEAR_NAMES,
    frozen,
    held_functions,
    nonlinear_calls,
    sources,
)
from anchorhead.model.activation import ActivationHead, GateHead

AFFINE = re.compile(
    "Linear|Bilinear|Conv|LazyConv|Embedding|Identity|Dropout|Alpha|FeatureAlpha|Flatten|Unflatten|Module|Sequential|"
    "Parameter|AvgPool|AdaptiveAvg|Upsample|Pixel|ZeroPad|ConstantPad|ReflectionPad|ReplicationPad|CircularPad|Fold|Unfold|"
    "ChannelShuffle|NonDynamically|Transformer"
)
"""torch.nn modules that are affine, or only hold others."""
PRODUCTS = (operator.mul, torch.mul, "mul", operator.imul)


@dataclass(frozen=True)
class Site:
    """A pointwise nonlinearity. kind: "module", "attribute" or "call" (of a traced forward); gated if it has a partner.

    owner: the path of the module that holds it; name: the child, the attribute, or the node's name in `graph`.
    """

    kind: str
    owner: str
    name: str
    formula: str
    gated: bool

    @property
    def place(self) -> str:
        return below(self.owner, self.name)


def below(owner: str, name: str) -> str:
    """The path of what a module at a path holds under a name."""
    return f"{owner}.{name}" if owner else name


def find_sites(model: nn.Module) -> tuple[list[Site], list[tuple[str, str]], dict[str, fx.Graph]]:
    """Sites, activations that cannot be read with the reason, and traced forwards by path."""
    sites: list[Site] = []
    refused: list[tuple[str, str]] = []
    graphs: dict[str, fx.Graph] = {}
    for path, module in model.named_modules():
        if is_activation(module):
            continue
        own = nonlinear_calls(module) & ACTIVATION_NAMES
        children = {n: c for n, c in module._modules.items() if c is not None and is_activation(c)}  # shared ones too
        attribute = _attribute(module)
        if attribute is not None:
            sites.append(Site("attribute", path, "activation", attribute, False))
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            own = set()
        else:
            refused += [(below(path, name), why) for name, why in held_functions(module)]
        fixed = frozen(module) if children or own else None
        graph = traced(module) if (children or own) and fixed is None else None
        if graph is not None:
            graphs[path] = graph
        for name, child in children.items():
            formula = formula_of(child)
            if formula is None:
                why = f"{type(child).__name__} is not an elementwise function that can be read"
                refused.append((below(path, name), why))
            else:
                sites.append(Site("module", path, name, formula, graph is not None and _gates(graph, name)))
        if own:
            found, missed = _calls(path, graph, own, fixed)
            sites += found
            refused += missed
    if is_activation(model):
        formula = formula_of(model)
        sites += [Site("module", "", "", formula, False)] if formula else []
    return sites, refused, graphs


def _attribute(module: nn.Module) -> str | None:
    """torch's own transformer layers hold their activation as a function."""
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        held = module.activation
        if not isinstance(held, nn.Module) and callable(held):
            return formula_of_call(held, (), {})
    return None


def _calls(
    path: str, graph: fx.Graph | None, names: set[str], fixed: str | None
) -> tuple[list[Site], list[tuple[str, str]]]:
    """Function calls inside a forward, or why they cannot be replaced."""
    said, where = ", ".join(sorted(names)), path or "the model"
    if graph is None:
        why = f"its forward calls {said}, and cannot be rewritten, since {fixed or 'torch.fx cannot trace it'}"
        return [], [(where, f"{why}; use a module, such as nn.GELU(), instead")]
    sites = []
    for node in graph.nodes:
        if _is_call(node):
            formula = formula_of_call(node.target, tuple(node.args[1:]), dict(node.kwargs))
            if formula is None:
                return [], [(where, f"a call of {node.name} inside forward is not an elementwise function")]
            sites.append(Site("call", path, node.name, formula, _partner(node) is not None))
    if not sites:
        return [], [(where, f"its code calls {said} where torch.fx does not see it; use a module instead")]
    return sites, []


def _is_call(node: fx.Node) -> bool:
    return (node.op == "call_function" and node.target in FUNCTIONS) or (
        node.op == "call_method" and node.target in METHODS
    )


def _gates(graph: fx.Graph, child: str) -> bool:
    """Whether every use of a child activation is a product with another tensor."""
    nodes = [n for n in graph.nodes if n.op == "call_module" and n.target == child]
    return bool(nodes) and all(_partner(n) is not None for n in nodes)


def _partner(node: fx.Node) -> fx.Node | None:
    """The one other tensor that an activation's result is multiplied by."""
    users = list(node.users)
    if len(users) != 1 or users[0].target not in PRODUCTS or len(users[0].args) < 2:
        return None
    others = [a for a in users[0].args[:2] if a is not node]
    return others[0] if len(others) == 1 and isinstance(others[0], fx.Node) else None


class _Shallow(fx.Tracer):
    """Traces one forward; its children stay as they are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def traced(module: nn.Module) -> fx.Graph | None:
    """The forward of one module as a graph; None where torch.fx cannot follow it."""
    try:
        return _Shallow().trace(module)
    except Exception:  # torch.fx fails in many ways on code that it cannot follow
        return None


def remaining(model: nn.Module) -> list[tuple[str, str]]:
    """Everything else in a model that is not affine, by name: norms, its own attention, functions in a forward."""
    found = []
    for path, module in model.named_modules():
        kind, name = type(module).__name__, path or "the model"
        if type(module).__module__.startswith("anchorhead."):
            continue
        if "Norm" in kind:
            found.append((name, kind))
        elif isinstance(module, nn.MultiheadAttention) or kind.endswith("Attention"):
            found.append((name, f"softmax of the model's own attention ({kind})"))
        elif type(module).__module__.startswith("torch.nn.modules"):
            if not AFFINE.match(kind) and not list(module.children()):
                found.append((name, kind))
        elif isinstance(module, fx.GraphModule):
            found += [(name, f"{what} in {kind}") for what in _left_in(module.graph)]
        else:
            calls = nonlinear_calls(module)
            if calls:
                found.append((name, f"{', '.join(sorted(calls))} in {kind}"))
            if any(isinstance(child, ActivationHead | GateHead) for child in module.children()) and _multiplies(module):
                found.append((name, f"a product with an activation in {kind}, whose forward cannot be traced"))
    return found


def _left_in(graph: fx.Graph) -> list[str]:
    """What a rewritten forward still calls that is not affine."""
    names = []
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
            tensors = [a for a in node.args if isinstance(a, fx.Node)]
            if name.removesuffix("_") in NONLINEAR_NAMES or name in ("where", "gt", "lt", "ge", "le"):
                names.append(name)
            elif node.target in PRODUCTS and len(tensors) > 1:
                names.append("a product of two tensors")
            elif node.target in (operator.pow, operator.truediv, torch.div) and len(tensors) == len(node.args):
                names.append(name)
            elif node.target is operator.pow:
                names.append("**")
    return list(dict.fromkeys(names))


def _multiplies(module: nn.Module) -> bool:
    """Whether the forward multiplies a child's output by something."""
    for parsed, _ in sources(module):
        for node in ast.walk(parsed):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                operands = (node.left, node.right)
                if not any(isinstance(side, ast.Constant) for side in operands):
                    return True
    return False
