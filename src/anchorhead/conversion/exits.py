"""Ways out of torch that neither its dispatcher nor its functions' modes show: DLPack by a function, and scripted code.

For the time of a run the functions are replaced where modules hold them, and calls of scripted functions are looked at:
one whose graph turns tensors into lists or texts, or hands them to another thread, takes its arguments out of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.jit import ScriptFunction

from anchorhead.conversion.states import tensors_in

Note = Callable[[str, Any], None]
LEAVING = set(
    "prim::tolist aten::format aten::str aten::percentFormat aten::hash aten::save prim::Print prim::id prim::fork "
    "prim::awaitable".split()
)
SCRIPTED: tuple[Any, ...] = (ScriptFunction, torch._C.ScriptMethod)


@contextmanager
def exits(note: Note) -> Iterator[None]:
    """Notes tensors that leave in these ways while it is open, each with the name of the way."""
    undo = [_hold(note), *(_scripted(kind, note) for kind in SCRIPTED)]
    try:
        yield
    finally:
        for step in undo:
            step()


def _hold(note: Note) -> Callable[[], None]:
    """Puts a function that notes in the place of to_dlpack, wherever a module has it."""
    plain: Any = torch._C._to_dlpack

    def noting(tensor: Any) -> Any:
        note("to_dlpack", tensor)
        return plain(tensor)

    modules = [m for m in list(sys.modules.values()) if m is not None and hasattr(m, "__dict__")]
    held = [(vars(m), n) for m in modules for n, value in list(vars(m).items()) if value is plain]
    for names, name in held:
        names[name] = noting

    def undo() -> None:
        for names, name in held:
            names[name] = plain

    return undo


def _scripted(kind: Any, note: Note) -> Callable[[], None]:
    plain = kind.__call__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _leaves(self):
            for tensor in tensors_in([args, kwargs]):
                note("numbers taken out in scripted code", tensor)
        return plain(self, *args, **kwargs)

    kind.__call__ = called
    return lambda: setattr(kind, "__call__", plain)


def _leaves(scripted: Any) -> bool:
    """Whether a graph, with what it calls, has an operation that the dispatcher does not show."""
    graph = scripted.graph.copy()
    torch._C._jit_pass_inline(graph)
    return any(graph.findAllNodes(name) for name in LEAVING)
