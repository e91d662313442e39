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

*One set of numbers*, the parameters. The fast form is made of them as constants, and every eager call looks whether
they are still the ones that it was made of, so that an edit, an optimiser's step (also through `.data`) or
`load_state_dict` is what runs next; slopes that are no longer evenly spaced are summed key by key. Where a parameter
wants a gradient, or is being transformed by torch.func, the head is evaluated key by key from the parameters
themselves. Inside torch.compile and torch.export Python cannot look at numbers: there the constants are those of the
last eager call, of the last `load_state_dict`, or of the construction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorhead.errors import ShapeError
from anchorhead.head.numbers import HORNER_DEPTH, NUMBERS
from anchorhead.head.own_precision import in_own_precision
from anchorhead.head.parameters import constant, followed, unchanged

Evaluation = Callable[[Tensor], Tensor]
Number = float | Tensor
Key = Sequence[Number]
CHUNK = 1 << 15
"""Elements at a time when evaluated without a compiler, so that temporaries stay in cache."""


CARRYING = "A head that carries a partner has constant values, and gains were edited into this one: it is no attention."


class _Made(NamedTuple):
    """The fast evaluation and what it was made of: the numbers, whether by Horner's rule, whether after an edit.

    seen: on the CPU each tensor, its place in memory, the memory, and what was there. Looking there takes a
    microsecond or two, which a small call can bear.
    """

    numbers: list[Tensor]
    seen: list[tuple[str, Tensor, int, Any, bytes]]
    sizes: tuple[int, ...]
    uniform: bool
    evaluate: Evaluation
    edited: bool = False


class HeadAttention(nn.Module):
    """Softmax attention over fixed keys with values affine in the query, elementwise on a tensor of any shape.

    slopes, intercepts, constants, gains: (keys,). uniform: slopes are evenly spaced, in increasing order, and Horner's
    rule may be used. sizes: keys of each piece; gate_slopes, gate_levels: (pieces,), what raises the scores of a
    piece's keys.
    """

    piece: Tensor

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
        self.register_buffer("piece", torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)))
        self._by_horner = uniform
        self._made = self._make()

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, name) for name in (*NUMBERS, "piece")]

    def numbers(self) -> dict[str, tuple[float, ...]]:
        """The numbers as they are now, by name."""
        return {name: tuple(getattr(self, name).tolist()) for name in NUMBERS}

    def _make(self) -> _Made:
        """The fast evaluation of the numbers as they are now."""
        held = [t.detach().clone() for t in self._tensors()]
        *numbers, gate_slopes, gate_levels = (t.double().cpu() for t in held[:-1])
        top = torch.finfo(self.dtype).max
        uniform = self._by_horner and len(gate_slopes) == 1 and _evenly_spaced(numbers[0], numbers[1], str(self.dtype))
        gates = list(zip(gate_slopes.tolist(), gate_levels.tolist(), strict=True))
        evaluate = _polynomials(numbers, top) if uniform else _by_piece(numbers, self.sizes, gates, top)
        return _Made(held, self._in_memory(), self.sizes, uniform, evaluate)

    def _in_memory(self) -> list[tuple[str, Tensor, int, Any, bytes]]:
        found = []
        for name, tensor in zip((*NUMBERS, "piece"), self._tensors(), strict=True):
            if tensor.device.type == "cpu":
                array = tensor.detach().numpy()
                found.append((name, tensor, tensor.data_ptr(), array, array.tobytes()))
        return found

    def evaluation(self) -> Evaluation | None:
        """The fast evaluation of the numbers as they are now, the same object for as long as they are the same.

        None where torch follows what is computed with them, so that they cannot be constants.
        """
        if not torch.compiler.is_compiling() and self._as_seen():
            return self._made.evaluate
        now = self._tensors()
        if followed(now):
            return None
        if not torch.compiler.is_compiling():
            if unchanged(now, self._made.numbers):
                self._made = self._made._replace(seen=self._in_memory())
            else:
                self._made = self._make()._replace(edited=True)
        return self._made.evaluate

    def _as_seen(self) -> bool:
        """Whether every number is the same, in the same tensors, and no gradient is wanted: what is usually so."""
        parameters, buffers, grad = self._parameters, self._buffers, torch.is_grad_enabled()
        for name, seen, place, array, number in self._made.seen:
            tensor = parameters.get(name) if name in parameters else buffers.get(name)
            if tensor is not seen or tensor.data_ptr() != place or array.tobytes() != number:
                return False
            if grad and tensor.requires_grad:
                return False
        return bool(self._made.seen)

    @property
    def edited(self) -> bool:
        """Whether the numbers were changed since they were given or loaded, as of the last evaluation."""
        return self._made.edited

    @property
    def uniform(self) -> bool:
        """Whether the slopes are evenly spaced and Horner's rule is used."""
        return self._make().uniform

    @property
    def sizes(self) -> tuple[int, ...]:
        """Keys of each piece."""
        if torch.compiler.is_compiling():
            return self._made.sizes
        return tuple(self.piece.bincount(minlength=len(self.gate_slopes)).tolist())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_made"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._made = self._make()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._made = self._make()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HeadAttention:
        """Moves to another device; the dtype stays, since the numbers are proved in that."""
        super()._apply(lambda t: t.to(fn(t).device), recurse)
        if self.slopes.device.type != "meta":
            self._made = self._make()
        return self

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.slopes)

    @property
    def dtype(self) -> torch.dtype:
        return self.slopes.dtype

    @property
    def beta(self) -> float:
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
        return own.double() + gate.double()[self.piece]

    def forward(self, x: Tensor) -> Tensor:
        """The fast evaluation; elementwise throughout, so that no setting for products reaches it."""
        self.check(x)
        evaluate = self.evaluation()
        if evaluate is None:
            return _from_parameters(self, x)
        if torch.compiler.is_compiling() or x.numel() <= CHUNK or (x.requires_grad and torch.is_grad_enabled()):
            return evaluate(x)
        return torch.cat([evaluate(part) for part in x.reshape(-1).split(CHUNK)]).reshape(x.shape)

    @in_own_precision
    def weights(self, x: Tensor) -> Tensor:
        """Attention weights as the formula reads, (..., keys)."""
        x = x.unsqueeze(-1)
        gates = x * self.gate_slopes + self.gate_levels
        return (x * self.slopes + self.intercepts + gates[..., self.piece]).softmax(-1)

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
        """A copy of the numbers, evaluated as the formula reads."""
        return LiteralHead(self)


class LiteralHead(nn.Module):
    """Scores, softmax over keys, values: each element of x is a query of its own."""

    piece: Tensor

    def __init__(self, head: HeadAttention) -> None:
        super().__init__()
        self.slopes, self.intercepts = constant(head.slopes), constant(head.intercepts)
        self.constants, self.gains = constant(head.constants), constant(head.gains)
        self.gate_slopes, self.gate_levels = constant(head.gate_slopes), constant(head.gate_levels)
        self.register_buffer("piece", head.piece.clone())

    def literal(self) -> LiteralHead:
        """This is it."""
        return self

    @in_own_precision
    def weights(self, x: Tensor) -> Tensor:
        """Attention weights, (..., keys)."""
        x = x.unsqueeze(-1)
        gates = x * self.gate_slopes + self.gate_levels
        return (x * self.slopes + self.intercepts + gates[..., self.piece]).softmax(-1)

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        values = x.unsqueeze(-1) * self.gains + self.constants
        return (self.weights(x).unsqueeze(-2) @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1)


def _by_piece(
    numbers: Sequence[Tensor], sizes: Sequence[int], gates: Sequence[tuple[float, float]], dtype_max: float
) -> Evaluation:
    """Key by key with the numbers as constants."""
    keys = list(zip(*(x.tolist() for x in numbers), strict=True))
    pieces = _split(keys, sizes)
    totals = [s + gates[i][0] for i, piece in enumerate(pieces) for s, _, _, _ in piece]
    ends = keys[totals.index(min(totals))][3], keys[totals.index(max(totals))][3]
    reach = dtype_max / (16 * (1 + max(abs(v) for key in keys for v in key) + max(abs(g) for g, _ in gates)))
    return lambda x: _key_by_key(x, x.clamp(-reach, reach), pieces, gates, ends)


def _from_parameters(head: HeadAttention, x: Tensor) -> Tensor:
    """The same with the parameters themselves, for gradients with respect to them."""
    *numbers, gate_slopes, gate_levels = (getattr(head, name) for name in NUMBERS)
    keys = list(zip(*(t.unbind() for t in numbers), strict=True))
    gates = list(zip(gate_slopes.unbind(), gate_levels.unbind(), strict=True))
    totals, gains = (numbers[0] + gate_slopes[head.piece]).detach(), numbers[3]
    left, right = (gains.gather(0, place.unsqueeze(0)).squeeze(0) for place in (totals.argmin(), totals.argmax()))
    sizes = torch.stack([t.detach().abs().amax() for t in numbers]).amax() + gate_slopes.detach().abs().amax()
    reach = torch.finfo(x.dtype).max / (16 * (1 + sizes))
    return _key_by_key(x, x.clamp(-reach, reach), _split(keys, head.sizes), gates, (left, right))


def _split(keys: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    return [keys[a:b] for a, b in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


def _key_by_key(
    x: Tensor, query: Tensor, pieces: Sequence[Sequence[Key]], gates: Sequence[Key], ends: tuple[Number, Number]
) -> Tensor:
    """Softmax within each piece, then between pieces, the largest score subtracted in both; query is x, clamped."""
    parts = [_piece(query, piece) for piece in pieces]
    logits = [top + (query * g + b) for (top, _, _), (g, b) in zip(parts, gates, strict=True)]
    largest = _largest(logits)
    numerator, denominator = torch.zeros_like(x), torch.zeros_like(x)
    for logit, (_, above, below) in zip(logits, parts, strict=True):
        weight = torch.exp(logit - largest)
        numerator, denominator = numerator + weight * above, denominator + weight * below
    return _beyond(x, query, numerator / denominator, *ends)


def _beyond(x: Tensor, query: Tensor, inside: Tensor, left: Number, right: Number) -> Tensor:
    """Past the clamp, where products would overflow and one key has long had all the weight: its line, continued."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return inside + (x - query) * torch.where(x > 0, right, left)
    if left == right == 0:
        return inside
    return inside + (x - query) * (
        right if left == right else torch.where(x > 0, x.new_full((), right), x.new_full((), left))
    )


def _piece(x: Tensor, keys: Sequence[Key]) -> tuple[Tensor, Tensor, Tensor]:
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


def _evenly_spaced(slopes: Tensor, intercepts: Tensor, dtype: str) -> bool:
    """Whether Horner's rule applies: equal steps upwards, and coefficients that do not overflow."""
    steps = slopes.diff()
    depth = intercepts.max() - torch.minimum(intercepts[0], intercepts[-1])
    even = len(steps) > 0 and bool((steps == steps[0]).all() and steps[0] > 0)
    return even and bool(depth < HORNER_DEPTH[dtype.removeprefix("torch.")])


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
            inside = _ratio(torch.exp(step * down), down, left)
            near = _beyond(all_down, down, inside, ends[0], ends[0])
            if odd:
                far = shift - near
            elif ends[0] == 0:
                far = near + tilt * x
            else:  # tilt·x may be too large where the sum is not
                far = _beyond(-all_down, -down, inside - tilt * down, ends[1], ends[1])
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
