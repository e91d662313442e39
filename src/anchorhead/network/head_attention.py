"""A head for one variable as a module: softmax over a fixed set of keys, applied to every element.

    h(x) = sum over k of  softmax_k(slope_k x + intercept_k) · (constant_k + gain_k x)

*Literal*: scores, softmax over keys, values, as written. *Fast*: if slopes are evenly spaced, then with
z = exp(-step·|x|) numerator and denominator are polynomials in z, counted from the end key on x's side, so that
nothing overflows for any finite x:

    x <= 0:  sum_j exp(intercept_j - intercept_0) z^j (constant_j + gain_j x) / (the same without values)
    x > 0:   likewise from the last key backwards

by Horner's rule: one exp, a few multiply-adds a key and one division. If in addition the head is symmetric
(`folded`), then h(x) = h(-|x|) + gain·max(x, 0), or const - h(-|x|) for x > 0, and one polynomial serves both sides.
Heads of several pieces are summed key by key within a piece and then piece by piece, without storing weights; that
way a steep gate costs the keys within a piece no digits. All are plain elementwise torch, which
torch.compile fuses into one kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import ShapeError
from anchorhead.network.affine import constant

Evaluation = Callable[[Tensor], Tensor]
CHUNK = 1 << 15
"""Elements at a time when evaluated without a compiler, so that temporaries stay in cache."""


class HeadAttention(nn.Module):
    """Softmax attention over fixed keys with values affine in the query, elementwise on a tensor of any shape.

    slopes, intercepts, constants, gains: (keys,). uniform: slopes are evenly spaced, in increasing order.
    sizes: keys of each piece; gate_slopes, gate_levels: (pieces,), what raises the scores of a piece's keys.
    """

    def __init__(
        self,
        slopes: Tensor,
        intercepts: Tensor,
        constants: Tensor,
        gains: Tensor,
        gate_slopes: Tensor,
        gate_levels: Tensor,
        *,
        uniform: bool,
        sizes: Sequence[int],
    ) -> None:
        super().__init__()
        self.slopes, self.intercepts = constant(slopes), constant(intercepts)
        self.constants, self.gains = constant(constants), constant(gains)
        self.gate_slopes, self.gate_levels = constant(gate_slopes), constant(gate_levels)
        self.uniform, self.sizes = uniform and len(slopes) > 1, tuple(sizes)
        self._evaluate = self._evaluation()

    def _evaluation(self) -> Evaluation:
        """The fast evaluation, with the numbers as constants."""
        numbers = [x.detach().double().cpu() for x in (self.slopes, self.intercepts, self.constants, self.gains)]
        gates = list(zip(self.gate_slopes.tolist(), self.gate_levels.tolist(), strict=True))
        top = torch.finfo(self.slopes.dtype).max
        return _polynomials(numbers, top) if self.uniform else _by_piece(numbers, self.sizes, gates, top)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_evaluate"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._evaluate = self._evaluation()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HeadAttention:
        """Moves to another device; the dtype stays, since the numbers are proved in that."""
        super()._apply(lambda t: t.to(fn(t).device), recurse)
        return self

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.slopes)

    @property
    def dtype(self) -> torch.dtype:
        return self.slopes.dtype

    @property
    def temperature(self) -> float:
        """The steepest difference of slopes between neighbouring keys: how sharply the head selects."""
        gaps = self._total(self.slopes, self.gate_slopes).sort().values.diff().abs()
        return gaps.max().item() if len(gaps) else 0.0

    @property
    def largest_value(self) -> float:
        """The largest |constant| or |gain|."""
        return max(self.constants.abs().max().item(), self.gains.abs().max().item())

    def logit_range(self, low: float, high: float) -> float:
        """The largest absolute score for x in [low, high]."""
        x = torch.tensor([low, high], dtype=torch.float64)[:, None]
        scores = x * self._total(self.slopes, self.gate_slopes) + self._total(self.intercepts, self.gate_levels)
        return scores.abs().max().item()

    def _total(self, own: Tensor, gate: Tensor) -> Tensor:
        return own.double() + gate.double().repeat_interleave(torch.tensor(self.sizes))

    def forward(self, x: Tensor) -> Tensor:
        """The fast evaluation."""
        self.check(x)
        if torch.compiler.is_compiling() or x.numel() <= CHUNK or (x.requires_grad and torch.is_grad_enabled()):
            return self._evaluate(x)
        return torch.cat([self._evaluate(part) for part in x.reshape(-1).split(CHUNK)]).reshape(x.shape)

    def check(self, x: Tensor) -> None:
        """Refuses what is not a tensor of the head's dtype."""
        if not isinstance(x, Tensor):
            raise ShapeError(f"The input must be a torch tensor, not {type(x).__name__}; use torch.as_tensor(x).")
        if x.dtype != self.dtype:
            raise ShapeError(
                f"The input is {x.dtype} and the model {self.dtype}. Convert it with x.to({self.dtype}), or compile "
                f"the model with dtype={x.dtype}."
            )

    def literal(self) -> LiteralHead:
        """The same numbers, evaluated as the formula reads."""
        return LiteralHead(self)


class LiteralHead(nn.Module):
    """Scores, softmax over keys, values: each element of x is a query of its own."""

    piece: Tensor

    def __init__(self, head: HeadAttention) -> None:
        super().__init__()
        self.slopes, self.intercepts = head.slopes, head.intercepts
        self.constants, self.gains = head.constants, head.gains
        self.gate_slopes, self.gate_levels = head.gate_slopes, head.gate_levels
        self.register_buffer("piece", torch.arange(len(head.sizes)).repeat_interleave(torch.tensor(head.sizes)))

    def literal(self) -> LiteralHead:
        """This is it."""
        return self

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights, (..., keys)."""
        x = x.unsqueeze(-1)
        gates = x * self.gate_slopes + self.gate_levels
        return (x * self.slopes + self.intercepts + gates[..., self.piece]).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        values = x.unsqueeze(-1) * self.gains + self.constants
        return (self.weights(x).unsqueeze(-2) @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1)


def _by_piece(
    numbers: Sequence[Tensor], sizes: Sequence[int], gates: Sequence[tuple[float, float]], dtype_max: float
) -> Evaluation:
    """Softmax within each piece, then between pieces, the largest score subtracted in both."""
    keys = list(zip(*(x.tolist() for x in numbers), strict=True))
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    pieces = [keys[a:b] for a, b in itertools.pairwise(starts)]
    totals = [s + gates[i][0] for i, piece in enumerate(pieces) for s, _, _, _ in piece]
    ends = keys[totals.index(min(totals))][3], keys[totals.index(max(totals))][3]
    reach = dtype_max / (16 * (1 + max(abs(v) for key in keys for v in key) + max(abs(g) for g, _ in gates)))

    def evaluate(x: Tensor) -> Tensor:
        query = x.clamp(-reach, reach)
        parts = [_piece(query, piece) for piece in pieces]
        logits = [top + (query * g + b) for (top, _, _), (g, b) in zip(parts, gates, strict=True)]
        largest = _largest(logits)
        numerator, denominator = torch.zeros_like(x), torch.zeros_like(x)
        for logit, (_, above, below) in zip(logits, parts, strict=True):
            weight = torch.exp(logit - largest)
            numerator, denominator = numerator + weight * above, denominator + weight * below
        return _beyond(x, query, numerator / denominator, *ends)

    return evaluate


def _beyond(x: Tensor, query: Tensor, inside: Tensor, left: float, right: float) -> Tensor:
    """Past the clamp, where products would overflow and one key has long had all the weight: its line, continued."""
    if left == right == 0:
        return inside
    return inside + (x - query) * (
        right if left == right else torch.where(x > 0, x.new_full((), right), x.new_full((), left))
    )


def _piece(x: Tensor, keys: Sequence[tuple[float, ...]]) -> tuple[Tensor, Tensor, Tensor]:
    """Largest score, and numerator and denominator relative to it."""
    if len(keys) == 1:
        slope, level, value, gain = keys[0]
        return x * slope + level, x * gain + value, torch.ones_like(x)
    scores = [x * s + c for s, c, _, _ in keys]
    largest = _largest(scores)
    numerator, denominator = torch.zeros_like(x), torch.zeros_like(x)
    for score, (_, _, value, gain) in zip(scores, keys, strict=True):
        weight = torch.exp(score - largest)
        numerator, denominator = numerator + weight * (x * gain + value), denominator + weight
    return largest, numerator, denominator


def _largest(scores: Sequence[Tensor]) -> Tensor:
    largest = scores[0]
    for score in scores[1:]:
        largest = torch.maximum(largest, score)
    return largest


def _polynomials(numbers: Sequence[Tensor], dtype_max: float) -> Evaluation:
    """Horner's rule in z = exp(-step·|x|), coefficients from the end key on x's side."""
    slopes, intercepts, constants, gains = numbers
    step = (slopes[1] - slopes[0]).item()
    left = _coefficients(intercepts, constants, gains)
    right = _coefficients(*(v.flip(0) for v in (intercepts, constants, gains)))
    reach = dtype_max / (16 * len(slopes) * (1 + max(abs(v) for row in (*left, *right) for v in row)))
    ends = gains[0].item(), gains[-1].item()
    fold = _symmetry(intercepts, constants, gains)
    if fold is not None:
        odd, shift, tilt = fold

        def folded(x: Tensor) -> Tensor:
            all_down = torch.where(x > 0, -x, x)
            down = all_down.clamp(min=-reach)
            near = _beyond(all_down, down, _ratio(torch.exp(step * down), down, left), ends[0], ends[0])
            far = shift - near if odd else near + tilt * x
            return torch.where(x > 0, far, near)

        return folded

    both = [(lo, hi) for lo, hi in zip(left, right, strict=True)]

    def evaluate(x: Tensor) -> Tensor:
        up, whole = x > 0, x
        x = whole.clamp(-reach, reach)
        z = torch.exp(step * torch.where(up, -x, x))

        def pick(low: float, high: float) -> Tensor | float:
            return low if low == high else torch.where(up, x.new_full((), high), x.new_full((), low))

        inside = _ratio(z, x, [tuple(pick(a, b) for a, b in zip(lo, hi, strict=True)) for lo, hi in both])
        return _beyond(whole, x, inside, *ends)

    return evaluate


def _ratio(z: Tensor, x: Tensor, coefficients: Sequence[tuple[Any, ...]]) -> Tensor:
    """Numerator over denominator, even and odd powers by themselves: two shorter chains that a processor overlaps."""
    square = z * z
    (above, below), (odd_above, odd_below) = (_horner(square, x, coefficients[i::2]) for i in (0, 1))
    return (above + z * odd_above) / (below + z * odd_below)


def _horner(z: Tensor, x: Tensor, coefficients: Sequence[tuple[Any, ...]]) -> tuple[Tensor, Tensor]:
    weight, value, gain = coefficients[-1]
    numerator, denominator = x * gain + value, torch.zeros_like(x) + weight
    for weight, value, gain in coefficients[-2::-1]:
        numerator = numerator * z + (x * gain + value)
        denominator = denominator * z + weight
    return numerator, denominator


def _coefficients(intercepts: Tensor, constants: Tensor, gains: Tensor) -> list[tuple[float, ...]]:
    """exp(intercept_j - intercept_0) times (1, constant_j, gain_j), from the end key inwards."""
    weights = (intercepts - intercepts[0]).exp()
    return list(zip(weights.tolist(), (weights * constants).tolist(), (weights * gains).tolist(), strict=True))


def _symmetry(intercepts: Tensor, constants: Tensor, gains: Tensor) -> tuple[bool, float, float] | None:
    """Exact reflection: h(x) = h(-x) + tilt·x (False, 0, tilt), or h(x) = shift - h(-x) (True, shift, 0).

    Only where the left end is the smaller one: mirroring a large value into a small one would lose its digits.
    """
    mirrored, flipped = constants.flip(0), gains.flip(0)
    if not torch.equal(intercepts, intercepts.flip(0)):
        return None
    if torch.equal(constants, mirrored) and len((gains + flipped).unique()) == 1 and gains[0].abs() <= gains[-1].abs():
        return False, 0.0, (gains + flipped)[0].item()
    if (
        torch.equal(gains, flipped)
        and len((constants + mirrored).unique()) == 1
        and constants[0].abs() <= constants[-1].abs()
    ):
        return True, (constants + mirrored)[0].item(), 0.0
    return None
