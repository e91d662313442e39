"""What a converted model is made of, so that a report is not told of another model than was converted.

Noted when a conversion ends, by path: the class of every module, which head it is, which layer a bound was computed
from, how many forward hooks it has, functions that stand in its attributes, and plain settings. Weights may be trained
and moved, dtypes changed, heads proved again. Settings that a forward assigns are its state and not noted; nor are
numbers of a module whose forward is decorated or hooked, since those may assign them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch import nn

from anchorhead.conversion.code_digest import ASIDE, PLAIN, function_text
from anchorhead.conversion.forward_source import assigned
from anchorhead.model.activation import Placed

if TYPE_CHECKING:
    from anchorhead.conversion.report import Place

CLASS, HOOKS, PART = "its class", "its hooks", "which one it is"
FREE = ASIDE | set(
    "report gradient_checkpointing _gradient_checkpointing_func _compiled_call _compiled_call_impl".split()
)
"""What may change without a change of what is computed."""
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)

Makeup = dict[str, dict[str, str]]
"""By path and name, a text for each thing that is noted of a module."""


def makeup(model: nn.Module, places: list[Place]) -> Makeup:
    """What is noted of a model with heads at these places."""
    state: set[str] = set[str]().union(*(assigned(m) for m in model.modules()))
    found = _read(model, places)
    for path, module in model.named_modules():
        decorated = hasattr(type(module).forward, "__wrapped__") or module._forward_hooks or module._forward_pre_hooks
        for name, value in vars(module).items():
            if isinstance(value, PLAIN) and (name in state or decorated):
                found[path].pop(name, None)
    return found


def changes(model: nn.Module, places: list[Place], before: Makeup) -> list[str]:
    """How a model differs from what was noted of it, in words; nothing if it does not."""
    return list(_changes(_read(model, places, before), before))


def standing(model: nn.Module, places: list[Place]) -> list[Place]:
    """Places whose heads are still in the model, with the heads that were proved inside."""
    held = {id(m) for m in model.modules()}
    return [place for place in places if id(place.module) in held and _whole(place.module)]


def _read(model: nn.Module, places: list[Place], before: Mapping[str, Mapping[str, str]] | None = None) -> Makeup:
    known = {id(m): f"the layer {path}" for place in places for path, m in place.near.feeds}
    known |= {id(place.module): f"the head of {place.place}" for place in places}
    found: Makeup = {}
    head: str | None = None
    for path, module in model.named_modules():
        inside = head is not None and (path.startswith(f"{head}.") or not head)
        if isinstance(module, Placed):
            head = path
        found[path] = {
            CLASS: f"{type(module).__module__}.{type(module).__qualname__}",
            PART: known.get(id(module), "") if not isinstance(module, Placed) or _whole(module) else "changed inside",
            HOOKS: f"{len(module._forward_pre_hooks)} and {len(module._forward_hooks)}",
            **dict(_settings(module, inside, None if before is None else before.get(path, {}))),
        }
    return found


def _whole(module: Placed) -> bool:
    """Whether the heads that run are those of which something was proved."""
    own = module.compiled
    return set(module.heads) == set(own) and all(module.heads[role] is own[role].head for role in own)


def _settings(module: nn.Module, inside: bool, noted: Mapping[str, str] | None) -> Iterator[tuple[str, str]]:
    """Functions in attributes, and, outside of heads, plain values that are something; where some were noted only
    those, and functions that take the place of a method."""
    for name, value in sorted(vars(module).items()):
        known = noted is None or name in noted
        if name in FREE:
            continue
        if isinstance(value, FUNCTIONS) and (known or hasattr(type(module), name)):
            yield name, function_text(value)
        elif isinstance(value, PLAIN) and name[0] != "_" and not inside and known and (noted or value is not None):
            yield name, repr(value)


def _changes(now: Makeup, before: Makeup) -> Iterator[str]:
    for path, row in before.items():
        if path not in now:
            if path.rpartition(".")[0] in now or "." not in path:
                yield f"{_said(path)} is gone"
            continue
        new = now[path]
        if new[CLASS] != row[CLASS]:
            yield f"{_said(path)} is of the class {_name(new)} now, and was of {_name(row)}"
        elif new[PART] != row[PART]:
            yield f"{_said(path)} is not {row[PART] or 'what it was'} any more"
        elif new[HOOKS] != row[HOOKS]:
            yield f"{_said(path)} has other forward hooks"
        else:
            for name in sorted(n for n in {*row, *new} if row.get(n) != new.get(n)):
                yield f"{_said(path)}: {name} is not what it was"
    for path, row in now.items():
        if path not in before:
            yield f"{_said(path)} was added, of the class {_name(row)}"


def _said(path: str) -> str:
    return path or "the model"


def _name(row: dict[str, str]) -> str:
    return row[CLASS].rpartition(".")[2]
