"""What a folder holds of a model: every tensor by name; and a refusal where something to compute with is elsewhere.

Held are parameters, buffers, and tensors that are attributes or in lists, tuples and dictionaries that are. Tensors,
arrays and modules that are reached in any other way from an attribute, as in a dataclass, a set or what a function
closes over, would come back as whatever the new instance has there, so a model with such is not saved.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from anchorhead.errors import InputError
from anchorhead.model.activation import Placed

MOST = 100_000
"""How many objects are looked at in search of tensors."""
ATOMS = (str, int, float, complex, type(None), type, types.ModuleType, weakref.ref, fx.Graph,
         fx.Node, fx.Tracer, torch.dtype, torch.device)  # fmt: skip
REGISTERED = ("_parameters", "_buffers", "_modules")
"""Where torch keeps what it knows."""
APART = {*REGISTERED, "report", "config", "generation_config"}
"""What is saved by itself."""


def require_all_held(model: nn.Module) -> None:
    """Whatever a folder would not hold is refused, by name."""
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(
                f"{path or type(model).__name__} has a state of its own making, get_extra_state, and no folder holds "
                "that; keep it in buffers, or pickle the model."
            )
    for name, (_, _, tensor) in tensors(model).items():
        if tensor.layout != torch.strided:
            raise InputError(f"{name} is a sparse tensor, which no folder holds; keep it dense, or pickle the model.")
    known = {id(m) for m in model.modules()} | {id(t) for t in (*model.parameters(), *model.buffers())}
    for path, module in _outside_heads(model):
        for name, value in vars(module).items():
            found = None if name in APART else _hidden(value, known)
            if found is not None:
                where = f"{path}.{name}" if path else name
                raise InputError(
                    f"{where} holds {found} where no folder keeps it; make it a parameter, a buffer, a registered "
                    "module, or an attribute that is a tensor or a list or dictionary of tensors, or pickle the model."
                )


def _outside_heads(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    inside = {id(part) for m in model.modules() if isinstance(m, Placed) for part in m.modules()}
    return ((path, m) for path, m in model.named_modules() if id(m) not in inside)


def _hidden(value: Any, known: set[int]) -> str | None:
    """What a value holds, other than in lists, tuples and dictionaries, that a model could compute with."""
    todo, seen = deque([(value, True)]), set[int]()
    while todo and len(seen) < MOST:
        part, plain = todo.popleft()
        if isinstance(part, ATOMS) or id(part) in known or (id(part) in seen):
            continue
        seen.add(id(part))
        if isinstance(part, Tensor):
            if not plain:
                return "a tensor"
        elif isinstance(part, nn.Module):
            return f"a {type(part).__name__}, a module,"
        elif isinstance(part, np.ndarray | np.generic):
            return "an array"
        elif isinstance(part, torch.ScriptObject):
            return "an object of torch's own, as the packed weights of a quantised layer,"
        elif isinstance(part, bytes | bytearray | memoryview):
            if plain:
                return "bytes"
        else:
            still = plain and isinstance(part, dict | list | tuple)
            todo += [(inner, still) for inner in _parts(part)]
    return None


def _parts(value: Any) -> list[Any]:
    """What a value is made of, one level deep."""
    if isinstance(value, types.FunctionType):
        cells = [c for cell in value.__closure__ or () if (c := _content(cell)) is not None]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()]
    if isinstance(value, types.MethodType | types.BuiltinFunctionType):
        return [value.__self__, getattr(value, "__func__", None)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    found = list(vars(value).values()) if hasattr(value, "__dict__") else []
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    found += [held for name in slots if (held := getattr(value, name, None)) is not None]
    if isinstance(value, Mapping):
        found += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        found += value
    return found


def _names(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def tensors(model: nn.Module, without: tuple[str, ...] = ()) -> dict[str, tuple[nn.Module, str, Tensor]]:
    """All tensors of a model by name, where they are held: parameters, buffers, persistent or not, and attributes; but
    for what is in heads, and in modules at some places."""
    placed = [
        (f"{name}." if name else "", m)
        for name, m in model.named_modules(remove_duplicate=False)
        if isinstance(m, Placed)
    ]
    inside = [name for name, _ in placed]
    inside += [f"{name}." for name in without]
    found: dict[str, tuple[nn.Module, str, Tensor]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        if not any(prefix.startswith(head) for head in inside):
            for held in (module._parameters, module._buffers, vars(module)):
                found |= {prefix + n: (module, n, t) for n, t in _within("", held) if isinstance(t, Tensor)}
    for prefix, module in placed:  # weight and bias of a norm
        found |= {prefix + n: (module, n, t) for n, t in module._parameters.items() if t is not None}
    return found


def grown(model: nn.Module, before: frozenset[str]) -> dict[str, str]:
    """Tensors that a model has made since it was converted, by where they are held, as the factors of a rotary
    embedding for long inputs; what cannot be made so again is refused by name."""
    now = tensors(model)
    for name in sorted(before - set(now)):
        raise InputError(f"{name} is not there any more, and a folder would not load without it; convert again.")
    found = {}
    for name in sorted(set(now) - before):
        module, attribute, tensor = now[name]
        where = (held for held in (*REGISTERED[:2], "__dict__") if _holder(module, held).get(attribute) is tensor)
        found[name] = next(where, "")
        if not found[name]:
            raise InputError(
                f"{name} was not there when the model was converted, so that no folder holds it; set the state of the "
                "model back, or pickle it."
            )
    return found


def grow(model: nn.Module, names: Mapping[str, str]) -> None:
    """Makes room for such tensors in a model that was built anew."""
    for name, where in names.items():
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        if where == "_buffers":
            module.register_buffer(attribute, torch.empty(0), persistent=False)
        elif where == "_parameters":
            module.register_parameter(attribute, nn.Parameter(torch.empty(0)))
        else:
            vars(module)[attribute] = torch.empty(0)


def _holder(module: nn.Module, name: str) -> dict[str, Any]:
    held: dict[str, Any] = vars(module) if name == "__dict__" else vars(module)[name]
    return held


def _within(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a dictionary or a list holds, by name, and what those hold that are in it; but not registered tensors and
    modules."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in pairs:
        if prefix or name not in REGISTERED:
            yield (f"{prefix}{name}", part)
            if isinstance(part, dict | list | tuple):
                yield from _within(f"{prefix}{name}.", part)


def weights(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, in memory of its own; and the names that are other names of a tensor."""
    first: dict[int, str] = {}
    memory: set[int] = set()
    kept: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    for name, (_, _, tensor) in tensors(model).items():
        if id(tensor) in first:
            same[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        kept[name] = tensor.detach().contiguous()
        if kept[name].untyped_storage()._cdata in memory:
            kept[name] = kept[name].clone()
        memory.add(kept[name].untyped_storage()._cdata)
    return kept, same
