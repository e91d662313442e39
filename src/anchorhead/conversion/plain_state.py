"""Plain values of modules that are nobody's setting: a folder holds them as they are.

Numbers and texts that a forward or a decorator assigns, those under names that begin with an underscore, and what lists
and dictionaries hold are a model's state (`makeup.py`): no change of theirs makes it another model. The class builds
them anew when a folder is loaded, so they are written beside the tensors, as texts that Python reads, and set again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from anchorhead.conversion.code_digest import PLAIN
from anchorhead.conversion.configured import NAMES
from anchorhead.errors import FileError, InputError
from anchorhead.model.activation import Placed

TORCH = frozenset(vars(nn.Module())) | {"_is_hf_initialized"}
"""What torch keeps in every module, and the transformers library in most."""
DEEP = 4
Texts = dict[str, str]


def plain_state(model: nn.Module, noted: Mapping[str, Mapping[str, str]], aside: set[str]) -> Texts:
    """The plain values outside of heads that are not among those noted, by path and name, each as Python writes it."""
    inside = _in_heads(model)
    return {f"{path}.{name}" if path else name: repr(value) for path, module in model.named_modules()
            if id(module) not in inside for name, value in _state(module, {*noted.get(path, ()), *aside})}  # fmt: skip


def _in_heads(model: nn.Module) -> set[int]:
    return {id(part) for m in model.modules() if isinstance(m, Placed) for part in m.modules()}


def _state(module: nn.Module, apart: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        named = name in apart or name in TORCH or (name in NAMES and isinstance(value, dict))
        if not named and _is_plain(value):
            yield name, value


def _is_plain(value: Any, deep: int = 0) -> bool:
    if type(value) in (list, tuple, dict) and deep < DEEP:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return all(_is_plain(part, deep + 1) for part in parts)
    return type(value) in PLAIN


def require_there(before: Texts, now: set[str]) -> None:
    """Whatever was a plain value when the model was converted, and is nothing any more that a folder holds, is refused
    by name."""
    gone = next((name for name in before if name not in now), None)
    if gone is not None:
        raise InputError(
            f"{gone} is no plain value any more, and no folder holds that; set the state of the model back."
        )


def _read(text: str) -> Any:
    try:
        tree = ast.parse(text, mode="eval")
        return ast.literal_eval(_Infinite().visit(tree))
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from error


class _Infinite(ast.NodeTransformer):
    """inf and nan, as Python writes them and does not read them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def set_state(model: nn.Module, found: Any) -> None:
    """Sets values as `plain_state` gave them in the modules that are there; raises a FileError for anything else."""
    if not isinstance(found, dict):
        raise FileError(f"The folder's state is no object of names and texts, but {found!r:.60}.")
    there, inside = dict(model.named_modules()), _in_heads(model)
    for where, text in found.items():
        path, _, name = str(where).rpartition(".")
        module = there.get(path)
        if module is not None:
            try:
                if id(module) in inside:
                    raise ValueError("that is a head")
                _set(module, name, _read(str(text)))
            except ValueError as error:
                raise FileError(f"The folder sets {where!r:.80}, which the model does not have: {error}.") from error


def _set(module: nn.Module, name: str, value: Any) -> None:
    held = vars(module)
    before, method = held.get(name), callable(getattr(type(module), name, None))
    if name in TORCH or method or not name.isidentifier() or not (_is_plain(value) and _is_plain(before)):
        raise ValueError("that is no plain value of a module")
    if isinstance(value, list) and isinstance(before, list):
        before[:] = value  # others may hold it, too
    elif isinstance(value, dict) and isinstance(before, dict):
        before.clear()
        before.update(value)
    else:
        held[name] = value
