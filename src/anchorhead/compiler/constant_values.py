"""Heads that carry a partner: constant values, so that phi(u)·v is phi's head with every value times v.

Three ways, the cheapest first. A function that settles on constants on both sides (sigmoid, tanh) may be blended from
those constants by two keys or a few. A function with kinks is cut there, and its pieces, a constant by one key, any
other by a smooth head, are joined by gates (`head/kinked.py`), so that clip carries its partner at any tolerance with
about ten keys. Everything else is a smooth head.

In float32 what limits them is rounding: keys must tell u from its neighbours, so scores are large and lose digits,
about a millionth of the range. Values are therefore kept close to those of phi itself, keys are added until the
approximation is below that or the tolerance, and the certificate says both, approximation and rounding.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from anchorhead.compiler.head_methods import Gated, Smooth
from anchorhead.compiler.joined import kink_between
from anchorhead.compiler.method import Goal
from anchorhead.compiler.prove import certificate, prove_head, sampled_error
from anchorhead.compiler.target import Target, affine_form, read_target
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.pieces import Piece
from anchorhead.errors import InputError, ToleranceError
from anchorhead.expression.graph import Expression
from anchorhead.head.head import Head
from anchorhead.head.kinked import kinked, single_key
from anchorhead.head.smooth import smooth
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore
from anchorhead.proof.approximation import Refutation

SIZES = (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96)
FEW = (2, 3, 4, 6)
GATES = 0.3
"""The share of the tolerance that gates get."""
LARGEST = 1.5
"""Values, in units of the largest that phi takes on the range."""
UNITS = 16
PATIENCE = 2
"""How many heads that samples like may fail to be proved, before more keys are no longer tried."""


def carrying_model(
    formula: str | Expression, declared: tuple[float, float] | None, tol: float, dtype: torch.dtype
) -> CompiledModel:
    """The smallest head with constant values whose approximation keeps tol, or what the dtype can tell apart.

    declared: the interval, or None for all of R, which a function that settles on constants on both sides can have.
    Every caller gets a module of its own.
    """
    return copy.deepcopy(_searched(formula, declared, tol, dtype))


@lru_cache(maxsize=500)
def _searched(
    formula: str | Expression, declared: tuple[float, float] | None, tol: float, dtype: torch.dtype
) -> CompiledModel:
    """The head of `carrying_model`, found once; never handed out itself."""
    name = str(dtype).removeprefix("torch.")
    target = read_target(formula, declared)
    scale = float(np.abs(target.function()(np.linspace(*target.window, 2001))).max())
    goal = Goal(max(tol, UNITS * UNIT[name] * scale), LARGEST * (scale or 1.0))
    unclear = 0
    with threadpool_limits(1):
        for method, head, cuts in _candidates(target, goal):
            rounded = head.rounded(name)
            if not sampled_error(target, rounded, cuts, goal.error) <= 0.9 * goal.error:
                continue
            proved = prove_head(target, rounded, goal.error, cuts, method)
            if not isinstance(proved, Refutation):
                return CompiledModel(HeadCore(proved), certificate(target, proved), method)
            unclear += not proved.certain
            if unclear == PATIENCE:
                break
    raise ToleranceError(
        f"{formula} on [{target.low:.4g}, {target.high:.4g}] is not reached with at most {SIZES[-1]} keys of constant "
        f"values for {goal.error:.2g}; declare a smaller range, or use a larger tolerance."
    )


def _candidates(target: Target, goal: Goal) -> Iterator[tuple[str, Head, list[float]]]:
    """Heads with constant values in the order in which they are tried: method, head, where boxes should begin."""
    if target.kinks:
        yield from _joined(target, goal)
        return
    yield from _settled(target, goal)
    if not target.bounded:
        return
    fit = Smooth().fit(target)
    for keys in SIZES:
        yield "smooth", fit.build(keys, Goal(goal.error / 2, goal.limit)), []


def _settled(target: Target, goal: Goal) -> Iterator[tuple[str, Head, list[float]]]:
    """Gated heads whose gains all turn out to be zero."""
    try:
        fit = Gated().fit(target)
    except InputError:
        return
    for keys in FEW:
        if keys >= fit.least:
            head = fit.build(keys, Goal(goal.error / 2, goal.limit))
            if not np.isfinite(head.constants).all() or any(head.gains):
                return
            yield "gated", head, []


def _joined(target: Target, goal: Goal) -> Iterator[tuple[str, Head, list[float]]]:
    if not all(np.isfinite([p.low, p.high]).all() or _constant(target, p) is not None for p in target.pieces):
        return
    kinks = [kink_between(target, left, right) for left, right in itertools.pairwise(target.pieces)]
    sharp = [kink.sharpness(GATES * goal.error) for kink in kinks]
    places, room = [kink.place for kink in kinks], [30 / s for s in sharp]
    cuts = [c + t / s for c, s in zip(places, sharp, strict=True) for t in (-30.0, -4.0, 0.0, 4.0, 30.0)]
    for keys in SIZES:
        heads = [
            _piece(target, piece, before, after, keys, goal)
            for piece, before, after in zip(target.pieces, [0.0, *room], [*room, 0.0], strict=True)
        ]
        yield "kinked", kinked(heads, places, sharp), cuts


def _piece(target: Target, piece: Piece, before: float, after: float, keys: int, goal: Goal) -> Head:
    constant = _constant(target, piece)
    if constant is not None:
        return single_key(constant, 0.0)
    share = goal.error * (0.9 - GATES)
    return smooth(target.function(piece.node), piece.low - before, piece.high + after, keys, goal=share,
                  limit=goal.limit).best()[1]  # fmt: skip


def _constant(target: Target, piece: Piece) -> float | None:
    """The value of a piece that is constant."""
    line = affine_form(piece.node, target.variable, piece.low, piece.high)
    return line.constant if line is not None and line.gain == 0 else None
