"""Where a model's pointwise nonlinearities are: modules, attributes that hold functions, calls inside forward.

A module's forward is read twice: its source is scanned for the names of activations (`forward_source.py`), and where
there is something to replace, or an activation may gate a partner, it is traced by torch.fx with its children as they
are, which gives the calls themselves and what multiplies what. A forward that tracing would freeze is left as it is:
its child activations are still replaced, its calls are refused. This only finds what to replace. What is nonlinear and
not found here is seen when the model runs (`watch.py`).
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import fx, nn

from anchorhead.conversion.activations import (
    FUNCTIONS,
    METHODS,
    READ_IF_PURE,
    formula_of,
    formula_of_call,
    is_activation,
    is_elementwise,
    modules_for,
    why_not_elementwise,
    why_unread,
    why_unread_call,
)
from anchorhead.conversion.forward_source import activation_calls, calls, each_call, frozen
from anchorhead.conversion.held_functions import held_functions, mentioned
from anchorhead.conversion.norms import NORM_NAMES, norm_call, norm_of
from anchorhead.conversion.source_calls import source_calls, source_gates
from anchorhead.conversion.traced_forward import traced
from anchorhead.model.norm import NormForm
from anchorhead.proof.composed import RAMP

SIGMOID = "sigmoid(x)"
PRODUCTS = (operator.mul, torch.mul, "mul")
POWERS, SQUARES = (operator.pow, torch.pow, "pow"), (torch.square, "square")


@dataclass(frozen=True)
class Site:
    """A pointwise nonlinearity. kind: "module", "attribute", "call" (of a traced forward) or "source" (a call in the
    source of a forward that cannot be traced); gated if it has a partner.

    owner: the path of the module that holds it; name: the child, the attribute, or the node's name in `graph`.
    in_place: it overwrites its argument, which others may read; then it is not gated, whatever it is multiplied by.
    carries: the dimension along which its argument holds a partner too, as for nn.GLU; then it is not gated either.
    norm: which norm it is, where it is one, and of how many numbers at most.
    """

    kind: str
    owner: str
    name: str
    formula: str
    gated: bool
    in_place: bool = False
    carries: int | None = None
    norm: tuple[NormForm, int] | None = None

    @property
    def operation(self) -> str:
        """What it computes: a kind of place that heads stand in (`proof/composed.py`)."""
        if self.norm is not None:
            return "norm"
        if self.formula == f"{RAMP}**2":
            return "square"
        return "gate" if self.gated or self.carries is not None else "activation"

    @property
    def takes_user(self) -> bool:
        """Whether heads stand for what uses its result in a traced forward, too: a product, or a square."""
        return self.gated or (self.kind == "call" and self.operation == "square")

    def as_saved(self, kind: str) -> Site:
        """The ramp of a square alone, which earlier conversions replaced."""
        alone = self.kind == "call" and self.operation == "square" and kind == "activation"
        return replace(self, formula=RAMP) if alone else self

    @property
    def place(self) -> str:
        return below(self.owner, self.name)


def below(owner: str, name: str) -> str:
    """The path of what a module at a path holds under a name."""
    return f"{owner}.{name}" if owner else name


def find_sites(
    model: nn.Module, *, pure: bool = False
) -> tuple[list[Site], list[tuple[str, str]], dict[str, fx.Graph]]:
    """Sites, norms among them if all is to be pure; activations that cannot be read with the reason; and traced
    forwards by path."""
    found = _Found(model, pure)
    for path, module in model.named_modules():
        if not is_activation(module) and id(module) not in found.read:
            found.look(path, module)
    if is_activation(model) and (formula := formula_of(model)):
        found.sites.append(Site("module", "", "", formula, False, bool(getattr(model, "inplace", False))))
    return found.sites + (_norms(model, found.graphs) if pure else []), found.refused, found.graphs


class _Found:
    """What is found in a model, module by module. read: elementwise modules that are read like activations."""

    def __init__(self, model: nn.Module, pure: bool) -> None:
        self.sites: list[Site] = []
        self.refused: list[tuple[str, str]] = []
        self.graphs: dict[str, fx.Graph] = {}
        self.pure, self.names = pure, mentioned(model)
        self.elementwise = {id(m) for m in model.modules() if is_elementwise(m)}
        self.read = self.elementwise if pure else set()
        self._called: dict[type, set[str]] = {}

    def look(self, path: str, module: nn.Module) -> None:
        """Activations that a module calls, by whatever way."""
        own = self._called_by(path, module)
        children = {name: child for name, child in module._modules.items()
                    if child is not None and (is_activation(child) or id(child) in self.read)}  # fmt: skip
        fixed = frozen(module) if children or own else None
        graph = traced(module) if (children or own) and fixed is None else None
        if graph is not None:
            self.graphs[path] = graph
        for name, child in children.items():
            self._child(path, module, name, child, graph)
        glus = {n: c for n, c in module._modules.items() if isinstance(c, nn.GLU)}
        self.sites += [Site("module", path, name, SIGMOID, False, carries=glu.dim) for name, glu in glus.items()]
        if graph is None:
            own = self._in_source(path, module, own, fixed)
        if own:
            found, missed = _calls(path, graph, own, fixed)
            self.sites += found
            self.refused += missed

    def _called_by(self, path: str, module: nn.Module) -> set[str]:
        """The activations that its forward calls; what else it has that is one becomes a site, or is refused."""
        if type(module) not in self._called:
            self._called[type(module)] = activation_calls(module)
        own = self._called[type(module)]
        left = READ_IF_PURE if id(module) in self.elementwise and not own else None
        if why := why_not_elementwise(module) if self.pure else left:
            self.refused.append((path, why))
        attribute = _attribute(module)
        if attribute is not None:
            self.sites.append(Site("attribute", path, "activation", attribute, False))
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            return set()
        self.refused += [(below(path, name), why) for name, why in held_functions(module, self.names)]
        return own

    def _child(self, path: str, module: nn.Module, name: str, child: nn.Module, graph: fx.Graph | None) -> None:
        """An activation that is a module of its own, a gate if its result is one factor of a product."""
        formula = formula_of(child)
        if formula is None:
            self.refused.append((below(path, name), why_unread(child)))
            return
        in_place = bool(getattr(child, "inplace", False))
        read = name in source_gates(module) and graph is None and not in_place
        gated = read or (graph is not None and _gates(graph, name) and not in_place)
        self.sites.append(Site("source" if read else "module", path, name, formula, gated, in_place))

    def _in_source(self, path: str, module: nn.Module, own: set[str], fixed: str | None) -> set[str]:
        """Calls in a forward that cannot be traced, found in its source; those that are left where there are none."""
        found = [Site("source", path, n, f, False) for n, f in source_calls(module, helpers=self.pure).items()]
        self.sites += found
        if found and len(found) < len(each_call(module)):
            self.refused.append((path or "the model", _in_part(own, fixed)))
        return set() if found else own


def _in_part(names: set[str], fixed: str | None) -> str:
    said = ", ".join(sorted(names))
    return f"of the calls of {said} in its code not all can be rewritten, since {fixed or 'torch.fx cannot trace it'}"


def _norms(model: nn.Module, graphs: dict[str, fx.Graph]) -> list[Site]:
    """Modules that are norms, by what they compute, and calls of norms in forwards that torch.fx can follow."""
    held = [(path, *child) for path, module in model.named_modules() for child in module._modules.items()]
    found = [(owner, name, norm_of(module)) for owner, name, module in [("", "", model), *held] if module is not None]
    sites = [Site("module", owner, name, str(norm[0]), False, norm=norm) for owner, name, norm in found if norm]
    places = {site.place for site in sites}
    for path, module in model.named_modules():
        if path not in places and calls(module, NORM_NAMES) and (path in graphs or frozen(module) is None):
            graph = graphs.get(path) or traced(module)
            read = [(node, norm_call(node)) for node in graph.nodes] if graph is not None else []
            new = [Site("call", path, n.name, str(c.form), False, norm=(c.form, c.width)) for n, c in read if c]
            if graph is not None and new:
                graphs[path] = graph
                sites += new
    return sites


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
        return [], [(where, f"{why}; to have them converted, make them modules: {modules_for(names)}")]
    sites, missed = [], []
    for node in graph.nodes:
        if node.target is F.glu:
            dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", -1)
            sites.append(Site("call", path, node.name, SIGMOID, False, carries=int(cast(Any, dim))))
        elif _is_call(node):
            formula = formula_of_call(node.target, tuple(node.args[1:]), dict(node.kwargs))
            if formula is None:
                called = FUNCTIONS.get(cast(Any, node.target), _name(node))
                missed.append((where, why_unread_call(called, node.target, tuple(node.args[1:]), dict(node.kwargs))))
                continue
            in_place = _in_place(node)
            gated = _partner(node) is not None and not in_place
            formula = f"{RAMP}**2" if formula == RAMP and not in_place and _squared(node) else formula
            sites.append(Site("call", path, node.name, formula, gated, in_place))
    if not sites and not missed:
        written = [n for n in graph.nodes if _name(n).removesuffix("_") in names and _name(n).endswith("_")]
        why = f"its code calls {said} where torch.fx does not see it"
        why = f"{_name(written[0])} overwrites its argument, and is not replaced" if written else why
        return [], [(where, f"{why}; to have them converted, make them modules: {modules_for(names)}")]
    return sites, missed


def _is_call(node: fx.Node) -> bool:
    return (node.op == "call_function" and node.target in FUNCTIONS) or (
        node.op == "call_method" and node.target in METHODS
    )


def _name(node: fx.Node) -> str:
    """Of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _in_place(node: fx.Node) -> bool:
    """Whether a call overwrites its argument."""
    try:
        given: Any = inspect.signature(cast(Any, node.target)).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):  # a method, or a function written in C
        return bool(node.kwargs.get("inplace", False))
    return bool(given.get("inplace", False))


def _gates(graph: fx.Graph, child: str) -> bool:
    """Whether every use of a child activation is a product with another tensor."""
    nodes = [n for n in graph.nodes if n.op == "call_module" and n.target == child]
    return bool(nodes) and all(_partner(n) is not None for n in nodes)


def is_product(user: fx.Node, factor: fx.Node) -> bool:
    """Whether a node multiplies what another returned, which a product in place may overwrite."""
    return user.target in PRODUCTS or (user.target is operator.imul and user.args[0] is factor)


def _squared(node: fx.Node) -> bool:
    """Whether all that is done with a result is to square it."""
    users = list(node.users)
    if len(users) != 1 or users[0].kwargs:
        return False
    user, args = users[0], users[0].args
    return (user.target in SQUARES and args == (node,)) or (user.target in POWERS and args == (node, 2))


def _partner(node: fx.Node) -> fx.Node | None:
    """The one other tensor that an activation's result is multiplied by."""
    users = list(node.users)
    if len(users) != 1 or not is_product(users[0], node) or len(users[0].args) < 2 or users[0].kwargs:
        return None
    others = [a for a in users[0].args[:2] if a is not node]
    return others[0] if len(others) == 1 and isinstance(others[0], fx.Node) else None
