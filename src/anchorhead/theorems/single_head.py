"""One head computes n truncated linear functions (Theorem 3.1 of v1; docs/mathematics.md 1.3).

Anchors L_0 < ... < L_{p-1}, uniform on [low, high], spacing h = (high - low)/(p - 1). Token i has
u_i = w_i·x_i + t_i. Its score for key k is -β(u_i - L_k)², its value L_k, so softmax returns the anchors
around u_i. The lift makes p columns of 2d + d_o + 2 rows (m is the middle of the range: scores are taken
from there, because expanded squares lose digits far from zero):

    query rows (d + 1)   column i <= n:  w_i * x_i + (t_i - m)/d elementwise, then 1
    key rows   (d + 1)   column k:       2(L_k - m) in each of d rows, then -(L_k - m)²
    value rows (d_o)     column k:       L_k in row G(k)

W_Q sums the d query rows first, so that u_i is rounded once, for all keys alike, and multiplies by β; W_K
takes one of the d equal key rows and the square; W_V the value rows; W_O keeps the first n columns.

**Bound.**  |out_i - clip(u_i, low, high)| <= max(|low|, |high|)·ε + (high - low)/p,  ε = (p - 1) exp(-βh²),
for every input and every β > 0. Let t = exp(-βh²), so ε = (p - 1)t, and M = max(|low|, |high|) >= (p - 1)h/2.

*u in range.* The two nearest blend to within h/2 <= (high - low)/p (`anchors.py`). The others pull left or
right, so only the stronger side counts. On the far side of the nearest the m-th further anchor is at most
(m + 1/2)h away with weight at most t^(m²) <= t: in all at most t·h·p(p-2)/2 <= t·h·(p-1)²/2 <= Mε. On the
other side it is at most (m + 1)h away with weight at most t^(m(m+1)) <= t²: at most t²·h·(p-2)(p+1)/2,
which is again <= t·h·(p-1)²/2 unless t > (p-1)²/((p-2)(p+1)); but then Mε exceeds high - low.
*u below low* (or above high, likewise). The target is L_0, and anchor m has weight at most t^(m²): the error
is at most t·h·p(p-1)/2 = Mε·p/(p-1) at most, and the excess t(high - low)/2 is below (high - low)/p unless
t > 2/p; but then the bound exceeds high - low, further than which no blend of anchors can be.

*Whatever β.* The output rises with u, and anchors are symmetric about the middle m, where it is m: so it is on u's
side of m, between m and the end there, and never further than (high - low)/2 from the target. `bound` is the smaller
of the two, and at small β it is this one.

**Causal.** With `causal=True` the anchors have p columns of their own, before the tokens, and p need not
exceed n. Each token's column is a key too, visible to it and to later tokens; its score is a constant 800
below the least best score of any anchor (which is -βh²/4 or more), and exp(-800) is zero in every dtype.
W_Q multiplies by βs in place of β, and the key rows hold 1/s of the above, s >= 1 the least power of two at which
that score over βs is at most 2^15: at small β it would be no number of float16 otherwise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError
from anchorhead.head.head import Head
from anchorhead.model.affine import AppendColumns, AppendRows, PositionGain
from anchorhead.model.attention import Attention, fused
from anchorhead.model.network import Resources
from anchorhead.theorems.anchors import check_count, check_range, even_points, output_rows, score_rows
from anchorhead.theorems.precision import AnchorHead
from anchorhead.theorems.ramps import Ramps, head_of_u, ramp_head, read_ramps

SILENCE = 800.0
"""exp(-800) is exactly zero in float64 and in every narrower dtype."""


def silent_score(head: AnchorHead) -> float:
    """How far below zero a token's own key scores in the causal form."""
    return head.beta * head.spacing**2 / 4 + SILENCE


def silent_scale(head: AnchorHead) -> float:
    """s, by which keys are smaller and queries larger in the causal form."""
    return 2.0 ** max(0, math.frexp(silent_score(head) / head.beta)[1] - 15)


class SingleHead(Ramps):
    """The network of Theorem 3.1; build it with `single_head`.

    >>> head = ah.theorems.single_head([[1.0], [2.0]], [0.0, 0.5], low=-1, high=1, anchors=32, dtype=torch.float64)
    >>> head.tokens, head.features, sorted(head.matrices())
    (2, 1, ['W_K', 'W_O', 'W_Q', 'W_V', 'lift.bias', 'lift.columns', 'lift.gain', 'lift.rows'])
    """

    theorem = "single_head"
    causal: bool

    def fast(self, x: Tensor) -> Tensor:
        """(..., n, d) to (..., n, output_features).

        The keys and values are constants of the lift, the same for every sequence, so they are projected once
        and the tokens of all sequences are queries to them: the same numbers as the literal evaluation's.
        """
        d, layer = self.features, self.attention
        u = self.lift[0](x) @ layer.query[0, 0, :d]
        query = torch.stack([u, layer.query[0, 1, d].expand_as(u)], dim=-1)
        constants = cast(AppendRows, self.lift[-1])
        anchors = constants.rows[layer.live]
        key, value = (anchors @ w[0, :, d:].mT for w in (layer.key, layer.value))
        return fused(query.reshape(1, -1, 2), key[None], value[None]).reshape(*u.shape, self.output_features)

    def widest(self, *, one_row: bool) -> float:
        """Half of the range; see the top. A row of several lies between 0 and an end."""
        wide = (self.high - self.low) / 2 if one_row else max(self.high, 0.0) - min(self.low, 0.0)
        return wide + self.hull_rounding(len(self.anchors))

    @property
    def resources(self) -> Resources:
        """Those of any ramps; with silent keys the largest logit may be theirs."""
        found = super().resources
        return replace(found, logit_range=max(found.logit_range, silent_score(self._head))) if self.causal else found

    @property
    def columns(self) -> int:
        """Of the lifted sequence."""
        return len(self.anchors) + (self.tokens if self.causal else 0)

    def matrices(self) -> dict[str, Tensor]:
        """W_Q (2, D), W_K (2, D), W_V (d_o, D), W_O (columns, n) with D = 2d + d_o + 2; and the lift, lift.gain, ..."""
        return {name: w[0] for name, w in self.attention.matrices(self.columns).items()} | self.lift_matrices()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape[1:] for name, shape in self.attention.shapes(self.columns).items()} | self.lift_shapes()

    def scalar_heads(self) -> list[Head]:
        """The head, as a function of u = w·x + t."""
        d, layer = self.features, self.attention
        anchors = cast(AppendRows, self.lift[-1]).rows[layer.live].double()
        key, value = (anchors @ w[0, :, d:].double().mT for w in (layer.key, layer.value))
        return [head_of_u(layer.query[0, 0, 0].double() * key[:, 0], layer.query[0, 1, d].double() * key[:, 1],
                          value.sum(-1), (self.low + self.high) / 2)]  # fmt: skip

    def described(self) -> dict[str, Any]:
        return super().described() | {"causal": self.causal}


def single_head(
    weights: Any,
    bias: Any,
    low: float,
    high: float,
    anchors: int,
    *,
    output_features: int = 1,
    output_row: Any = None,
    selection_error: float | None = None,
    beta: float | None = None,
    causal: bool = False,
    dtype: torch.dtype | None = None,
) -> SingleHead:
    """One attention head that computes clip(w_i·x_i + t_i, low, high) for every token i.

    weights: (n, d), the w_i. bias: (n,), the t_i. anchors: p > n, or any p >= 2 with `causal=True`, which
    puts the anchors into columns of their own before the tokens.
    output_features, output_row: how many output rows, and the row that each anchor's value goes to: an int,
    a sequence of p ints, or a callable from anchor index to row (the paper's G). Row 0 by default.
    beta: β, the inverse temperature; or selection_error, from which it is derived, 1e-6 where neither is given.
    dtype: that of `weights` unless given.

    >>> head = ah.theorems.single_head([[1.0], [2.0]], [0.0, 0.5], low=-1, high=1, anchors=32, dtype=torch.float64)
    >>> x = torch.tensor([[0.3], [-0.9]], dtype=torch.float64)
    >>> (head(x) - head.exact(x)).abs().max().item() <= head.bound
    True
    """
    w, t = read_ramps(weights, bias, dtype)
    n, d = w.shape
    low, high = check_range(low, high)
    p = _check_anchors(anchors, n, causal)
    rows = output_rows(output_row, p, output_features)
    head = ramp_head(t, low, high, p, p, p - 1, selection_error, beta)
    points = even_points(low, high, p)
    silence, scale = (silent_score(head) / head.beta, silent_scale(head)) if causal else (None, 1.0)
    lift = _lift(w, t, points, (low + high) / 2, rows, output_features, silence, scale)
    attention = _attention(d, output_features, head.beta * scale, w.dtype, n, p, causal)
    model = SingleHead([lift, attention], head, w, t, points, rows, output_features, losers=p - 1)
    model.causal = causal
    return model


def _check_anchors(anchors: int, tokens: int, causal: bool) -> int:
    anchors = check_count(anchors, "anchors", 2)
    if not causal and anchors <= tokens:
        raise InputError(
            f"anchors={anchors} must exceed the {tokens} tokens (p > n), because every token sits in a column of its "
            f"own; take at least {tokens + 1}, or causal=True, which gives the anchors columns of their own."
        )
    return anchors


def _lift(w: Tensor, t: Tensor, points: Tensor, middle: float, rows: Tensor, d_o: int,
          silence: float | None, scale: float) -> nn.Sequential:  # fmt: skip
    """A: (..., n, d) to (..., columns, 2d + d_o + 2); silence: of the tokens' own keys where it is causal, over β;
    scale: by which keys are smaller."""
    n, d = w.shape
    p, dtype = len(points), w.dtype
    centred = (points - middle).to(dtype).double()  # the anchors that the dtype can represent
    slope, square = score_rows(centred)
    keys = torch.cat([slope[:, None].expand(p, d), square[:, None]], dim=1) / scale
    values = torch.zeros(p, d_o, dtype=torch.float64)
    values[torch.arange(p), rows] = points
    one = torch.ones(p, 1, dtype=torch.float64)
    constants = torch.cat([one, keys, values], dim=1)
    if silence is not None:
        silent = torch.zeros(n, constants.shape[1], dtype=torch.float64)
        silent[:, 0] = 1
        silent[:, d + 1] = -silence / scale
        constants = torch.cat([constants, silent])
    shift = ((t.double() - middle) / d).to(dtype)
    gain = PositionGain(w, shift[:, None].expand(n, d))
    causal = silence is not None
    empty = AppendColumns(w.new_zeros(p if causal else p - n, d), front=causal)
    return nn.Sequential(gain, empty, AppendRows(constants.to(dtype)))


def _attention(d: int, d_o: int, beta: float, dtype: torch.dtype, n: int, p: int, causal: bool) -> Attention:
    width = 2 * d + d_o + 2
    query, key = torch.zeros(1, 2, width, dtype=dtype), torch.zeros(1, 2, width, dtype=dtype)
    query[0, 0, :d] = beta
    query[0, 1, d] = beta
    key[0, 0, d + 1] = 1
    key[0, 1, 2 * d + 1] = 1
    value = torch.zeros(1, d_o, width, dtype=dtype)
    value[0, :, 2 * d + 2 :] = torch.eye(d_o, dtype=dtype)
    keep = slice(p, p + n) if causal else slice(0, n)
    return Attention(query, key, value, keep=keep, causal=causal, live=slice(0, p))
