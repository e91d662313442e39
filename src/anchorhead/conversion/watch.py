"""A model is watched while it runs: every operation that torch dispatches is shown to `operations.py`, which knows it.

Seen are operations below autograd and torch.func, whoever calls them: functions of other packages, hooks, autograd
functions, compiled code, which is run as it was written. Where a tensor's numbers are handed to something other than
torch, that is noted too. What runs in a head is the head; everything else is noted with the module that runs and the
line of code. The list is complete for what ran, in this thread; what reads a tensor's memory behind torch's back, as
code in C can, is not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from anchorhead.conversion.operations import Event, Operations, tensors_in
from anchorhead.conversion.place_heads import PLACED

EXITS = {"numpy", "__array__", "tolist", "data_ptr", "storage", "untyped_storage", "__dlpack__", "__repr__",
         "__format__", "__reduce_ex__", "apply_", "map_", "map2_"}  # fmt: skip
MAKERS = {"tensor", "as_tensor", "asarray", "new_tensor"}
"""What takes numbers out of tensors where it is given a list of them."""
PLAIN = (Tensor.__torch_dispatch__, nn.Parameter.__torch_dispatch__)
PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")


@dataclass(frozen=True)
class Watched:
    """What was seen: what is nonlinear and left, places of the model's own attention, modules that ran."""

    left: list[Event]
    attention: list[tuple[str, str]]
    ran: set[int]


def watch(model: nn.Module, run: Callable[[nn.Module], Any], inputs: Any) -> tuple[Watched, Any]:
    """Runs the model and returns what was seen, and what it returned."""
    running = _Running(model, inputs)
    with torch.compiler.set_stance("force_eager"), running.hooks(), _Leaving(running), _Dispatched(running):
        output = run(model)
    running.operations.finish(output)
    left = {(e.place, e.module, str(e)): e for e in running.operations.left}
    return Watched(list(left.values()), list(running.operations.attention), running.ran), output


class _Running:
    """The modules that are running, innermost last, and whether that is a head."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.paths = {id(m): (name or "the model", type(m).__name__) for name, m in model.named_modules()}
        self.stack: list[nn.Module] = []
        self.unseen = 0
        self.ran: set[int] = set()
        self.operations = Operations(model, inputs, self.event)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        before = module_hooks.register_module_forward_pre_hook(self.enter)
        after = module_hooks.register_module_forward_hook(self.leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def enter(self, module: nn.Module, args: Any) -> None:
        self.stack.append(module)
        self.ran.add(id(module))
        self.unseen += _is_head(module)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.stack.pop()
        if _is_head(module):
            self.unseen -= 1
            self.operations.head(args, output, scores=_selects(module))

    def event(self, operation: str) -> Event:
        known = (self.paths[id(m)] for m in reversed(self.stack) if id(m) in self.paths)
        return Event(*next(known, ("the model", "")), operation, _line())


def _selects(module: Any) -> bool:
    """Whether what a head takes decides its weights alone: one argument, and constant values."""
    claims = module.claims
    return module.kind == "activation" and all(claim.constant_values for claim in claims.values())


def _is_head(module: nn.Module) -> bool:
    """A head with nothing of anybody else's in it; hooks that run after it are not inside."""
    return type(module) in PLACED.values() and "forward" not in vars(module) and not module._forward_pre_hooks


class _Dispatched(TorchDispatchMode):
    """Shows every operation; tensors that wrap others take themselves apart first."""

    supports_higher_order_operators = True

    def __init__(self, running: _Running) -> None:
        super().__init__()
        self.running = running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(getattr(t, "__torch_dispatch__", None) not in PLAIN for t in types):
            return NotImplemented
        found = func(*args, **(kwargs or {}))
        if not self.running.unseen:
            self.running.operations.see(func, args, kwargs or {}, found)
        return found


class _Leaving(TorchFunctionMode):
    """Shows where a tensor's numbers are handed to something other than torch."""

    def __init__(self, running: _Running) -> None:
        super().__init__()
        self.running = running

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        held = [t for a in args if isinstance(a, list | tuple) for t in tensors_in(a)] if name in MAKERS else []
        if (name not in EXITS and not held) or self.running.unseen:
            return func(*args, **(kwargs or {}))
        for tensor in held or [args[0]]:
            self.running.operations.leaves(name, tensor)
        self.running.unseen += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running.unseen -= 1


def _line() -> str:
    """The innermost line of code that is neither torch's, nor this package's, nor written by torch.fx."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not watch.__code__:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGES):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
