"""Multi-head softmax attention, with its weights as the paper writes them.

For `Z` with tokens as columns, every head has its own matrices and the layer is

    Attn(Z) = sum over heads of  W_V Z · softmax((W_K Z)^T (W_Q Z)) · W_O        (softmax over keys)

There is no 1/sqrt(d): β is part of the weights. `W_O` acts on the right, on the sequence. Here
tokens are rows, `(..., n, d)`, so every product is transposed; the stored matrices keep the paper's
orientation and any rectangular shape.

Two evaluations of the same numbers. *Literal* forms scores, softmax and values as written, and can return the attention
weights; of a batch it forms those of so many sequences at a time as fit. *Fast* sends the queries in chunks through
torch's fused kernel and never holds an n x p matrix. They agree to rounding.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn

from anchorhead.head.parameters import CHUNK_ENTRIES, Shaped, constant


class Attention(Shaped):
    """Softmax attention from `(..., N, D)` to `(..., n, rows)`.

    query, key: (H or 1, d_k, D); value: (H or 1, d_v, D). A leading 1 means that all heads share it.
    output: W_O as (H or 1, N, n), or None for the identity.
    keep: columns that W_O keeps, where W_O only selects (then output is None).
    stack: heads write below each other, (H * d_v) rows, instead of into the same rows; as matrices, W_V of
        head h has its d_v rows at h * d_v and zeros elsewhere.
    causal: column i sees the columns up to i.
    live: the key columns that can receive weight. The caller vouches that every other column's score lies
        so far below that its softmax weight is exactly zero; only the fast evaluation uses it.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        output: Tensor | None = None,
        keep: slice | None = None,
        stack: bool = False,
        causal: bool = False,
        live: slice | None = None,
    ) -> None:
        super().__init__()
        self.query, self.key, self.value = constant(query), constant(key), constant(value)
        self.output = None if output is None else constant(output)
        self.keep = slice(None) if keep is None or output is not None else keep
        self.stack = stack
        self.causal = causal
        self.live = slice(None) if live is None else live

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return max(w.shape[0] for w in (self.query, self.key, self.value))

    def forward(self, z: Tensor) -> Tensor:
        """The fast evaluation."""
        index = range(z.shape[-2])
        queries, keys = index[self.keep], index[self.live]
        q = project(z[..., self.keep, :], self.query)
        k = project(z[..., self.live, :], self.key)
        v = project(z[..., self.live, :], self.value)
        mask = (queries, keys) if self.causal and queries[0] < keys[-1] else None
        return self.combine(fused(q, k, v, mask))

    def literal(self) -> LiteralAttention:
        """A copy of the weights, evaluated as the formula reads."""
        return LiteralAttention(copy.deepcopy(self))

    def combine(self, heads: Tensor) -> Tensor:
        """(..., H, N, d_v) -> W_O, then the sum over heads (or one head below the other)."""
        if self.output is not None:
            heads = self.output.mT @ heads
        heads = heads.expand(*heads.shape[:-3], self.heads, *heads.shape[-2:])
        return heads.transpose(-3, -2).flatten(-2) if self.stack else heads.sum(-3)

    def shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        """The shapes of `matrices`, none of which are made."""
        (_, d_k, width), d_v = self.query.shape, self.value.shape[1]
        rows = d_v * self.heads if self.stack else d_v
        kept = len(range(columns)[self.keep]) if self.output is None else self.output.shape[-1]
        each = {"W_Q": (d_k, width), "W_K": (d_k, width), "W_V": (rows, width), "W_O": (columns, kept)}
        return {name: (self.heads, *shape) for name, shape in each.items()}

    def matrices(self, columns: int) -> dict[str, Tensor]:
        """W_Q, W_K, W_V, W_O of every head for sequences of that many columns, with H in front."""
        h = self.heads
        value = self.value.expand(h, -1, -1)
        if self.stack:
            blocks = value.new_zeros(h, *value.shape)
            blocks[range(h), range(h)] = value
            value = blocks.flatten(1, 2)
        output = self._selection(columns, value) if self.output is None else self.output
        return {
            "W_Q": self.query.detach().expand(h, -1, -1),
            "W_K": self.key.detach().expand(h, -1, -1),
            "W_V": value.detach(),
            "W_O": output.detach().expand(h, -1, -1),
        }

    def _selection(self, columns: int, like: Tensor) -> Tensor:
        """W_O that keeps columns, (1, columns, kept)."""
        kept = range(columns)[self.keep]
        output = like.new_zeros(1, columns, len(kept))
        output[0, kept, range(len(kept))] = 1
        return output


class LiteralAttention(nn.Module):
    """Evaluates an `Attention` literally: scores, softmax over keys, values, W_O."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def literal(self) -> LiteralAttention:
        """This is it."""
        return self

    def weights(self, z: Tensor) -> Tensor:
        """Attention weights (..., H, kept columns, N): the last axis is over keys and sums to one."""
        layer = self.attention
        scores = project(z[..., layer.keep, :], layer.query) @ project(z, layer.key).mT
        if layer.causal:
            index = torch.arange(z.shape[-2], device=z.device)
            scores = scores.masked_fill(index > index[layer.keep, None], -math.inf)
        return scores.softmax(-1)

    def _entries(self, columns: int) -> int:
        """How many numbers one sequence takes: weights, keys and values of every head."""
        layer = self.attention
        kept = len(range(columns)[layer.keep])
        return layer.heads * columns * (kept + layer.key.shape[1] + layer.value.shape[1]) + 1

    def forward(self, z: Tensor, return_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        if not return_weights and not torch.compiler.is_compiling() and z.ndim > 2:
            count = math.prod(z.shape[:-2])
            rows = max(1, CHUNK_ENTRIES // self._entries(z.shape[-2]))
            if count > rows:
                chunks = z.reshape(count, *z.shape[-2:]).split(rows)
                return torch.cat([cast(Tensor, self(chunk)) for chunk in chunks]).unflatten(0, z.shape[:-2])
        weights = self.weights(z)
        out = self.attention.combine(weights @ project(z, self.attention.value))
        return (out, weights) if return_weights else out


def project(z: Tensor, weight: Tensor) -> Tensor:
    """`W Z` for every head: (..., N, D) and (H, r, D) to (..., H, N, r)."""
    return z.unsqueeze(-3) @ weight.mT


def fused(q: Tensor, k: Tensor, v: Tensor, mask: tuple[range, range] | None = None) -> Tensor:
    """softmax(q k^T) v in chunks of queries: (..., H, n, d_k), (..., H, p, d_k), (..., H, p, d_v).

    The head dimension broadcasts; heads that share keys and values are folded into the queries. The fused
    kernel wants equal widths, so the narrower of keys and values is padded with zeros. `mask` gives the
    positions of queries and keys in a causal sequence.
    """
    batch, n, d_v = q.shape[:-3], q.shape[-2], v.shape[-1]
    heads = q.shape[-3]
    shared = heads > 1 and k.shape[-3] == v.shape[-3] == 1 and mask is None
    if shared:
        q = q.flatten(-3, -2).unsqueeze(-3)
    width = max(q.shape[-1], d_v)
    h = max(q.shape[-3], k.shape[-3], v.shape[-3])
    size = math.prod(batch)
    q, k, v = (_widen(x, width).expand(*batch, h, -1, -1).reshape(size, h, x.shape[-2], width) for x in (q, k, v))
    rows = max(1, CHUNK_ENTRIES // max(1, q.shape[0] * h * width))
    if mask is not None:
        rows = min(rows, max(1, CHUNK_ENTRIES // k.shape[-2]))
    if q.numel() == 0:
        return v.new_zeros(*batch, heads if shared else h, n, d_v)
    chunks = [
        _attend(q[..., i : i + rows, :], k, v, mask and (mask[0][i : i + rows], mask[1]))
        for i in range(0, q.shape[-2], rows)
    ]
    out = torch.cat(chunks, dim=-2)[..., :d_v]
    if shared:
        return out.reshape(*batch, heads, n, d_v)
    return out.reshape(*batch, h, n, d_v)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: tuple[range, range] | None) -> Tensor:
    allowed = None
    if mask is not None:
        queries, keys = (torch.tensor(r, device=q.device) for r in mask)
        allowed = keys <= queries[:, None]
    out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=1.0)
    # The fused kernel may lose a NaN among its comparisons; what is not a number has no answer.
    nowhere = k.isnan().any((-2, -1), keepdim=True) | v.isnan().any((-2, -1), keepdim=True)
    return torch.where(q.isnan().any(-1, keepdim=True) | nowhere, torch.nan, out)


def _widen(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else nn.functional.pad(x, (0, width - x.shape[-1]))
