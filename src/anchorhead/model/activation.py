"""A head in the place of an activation function: elementwise on a tensor of any shape, as fast as the machine allows.

Large inputs go through the same Horner evaluation fused into one kernel by torch.compile, which makes itself on first
use; where that is not possible (no C++ compiler) the head says so once and stays with plain torch, slower. Inside a
model that is itself compiled or exported the plain form is used, and fused with its surroundings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anchorhead.head.evaluation import Evaluation
from anchorhead.head.head import Head
from anchorhead.head.module import HeadModule, LiteralHead
from anchorhead.model.outside import Watched

if TYPE_CHECKING:
    from anchorhead.model.compiled import CompiledModel

WORTH_COMPILING = 1 << 14
_fused: dict[Head, Evaluation | None] = {}
_fused_of: WeakKeyDictionary[Evaluation, Evaluation | None] = WeakKeyDictionary()


_unfused: ContextVar[bool] = ContextVar("unfused", default=False)


@contextmanager
def unfused() -> Iterator[None]:
    """Heads in plain torch, for a run or two that are not worth the seconds that making a kernel takes."""
    token = _unfused.set(True)
    try:
        yield
    finally:
        _unfused.reset(token)


CONVERTED = "Convert again with wider ranges, or calibrate with data like these"


class _Placed(Watched):
    """A head with its formula and the interval on which it is proved; `outside` says what leaving that does."""

    def __init__(self, head: HeadModule, formula: str, low: float = -math.inf, high: float = math.inf) -> None:
        super().__init__()
        self.head, self.formula = head, formula
        self.low, self.high = low, high
        self.watch([(low, high)], f"the head for {formula}", CONVERTED)

    def remember(self, compiled: CompiledModel) -> None:
        """Keeps the model whose head this is, for its certificate and its file, without becoming its owner."""
        vars(self)["compiled"] = compiled

    @property
    def keys(self) -> int:
        return self.head.keys

    def value(self, u: Tensor) -> Tensor:
        """The head at every element, in its own dtype, and back in that of u."""
        self.look(u)
        return evaluate(self.head, u.to(self.head.dtype)).to(u.dtype)

    def extra_repr(self) -> str:
        where = "" if (self.low, self.high) == (-math.inf, math.inf) else f" on [{self.low:g}, {self.high:g}]"
        return f"{self.formula}{where}, {self.keys} keys"


class ActivationHead(_Placed):
    """phi(x) for every element: softmax over fixed keys, values affine in x. `formula` says what phi is.

    in_place: x is overwritten with it, as by nn.ReLU(inplace=True), which may be called for that alone.
    """

    in_place = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_place:
            return self.value(x)
        return x.copy_(self.value(x.clone() if x.requires_grad else x))  # gradients need x as it was

    def literal(self) -> LiteralHead:
        """The same numbers as scores, softmax and values."""
        return self.head.literal()


class GateHead(_Placed):
    """phi(u)·v for every element: softmax over fixed keys, whose values are constants times v."""

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.value(u) * v

    def literal(self) -> LiteralHead:
        """The same numbers as scores, softmax and values, of u and v."""
        return self.head.literal(carrying=True)


def evaluate(head: HeadModule, x: Tensor, worth: int = WORTH_COMPILING) -> Tensor:
    """The head at every element: fused where that pays, from `worth` elements on, else in plain torch."""
    if torch.compiler.is_compiling() or x.numel() < worth or x.device.type != "cpu" or _unfused.get():
        return head(x)
    evaluation = head.evaluation()
    if evaluation is None or head.edited:  # compiling takes seconds, too long for numbers that change
        return head(x)
    if evaluation not in _fused_of:
        _fused_of[evaluation] = _fused_by_numbers(head, evaluation)
    run = _fused_of[evaluation]
    return head(x) if run is None else run(x.reshape(-1)).reshape(x.shape)


def _fused_by_numbers(head: HeadModule, evaluation: Evaluation) -> Evaluation | None:
    """The fused evaluation of a head, one for all heads with the same numbers."""
    numbers = head.numbers
    if numbers not in _fused:
        _fused[numbers] = _compiled(evaluation, head.dtype)
    return _fused[numbers]


def _compiled(evaluation: Evaluation, dtype: torch.dtype) -> Evaluation | None:
    """The evaluation fused by torch.compile; None, with a sentence, where that fails.

    Traced first, so that the head's numbers are constants in the kernel and every head has code of its own: compiled
    as a closure its numbers would be arguments, fetched anew for every vector. Contracting a multiplication and an
    addition into one instruction drops a rounding and adds none, so the certified rounding still holds.

    The width of the processor's vectors is asked for by name, for torch's cache on disk does not know it: loops of one
    width that another processor left there would be built with vectors of another, and write behind their tensors.
    """
    try:
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        options: dict[str, str | int | bool | Callable[..., Any]] = {
            "cpp.enable_floating_point_contract_flag": "fast",
            "cpp.simdlen": pick_vec_isa().bit_width(),
        }
        run = torch.compile(torch.fx.symbolic_trace(evaluation), dynamic=True, options=options)
        run(torch.zeros(WORTH_COMPILING, dtype=dtype))
    except Exception as error:  # a missing compiler shows itself in many ways
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"torch.compile is not available here ({reason[:120]}); heads are evaluated in plain torch, which is "
            "several "
            "times slower. Install a C++ compiler such as g++ to have them fused.",
            stacklevel=2,
        )
        return None
    return run
