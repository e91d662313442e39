"""The forward of one module as a graph of torch.fx, its children as they are.

Tracing runs the forward, so that is done with a copy that shares parameters and children with the module: what a
forward does to its own attributes and buffers stays in the copy, and a forward that does such things has no trace that
is all of it. Assignments as h *= v, which overwrite h, are kept as that.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from anchorhead.conversion.lines import LINE, running_line

MADE = "_tensor_constant"
"""Under such names torch.fx keeps tensors that the forward makes of numbers; the graph refers to them."""


def traced(module: nn.Module) -> fx.Graph | None:
    """The graph; None where torch.fx cannot follow the forward, or where it changes the state of its module."""
    held = [*module._parameters.values(), *module._modules.values()]
    try:
        twin = copy.deepcopy(module, {id(part): part for part in held})
        graph = _Shallow().trace(twin)
    except Exception:  # torch.fx fails in many ways on code that it cannot follow
        return None
    made = {name: value for name, value in vars(twin).items() if name.startswith(MADE)}
    if not _same(vars(module) | made, vars(twin)):
        return None
    vars(module).update(made)
    return graph


class _Shallow(fx.Tracer):
    """Traces one forward; its children stay as they are, and buffers are looked up whenever it runs."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta[LINE] = running_line(traced.__code__)
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Overwritten(node, self)


class _Overwritten(fx.Proxy):
    """A value that assignments overwrite, as they do with tensors."""


def _assigned(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"):
    setattr(_Overwritten, f"__{_name}__", _assigned(_name))


def _same(before: Any, after: Any, seen: set[tuple[int, int]] | None = None) -> bool:
    """Whether a value and what became of its copy are the same; tensors and functions if they are one object, or equal
    in number and kind. seen: pairs that are being compared already, since objects may hold each other."""
    seen = set() if seen is None else seen
    pair = (id(before), id(after))
    if before is after or pair in seen:
        return True
    if type(before) is not type(after):
        return False
    seen.add(pair)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(before[k], after[k], seen) for k in before)
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(_same(a, b, seen) for a, b in zip(before, after, strict=True))
    if isinstance(before, Tensor):
        return before.shape == after.shape and _equal(before, after)
    if hasattr(before, "__dict__"):
        return _same(vars(before), vars(after), seen)
    try:
        return bool(before == after)
    except Exception:  # whatever a class makes of a comparison
        return False


def _equal(before: Tensor, after: Tensor) -> bool:
    if before.layout != torch.strided:
        before, after = before.to_dense(), after.to_dense()
    return bool(((before == after) | (before != before)).all())
