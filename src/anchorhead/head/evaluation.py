"""The fast evaluations of a head in torch, its numbers as constants: elementwise, so that torch.compile can fuse them.

*Horner's rule.* If slopes are evenly spaced, then with z = exp(-step·|x|) numerator and denominator are polynomials in
z, counted from the end key on x's side, so that nothing overflows for any finite x:

    x <= 0:  sum_j exp(intercept_j - intercept_0) z^j (constant_j + gain_j x) / (the same without values)
    x > 0:   likewise from the last key backwards

one exp, a few multiply-adds a key and one division. If in addition the head is symmetric (`Head.reflection`), then
h(x) = h(-|x|) + tilt·max(x, 0), or shift - h(-|x|) for x > 0, and one polynomial serves both sides.

Inside a kernel exp is written out (`decay.py`), and x is clamped where z has become zero.

*By window.* A staircase of many keys is summed over those that matter where x is (`windowed.py`).
*As a tanh.* Two keys with scores ±su and values ±c, or ±cx, are c·tanh(sx), or c·tanh(sx)·x (`Head.odd`). By Horner's
rule (cz - c)/(z + 1) would cancel for small x; so nothing does, and products, which are such heads with a large c, lose
no digits. Two keys are (v_0 + v_1)/2 + (v_1 - v_0)/2·tanh of half the difference of their scores, whatever they are:
for gradients with respect to the numbers that is what is computed, and for an odd head it is the same, bit by bit.

*As a switch.* Two pieces of one key each, of which one has no score and no value of its own, as ReLU's, are
the other's value over 1 + exp(-gate) (`Head.switch`).

*Key by key.* Heads of several pieces are summed within a piece and then piece by piece, without storing weights; that
way a steep gate costs the keys within a piece no digits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anchorhead.dtypes import LEAST_NORMAL
from anchorhead.head.decay import FAR, decay, in_kernel
from anchorhead.head.head import NUMBERS, Head, Odd, Reflection, Switch
from anchorhead.head.near_keys import MANY
from anchorhead.head.windowed import windowed

Evaluation = Callable[[Tensor], Tensor]
Number = float | Tensor
Key = Sequence[Number]


class Many(NamedTuple):
    """The numbers of a piece of many keys, side by side."""

    slopes: Tensor
    intercepts: Tensor
    constants: Tensor
    gains: Tensor


Piece = Sequence[Key] | Many
SMALLEST = {"float64": 708.0, "float32": 87.0}
"""The exponent below which an exponential is taken for zero, less than 2τ as it is: there processors are slow."""
TORCH = {"float64": torch.float64, "float32": torch.float32}


def evaluation_of(head: Head) -> Evaluation:
    """The evaluation that the head says, in its dtype."""
    if head.odd is not None:
        return _tanh(head.odd)
    return _polynomials(head) if head.horner else _by_piece(head)


def _tanh(odd: Odd) -> Evaluation:
    rate, height, tilted = odd
    if tilted:
        return lambda x: torch.tanh(x * rate) * height * x
    return lambda x: torch.tanh(x * rate) * height


def _switch(switch: Switch, smallest: float) -> Evaluation:
    gate, level, constant, gain = switch

    def evaluate(x: Tensor) -> Tensor:
        lead, value = (x * gate + level).clamp(-smallest, smallest), x * gain + constant
        return torch.where(lead > -smallest, value, torch.zeros_like(x)) / (1 + torch.exp(-lead))

    return evaluate


def of_two_keys(numbers: dict[str, Tensor], x: Tensor) -> Tensor:
    """As a tanh with the parameters themselves, for gradients with respect to them."""
    slopes, intercepts, constants, gains, gate_slopes, gate_levels = (numbers[name] for name in NUMBERS)
    gate = x * gate_slopes[0] + gate_levels[0]
    middle, half = (constants[1] + constants[0]) / 2, (constants[1] - constants[0]) / 2
    centre, rise = (gains[1] + gains[0]) / 2, (gains[1] - gains[0]) / 2
    turn = torch.tanh(x * ((slopes[1] - slopes[0]) / 2) + (intercepts[1] - intercepts[0]) / 2 + (gate - gate))
    return turn * half + turn * rise * x + (middle + centre * x)


def _by_piece(head: Head) -> Evaluation:
    """As a switch, by window or key by key, with the numbers as constants."""
    if head.switch is not None:
        return _switch(head.switch, SMALLEST[head.dtype])
    keys = list(zip(head.slopes, head.intercepts, head.constants, head.gains, strict=True))
    gates = list(zip(head.gate_slopes, head.gate_levels, strict=True))
    totals = [slope + gate for slope, (gate, _) in zip(head.slopes, head.gates, strict=True)]
    ends = head.gains[totals.index(min(totals))], head.gains[totals.index(max(totals))]
    pieces, reach, windows = _split(keys, head.sizes), head.reach, windowed(head)
    if windows is not None:

        def evaluate(x: Tensor) -> Tensor:
            query = x.clamp(-reach, reach)
            return _beyond(x, query, windows(query), *ends)

        return evaluate
    return lambda x: _key_by_key(x, x.clamp(-reach, reach), pieces, gates, ends)


def from_parameters(numbers: dict[str, Tensor], piece: Tensor, sizes: Sequence[int], x: Tensor) -> Tensor:
    """Key by key with the parameters themselves, for gradients with respect to them."""
    *own, gate_slopes, gate_levels = (numbers[name] for name in NUMBERS)
    parts = zip(*(t.split(list(sizes)) for t in own), strict=True)
    pieces = [
        Many(*part) if len(part[0]) > MANY else list(zip(*(t.unbind() for t in part), strict=True)) for part in parts
    ]
    gates = list(zip(gate_slopes.unbind(), gate_levels.unbind(), strict=True))
    totals, gains = (own[0] + gate_slopes[piece]).detach(), own[3]
    left, right = (gains.gather(0, place.unsqueeze(0)).squeeze(0) for place in (totals.argmin(), totals.argmax()))
    steep = torch.maximum(own[0].detach().abs().amax(), gains.detach().abs().amax()) + gate_slopes.detach().abs().amax()
    reach = torch.finfo(x.dtype).max / (16 * len(piece) * (1 + steep))  # as `Head.reach`
    return _key_by_key(x, x.clamp(-reach, reach), pieces, gates, (left, right))


def _split(keys: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    return [keys[a:b] for a, b in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


def _key_by_key(
    x: Tensor, query: Tensor, pieces: Sequence[Piece], gates: Sequence[Key], ends: tuple[Number, Number]
) -> Tensor:
    """Softmax within each piece, then between pieces, the largest score subtracted in both; query is x, clamped."""
    parts = [_piece(query, piece) for piece in pieces]
    if len(parts) == 1 and not isinstance(gates[0][0], Tensor):  # of parameters even a gate that is alone has gradients
        [(_, above, below)] = parts
        return _beyond(x, query, above / below, *ends)
    logits = [top + (query * g + b) for (top, _, _), (g, b) in zip(parts, gates, strict=True)]
    aboves, belows = ([part[i] for part in parts] for i in (1, 2))
    if len(parts) == 2:
        return _beyond(x, query, _of_two(logits[1] - logits[0], aboves, belows), *ends)
    largest = _largest(logits)
    weights = [torch.exp(logit - largest) for logit in logits]
    numerator, denominator = (_sum(map(torch.mul, weights, side)) for side in (aboves, belows))
    return _beyond(x, query, numerator / denominator, *ends)


def _of_two(lead: Tensor, above: Sequence[Tensor], below: Sequence[Tensor]) -> Tensor:
    """Two pieces, by how much the second leads: one exponential, for the other's weight."""
    up = lead > 0
    weight = torch.exp(torch.where(up, -lead, lead))
    first, second = (torch.where(up, side[0] * weight + side[1], side[1] * weight + side[0]) for side in (above, below))
    return first / second


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)


def _beyond(x: Tensor, query: Tensor, inside: Tensor, left: Number, right: Number) -> Tensor:
    """Past the clamp, where products would overflow and one key has long had all the weight: its line, continued."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return inside + (x - query) * torch.where(x > 0, right, left)
    if left == right == 0:
        return inside
    return inside + (x - query) * (
        right if left == right else torch.where(x > 0, x.new_full((), right), x.new_full((), left))
    )


def _piece(x: Tensor, keys: Piece) -> tuple[Tensor, Tensor, Tensor]:
    """Largest score, and numerator and denominator relative to it."""
    if isinstance(keys, Many):
        side = x.unsqueeze(-1)
        rows = side * keys.slopes + keys.intercepts
        weights = torch.exp(rows - rows.amax(-1, keepdim=True))
        return rows.amax(-1), (weights * (side * keys.gains + keys.constants)).sum(-1), weights.sum(-1)
    if len(keys) == 1:
        slope, level, value, gain = keys[0]
        return x * slope + level, x * gain + value, torch.ones_like(x)
    kept = [x * s + c for s, c, _, _ in keys] if len(keys) <= MANY else None  # of many keys scores are made twice
    largest = _largest(kept or (x * s + c for s, c, _, _ in keys))
    numerator, denominator = torch.zeros_like(x), torch.zeros_like(x)
    for score, (_, _, value, gain) in zip(kept or (x * s + c for s, c, _, _ in keys), keys, strict=True):
        weight = torch.exp(score - largest)
        numerator, denominator = numerator + weight * (x * gain + value), denominator + weight
    return largest, numerator, denominator


def _largest(scores: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.maximum, scores)


def _polynomials(head: Head) -> Evaluation:
    """Horner's rule in z = exp(-step·|x|), coefficients from the end key on x's side."""
    step = head.slopes[1] - head.slopes[0]
    left, right = (_coefficients(*(getattr(head, n)[::s] for n in NUMBERS[1:4])) for s in (1, -1))
    ends, reach, dtype = (head.gains[0], head.gains[-1]), head.reach, head.dtype
    if head.reflection is not None:
        return _folded(head.reflection, step, left, reach, ends, dtype)

    both = [(lo, hi) for lo, hi in zip(left, right, strict=True)]

    def evaluate(x: Tensor) -> Tensor:
        up, whole = x > 0, x
        x = whole.clamp(-reach, reach)
        z = _decaying(step * torch.where(up, -x, x), dtype)

        def pick(low: float, high: float) -> Tensor | float:
            return low if low == high else torch.where(up, x.new_full((), high), x.new_full((), low))

        inside = _ratio(z, x, [tuple(pick(a, b) for a, b in zip(lo, hi, strict=True)) for lo, hi in both])
        return _beyond(whole, x, inside, *ends)

    return evaluate


def _folded(reflection: Reflection, step: float, left: Sequence[tuple[float, ...]], reach: float,
            ends: tuple[float, float], dtype: str) -> Evaluation:  # fmt: skip
    """A symmetric head: at -|x|, and mirrored."""
    odd, shift, tilt = reflection
    mirrored = [(weight, value, -gain) for weight, value, gain in left]
    short = ends[0] == 0 and dtype == "float32" and FAR / step <= reach

    def folded(x: Tensor) -> Tensor:
        if short and in_kernel():
            up = x.abs().clamp(max=FAR / step)
            inside = _ratio(decay(step * up), up, mirrored)
            return torch.where(x > 0, shift - inside, inside) if odd else _line(torch.relu(x), tilt, inside)
        all_down = torch.where(x > 0, -x, x)
        down = all_down.clamp(min=-reach)
        inside = _ratio(_decaying(step * down, dtype), down, left)
        near = _beyond(all_down, down, inside, ends[0], ends[0])
        if odd:
            far = shift - near
        elif ends[0] == 0:
            far = near + tilt * x
        else:  # tilt·x may be too large where the sum is not
            far = _beyond(-all_down, -down, inside - tilt * down, ends[1], ends[1])
        return torch.where(x > 0, far, near)

    return folded


def _decaying(exponent: Tensor, dtype: str) -> Tensor:
    """exp of a number that is not positive; zero where that is hardly a normal number: there processors are slow.

    That it may become zero is counted (docs/mathematics.md 5.5).
    """
    if dtype == "float32" and in_kernel():
        return decay((-exponent).clamp(max=FAR))
    least = math.log(1.25 * LEAST_NORMAL[dtype])
    return torch.where(exponent < least, torch.zeros_like(exponent), torch.exp(exponent.clamp(min=least)))


def _ratio(z: Tensor, x: Tensor, coefficients: Sequence[tuple[Any, ...]]) -> Tensor:
    """Numerator over denominator, even and odd powers by themselves: two shorter chains that a processor overlaps."""
    square = z * z
    (above, below), (odd_above, odd_below) = (_horner(square, x, coefficients[i::2]) for i in (0, 1))
    return (above + z * odd_above) / (below + z * odd_below)


def _line(x: Any, factor: Any, rest: Any) -> Any:
    """x·factor + rest without zeros and ones, which no compiler may leave out: x might be infinite."""
    plain = isinstance(factor, float | int)
    if plain and factor == 0:
        return rest
    product = x if plain and factor == 1 else x * factor
    return product if isinstance(rest, float | int) and rest == 0 else product + rest


def _horner(z: Tensor, x: Tensor, coefficients: Sequence[tuple[Any, ...]]) -> tuple[Any, Any]:
    weight, value, gain = coefficients[-1]
    numerator, denominator = _line(x, gain, value), weight
    for weight, value, gain in coefficients[-2::-1]:
        numerator, denominator = _line(z, numerator, _line(x, gain, value)), _line(z, denominator, weight)
    return numerator, denominator


def _coefficients(*numbers: Sequence[float]) -> list[tuple[float, ...]]:
    """exp(intercept_j - intercept_0) times (1, constant_j, gain_j), from the end key inwards."""
    intercepts, constants, gains = (torch.tensor(part, dtype=torch.float64) for part in numbers)
    weights = (intercepts - intercepts[0]).exp()
    return list(zip(weights.tolist(), (weights * constants).tolist(), (weights * gains).tolist(), strict=True))
