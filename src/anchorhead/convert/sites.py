"""Where a model's pointwise nonlinearities are: modules, attributes that hold functions, calls inside forward.

A module's forward is read twice: its source is scanned for the names of nonlinear functions, so that nothing is missed
silently, and where there is something to replace, or an activation may gate a partner, it is traced by torch.fx with
its children as they are, which gives the calls themselves and what multiplies what.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from anchorhead.convert.activations import FUNCTIONS, METHODS, formula_of, formula_of_call, is_activation

ACTIVATION_NAMES = {*FUNCTIONS.values(), *METHODS}
OTHERS = "softmax log_softmax exp sqrt rsqrt erf pow norm layer_norm scaled_dot_product_attention glu sin cos abs"
NONLINEAR_NAMES = ACTIVATION_NAMES | set(OTHERS.split())
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
        return f"{self.owner}.{self.name}" if self.owner else self.name


def find_sites(model: nn.Module) -> tuple[list[Site], list[tuple[str, str]], dict[str, fx.Graph]]:
    """Sites, activations that cannot be read with the reason, and traced forwards by path."""
    sites: list[Site] = []
    refused: list[tuple[str, str]] = []
    graphs: dict[str, fx.Graph] = {}
    for path, module in model.named_modules():
        if is_activation(module):
            continue
        own = _own_calls(module)
        children = {n: c for n, c in module._modules.items() if c is not None and is_activation(c)}  # shared ones too
        attribute = _attribute(module)
        if attribute is not None:
            sites.append(Site("attribute", path, "activation", attribute, False))
            own = own - ACTIVATION_NAMES
        graph = _traced(module) if children or (own & ACTIVATION_NAMES and attribute is None) else None
        if graph is not None:
            graphs[path] = graph
        for name, child in children.items():
            formula = formula_of(child)
            place = f"{path}.{name}" if path else name
            if formula is None:
                refused.append((place, f"{type(child).__name__} is not an elementwise function that can be read"))
                continue
            sites.append(Site("module", path, name, formula, graph is not None and _gates(graph, name)))
        if own & ACTIVATION_NAMES and attribute is None:
            found, missed = _calls(path, graph, own & ACTIVATION_NAMES)
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


def _calls(path: str, graph: fx.Graph | None, names: set[str]) -> tuple[list[Site], list[tuple[str, str]]]:
    """Function calls inside a forward, or why they cannot be replaced."""
    said = ", ".join(sorted(names))
    if graph is None:
        return [], [
            (path or "the model", f"its forward calls {said}, and torch.fx cannot trace it; use a module instead")
        ]
    sites = []
    for node in graph.nodes:
        if _is_call(node):
            formula = formula_of_call(node.target, tuple(node.args[1:]), dict(node.kwargs))
            if formula is None:
                return [], [
                    (path or "the model", f"a call of {node.name} inside forward is not an elementwise function")
                ]
            sites.append(Site("call", path, node.name, formula, _partner(node) is not None))
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


def _traced(module: nn.Module) -> fx.Graph | None:
    try:
        return _Shallow().trace(module)
    except Exception:  # torch.fx fails in many ways on code that it cannot follow
        return None


def _own_calls(module: nn.Module) -> set[str]:
    """Names of nonlinear functions that the source of a module's forward calls."""
    if type(module).__module__.startswith("torch.nn.modules") or isinstance(module, fx.GraphModule):
        return set()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return set()
    return {name for name in _called(tree) if name in NONLINEAR_NAMES}


def _called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and not _is_own(node.func):
                yield node.func.attr
            elif isinstance(node.func, ast.Name):
                yield node.func.id


def _is_own(function: ast.Attribute) -> bool:
    """self.relu(x): a child, which is seen by itself."""
    return isinstance(function.value, ast.Name) and function.value.id == "self"


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
        else:
            calls = _own_calls(module) - ACTIVATION_NAMES
            if calls and not list(module.named_children()):
                found.append((name, f"{', '.join(sorted(calls))} in {kind}"))
    return found


def calls_of(graph: fx.Graph) -> list[Any]:
    """The activation calls of a traced forward."""
    return [node for node in graph.nodes if _is_call(node)]
