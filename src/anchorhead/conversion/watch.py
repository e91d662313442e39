"""A model is watched while it runs: every operation that torch dispatches is shown to `operations.py`, which knows it.

Seen are operations below autograd and torch.func, whoever calls them: functions of other packages, hooks, autograd
functions, compiled code, which is run as it was written. Where a tensor's numbers are handed to something other than
torch, that is noted too. What runs in a head is the head; everything else is noted with the module that runs and the
line of code. The list is complete for what ran, in this thread; what reads a tensor's memory behind torch's back, as
code in C can, is not seen. A head counts as that if nothing of anybody else's can run in it: no mode of torch functions
or of the dispatcher, no class of tensors, no hook within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from anchorhead.conversion.exits import exits
from anchorhead.conversion.lines import running_line
from anchorhead.conversion.operations import Operations
from anchorhead.conversion.place_heads import PLACED
from anchorhead.conversion.states import Event, tensors_in
from anchorhead.conversion.substance import moved

EXITS = {"numpy", "__array__", "tolist", "data_ptr", "storage", "untyped_storage", "__dlpack__", "__repr__",
         "__format__", "__reduce_ex__", "apply_", "map_", "map2_"}  # fmt: skip
MAKERS = {"tensor", "as_tensor", "asarray", "new_tensor"}
"""What takes numbers out of tensors where it is given a list of them."""
INDEXING = {"__getitem__", "__setitem__"}
"""What makes a tensor of a list of numbers, too."""
WITHIN = {"one_hot"}
"""What looks at the numbers of tokens and keeps them within torch."""
PLAIN = (Tensor.__torch_dispatch__, nn.Parameter.__torch_dispatch__)
OWN_HOOKS = 2
"""How many hooks around all modules watching has."""


@dataclass(frozen=True)
class Watched:
    """What was seen: what is nonlinear and left, places of the model's own attention, modules that ran."""

    left: list[Event]
    attention: list[tuple[str, str]]
    ran: set[int]


def watch(model: nn.Module, run: Callable[[nn.Module, Any], Any], calls: list[Any],
          other: torch.Generator | None = None) -> tuple[Operations, set[int]]:  # fmt: skip
    """Runs the model on inputs, call after call, and returns what was seen, and which modules ran.

    other: numbers by which what tokens look up is moved.
    """
    running = _Running(model, calls, other)
    outputs = []
    with (
        torch.compiler.set_stance("force_eager"),
        running.hooks(),
        exits(running.leaves),
        _Leaving(running),
        _Dispatched(running),
    ):
        for inputs in calls:
            running.operations.takes(inputs)
            outputs.append(run(model, inputs))
    running.operations.finish(outputs)
    return running.operations, running.ran


def watch_twice(
    twin: Callable[[], nn.Module], model: nn.Module, run: Callable[[nn.Module, Any], Any], fresh: Callable[[], Any]
) -> Watched:
    """What is seen of two calls of a model, since the second may find another state, and, where there is something like
    attention, of a copy on other data, to know whether it is that.

    fresh: the inputs anew; twin: the model anew.
    """
    seen, ran = watch(model, run, [fresh(), fresh()])
    left = list(seen.left)
    draw = torch.Generator().manual_seed(0)

    def others() -> Operations:
        given = [fresh(), fresh()]
        for tensors in zip(*map(tensors_in, given), strict=True):
            if tensors[0].is_floating_point() or tensors[0].is_complex():
                changed = moved(tensors[0], draw)
                for tensor in tensors:
                    tensor.copy_(changed)
        return watch(twin(), run, given, draw)[0]

    left += seen.without_substance(others) if seen.records else []
    return Watched(list({(e.place, e.module, str(e)): e for e in left}.values()), list(seen.attention), ran)


class _Running:
    """The modules that are running, innermost last, and whether that is a head."""

    def __init__(self, model: nn.Module, inputs: Any, other: torch.Generator | None) -> None:
        self.paths = {id(m): (name or "the model", type(m).__name__) for name, m in model.named_modules()}
        self.heads = [m for m in model.modules() if _is_head(m)]
        within = {id(part) for head in self.heads for part in head.modules() if part is not head}
        self.hooked = [m for m in model.modules() if m._forward_hooks and id(m) not in within]
        self.stack: list[nn.Module] = []
        self.unseen = 0
        self.ran: set[int] = set()
        self.operations = Operations(model, inputs, self.event, other)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Around every module; and around what a head computes, but not what hooks of others do with it."""
        held = [
            module_hooks.register_module_forward_pre_hook(self.enter),
            module_hooks.register_module_forward_hook(self.leave, always_call=True),
        ]
        held += [module.register_forward_hook(self.leave_hooked, always_call=True) for module in self.hooked]
        held += [head.register_forward_pre_hook(self.enter_head) for head in self.heads]
        held += [head.register_forward_hook(self.leave_head, prepend=True, always_call=True) for head in self.heads]
        try:
            yield
        finally:
            for handle in held:
                handle.remove()

    def enter(self, module: nn.Module, args: Any) -> None:
        self.stack.append(module)
        self.ran.add(id(module))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Before hooks of its own, which belong to it."""
        if not any(module is m for m in self.hooked):
            self.stack.pop()

    def leave_hooked(self, module: nn.Module, args: Any, output: Any) -> None:
        """After those."""
        self.stack.pop()

    def enter_head(self, module: nn.Module, args: Any) -> None:
        if _is_shared(module, args):
            self.operations.left[self.event("shared")] = None
        self.unseen += 1

    def leave_head(self, module: nn.Module, args: Any, output: Any) -> None:
        self.unseen -= 1
        self.operations.head(args, output, scores=_selects(module))

    def leaves(self, name: str, tensor: Any) -> None:
        """A tensor's numbers are handed to something other than torch, unless that is done by what is noted itself."""
        if not self.unseen:
            self.operations.leaves(name, tensor)

    def event(self, operation: str) -> Event:
        known = (self.paths[id(m)] for m in reversed(self.stack) if id(m) in self.paths)
        return Event(*next(known, next(iter(self.paths.values()))), operation, running_line(watch.__code__))


def _selects(module: Any) -> bool:
    """Whether what a head takes decides its weights alone: one argument, and constant values."""
    claims = module.claims
    return module.kind == "activation" and all(claim.constant_values for claim in claims.values())


def _is_head(module: nn.Module) -> bool:
    """A head with nothing of anybody else's in it."""
    return type(module) in PLACED.values() and "forward" not in vars(module)


def _is_shared(head: nn.Module, args: Any) -> bool:
    """Whether code of somebody else's may run in what a head computes: by a mode, a class of tensors, or hooks."""
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    tensors = [*tensors_in(args), *head.parameters(), *head.buffers()]
    hooks = [held for m in head.modules() if m is not head for held in (m._forward_hooks, m._forward_pre_hooks)]
    return (
        any(type(mode) not in (_Leaving, _Dispatched, DeviceContext) for mode in modes)
        or any(type(t) not in (Tensor, nn.Parameter) for t in tensors)
        or any(hooks)
        or len(module_hooks._global_forward_hooks) + len(module_hooks._global_forward_pre_hooks) > OWN_HOOKS
    )


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
            return self._called(name, func, args, kwargs or {})
        for tensor in held or [args[0]]:
            self.running.operations.leaves(name, tensor)
        self.running.unseen += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running.unseen -= 1

    def _called(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        operations = self.running.operations
        operations.within += name in WITHIN
        plain = name in MAKERS or (name in INDEXING and _by_numbers(args[1]))
        operations.making += plain
        try:
            return func(*args, **kwargs)
        finally:
            operations.within -= name in WITHIN
            operations.making -= plain


def _by_numbers(index: Any) -> bool:
    """Whether the lists in an index hold plain numbers."""
    lists = [part for part in (index if isinstance(index, tuple) else [index]) if isinstance(part, list)]
    return not any(map(tensors_in, lists))
