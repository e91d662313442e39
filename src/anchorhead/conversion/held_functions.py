"""Functions that modules hold in attributes, as self.act = F.silu: torch's module for each takes its place.

It does so where it is one of torch's activation functions, or a partial of one with arguments by name, and all that
the module's own code does with the attribute is to call it with one argument. Others stay, and are named with the
reason, unless no code of the model mentions them.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from anchorhead.conversion.activations import FUNCTIONS, MODULES
from anchorhead.conversion.forward_source import is_own, sources

KINDS = (types.FunctionType, types.BuiltinFunctionType, functools.partial)
NOT_REPLACED = (
    "of functions in attributes those are replaced that are torch's activation functions, and called with one argument "
    "and nowhere else; make it a module"
)


def put_modules(model: nn.Module) -> None:
    """Puts modules in the place of activation functions that are held in attributes; the model itself is changed."""
    for module in list(model.modules()):
        if not isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            for name, value in list(vars(module).items()):
                made = _module_for(value) if isinstance(value, KINDS) else None
                if made is not None and _is_only_called(module, name):
                    setattr(module, name, made.train(module.training))


def _module_for(value: Any) -> nn.Module | None:
    """The module of torch that computes what a function does."""
    partial = isinstance(value, functools.partial)
    name = FUNCTIONS.get(value.func if partial else value)
    if name is None or (partial and value.args):
        return None
    try:
        made: nn.Module = getattr(nn, MODULES[name.replace("_", "")])(**(value.keywords if partial else {}))
    except TypeError:  # an argument that the module does not have
        return None
    return made


def _is_only_called(module: nn.Module, name: str) -> bool:
    """Whether a module's own code uses an attribute, and only by self.name(x)."""
    if "forward" in vars(module):
        return False
    nodes = [node for tree, _ in sources(module) for node in ast.walk(tree)]
    uses = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == name and is_own(n)]
    calls = [n.func for n in nodes if isinstance(n, ast.Call) and len(n.args) == 1 and not n.keywords
             and not isinstance(n.args[0], ast.Starred)]  # fmt: skip
    by_name = any(isinstance(n, ast.Constant) and n.value == name for n in nodes)
    return bool(uses) and not by_name and all(any(use is call for call in calls) for use in uses)


def mentioned(model: nn.Module) -> set[str]:
    """Names of attributes, and texts, in the code of a model's modules."""
    one_of_each = {type(m): m for m in model.modules()}.values()
    nodes = [n for module in one_of_each for tree, _ in sources(module) for n in ast.walk(tree)]
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return texts | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


def held_functions(module: nn.Module, names: set[str]) -> Iterator[tuple[str, str]]:
    """Attributes that hold functions, or containers of functions or of activations that torch does not register; of a
    module whose code can be read those that are among names."""
    readable = bool(sources(module)) and "forward" not in vars(module)
    compiled = {"forward"} if "_orig_mod" in module._modules else set()  # what torch.compile makes of its one child's
    for name, value in vars(module).items():
        if name in compiled or name.startswith("_") or name == "training" or (readable and name not in names):
            continue
        parts = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
        for part in parts:
            if isinstance(part, KINDS):
                yield name, NOT_REPLACED
                break
            if isinstance(part, nn.Module):
                yield name, "modules in a plain list are not registered and cannot be replaced; use nn.ModuleList"
                break
