"""H heads compute n truncated linear functions on n columns (Theorem 3.2 of v1; docs/mathematics.md 1.4).

The lift is w_i * x_i above the identity I_n, (d + n) rows and n columns. Against the identity rows a matrix
writes any constant into any column, so a head's n columns are its keys: n - 2 consecutive anchors out of a
global list of N = (n - 2)H, and a *sentinel* one step outside either end, whose value is 0, so that the head
is silent where u belongs to another one. The list is uniform in the interior of [low, high],
L_j = low + (j + 1)h with h = (high - low)/(N + 1); the first head's low sentinel falls on `low` and carries
it, the last head's high sentinel on `high` and carries that.

    W_Q  row 1: (1...1 | t_i - m), giving u_i - m;  row 2: (0 | 1...1), giving 1
    W_K  row 1: (0 | 2β(L_k - m));                  row 2: (0 | -β(L_k - m)²)
    W_V  row G(k): (0 | L_k) for anchors, 0 for sentinels;   W_O = I

All heads measure from the same middle m, so the score of an anchor is the same number in both heads that
hold it, and what one head gives up between its last anchor and its sentinel is what the next one takes up.

**Bound.**  max(|low|, |high|)·ε + (high - low)/N  with  ε = 2H(n - 1) exp(-βh²), for every input and β > 0.
In each head, the columns other than the two nearest to u have together at most (n - 1)t of the weight,
t = exp(-βh²) (`anchors.py`; a head that lies wholly to one side of u puts all but that on its end column,
a sentinel of value 0, or `low` or `high` themselves where the target is just that). If the two nearest are
in one head they blend to within h/2. If they are the last anchor and the sentinel of one head and the
sentinel and first anchor of the next, the shares are those of the same two-point blend, but for the weight
each head leaves to others. Each unit of weight that is elsewhere changes the sum by at most 2 max(|low|,
|high|): what it adds there and what it lacks here. And h/2 <= (high - low)/N.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError
from anchorhead.head.head import Head
from anchorhead.model.affine import AppendRows, PositionGain
from anchorhead.model.attention import CHUNK_ENTRIES, Attention
from anchorhead.theorems.anchors import check_count, check_range, even_points, output_rows, score_rows
from anchorhead.theorems.ramps import Ramps, head_of_u, ramp_head, read_ramps


class MultiHead(Ramps):
    """The network of Theorem 3.2; build it with `multi_head`.

    >>> heads = ah.theorems.multi_head([[1.0]] * 3, [0.0] * 3, low=-1, high=1, heads=8, dtype=torch.float64)
    >>> heads.tokens, heads.features, heads.resources.heads
    (3, 1, 8)
    """

    theorem = "multi_head"
    sentinels = 1

    @property
    def keys(self) -> int:
        return self.tokens

    def fast(self, x: Tensor) -> Tensor:
        """(..., n, d) to (..., n, output_features), without forming the identity rows.

        Neighbouring heads share two columns, so the scores of the global list are computed once and every
        head's softmax is taken over its window of them: the same numbers as the literal evaluation's.
        """
        n, d = self.tokens, self.features
        layer = self.attention
        u = self.lift[0](x).sum(-1) + layer.query[0, 0, d:]
        keys, values = layer.key[:, :, d:], layer.value[:, :, d:]
        slope, square = (torch.cat([keys[:-1, r, : n - 2].flatten(), keys[-1, r]]) for r in (0, 1))
        rows = max(1, CHUNK_ENTRIES // (values.shape[0] * n))
        out = [windows(chunk * slope + square, values) for chunk in u.reshape(-1, 1).split(rows)]
        return torch.cat(out).reshape(*u.shape, self.output_features)

    def widest(self, *, one_row: bool) -> float:
        """Every head is silent, or blends its own values: their extremes add up."""
        values = self.attention.value[:, :, self.features :].double().sum(1)
        most, least = (values.clamp(min=0).amax(-1).sum().item(), values.clamp(max=0).amin(-1).sum().item())
        low, high = (self.low, self.high) if one_row else (min(self.low, 0.0), max(self.high, 0.0))
        return max(most - low, high - least) + self.hull_rounding(values.numel())

    def matrices(self) -> dict[str, Tensor]:
        """W_Q, W_K (H, 2, d + n), W_V (H, d_o, d + n), W_O (H, n, n); and the lift, lift.gain, ..."""
        return self.attention.matrices(self.tokens) | self.lift_matrices()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.attention.shapes(self.tokens) | self.lift_shapes()

    def scalar_heads(self) -> list[Head]:
        """Every head, as a function of u = w·x + t."""
        d, middle = self.features, (self.low + self.high) / 2
        keys, values = (w[:, :, d:].double() for w in (self.attention.key, self.attention.value))
        return [head_of_u(key[0], key[1], value.sum(0), middle) for key, value in zip(keys, values, strict=True)]

    def described(self) -> dict[str, Any]:
        return super().described() | {"heads": self.heads}


def windows(scores: Tensor, values: Tensor) -> Tensor:
    """Softmax of each head's window of the global scores (q, N + 2), times values (H, d_o, n), summed."""
    n = values.shape[-1]
    weights = scores.unfold(-1, n, n - 2).softmax(-1)
    return torch.einsum("qhk,hok->qo", weights, values)


def multi_head(
    weights: Any,
    bias: Any,
    low: float,
    high: float,
    heads: int,
    *,
    output_features: int = 1,
    output_row: Any = None,
    selection_error: float | None = None,
    beta: float | None = None,
    dtype: torch.dtype | None = None,
) -> MultiHead:
    """H heads that compute clip(w_i·x_i + t_i, low, high) for every token i without lengthening the sequence.

    weights: (n, d) with n >= 3. bias: (n,). heads: H >= 1; the resolution is (high - low)/((n - 2)H).
    output_row maps the index in the global list of (n - 2)H anchors to an output row; the two sentinels that
    carry `low` and `high` follow the first and the last anchor. Other arguments as for `single_head`.

    >>> heads = ah.theorems.multi_head([[1.0]] * 3, [0.0] * 3, low=-1, high=1, heads=8, dtype=torch.float64)
    >>> x = torch.tensor([[0.3], [-0.9], [2.0]], dtype=torch.float64)
    >>> (heads(x) - heads.exact(x)).abs().max().item() <= heads.bound
    True
    """
    w, t = read_ramps(weights, bias, dtype)
    n = w.shape[0]
    low, high = check_range(low, high)
    heads = _check_heads(heads, n)
    total = (n - 2) * heads
    rows = output_rows(output_row, total, output_features)
    losers = 2 * heads * (n - 1)
    head = ramp_head(t, low, high, total, total + 2, losers, selection_error, beta)
    points = even_points(low, high, total + 2)
    lift = nn.Sequential(PositionGain(w), AppendRows(torch.eye(n, dtype=w.dtype)))
    attention = _attention(w, t, points, rows, output_features, head.beta)
    model = MultiHead([lift, attention], head, w, t, points[1:-1], rows, output_features, losers)
    model.heads = heads
    return model


def _check_heads(heads: int, tokens: int) -> int:
    heads = check_count(heads, "heads", 1)
    if tokens < 3:
        raise InputError(
            f"multi_head needs at least 3 tokens, and weights has {tokens}: two columns of every head are sentinels. "
            "Use single_head, or pad the sequence."
        )
    return heads


def _attention(w: Tensor, t: Tensor, points: Tensor, rows: Tensor, d_o: int, beta: float) -> Attention:
    n, d = w.shape
    middle = ((points[0] + points[-1]) / 2).item()
    slope, square = score_rows((points - middle).to(w.dtype).double())
    heads = (len(points) - 2) // (n - 2)
    all_rows = torch.cat([rows[:1], rows, rows[-1:]])
    query = torch.zeros(1, 2, d + n, dtype=torch.float64)
    query[0, 0, :d] = 1
    query[0, 0, d:] = t.double() - middle
    query[0, 1, d:] = 1
    key = torch.zeros(heads, 2, d + n, dtype=torch.float64)
    value = torch.zeros(heads, d_o, d + n, dtype=torch.float64)
    for head in range(heads):
        window = torch.arange(n) + head * (n - 2)
        key[head, 0, d:], key[head, 1, d:] = beta * slope[window], beta * square[window]
        carried = points[window].clone()
        carried[0] *= head == 0  # the outermost sentinels carry low and high, the others nothing
        carried[-1] *= head == heads - 1
        value[head, all_rows[window], d + torch.arange(n)] = carried
    return Attention(query.to(w.dtype), key.to(w.dtype), value.to(w.dtype))
