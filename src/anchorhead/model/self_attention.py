"""A head for one variable as literal self-attention on a sequence of n tokens, with its matrices.

*Constant values.* The lift appends one column a key, after the tokens: rows (u, 1, slope, intercept, gate slope,
gate level, value), and the query is (u, 1, u, 1). A token's own column must not be attended to: its key rows are
(0, -S, 0, 0) with S so large that its weight is zero.

*Affine values.* Key k's value constant_k + gain_k u belongs to the token that asks, so each token has copies of
itself, one a key: n·K columns, column (i, k) holding u_i, the key's numbers, the value constant_k + gain_k u_i, which
is affine in the token, and the one-hot row of i. The key of token j's copies is -S against the one-hot row of every
other token and 0 against its own, so copies of other tokens fall behind by S and its own lose no digits. W_O keeps
column (i, 0) of each token.

S is 800 more than any difference of scores on the range |u| <= reach, so that exp gives exactly zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anchorhead.head.module import HeadModule
from anchorhead.head.parameters import check_tensor, constant
from anchorhead.model.affine import AppendColumns, AppendRows, MixSequence, PositionGain
from anchorhead.model.attention import Attention
from anchorhead.model.form import require_tokens
from anchorhead.model.network import Network

REACH = 100.0
SILENCE = 800.0


class SelfAttention(Network):
    """Lift, one attention layer: (..., n, 1) to (..., n, 1). Right for |u| up to `reach`."""

    def __init__(self, lift: nn.Module, attention: Attention, tokens: int, columns: int, reach: float) -> None:
        super().__init__([lift, attention], (tokens, 1))
        self.lift, self.attention = lift, attention
        self.tokens, self.columns, self.reach = tokens, columns, reach

    def forward(self, x: Tensor) -> Tensor:
        check_tensor(x, self.attention.query.dtype, (self.tokens, 1), what="network")
        return super().forward(x)

    def matrices(self) -> dict[str, Tensor]:
        """W_Q, W_K, W_V, W_O in the paper's orientation (tokens as columns)."""
        return {name: w[0] for name, w in self.attention.matrices(self.columns).items()}


def head_as_self_attention(head: HeadModule, tokens: int) -> SelfAttention:
    """The literal network for that many tokens."""
    require_tokens(tokens)
    steep, high = (head.slopes.abs().max() + head.gate_slopes.abs().max(),
                   head.intercepts.abs().max() + head.gate_levels.abs().max())  # fmt: skip
    silence = 2 * (steep.item() * REACH + high.item()) + SILENCE
    build = _shared if not head.gains.any() else _copies
    return build(head, tokens, silence)


def _shared(head: HeadModule, n: int, silence: float) -> SelfAttention:
    keys, dtype = head.keys, head.dtype
    lifted = torch.zeros(n + keys, 6, dtype=dtype)  # rows below u: one, the four of a score, value
    lifted[:, 0] = 1
    lifted[:n, 2] = -silence
    lifted[n:, 1:5], lifted[n:, 5] = _score_rows(head), head.constants
    lift = nn.Sequential(AppendColumns(torch.zeros(keys, 1, dtype=dtype)), AppendRows(lifted))
    query, key, value = (torch.zeros(1, r, 7, dtype=dtype) for r in (4, 4, 1))
    query[0, :, :2] = _query_rows(dtype)
    key[0, :, 2:6] = torch.eye(4, dtype=dtype)
    value[0, 0, 6] = 1
    attention = Attention(query, key, value, keep=slice(0, n), live=slice(n, n + keys))
    return SelfAttention(lift, attention, n, n + keys, REACH)


def _copies(head: HeadModule, n: int, silence: float) -> SelfAttention:
    keys, dtype = head.keys, head.dtype
    columns = n * keys
    copy = torch.eye(n, dtype=dtype).repeat_interleave(keys, dim=0)
    per_key = torch.zeros(columns, 5 + n, dtype=dtype)  # rows below u and value: one, the four of a score, one-hot
    per_key[:, 0] = 1
    per_key[:, 1:5] = _score_rows(head).repeat(n, 1)
    per_key[:, 5:] = copy
    gain = torch.stack([torch.ones(columns, dtype=dtype), head.gains.repeat(n)], dim=1)
    shift = torch.stack([torch.zeros(columns, dtype=dtype), head.constants.repeat(n)], dim=1)
    lift = nn.Sequential(MixSequence(copy), Twice(), PositionGain(gain, shift), AppendRows(per_key))
    width = 7 + n
    query, key, value = (torch.zeros(1, r, width, dtype=dtype) for r in (4 + n, 4 + n, 1))
    query[0, :4, [0, 2]] = _query_rows(dtype)
    key[0, :4, 3:7] = torch.eye(4, dtype=dtype)
    query[0, 4:, 7:] = torch.eye(n, dtype=dtype)
    key[0, 4:, 7:] = -silence * (1 - torch.eye(n, dtype=dtype))  # zero for the token's own copies, exactly
    value[0, 0, 1] = 1
    return SelfAttention(lift, Attention(query, key, value, keep=slice(0, columns, keys)), n, columns, REACH)


def _score_rows(head: HeadModule) -> Tensor:
    """What a key holds, (keys, 4): its slope and intercept, and those of its piece's gate."""
    sizes = torch.tensor(head.sizes)
    gates = [g.repeat_interleave(sizes) for g in (head.gate_slopes, head.gate_levels)]
    return torch.stack([head.slopes, head.intercepts, *gates], dim=1)


def _query_rows(dtype: torch.dtype) -> Tensor:
    """(u, 1) to (u, 1, u, 1)."""
    return torch.eye(2, dtype=dtype).repeat(2, 1)


class Twice(nn.Module):
    """(..., N, 1) to (..., N, 2): the token beside itself."""

    def __init__(self) -> None:
        super().__init__()
        self.ones = constant(torch.ones(1, 2))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.ones.to(z.dtype)
