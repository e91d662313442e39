"""Evaluations fused into one kernel: what a head, a gate or a norm computes element by element, in one pass.

An evaluation is a function of tensors that torch.fx can trace, its numbers constants in it: h(u), or (u, v) -> h(u)·v,
or a norm with its sum over the last dimension. torch.compile makes one loop of it. The kernel makes itself on first
use, for large inputs, or ahead of that (`warm`); where that is not possible (no C++ compiler, or torch.compile switched
off) a sentence says so and plain torch is used, slower. Inside a model that is itself compiled or exported the plain
form is used, and fused with its surroundings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from anchorhead.head.decay import for_kernel
from anchorhead.head.module import HeadModule

Kernel = Callable[..., Tensor]

WORTH_COMPILING = 1 << 14
"""Elements from which on a kernel is faster than plain torch."""

_by_numbers: dict[Hashable, Kernel | None] = {}
_by_evaluation: WeakKeyDictionary[Kernel, Kernel | None] = WeakKeyDictionary()
_when: ContextVar[str] = ContextVar("when", default="large")
SIZES = {1: (1 << 16,), 2: (2048, 640), 3: (3, 2048, 640)}
"""The sizes, by dimensions, for which a kernel is made: such that torch shares all of its loops among threads."""
_VECTORS = {"AVX512": 512, "AVX2": 256, "NEON": 128, "SVE256": 256}
"""Bits of a vector, by what torch calls the processor's capability."""

SWITCH_ON = (
    "Unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE, and leave torch.compiler.set_stance at its default when the "
    "heads first run, to have them fused."
)


@contextmanager
def _fusing(when: str) -> Iterator[None]:
    token = _when.set(when)
    try:
        yield
    finally:
        _when.reset(token)


def unfused() -> AbstractContextManager[None]:
    """Heads in plain torch, for a run or two that are not worth the seconds that making a kernel takes."""
    return _fusing("never")


def warm(model: nn.Module) -> None:
    """Makes the kernels of all heads in a model now, rather than when it first meets a large input.

    Each takes some seconds, or one where torch finds it in its cache on disk.

    >>> ah.warm(ah.convert(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())))
    """
    with torch.no_grad(), _fusing("always"):
        for module in model.modules():
            if isinstance(module, Warmed):
                module.warm()


@runtime_checkable
class Warmed(Protocol):
    """A module that evaluates heads."""

    def warm(self) -> None:
        """Evaluates them once, on a few numbers."""


def evaluate(head: HeadModule, x: Tensor, worth: int = WORTH_COMPILING) -> Tensor:
    """The head at every element: fused where that pays, from `worth` elements on, else in plain torch."""
    if not worth_fusing(x, worth):
        return head(x)
    evaluation = head.evaluation()
    if evaluation is None or head.edited:  # compiling takes seconds, too long for numbers that change
        return head(x)
    flat = x.reshape(-1)
    run = fused(evaluation, lambda: head.numbers, flat)
    return head(x) if run is None else run(flat).reshape(x.shape)


def worth_fusing(x: Tensor, worth: int = WORTH_COMPILING) -> bool:
    """Whether a kernel for so large an input pays: on the CPU, where nothing else compiles what is computed."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    when = _when.get()
    return when == "always" or (when == "large" and x.numel() >= worth)


def made(evaluation: Kernel) -> bool:
    """Whether there is a kernel of an evaluation already, or there cannot be one."""
    return evaluation in _by_evaluation


def fused(evaluation: Kernel, numbers: Callable[[], Hashable], *like: Tensor) -> Kernel | None:
    """The evaluation as one kernel, for tensors of as many dimensions as these; None where it cannot be made.

    evaluation: the same object for as long as its numbers are the same, so that finding its kernel costs little.
    numbers: all that the kernel depends on; evaluations with equal numbers share theirs.
    """
    if evaluation not in _by_evaluation:
        key = (numbers(), tuple((t.dtype, t.dim()) for t in like))
        if key not in _by_numbers:
            _by_numbers[key] = _compiled(evaluation, *like)
        _by_evaluation[evaluation] = _by_numbers[key]
    return _by_evaluation[evaluation]


def _compiled(evaluation: Kernel, *like: Tensor) -> Kernel | None:
    """The evaluation fused by torch.compile; None, with a sentence, where that fails.

    Traced first, so that the numbers are constants in the kernel and every head has code of its own: compiled
    as a closure its numbers would be arguments, fetched anew for every vector. Contracting a multiplication and an
    addition into one instruction drops a rounding and adds none, so the certified rounding still holds.

    The width of the processor's vectors is asked for by name, for torch's cache on disk does not know it: loops of one
    width that another processor left there would be built with vectors of another, and write behind their tensors. It
    is what torch itself uses here; finding out what the compiler can do takes twice as long as compiling, and is left
    for where that fails.
    """
    known = _VECTORS.get(torch.backends.cpu.get_cpu_capability())
    try:
        if known is not None:
            with suppress(Exception):  # a compiler that is too old for such vectors
                return _built(evaluation, {"cpp.simdlen": known, "cpp.vec_isa_ok": True}, *like)
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        return _built(evaluation, {"cpp.simdlen": pick_vec_isa().bit_width()}, *like)
    except Exception as error:  # a missing compiler shows itself in many ways
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        off = isinstance(error, _SwitchedOffError)
        what = "is switched off here" if off else f"is not available here ({reason[:120]})"
        remedy = SWITCH_ON if off else "Install a C++ compiler such as g++ to have them fused."
        warnings.warn(
            f"torch.compile {what}; heads are evaluated in plain torch, which is several times slower. {remedy}",
            stacklevel=2,
        )
        return None


class _SwitchedOffError(Exception):
    """torch.compile ran what it was given, and compiled nothing."""


def _built(evaluation: Kernel, options: dict[str, Any], *like: Tensor) -> Kernel:
    """A kernel for tensors as they usually are, and torch.compile for those that want a gradient or are looked at.

    A kernel is called without asking what it is called with, which takes torch.compile longer than small inputs take.
    It is made for a number of threads and for dtypes, and made again for others.
    """
    options = {"cpp.enable_floating_point_contract_flag": "fast"} | options
    followed = torch.compile(torch.fx.symbolic_trace(evaluation), dynamic=True, options=options)
    kernels: dict[Hashable, Kernel] = {}

    def call(*args: Tensor) -> Any:
        if not _alone(args):
            return followed(*args)
        threads = torch.get_num_threads()
        key = (threads, *((t.dtype, t.dim()) for t in args))
        if key not in kernels:
            try:
                kernels[key] = _kernel(evaluation, options | {"cpp.threads": threads}, *args)
            except _SwitchedOffError:  # since the first was made
                if not kernels:
                    raise
                return followed(*args)
        with torch.no_grad():
            return kernels[key](*(t.contiguous() for t in args))

    with torch.no_grad():
        call(*(torch.zeros_like(t) for t in like))
    return call


def _alone(args: tuple[Tensor, ...]) -> bool:
    """Whether these are tensors and nothing else, whose numbers are all that is wanted, and which share their sizes."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in args):
        return False
    if is_in_torch_dispatch_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if forward_ad._current_level >= 0 or torch.jit.is_tracing():
        return False
    largest = args[0].shape
    return all(type(t) in (Tensor, nn.Parameter) and t.shape == largest[len(largest) - t.dim() :] for t in args)


def _kernel(evaluation: Kernel, options: dict[str, Any], *like: Tensor) -> Kernel:
    """The evaluation as a kernel for tensors of so many dimensions, of any size; the last dimensions are shared.

    torch.compile makes it, and hands to its backend what is kept here: a function of the tensors and of some of their
    sizes, in some order, that gives a list of results. Which is which is seen when it is first called.
    """
    sizes = SIZES[max(t.dim() for t in like)]
    few = tuple(torch.zeros(sizes[len(sizes) - t.dim() :], dtype=t.dtype) for t in like)
    seen: list[tuple[Kernel, list[tuple[int, int | None]], Any]] = []

    def backend(graph: torch.fx.GraphModule, given: list[Any]) -> Kernel:
        whole, innermost = _lowered(graph, given, options)
        meant = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]

        def first(*flat: Any) -> Any:
            found = whole(*flat)
            seen.append((innermost(found, flat) or whole, _places(few, flat, meant), found))
            return found

        return first

    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        with for_kernel():
            graph = torch.fx.symbolic_trace(evaluation)
        whole = torch.compile(graph, dynamic=True, backend=backend)(*few)
    if not seen:
        raise _SwitchedOffError
    [(run, places, results)] = seen
    wanted = [next(i for i, t in enumerate(results) if t is part)
              for part in ([whole] if isinstance(whole, Tensor) else whole)]  # fmt: skip

    def call(*args: Tensor) -> Any:
        found = run(*[args[i] if d is None else args[i].shape[d] for i, d in places])
        return found[wanted[0]] if isinstance(whole, Tensor) else [found[i] for i in wanted]

    return call


def _lowered(
    graph: torch.fx.GraphModule, given: list[Any], options: dict[str, Any]
) -> tuple[Kernel, Callable[..., Any]]:
    """A graph compiled; and of its first results and arguments, the loop within, if it gives the same for them.

    What stands around the loop marks every result as one of varying size, for compilers that might follow: that takes
    longer than the loop.
    """
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # take longer than all of torch

    loops: list[Any] = []

    def kept(*args: Any, **named: Any) -> Any:
        loops.append(compile_fx_inner(*args, **named))
        return loops[-1]

    with config.patch(enable_autograd_cache=False):  # it would hold what stands around the loop
        whole: Any = compile_fx(graph, given, kept, options)

    def innermost(found: Any, flat: tuple[Any, ...]) -> Kernel | None:
        if len(loops) != 1:
            return None
        again = loops[0](list(flat))
        same = len(again) == len(found) and all(map(torch.equal, again, found))
        return (lambda *flat: loops[0](list(flat))) if same else None

    return whole, innermost


def _places(few: tuple[Tensor, ...], flat: tuple[Any, ...], meant: list[Any]) -> list[tuple[int, int | None]]:
    """For each of a kernel's arguments which tensor it is, or which tensor's size in which dimension."""
    tensors = [next((i for i, t in enumerate(few) if t is value), None) for value in flat]
    sizes = {str(size): (i, d) for i, like in zip(tensors, meant, strict=True) if i is not None
             for d, size in enumerate(like.shape)}  # fmt: skip
    return [sizes[str(like)] if i is None else (i, None) for i, like in zip(tensors, meant, strict=True)]
