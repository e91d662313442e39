"""Whether what looks like softmax attention is it: queries, keys and values must move when the data do.

That a tensor was computed from data says little: eye + 0·v was, too, and softmax(h) times it is a softmax over
features. So a model is watched twice, the second time with other data, and of each product and each blend the factors
of the first run, q, k, v, are held against those of the second, q', k', v'. A softmax is blind to what is added to all
of its scores, so that differences along its axis count.

Scores   s = q·k must differ between keys by q·(k' - k), and by (q' - q)·k, in at least two fifths of the places where
         s does, since some tokens may be padding.
Addends  what else is added to scores must be a constant: the same in both runs.
Values   v must differ between keys by v' - v in every column in which it differs at all; keys count by their weights.
         Where there are two keys, one of thousands of columns may stay by chance, so what stays is looked at again on
         yet other data.

What moves by less than `LEAST` of its size counts as constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LEAST = 1e-4
SPREAD = 0.5
"""By how much of themselves the data are moved at most."""


@dataclass(frozen=True)
class Record:
    """What took part in attention: tensors by role."""

    role: str
    tensors: tuple[Tensor, ...]


def moved(values: Tensor, generator: torch.Generator) -> Tensor:
    """Other data of the same kind: every number times another, so that zeros and signs stay."""
    factors = 1 + SPREAD * (2 * torch.rand(values.shape, generator=generator) - 1)
    return values * factors.to(values.device, values.real.dtype if values.is_complex() else values.dtype)


def constant(first: Mapping[Any, Record], *others: Mapping[Any, Record]) -> dict[Any, str]:
    """What is wrong, by key, with what does not move from one run to the others as attention does."""
    found = {}
    for key, record in first.items():
        runs = [run[key].tensors for run in others if key in run]
        shapes = [[t.shape for t in tensors] for tensors in (record.tensors, *runs)]
        alike = len(runs) == len(others) and all(each == shapes[0] for each in shapes)
        wrong = CHECKS[record.role](record.tensors, *runs) if alike else UNKNOWN
        if wrong:
            found[key] = wrong
    return found


UNKNOWN = "not found again with other data"


def _scores(first: tuple[Tensor, ...], second: tuple[Tensor, ...], *more: tuple[Tensor, ...]) -> str:
    """q, (..., i, d), and k, (..., d, j)."""
    (q, k), (other_q, other_k) = (tuple(_wide(t) for t in run) for run in (first, second))
    scores = q @ k
    for name, change in (("keys", q @ (other_k - k)), ("queries", (other_q - q) @ k)):
        for axis in (-1, -2):
            middle = scores.median(axis, keepdim=True).indices  # against which the others are held
            if not _move(*(t - t.gather(axis, middle) for t in (scores, change))):
                return f"{name} that do not depend on the data"
    return ""


def _move(scores: Tensor, change: Tensor) -> bool:
    """In every matrix of a batch."""
    size = scores.abs().flatten(-2)
    counts = size > torch.clamp(LEAST * size.amax(-1, keepdim=True), min=1e-6)
    moves = counts & (change.abs().flatten(-2) > LEAST * size)
    return bool((5 * moves.sum(-1) >= 2 * counts.sum(-1)).all())


def _addend(first: tuple[Tensor, ...], *others: tuple[Tensor, ...]) -> str:
    same = all(torch.equal(first[0].nan_to_num(), other[0].nan_to_num()) for other in others)
    return "" if same else "scores to which something that depends on the data is added"


def _values(first: tuple[Tensor, ...], *others: tuple[Tensor, ...]) -> str:
    """Weights, (..., i, j), and values, (..., j, c); a column that moves in any of the other runs does."""
    weights, values = _wide(first[0]), _wide(first[1])
    count = weights.nan_to_num(0.0).mean(-2).unsqueeze(-1)

    def centred(v: Tensor) -> Tensor:
        return v - (count * v).sum(-2, keepdim=True)

    spread = (count * centred(values).abs()).sum(-2)
    fixed = spread > 1e-6 * values.abs().amax()
    for other in others:
        moves = (count * (centred(_wide(other[1])) - centred(values)).abs()).sum(-2)
        fixed &= moves <= LEAST * spread
    return "values that do not depend on the data" if bool(fixed.any()) else ""


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


CHECKS: dict[str, Callable[..., str]] = {"scores": _scores, "addend": _addend, "values": _values}
