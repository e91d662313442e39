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

H is the same in all blocks, as TransformerLens takes it to be: a block with fewer heads has idle ones behind them,
whose matrices are zero.

There is no residual connection around a layer: what is carried on is carried by heads of its own. Of a compiled model's
network each head writes one number, the first entry of its z, and `names[l][h]` is what that is called
(`circuit/names.py`); the entries of hook_attn_out are those numbers in the same order.

`HookedRootModule` is what TransformerLens offers for modules of any kind. Its HookedTransformer, which 4.0 removed, has
the same weights in all positions, where a lift has constants for each, and a residual connection. `bridge.py` puts
the same blocks into its TransformerBridge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import DependencyError, ShapeError
from anchorhead.export.named import Named
from anchorhead.head.parameters import constant
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.mechanism import Mechanism
from anchorhead.model.outside import Watched
from anchorhead.model.stock import StockAttention, StockLayer, to_stock_attention

try:
    from transformer_lens import HookedRootModule
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.hook_points import HookPoint
except ImportError as error:
    raise DependencyError("Hook points need TransformerLens: pip install 'anchorhead[lens]'.") from error


class HookedAttention(nn.Module):
    """One attention layer, a hook point at every step: (batch, N, E) to (batch, queries, E)."""

    def __init__(self, layer: StockLayer, most: int) -> None:
        """most: heads that it shall have, idle ones among them."""
        super().__init__()
        attention = layer.attention
        heads, width = attention.num_heads, attention.embed_dim
        self.keep, self.size = layer.keep, width // heads
        parts = attention.in_proj_weight.unflatten(0, (3, heads, self.size)).mT
        self.W_Q, self.W_K, self.W_V = (constant(_with_idle(part, most)) for part in parts)
        self.W_O = constant(
            _with_idle(attention.out_proj.weight.unflatten(1, (heads, self.size)).permute(1, 2, 0), most)
        )
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

    def __init__(self, lift: nn.Module, layer: StockLayer, most: int) -> None:
        super().__init__()
        self.lift, self.attn, self.rows = lift, HookedAttention(layer, most), layer.rows
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hook_attn_out(self.attn(self.hook_resid_pre(self.lift(x))))
        return out[..., : self.rows]


class HookedNetwork(Named, HookedRootModule):
    """The model as blocks with hook points, and the affine map after the last: (batch, n, d) to (batch, n, outputs).

    cfg: what TransformerLens asks of a model: blocks, heads, sizes, and that there is nothing but attention.
    """

    def __init__(self, blocks: list[HookedBlock], last: nn.Module, stock: StockAttention,
                 mechanism: Mechanism | None, look: Callable[[Tensor], None]) -> None:  # fmt: skip
        """look: says where an input leaves the domain."""
        super().__init__()
        self.blocks, self.last, self.mechanism = nn.ModuleList(blocks), last, mechanism
        self.tokens, self.features, self._check = stock.tokens, stock.features, stock.check
        self._look = look
        self.cfg = _config(self)
        self.setup()
        self.eval()

    def z_point(self, block: int) -> str:
        return f"blocks.{block}.attn.hook_z"

    @property
    def attentions(self) -> list[HookedAttention]:
        """The attention layers."""
        return [block.attn for block in self.blocks if isinstance(block, HookedBlock)]

    def check(self, x: Any) -> None:
        """Refuses an input of another shape or dtype; one outside the domain does what the model's `outside` says."""
        self._check(x)
        if x.ndim != 3:
            raise ShapeError(
                f"The input has shape {tuple(x.shape)}; hook points take batches of sequences, (batch, {self.tokens}, "
                f"{self.features}): x.reshape(-1, {self.tokens}, {self.features}) has that shape."
            )
        self._look(x)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.last(x)
        return out


def hooked(model: nn.Module, tokens: int | None = None) -> HookedNetwork:
    """See `ah.to_hooked`."""
    stock = to_stock_attention(model, tokens)
    stages = list(stock.stages)
    pairs = [(lift, layer) for lift, layer in zip(stages[::2], stages[1::2], strict=False)
             if isinstance(layer, StockLayer)]  # fmt: skip
    most = max((layer.attention.num_heads for _, layer in pairs), default=0)
    blocks = [HookedBlock(lift, layer, most) for lift, layer in pairs]
    named = isinstance(model, CompiledModel) and isinstance(model.network, HeadCore | LayeredCore)
    mechanism = model.mechanism if named and isinstance(model, CompiledModel) else None
    last = stages[-1] if len(stages) % 2 else nn.Identity()
    return HookedNetwork(blocks, last, stock, mechanism, model.look if isinstance(model, Watched) else _anywhere)


def _with_idle(weights: Tensor, most: int) -> Tensor:
    """Matrices (heads, ...) with zeros for heads up to so many."""
    return torch.cat([weights, weights.new_zeros(most - len(weights), *weights.shape[1:])])


def _config(network: HookedNetwork) -> TransformerBridgeConfig:
    """What TransformerLens is told. Sizes that differ from block to block are those of the first, d_head also by
    block; there is one layer of attention a block, no mask of later positions unless a theorem has it, and no more."""
    found = network.attentions
    heads, width, size = found[0].W_Q.shape if found else (0, network.features, 1)
    first = next(network.parameters())
    masked = any(isinstance(layer.mask, Tensor) for layer in found)
    config = TransformerBridgeConfig(
        d_model=width, d_head=size, n_layers=len(found), n_ctx=network.tokens, n_heads=heads, d_vocab=1, d_mlp=0,
        per_layer_head_dim=[layer.size for layer in found], attn_only=True, normalization_type=None,
        attention_dir="causal" if masked else "bidirectional", default_prepend_bos=False, architecture="anchorhead",
        device=str(first.device), dtype=first.dtype, n_params=sum(p.numel() for p in network.parameters()),
    )  # fmt: skip
    config.act_fn = None
    return config


def _anywhere(x: Tensor) -> None:
    """Of a network that has no domain."""
