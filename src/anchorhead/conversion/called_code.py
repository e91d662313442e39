"""The functions that a model's forwards call, so that it is noticed when one of them is replaced.

A forward finds what it calls by name when it runs: methods in its class, functions among the global names of its file
or in a module that one of these stands for, as F.softmax, or in a registry of functions, as that of the transformers
library for attention. Whoever assigns to such a name changes what every model computes that calls it. So the names are
read from the bytecode, as deep as they go outside torch and Python's own library, and of each the code is noted, with
its defaults and what it closes over; of numbers and texts among the global names of a class's own file, the value.
A name that code assigns by itself (`global`) is its state. Held is text alone, so that reports are copied and pickled.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

PLAIN = (bool, int, float, str, type(None))
BUILTIN = (types.BuiltinFunctionType, type(len), types.MethodDescriptorType)
APART = {"torch", "torchgen", "numpy", "anchorhead"} | sys.stdlib_module_names
"""Packages whose functions are noted where a model names them, and not what they call in turn."""

Called = dict[str, str]
"""By name, `module:function` or `class.method`, a digest of the code."""


def called(model: nn.Module) -> Called:
    """What the forwards of a model call."""
    found: Called = {}
    done: set[Any] = set()
    files = {type(m).__module__ for m in model.modules()}
    for name, kind in _kinds(model).items():
        found[f"{name}.forward"] = _digest(forward := _method(kind, "forward"))
        todo = list(_functions(forward))
        while todo:
            function = todo.pop()
            if (kind, function) not in done:
                done.add((kind, function))
                for code in _codes(function):
                    todo += _methods(name, kind, _names(code).attributes, found)
                    todo += _globals(code, function.__globals__, files, found)
    return found


def replaced(model: nn.Module, before: Called) -> list[str]:
    """Names that stand for something else than was noted."""
    kinds = _kinds(model)
    return [name for name, digest in before.items() if _now(name, kinds) != digest]


def _kinds(model: nn.Module) -> dict[str, type]:
    """The classes of a model's modules by name, in the order of the modules; of two with one name the second is #2."""
    found: dict[str, type] = {}
    for kind in dict.fromkeys(type(m) for m in model.modules()):
        name = full = f"{kind.__module__}.{kind.__qualname__}"
        for count in range(2, len(found) + 2):
            if full not in found:
                break
            full = f"{name}#{count}"
        found[full] = kind
    return found


def _now(name: str, kinds: Mapping[str, type]) -> str:
    """The digest of what a name stands for; empty if it stands for nothing."""
    module, colon, attribute = name.partition(":")
    if not colon:
        kind, _, method = name.rpartition(".")
        return _digest(_method(kinds[kind], method)) if kind in kinds else ""
    registry, bracket, entry = attribute.partition("[")
    value = getattr(sys.modules.get(module), registry, None)
    return _digest(_entries(value).get(entry.removesuffix("]")) if bracket else value)


def _method(kind: type, name: str) -> Any:
    held = next((vars(k)[name] for k in kind.__mro__ if name in vars(k)), None)
    return getattr(held, "__func__", getattr(held, "fget", held))


def _methods(name: str, kind: type, names: set[str], found: Called) -> Iterator[types.FunctionType]:
    """Methods of a class among some names, but for those that every module has."""
    for attribute in sorted(names):
        function = _method(kind, attribute)
        own = isinstance(function, types.FunctionType) and function.__module__ != nn.Module.__module__
        if own and f"{name}.{attribute}" not in found:
            found[f"{name}.{attribute}"] = _digest(function)
            yield from _followed(function)


def _globals(
    code: types.CodeType, space: dict[str, Any], files: set[str], found: Called
) -> Iterator[types.FunctionType]:
    """Functions that code finds among global names, in modules and registries."""
    here = str(space.get("__name__", ""))
    state = _stored(space) | _names(code).stored
    for first, *rest in _names(code).chains:
        module, name, value = here, first, space.get(first)
        while isinstance(value, types.ModuleType) and rest:
            module, name, value = value.__name__, rest[0], getattr(value, rest[0], None)
            rest = rest[1:]
        if getattr(sys.modules.get(module), name, None) is not value or (module == here and name in state):
            continue  # no name by which it is found again, or state
        whole = {f"{module}:{name}": value} if _noted(value, number=module in files) else {}
        entries = {f"{module}:{name}[{entry}]": held for entry, held in _entries(value).items()}
        for key, held in (whole | entries).items():
            found[key] = _digest(held)
            yield from _followed(held)


def _noted(value: Any, *, number: bool) -> bool:
    if isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(v, PLAIN) for v in value)):
        return number and value is not None
    return isinstance(value, BUILTIN) or next(_functions(value), None) is not None


def _entries(value: Any) -> dict[str, Any]:
    """The functions in a registry."""
    if not isinstance(value, Mapping) or isinstance(value, type):
        return {}
    return {str(key): held for key, held in value.items() if isinstance(held, types.FunctionType)}


def _followed(function: Any) -> Iterator[types.FunctionType]:
    """The functions behind decorators whose calls are noted as well."""
    for inner in _functions(function):
        if (inner.__module__ or "").partition(".")[0] not in APART:
            yield inner


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """A function, and those that it decorates or closes over."""
    todo, seen = [value], set[int]()
    while todo:
        part = todo.pop()
        if id(part) in seen or isinstance(part, type | nn.Module):
            continue
        seen.add(id(part))
        part = getattr(part, "__func__", part)
        if isinstance(part, types.FunctionType):
            yield part
            todo += [held for _, held in _cells(part)]
        elif isinstance(part, functools._lru_cache_wrapper | functools.partial):
            todo.append(getattr(part, "__wrapped__", getattr(part, "func", None)))


def _cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    """The code of a function, and of those within it."""
    todo = [function.__code__]
    while todo:
        code = todo.pop()
        yield code
        todo += [part for part in code.co_consts if isinstance(part, types.CodeType)]


def assigned_around(kind: type) -> set[str] | None:
    """Names of attributes that a class's forward and its decorators assign; None if they assign by names that they
    make."""
    names = [_names(code) for function in _functions(_method(kind, "forward")) for code in _codes(function)]
    if any(chain[0] == "setattr" or chain[-1] in ("__dict__", "__setattr__") for n in names for chain in n.chains):
        return None
    return set().union(*(n.assigned for n in names))


class _Names:
    """What code names: chains that begin with a global name, attributes of anything, those that it assigns, and globals
    that it assigns."""

    def __init__(self, code: types.CodeType) -> None:
        self.chains: list[tuple[str, ...]] = []
        self.attributes, self.assigned, self.stored = set[str](), set[str](), set[str]()
        chain: list[str] | None = None
        for step in dis.get_instructions(code):
            follows = step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if chain is not None and not follows:
                self.chains.append(tuple(chain))
                chain = None
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                chain = [str(step.argval)]
            elif follows:
                self.attributes.add(str(step.argval))
                if chain is not None:
                    chain.append(str(step.argval))
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self.stored.add(str(step.argval))
            elif step.opname in ("STORE_ATTR", "DELETE_ATTR"):
                self.assigned.add(str(step.argval))


_names = functools.lru_cache(maxsize=None)(_Names)


def _stored(space: dict[str, Any]) -> set[str]:
    """Global names of a file that functions and methods of it assign."""
    kinds = [v for v in space.values() if isinstance(v, type) and v.__module__ == space.get("__name__")]
    own = [f for held in (space, *map(vars, kinds)) for f in held.values() if isinstance(f, types.FunctionType)]
    return set().union(*(_stored_by(f.__code__) for f in own if f.__globals__ is space))


@functools.cache
def _stored_by(code: types.CodeType) -> frozenset[str]:
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(_names(code).stored).union(*map(_stored_by, inner))


def _digest(value: Any) -> str:
    """Of a function its code, with what it is given by default and closes over; of others what they are."""
    if value is None:
        return ""
    if isinstance(value, (*PLAIN, tuple)):
        return repr(value)
    texts = [_text(function) for function in _functions(value)] or [repr(value).partition(" at 0x")[0]]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _text(function: types.FunctionType) -> str:
    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    state = _stored_cells(function.__code__)
    held = [value for name, value in _cells(function) if name not in state]
    numbers = [value for value in (*given, *held) if isinstance(value, PLAIN)]
    return f"{_code_text(function.__code__)} {numbers!r}"


@functools.cache
def _stored_cells(code: types.CodeType) -> frozenset[str]:
    """Names around a function that it assigns (`nonlocal`)."""
    return frozenset(str(s.argval) for s in dis.get_instructions(code) if s.opname == "STORE_DEREF")


@functools.cache
def _code_text(code: types.CodeType) -> str:
    consts = [_code_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {consts}"
