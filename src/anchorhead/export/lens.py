"""A model with TransformerLens' hook points, for `run_with_cache`, `run_with_hooks` and everything built on them.

The numbers are those of `model/stock.py`, in TransformerLens' orientation. For layer l, with N positions of E = d_model
features, H heads of s = d_head features, and the positions that W_O keeps as queries:

    blocks.l.hook_resid_pre          (batch, N, E)            what the lift writes
    blocks.l.attn.hook_q             (batch, queries, H, s)   x W_Q,  W_Q (H, E, s) = in_proj_weight's first part
    blocks.l.attn.hook_k, hook_v     (batch, N, H, s)         x W_K,  x W_V
    blocks.l.attn.hook_attn_scores   (batch, H, queries, N)   q k^T / sqrt(s), -inf where a mask forbids
    blocks.l.attn.hook_pattern       (batch, H, queries, N)   their softmax over keys
    blocks.l.attn.hook_z             (batch, queries, H, s)   pattern times v
    blocks.l.hook_attn_out           (batch, queries, E)      sum over heads of z W_O,  W_O (H, s, E) = out_proj.weight

There is no residual connection around a layer: what is carried on is carried by heads of its own.

`HookedRootModule` is what TransformerLens offers for modules of any kind. Its HookedTransformer, which 4.0 removed, has
the same weights in all positions, where a lift has constants for each, and a residual connection.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anchorhead.head.parameters import constant
from anchorhead.model.stock import StockLayer, to_stock_attention

try:
    from transformer_lens import HookedRootModule
    from transformer_lens.hook_points import HookPoint
except ImportError as error:
    raise ImportError("Hook points need TransformerLens: pip install 'anchorhead[lens]'.") from error


class HookedAttention(nn.Module):
    """One attention layer, a hook point at every step: (batch, N, E) to (batch, queries, E)."""

    def __init__(self, layer: StockLayer) -> None:
        super().__init__()
        attention = layer.attention
        heads, width = attention.num_heads, attention.embed_dim
        self.keep, self.size = layer.keep, width // heads
        parts = attention.in_proj_weight.unflatten(0, (3, heads, self.size)).mT
        self.W_Q, self.W_K, self.W_V = map(constant, parts)
        self.W_O = constant(attention.out_proj.weight.unflatten(1, (heads, self.size)).permute(1, 2, 0))
        self.register_buffer("mask", layer.mask if isinstance(layer.mask, Tensor) else None)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern, self.hook_z = HookPoint(), HookPoint(), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        q = self.hook_q(torch.einsum("bne,hes->bnhs", x[:, self.keep], self.W_Q))
        k = self.hook_k(torch.einsum("bne,hes->bnhs", x, self.W_K))
        v = self.hook_v(torch.einsum("bne,hes->bnhs", x, self.W_V))
        scores = torch.einsum("bqhs,bkhs->bhqk", q, k) / math.sqrt(self.size)
        if isinstance(self.mask, Tensor):
            scores = scores.masked_fill(self.mask, -math.inf)
        pattern = self.hook_pattern(self.hook_attn_scores(scores).softmax(-1))
        z = self.hook_z(torch.einsum("bhqk,bkhs->bqhs", pattern, v))
        return torch.einsum("bqhs,hse->bqe", z, self.W_O)


class HookedBlock(nn.Module):
    """A lift and its attention layer: (batch, n, d) to (batch, queries, rows)."""

    def __init__(self, lift: nn.Module, layer: StockLayer) -> None:
        super().__init__()
        self.lift, self.attn, self.rows = lift, HookedAttention(layer), layer.rows
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hook_attn_out(self.attn(self.hook_resid_pre(self.lift(x))))
        return out[..., : self.rows]


class HookedNetwork(HookedRootModule):
    """The model as blocks with hook points, and the affine map after the last: (batch, n, d) to (batch, n, outputs)."""

    def __init__(self, blocks: list[HookedBlock], last: nn.Module) -> None:
        super().__init__()
        self.blocks, self.last = nn.ModuleList(blocks), last
        self.setup()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.last(x)
        return out


def to_hooked(model: nn.Module, tokens: int | None = None) -> HookedNetwork:
    """The model with TransformerLens' hook points; arguments and shapes are those of `to_stock_attention`."""
    stages = list(to_stock_attention(model, tokens).stages)
    pairs = zip(stages[::2], stages[1::2], strict=False)
    blocks = [HookedBlock(lift, layer) for lift, layer in pairs if isinstance(layer, StockLayer)]
    return HookedNetwork(blocks, stages[-1] if len(stages) % 2 else nn.Identity())
