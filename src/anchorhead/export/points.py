"""Hook points that take back what fits in the place of what they gave, and are refused by name where there are none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from anchorhead.errors import DependencyError, DtypeError, InputError, ShapeError

try:
    from transformer_lens.hook_points import HookPoint
except ImportError as error:
    raise DependencyError("Hook points need TransformerLens: pip install 'anchorhead[lens]'.") from error

COUNTED = {"blocks": "l", "steps": "t", "calls": "i"}
"""What stands for the number of a block, of a step, or of a call."""


class Point(HookPoint):
    """A hook point whose hooks return nothing, or a tensor of the same shape and dtype."""

    def __call__(self, value: Tensor) -> Tensor:
        found: Any = super().__call__(value)
        if not isinstance(found, Tensor):
            raise InputError(f"The hook at {self.name} returned {found!r:.60}; it returns a tensor, or None for none.")
        if found.dtype != value.dtype:
            raise DtypeError(f"The hook at {self.name} returned a tensor of {found.dtype}, and the numbers there are "
                             f"{value.dtype}: return it as found.to({value.dtype}).")  # fmt: skip
        if found.shape != value.shape:
            raise ShapeError(f"The hook at {self.name} returned a tensor of shape {tuple(found.shape)} in the place of "
                             f"one of {tuple(value.shape)}; one of the same shape is needed.")  # fmt: skip
        return found


class Pairs:
    """In front of one of TransformerLens' networks: hooks that are given by name are pairs, or refused."""

    def hooks(self, *given: Any, **named: Any) -> Any:
        return super().hooks(*given, **_paired(named))  # type: ignore[misc]

    def run_with_hooks(self, *given: Any, **named: Any) -> Any:
        return super().run_with_hooks(*given, **_paired(named))  # type: ignore[misc]


def _paired(named: dict[str, Any]) -> dict[str, Any]:
    return named | {name: _pairs(name, named[name]) for name in ("fwd_hooks", "bwd_hooks") if name in named}


def _pairs(name: str, given: Any) -> list[Any]:
    found = [*given] if isinstance(given, Iterable) else [given]
    for pair in found:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not callable(pair[1]):
            raise InputError(f"{name} is a list of pairs of a hook point's name and a function, as in {name}="
                             f"[hooked.ablation(name)]; {pair!r:.60} is no such pair.")  # fmt: skip
    return found


class Known(dict[str, nn.Module]):
    """Hook points by name; other names are refused."""

    def __missing__(self, name: Any) -> nn.Module:
        raise InputError(not_there(name, self))


def not_there(name: Any, known: Iterable[str]) -> str:
    """That there is no such hook point, and which are near."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 3, 0.3)
    said = ", ".join(near) if near else points_said(names)
    return f"There is no hook point {name!r:.80}; there are {said}. hooked.hook_dict has all of them by name."


def points_said(names: Iterable[str]) -> str:
    """Hook points by their names, those that differ in numbers alone once."""
    said = (re.sub(r"\b(blocks|steps|calls)\.\d+", lambda m: f"{m[1]}.{COUNTED[m[1]]}", name) for name in names)
    return ", ".join(dict.fromkeys(said))
