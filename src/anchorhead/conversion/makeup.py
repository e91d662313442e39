"""What a converted model is made of, so that a report is not told of another model than was converted.

Noted when a conversion ends, by path: the class of every module, which head it is, which layer a bound was computed
from, how many forward hooks it has, functions that stand in its attributes, and plain settings; the values of the
configurations that modules hold (`configured.py`), the functions that forwards call (`called_code.py`), and the hooks
that torch has for all modules. Weights may be trained and moved, dtypes changed, heads proved again. Settings that a
forward assigns are its state and not noted; nor are numbers of a module that is hooked, or whose forward or decorators
assign by names that they make.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from anchorhead.conversion.asked import DTYPES
from anchorhead.conversion.called_code import Called, assigned_around, called, replaced
from anchorhead.conversion.code_digest import ASIDE, PLAIN, function_text, hook_counts
from anchorhead.conversion.configured import LONG, Configured, config_changes, configured
from anchorhead.conversion.forward_source import assigned
from anchorhead.conversion.holdings import tensors
from anchorhead.conversion.plain_state import Texts, plain_state, require_there
from anchorhead.conversion.rows import Place, said
from anchorhead.model.activation import Placed

CLASS, HOOKS, PART = "its class", "its hooks", "which one it is"
FREE = ASIDE | set(
    "report gradient_checkpointing _gradient_checkpointing_func _compiled_call _compiled_call_impl".split()
)
"""What may change without a change of what is computed."""
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)

EVERYWHERE = {
    "forward hooks": module_hooks._global_forward_hooks,
    "hooks before a forward": module_hooks._global_forward_pre_hooks,
    "backward hooks": module_hooks._global_backward_hooks,
    "hooks before a backward": module_hooks._global_backward_pre_hooks,
}
"""Hooks that torch calls for every module there is."""

Modules = dict[str, dict[str, str]]
"""By path and name, a text for each thing that is noted of a module."""


@dataclass(frozen=True)
class Makeup:
    """What is noted of a model; state: names of attributes that its forwards assign; tensors: those outside heads;
    everywhere: which hooks all modules have, by kind; plain: values that may change, and were so (`plain_state.py`)."""

    modules: Modules = field(default_factory=dict)
    configured: Configured = field(default_factory=dict)
    called: Called = field(default_factory=dict)
    state: frozenset[str] = frozenset()
    tensors: frozenset[str] = frozenset()
    everywhere: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    plain: Texts = field(default_factory=dict)


def makeup(model: nn.Module, places: list[Place]) -> Makeup:
    """What is noted of a model with heads at these places."""
    one_of_each = {type(m): m for m in model.modules()}.values()
    state: set[str] = set[str]().union(*map(assigned, one_of_each))
    found = _read(model, places)
    for path, module in model.named_modules():
        around = assigned_around(type(module))
        unknown = around is None or any(hook_counts(module))
        for name, value in vars(module).items():
            if _is_plain(value) and (unknown or name in state or name in (around or ())):
                found[path].pop(name, None)
    plain = plain_state(model, found, FREE)
    return Makeup(
        found, configured(model), called(model), frozenset(state), frozenset(tensors(model)), _everywhere(), plain
    )


def plain_now(model: nn.Module, before: Makeup) -> Texts:
    """Plain values that may change, as they are now, for a folder to hold."""
    now = plain_state(model, before.modules, FREE)
    require_there(before.plain, {*now, *tensors(model)})
    return now


def dtypes(model: nn.Module) -> dict[str, int]:
    """How many parameters and places of heads compute in each dtype; heads keep theirs."""
    placed = [m for m in model.modules() if isinstance(m, Placed)]
    held = [p for _, p in _parameters(model)]
    return dict(Counter([str(p.dtype).removeprefix("torch.") for p in held] + [m.dtype for m in placed]))


def not_finite(model: nn.Module) -> list[str]:
    """Parameters outside heads that hold an infinite number, or none; buffers may, as masks do."""
    read = ((name, p) for name, p in _parameters(model) if p.dtype in DTYPES and p.layout == torch.strided)
    return [name for name, p in read if not p.is_meta and not p.isfinite().all()]


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Those outside heads, by each of their names."""
    inside = {id(p) for m in model.modules() if isinstance(m, Placed) for p in m.heads.parameters()}
    return ((name, p) for name, p in model.named_parameters(remove_duplicate=False) if id(p) not in inside)


def _everywhere() -> dict[str, tuple[int, ...]]:
    return {kind: tuple(hooks) for kind, hooks in EVERYWHERE.items()}


def changes(model: nn.Module, places: list[Place], before: Makeup) -> list[str]:
    """How a model differs from what was noted of it, in words; nothing if it does not."""
    found = list(_changes(_read(model, places, before.modules), before.modules))
    now = _everywhere()
    found += [f"all modules have other {kind}" for kind in now if now[kind] != before.everywhere.get(kind, ())]
    found += config_changes(model, before.configured, before.state)
    kinds = {f"{type(m).__module__}.{type(m).__qualname__}" for m in model.modules()}
    stay = {name: text for name, text in before.called.items() if ":" in name or _kind(name) in kinds}
    return found + [f"{name.replace(':', '.')} is not what it was" for name in replaced(model, stay)]


def _kind(method: str) -> str:
    """The class of a method, without the number that tells two of one name apart."""
    return method.rpartition(".")[0].partition("#")[0]


def standing(model: nn.Module, places: list[Place]) -> list[Place]:
    """Places whose heads are still in the model, with the heads that were proved inside."""
    held = {id(m) for m in model.modules()}
    return [place for place in places if id(place.module) in held and _whole(place.module)]


def _read(model: nn.Module, places: list[Place], before: Mapping[str, Mapping[str, str]] | None = None) -> Modules:
    known = {id(m): f"the layer {path}" for place in places for path, m in place.near.feeds}
    known |= {id(place.module): f"the head of {place.place}" for place in places}
    found: Modules = {}
    head: str | None = None
    for path, module in model.named_modules():
        inside = head is not None and (path.startswith(f"{head}.") or not head)
        if isinstance(module, Placed):
            head = path
        found[path] = {
            CLASS: f"{type(module).__module__}.{type(module).__qualname__}",
            PART: known.get(id(module), "") if not isinstance(module, Placed) or _whole(module) else "changed inside",
            HOOKS: str(hook_counts(module)),
            **dict(_settings(module, inside, None if before is None else before.get(path, {}))),
        }
    return found


def _whole(module: Placed) -> bool:
    """Whether the heads that run are those of which something was proved, by methods of their own."""
    own = module.compiled
    same = set(module.heads) == set(own) and all(module.heads[role] is own[role].head for role in own)
    return same and not any(
        callable(held) and name not in FREE and hasattr(type(part), name)
        for part in module.modules() for name, held in vars(part).items()
    )  # fmt: skip


def _settings(module: nn.Module, inside: bool, noted: Mapping[str, str] | None) -> Iterator[tuple[str, str]]:
    """Functions in attributes, and, outside of heads, plain values that are something; where some were noted only
    those, and functions that take the place of a method."""
    for name, value in sorted(vars(module).items()):
        known = noted is None or name in noted
        if name in FREE:
            continue
        if isinstance(value, FUNCTIONS) and (known or hasattr(type(module), name)):
            yield name, function_text(value)
        elif _is_plain(value) and name[0] != "_" and not inside and known and (noted or value is not None):
            yield name, repr(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(v, PLAIN) for v in value))


def _changes(now: Modules, before: Modules) -> Iterator[str]:
    for path, row in before.items():
        if path not in now:
            if path.rpartition(".")[0] in now or "." not in path:
                yield f"{said(path)} is gone"
            continue
        new = now[path]
        if new[CLASS] != row[CLASS]:
            names = (_name(new), _name(row)) if _name(new) != _name(row) else (new[CLASS], row[CLASS])
            yield f"{said(path)} is of the class {names[0]} now, and was of {names[1]}"
        elif new[PART] != row[PART]:
            yield f"{said(path)} is not {row[PART] or 'what it was'} any more"
        elif new[HOOKS] != row[HOOKS]:
            yield f"{said(path)} has other forward hooks"
        else:
            for name in sorted(n for n in {*row, *new} if row.get(n) != new.get(n)):
                yield f"{said(path)}: {name} {_other(row.get(name, ''), new.get(name, ''))}"
    for path, row in now.items():
        if path not in before:
            yield f"{said(path)} was added, of the class {_name(row)}"


def _other(was: str, now: str) -> str:
    """What became of a setting; functions are too long to be said."""
    short = max(len(was), len(now)) <= LONG and was and now
    return f"is {now} now, and was {was}" if short else "is not what it was"


def _name(row: dict[str, str]) -> str:
    return row[CLASS].rpartition(".")[2]
