"""A module as one graph: in its literal form, run on inputs, and exported by torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from anchorhead.errors import AnchorheadError, InputError, StructureError


def literal_form(module: nn.Module, written: Callable[[Any], nn.Module] | None = None) -> nn.Module:
    """The module with every network of this library inside it in its literal evaluation, as `written` has it; what
    stands in several places does so in the literal form."""
    return _literal(module, written, {})


def _literal(module: nn.Module, written: Callable[[Any], nn.Module] | None, known: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in known:
        known[id(module)] = _made(module, written, known)
    return known[id(module)]


def _made(module: nn.Module, written: Callable[[Any], nn.Module] | None, known: dict[int, nn.Module]) -> nn.Module:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    ours = type(module).__module__.partition(".")[0] == "anchorhead"
    if getattr(module, "literal", None) is not None:
        made: Any = module.literal if written is None else lambda: written(module)
        return made() if ours and (written or not any(hooks)) else module
    # not named_children, which has a child that is registered under two names under the first alone
    held = {name: child for name, child in module._modules.items() if child is not None}
    children = {name: _literal(child, written, known) for name, child in held.items()}
    if all(children[name] is child for name, child in held.items()):
        return module
    twin = copy.copy(module)
    twin._modules = {**module._modules, **children}
    vars(twin).update({name: child for name, child in children.items() if name in vars(twin)})
    return twin


def taken(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a module returns; what it raises about its inputs becomes a sentence."""
    try:
        return module(*inputs, **named)
    except AnchorheadError:
        raise
    except Exception as error:  # whatever a model does with inputs that it does not know
        raise InputError(
            f"The model does not take these inputs: {str(error).strip().partition(chr(10))[0]}. Give what its forward "
            "takes, in order or by name."
        ) from error


def exported(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any] | None = None, *, basic: bool = False
) -> Any:
    """The graph of a module on inputs like these; basic: in torch's basic operations, but for fused attention."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch.export's own use of its deprecated names
            program = torch.export.export(module, inputs, named, strict=False)
            if not basic:
                return program
            table = torch.export.default_decompositions()
            table.pop(torch.ops.aten.scaled_dot_product_attention.default, None)
            return program.run_decompositions(table)
    except Exception as error:
        with torch.no_grad():
            taken(module, inputs, named or {})
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StructureError(
            f"The network cannot be exported as one graph ({reason}), so nothing can be proved of it; remove control "
            "flow that depends on the data."
        ) from error
