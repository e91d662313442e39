"""What stands in the place of a norm: three proved heads (`proof/norm_heads.py`), evaluated in float64.

A layer norm, an RMS norm or a group norm is  v·(mean v² + eps)^(-1/2)·weight + bias  over the last numbers of a tensor,
v centred or not. Squares are evaluated as v·v, which they are to within their proved error, and the two heads for the
inverse root once a token, as softmaxes over their keys. Large inputs go through one kernel (`fused.py`), in which heads
are evaluated key by key and by Horner's rule (`head/evaluation.py`). The result is rounded before its weight is
multiplied, to float32 or the input's dtype if that is longer, or to the input's dtype where the original does so.
Written out, every square is a softmax of two keys, and both heads carry every number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, ShapeError
from anchorhead.head.decay import in_kernel
from anchorhead.head.evaluation import Evaluation
from anchorhead.head.module import HeadParameters, LiteralHead
from anchorhead.head.parameters import constant
from anchorhead.model.activation import Placed
from anchorhead.model.fused import WORTH_COMPILING, fused, made, worth_fusing
from anchorhead.proof.norm_heads import norm_width

if TYPE_CHECKING:
    from anchorhead.model.compiled import CompiledModel

EXACT = torch.float64
ADVICE = "What a norm returns there may be off by any amount: scale what is normalised"


@dataclass(frozen=True)
class NormForm:
    """Which norm: over how many of the last axes, or in how many groups of channels; centred, as a layer norm is.

    across: over axis 1 of so many, the channels of an image, instead. by_channel: every channel by itself, over its
    axes, with one weight for each. shift: what is added to the weight, 1 in models whose weights are around zero.
    rounds: to the input's dtype before the weight is multiplied. biased: whether a bias is added.
    """

    centred: bool
    eps: float
    axes: int = 1
    groups: int = 0
    shift: float = 0.0
    rounds: bool = False
    biased: bool = False
    across: int = 0
    by_channel: bool = False

    def __str__(self) -> str:
        name = "group_norm" if self.groups else "layer_norm" if self.centred else "rms_norm"
        name = "instance_norm" if self.by_channel else name
        more = [f"groups={self.groups}"] * bool(self.groups) + [f"axes={self.axes}"] * (self.axes > 1)
        more += [f"of axis 1 of {self.across}"] * bool(self.across)
        more += [f"weight + {self.shift:g}"] * bool(self.shift) + ["bias"] * self.biased
        return f"{name}({', '.join(['x', f'eps={self.eps!r}', *more])})"

    def rows(self, x: Tensor) -> Tensor:
        """The numbers that are normalised together side by side, (..., numbers)."""
        if self.groups:
            return x.reshape(x.shape[0], self.groups, -1)
        if self.across:
            return x.movedim(1, -1)
        return x if self.axes == 1 else x.flatten(-self.axes)

    def back(self, rows: Tensor, x: Tensor) -> Tensor:
        """Rows as they lie in x."""
        return rows.reshape(x.movedim(1, -1).shape).movedim(-1, 1) if self.across else rows.reshape(x.shape)

    def beside(self, weight: Tensor | None, x: Tensor) -> Tensor | None:
        """A weight or bias as it stands beside `rows`."""
        if weight is None or not self.groups:
            return None if weight is None else weight.reshape(-1, *[1] * self.by_channel)
        each = weight.reshape(-1, *[1] * (x.dim() - 2)).expand(x.shape[1:])
        return each.reshape(self.groups, -1)

    def scaled(self, y: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: Any) -> Tensor:
        """y·(weight + shift) + bias, rounded as the original rounds; before that to its dtype, or to float32."""
        y = y.to(dtype if self.rounds or dtype == EXACT else torch.float32)
        if weight is not None:
            weight = weight if self.rounds else weight.to(y.dtype)
            y = y * (weight + self.shift if self.shift else weight)
        y = y if bias is None else y + bias
        return y if self.rounds else y.to(dtype)

    def centre(self, rows: Tensor) -> Tensor:
        """v, in float64."""
        v = rows.to(EXACT)
        return v - v.mean(-1, keepdim=True) if self.centred else v


class NormHead(Placed):
    """A norm by its three heads, with the weight and bias of the module in whose place it stands."""

    kind = "norm"

    def __init__(self, form: NormForm, compiled: Mapping[str, CompiledModel], dtype: torch.dtype,
                 weight: nn.Parameter | None = None, bias: nn.Parameter | None = None,
                 names: tuple[str, str] = ("weight", "bias")) -> None:  # fmt: skip
        """names: what weight and bias are called, here as in the module."""
        self.form = replace(form, biased=bias is not None)
        super().__init__(str(self.form), compiled, dtype)
        self._named = names
        self._parameters.update(zip(names, (weight, bias), strict=True))
        self._width = norm_width(self.claims)
        self._evaluation: tuple[list[Any], Callable[..., Any]] | None = None
        self.watch([self.bound.domain], f"mean square plus eps of {self.form}", ADVICE)

    @property
    def _beside(self) -> list[nn.Parameter | None]:
        """The weight and the bias."""
        return [self._parameters[name] for name in self._named]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_evaluation"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._evaluation = None

    def forward(self, x: Tensor) -> Tensor:
        if self.form.across not in (0, x.dim()):
            raise ShapeError(f"{self.form} is a norm across axis 1 of {self.form.across} axes, and was given an input "
                             f"of {x.dim()}: for others, convert without pure=True.")  # fmt: skip
        form, rows = self.form, self.form.rows(x)
        if rows.shape[-1] > self._width:
            raise InputError(f"{form} is proved for up to {self._width} numbers, and was given {rows.shape[-1]}.")
        beside = [form.beside(part, x) for part in self._beside]
        y, u = self._value(rows, *beside)
        self.look(u)
        return form.back(y, x)

    def _value(self, rows: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
        """The norm of every row, and its mean square plus eps: fused where that pays."""
        given = [part for part in (rows, weight, bias) if part is not None]
        found = None if torch.is_grad_enabled() and any(t.requires_grad for t in given) else self._by_kernel(*given)
        if found is None:
            heads: Any = self.heads
            coarse, fine = (functools.partial(_blend, heads[role]) for role in ("coarse", "fine"))
            found = _normalised(self.form, coarse, fine, rows.dtype, rows, weight, bias)
        return found[:2]

    def _by_kernel(self, rows: Tensor, *beside: Tensor) -> tuple[Tensor, ...] | None:
        """The same with the heads' numbers as constants, in one kernel; None where that does not pay, where torch
        follows what is computed with them, or where they were changed."""
        heads: list[Any] = [self.heads["coarse"], self.heads["fine"]]
        evaluations = [head.evaluation() for head in heads]
        if None in evaluations or any(head.edited for head in heads):
            return None
        numbers = [*evaluations, rows.dtype]
        if torch.compiler.is_compiling():  # with all around it
            return self._of_tensors(*numbers)(rows, *beside) if in_kernel() else None
        if self._evaluation is None or self._evaluation[0] != numbers:
            self._evaluation = numbers, self._of_tensors(*numbers)
        evaluation = self._evaluation[1]
        one_row = rows.numel() == rows.shape[-1]  # a kernel would be made anew for it
        if one_row or not worth_fusing(rows, 1 if made(evaluation) else WORTH_COMPILING):
            return None
        given = [rows if self.form.groups or self.form.by_channel else rows.reshape(-1, rows.shape[-1]), *beside]
        kind = self.form, *(part is None for part in self._beside)
        run: Any = fused(evaluation, lambda: (*kind, *(head.numbers for head in heads)), *given)
        found: tuple[Tensor, ...] | None = None if run is None else run(*given)
        return found

    def _of_tensors(self, coarse: Evaluation, fine: Evaluation, dtype: torch.dtype) -> Callable[..., Any]:
        """A function of rows, weight and bias, as many of these as there are, that torch.fx can trace."""
        weighted, biased = (part is not None for part in self._beside)
        every = functools.partial(_normalised, self.form, coarse, fine, dtype)
        if weighted and biased:
            return lambda rows, weight, bias: every(rows, weight, bias)
        if weighted:
            return lambda rows, weight: every(rows, weight, None)
        if biased:
            return lambda rows, bias: every(rows, None, bias)
        return lambda rows: every(rows, None, None)

    def carried(self, out: Tensor) -> Tensor:
        bias = self.form.beside(self._beside[1], out)  # |weight y| + |bias| is at most |weight y + bias| + 2 |bias|
        return out.abs() if bias is None else self.form.back(self.form.rows(out).abs() + 2 * bias.abs(), out)

    def few(self) -> tuple[Tensor, ...]:
        """Two rows of its own shape, or a shape that it takes, of mean square 1."""
        beside, form = next((part for part in self._beside if part is not None), None), self.form
        if form.groups or form.across or form.by_channel:
            more = form.across - 3 if form.across else form.axes - 1
            shape = [form.groups or 4 if beside is None else beside.numel(), 4, *[1] * more]
        else:
            shape = [*[1] * (form.axes - 1), min(self._width, 16)] if beside is None else list(beside.shape)
        signs = 2 * (torch.arange(2 * math.prod(shape)) % 2) - 1
        return (signs.to(self._like).reshape(2, *shape),)

    def literal(self) -> LiteralNorm:
        """The same numbers as scores, softmax and values."""
        heads: dict[str, Any] = dict(self.heads.items())
        beside = [None if part is None else constant(part) for part in self._beside]
        return LiteralNorm(self.form, {role: head.literal() for role, head in heads.items()}, *beside)


def _blend(head: HeadParameters, u: Tensor) -> Tensor:
    """A head at u, (..., 1): a softmax over its keys, numerator and denominator by themselves."""
    scores = head.slopes * u + head.intercepts
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (weights * head.constants).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)


def _normalised(form: NormForm, coarse: Evaluation, fine: Evaluation, dtype: torch.dtype, rows: Tensor,
                weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:  # fmt: skip
    """The norm of every row, of some dtype, its mean square plus eps, and what else there is one of in a row.

    That is given back so that a kernel computes it once in a row, and not for every number.
    """
    x = rows.to(EXACT)
    mean = [x.mean(-1, keepdim=True)] if form.centred else []
    v = x - mean[0] if mean else x
    u = (v * v).mean(-1, keepdim=True) + form.eps
    scale = coarse(u)
    factor = scale * fine(scale * (scale * u))
    return form.scaled(v * factor, weight, bias, dtype), u, factor, *mean


class LiteralNorm(nn.Module):
    """A norm as softmaxes: of every number's square, of the coarse head, which carries u, that again, and every number,
    and of the fine head, which carries those."""

    def __init__(self, form: NormForm, heads: Mapping[str, LiteralHead], weight: Tensor | None,
                 bias: Tensor | None) -> None:  # fmt: skip
        super().__init__()
        self.form, self.weight, self.bias = form, weight, bias
        self.square, self.coarse, self.fine = heads["square"], heads["coarse"], heads["fine"]

    def forward(self, x: Tensor) -> Tensor:
        rows = self.form.rows(x)
        v = self.form.centre(rows)
        u = self.square(v).mean(-1, keepdim=True) + self.form.eps
        p = self.coarse(u, self.coarse(u, u))
        y = self.fine(p, self.coarse(u, v))
        weight, bias = (self.form.beside(part, x) for part in (self.weight, self.bias))
        return self.form.back(self.form.scaled(y, weight, bias, x.dtype), x)
