"""Whether a callable is a function: the same result for the same input, and nothing changed by calling it.

A trace keeps what one call did. A counter in a forward, a random number, a global variable that decides would be frozen
in it without a word. So the callable is called before it is traced, with one input, another, and the first again, and
everything that it holds is compared: attributes, buffers and parameters of its modules, what it closes over, and the
globals that its code names. A cache that the first call fills and later calls leave alone is no change. What is not a
copy is put back as it was, the state of random generators too.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.errors import ExpressionError

PLAIN = (int, float, complex, str, bytes, bool, type(None))
DEEP = 4
PARTS = ("_parameters", "_buffers", "_modules")
REMEDY = "A compiled model is one fixed function of its input: compute the result from the input and parameters alone"
EVALUATION = "the module is in evaluation mode, without dropout and with running statistics; it was in training mode"
Run = Callable[[Any], Tensor | None]
Holder = tuple[str, MutableMapping[str, Any]]


def check_steady(function: Callable[..., Any], run: Run, inputs: Sequence[Any], close: float) -> None:
    """Refuses a callable whose first input gives another result after the second, or that is changed by being called.

    `run` calls it with one of the inputs; None if it does not run, which is for others to say.
    """
    with left_alone(function):
        first = run(inputs[0])
        before = _frozen(function)
        other = run(inputs[1])
        again = run(inputs[0])
        changed = [what for what, value in _frozen(function).items() if not _same(before.get(what, ...), value)]
    if first is None or other is None or again is None:
        return
    if changed:
        raise ExpressionError(f"The target changes {changed[0]} whenever it is called. {REMEDY}.")
    if first.shape != again.shape or not torch.allclose(first, again, rtol=close, atol=close, equal_nan=True):
        raise ExpressionError(
            "The target gives different results for the same input: it is random, or depends on what happened before. "
            f"{REMEDY}."
        )


def points_in(box: Sequence[tuple[float, float]], count: int = 16) -> list[list[float]]:
    """Random points of a box, the same for the same box; of an unbounded side a part."""
    draw = random.Random(0)
    ends = [(max(low, min(-10.0, high - 10)), min(high, max(10.0, low + 10))) for low, high in box]
    return [[draw.uniform(low, high) for low, high in ends] for _ in range(count)]


def check_agreement(found: Tensor | None, traced: Tensor, points: Tensor, close: float) -> None:
    """Refuses a trace that says something else than the callable, at points (N, ...) of the domain."""
    if found is None:
        return
    if found.numel() == 1:  # a constant
        found = found.reshape(1).expand(len(points))
    found, traced = found.double().reshape(len(points), -1), traced.double().reshape(len(points), -1)
    if found.shape != traced.shape:
        found = found.expand_as(traced)
    known = found.isfinite() & traced.isfinite()
    scale = torch.where(known, found.abs(), 0).amax(0)
    wrong = known & ((found - traced).abs() > close * (1 + scale))
    if wrong.any():
        row, output = (int(i) for i in wrong.nonzero()[0])
        place = ", ".join(f"{v:.6g}" for v in points[row].flatten()[:4].tolist())
        raise ExpressionError(
            f"At {place} the target gives {found[row, output]:.9g}, and what torch traced of it gives "
            f"{traced[row, output]:.9g}: it computes something else while it is traced, or its result depends on more "
            f"than its input. {REMEDY}."
        )


@contextmanager
def left_alone(function: Callable[..., Any]) -> Iterator[None]:
    """Puts back what a callable holds, and the random generators, when calling it is over."""
    kept = [(held, {name: (value, _freeze(value)) for name, value in held.items()}) for _, held in _holders(function)]
    generators = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(generators[0])
        np.random.set_state(generators[1])  # noqa: NPY002
        for held, values in kept:
            _put_back(held, values)


def _put_back(held: MutableMapping[str, Any], values: dict[str, tuple[Any, Any]]) -> None:
    for name in [name for name in held if name not in values]:
        del held[name]
    for name, (value, frozen) in values.items():
        if not _same(_freeze(value), frozen):
            _refill(value, frozen)
        if held.get(name, ...) is not value:
            held[name] = value


def _refill(value: Any, frozen: Any) -> None:
    """What a tensor, an array or a container held."""
    if isinstance(value, Tensor):
        value.data = frozen.clone()
    elif isinstance(value, np.ndarray):
        value[...] = frozen
    elif isinstance(value, list):
        value[:] = frozen
    elif isinstance(value, dict | set):
        value.clear()
        value.update(frozen)


def _freeze(value: Any, depth: int = DEEP) -> Any:
    """A copy of plain data and tensors; anything else itself, to be compared by its identity."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if depth and type(value) in (list, tuple):
        return type(value)(_freeze(part, depth - 1) for part in value)
    if depth and isinstance(value, dict):
        return {key: _freeze(part, depth - 1) for key, part in value.items()}
    if isinstance(value, set) and all(isinstance(part, PLAIN) for part in value):
        return set(value)
    return value


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    return isinstance(one, (*PLAIN, set)) and (bool(one == other) or (one != one and other != other))


def _frozen(function: Callable[..., Any]) -> dict[str, Any]:
    """All that a callable holds, by what it is called in a sentence."""
    return {
        label.format(name=name): _freeze(value) for label, held in _holders(function) for name, value in held.items()
    }


def _holders(function: Any, depth: int = DEEP, seen: set[int] | None = None) -> list[Holder]:
    """Mappings from names to what a callable holds, with a phrase for each: of modules, closures, globals, objects."""
    seen = set() if seen is None else seen
    if id(function) in seen or not depth or isinstance(function, type | types.ModuleType):
        return []
    seen.add(id(function))
    if isinstance(function, nn.Module):
        return [holder for path, part in function.named_modules() for holder in _module(path, part)]
    if isinstance(function, functools.partial):
        within = [function.func, *function.args, *function.keywords.values()]
        return [holder for part in within for holder in _holders(part, depth - 1, seen)]
    if isinstance(function, types.MethodType):
        return _holders(function.__self__, depth - 1, seen) + _holders(function.__func__, depth - 1, seen)
    if isinstance(function, types.FunctionType):
        return _variables(function, depth, seen)
    if type(function).__module__.partition(".")[0] in ("builtins", "torch", "numpy"):
        return []
    own: dict[str, Any] = getattr(function, "__dict__", {})
    parts = [holder for part in own.values() if callable(part) for holder in _holders(part, depth - 1, seen)]
    return [(f"its attribute {{name}}, of a {type(function).__name__},", own), *parts]


def _module(path: str, module: nn.Module) -> list[Holder]:
    place = f" of {path}" if path else ""
    return [
        (f"its attribute {{name}}{place}", _Named(module.__dict__, lambda name: name not in PARTS)),
        (f"its buffer {{name}}{place}", module._buffers),
        (f"its parameter {{name}}{place}", module._parameters),
    ]


def _variables(function: types.FunctionType, depth: int, seen: set[int]) -> list[Holder]:
    """What a function closes over, and the globals that its code names."""
    cells = _Cells(dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)))
    named = _Named(function.__globals__, _names(function.__code__).__contains__)
    parts = [*cells.values(), *named.values(), *(function.__defaults__ or ())]
    held: list[Holder] = [("the variable {name}", cells), ("the global variable {name}", named)]
    return held + [holder for part in parts if callable(part) for holder in _holders(part, depth - 1, seen)]


def _names(code: types.CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


class _Named(MutableMapping[str, Any]):
    """Some names of a mapping."""

    def __init__(self, whole: dict[str, Any], wanted: Callable[[str], bool]) -> None:
        self.whole, self.wanted = whole, wanted

    def __getitem__(self, name: str) -> Any:
        return self.whole[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.whole[name] = value

    def __delitem__(self, name: str) -> None:
        del self.whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.whole if self.wanted(name)])

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Cells(_Named):
    """The variables of a closure that have values."""

    def __init__(self, cells: dict[str, types.CellType]) -> None:
        super().__init__(cells, lambda name: cells[name] != types.CellType())

    def __getitem__(self, name: str) -> Any:
        return self.whole[name].cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self.whole[name].cell_contents = value
