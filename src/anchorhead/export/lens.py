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
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import DependencyError, InputError, PrecisionError, ShapeError
from anchorhead.export.named import Named
from anchorhead.export.points import Known, Pairs, Point
from anchorhead.head.parameters import constant
from anchorhead.model.compiled import CompiledModel, fingerprint
from anchorhead.model.head_core import HeadCore
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.mechanism import Mechanism
from anchorhead.model.outside import Watched
from anchorhead.model.prompt_core import PromptModel
from anchorhead.model.stock import StockAttention, StockLayer, to_stock_attention

try:
    from transformer_lens import HookedRootModule
    from transformer_lens.config import TransformerBridgeConfig
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
        self.hook_q, self.hook_k, self.hook_v = Point(), Point(), Point()
        self.hook_attn_scores, self.hook_pattern, self.hook_z = Point(), Point(), Point()

    def forward(self, x: Tensor, keep: slice | None = None, forbidden: Tensor | None = None) -> Tensor:
        """keep, forbidden: the positions that ask and the keys that they may not see, where the call says so, as of a
        prompt. Of such a softmax, which may be over many tokens, sums are in float64 (`circuit/pool.py`)."""
        mask = self.mask if forbidden is None else forbidden
        q = self.hook_q(torch.einsum("bne,hes->bnhs", x[:, self.keep if keep is None else keep], self.W_Q))
        k = self.hook_k(torch.einsum("bne,hes->bnhs", x, self.W_K))
        v = self.hook_v(torch.einsum("bne,hes->bnhs", x, self.W_V))
        scores = torch.einsum("bqhs,bkhs->bhqk", q, k) / math.sqrt(self.size)
        if isinstance(mask, Tensor):
            scores = scores.masked_fill(mask, -math.inf)
        scores, wide = self.hook_attn_scores(scores), scores.dtype if forbidden is None else torch.float64
        pattern = self.hook_pattern(scores.softmax(-1, dtype=wide).to(scores.dtype))
        z = self.hook_z(torch.einsum("bhqk,bkhs->bqhs", pattern.to(wide), v.to(wide)).to(v.dtype))
        return torch.einsum("bqhs,hse->bqe", z, self.W_O)


class Block(nn.Module):
    """A lift and its attention layer."""

    def __init__(self, lift: nn.Module, layer: StockLayer, most: int) -> None:
        super().__init__()
        self.lift, self.attn, self.rows = lift, HookedAttention(layer, most), layer.rows
        self.hook_resid_pre, self.hook_attn_out = Point(), Point()


class HookedBlock(Block):
    """(batch, n, d) to (batch, queries, rows)."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hook_attn_out(self.attn(self.hook_resid_pre(self.lift(x))))
        return out[..., : self.rows]


class Hooked(Named, Pairs, HookedRootModule):
    """Blocks with hook points, and the affine map after the last.

    cfg: what TransformerLens asks of a model: blocks, heads, sizes, and that there is nothing but attention. asks:
    whether it is of a prompt with queries. through: what runs, the blocks or what stands around each, as in a bridge.
    """

    asks = False

    def __init__(self, blocks: Sequence[Block], last: nn.Module, mechanism: Mechanism | None,
                 size: tuple[int, int]) -> None:  # fmt: skip
        """size: the tokens and features of a sequence."""
        super().__init__()
        self.blocks, self.last, self.stated = nn.ModuleList(blocks), last, mechanism
        self.features, self.hook_embed = size[1], Point()
        self.through: Sequence[nn.Module] = list(blocks)
        self.own_keys = [_own_keys(block.attn.keep, size[0]) for block in blocks]
        self.cfg = _config(self, *size)
        self.setup()
        self.mod_dict = Known(self.hook_dict)
        self.eval()
        self._sealed = fingerprint(self)

    @property
    def mechanism(self) -> Mechanism | None:
        same = self.stated is None or fingerprint(self) == self._sealed
        return self.stated if same or self.stated is None else self.stated.unproved()

    def point(self, block: int, part: str) -> str:
        return f"blocks.{block}.attn.hook_{part}"

    @property
    def attentions(self) -> list[HookedAttention]:
        """The attention layers."""
        return [block.attn for block in self.blocks if isinstance(block, Block)]

    def _apply(self, fn: Any, recurse: bool = True) -> Hooked:
        require_dtype(self, fn)
        super()._apply(fn, recurse)
        return self

    @abstractmethod
    def run(self, *given: Any) -> Tensor:
        """The outputs, of what `forward` takes."""


class HookedNetwork(Hooked):
    """A model on sequences of a fixed length: (batch, n, d) to (batch, n, outputs)."""

    def __init__(self, blocks: Sequence[HookedBlock], last: nn.Module, stock: StockAttention,
                 mechanism: Mechanism | None, look: Callable[[Tensor], None]) -> None:  # fmt: skip
        """look: says where an input leaves the domain."""
        super().__init__(blocks, last, mechanism, (stock.tokens, stock.features))
        self.tokens, self._check, self._look = stock.tokens, stock.check, look

    def check(self, x: Any) -> None:
        """Refuses an input of another shape or dtype; one outside the domain does what the model's `outside` says."""
        size = self.tokens, self.features
        if not isinstance(x, Tensor) or (x.ndim == 3 and x.shape[1:] == size):
            self._check(x)
        else:
            shape, fits = f"{self.tokens}, {self.features}", x.numel() and not x.numel() % math.prod(size)
            raise ShapeError(
                f"The input has shape {tuple(x.shape)}; a network with hook points takes (batch, {shape})"
                + (f": x.reshape(-1, {shape}) has that shape." if fits else ".")
            )
        self._look(x)

    def forward(self, x: Tensor, **other: Any) -> Tensor:
        refuse_options(other)
        return self.run(x)

    def run(self, *given: Any) -> Tensor:
        x, *other = given
        if other:
            raise InputError("This is no model of a prompt: it takes one tensor, and no query= or mask=.")
        self.check(x)
        x = self.hook_embed(x)
        for block in self.through:
            x = block(x)
        out: Tensor = self.last(x)
        return out


def hooked(model: nn.Module, tokens: int | None = None) -> Hooked:
    """See `ah.to_hooked`; of models that are blocks."""
    if isinstance(model, PromptModel):
        from anchorhead.export.prompt_lens import hooked_prompt

        return hooked_prompt(model, tokens)
    stock = to_stock_attention(model, tokens)
    pairs, last = paired(stock)
    most = max((layer.attention.num_heads for _, layer in pairs), default=0)
    blocks = [HookedBlock(lift, layer, most) for lift, layer in pairs]
    named = isinstance(model, CompiledModel) and isinstance(model.network, HeadCore | LayeredCore)
    mechanism = model.literal_mechanism() if named and isinstance(model, CompiledModel) else None
    return HookedNetwork(blocks, last, stock, mechanism, model.look if isinstance(model, Watched) else _anywhere)


def refuse_options(given: Mapping[str, Any]) -> None:
    """Refuses what TransformerLens' own models take beside their inputs."""
    if given:
        raise InputError(
            f"A network with hook points takes no {', '.join(given)}: it runs to its outputs and returns them, and "
            "run_with_cache a plain dict beside them. What a block makes is at its hook points."
        )


def require_dtype(network: nn.Module, fn: Any) -> None:
    """Refuses what would change the dtype of a network's numbers, as the model refuses it."""
    like = next(network.parameters()).detach().flatten()[:0]
    if fn(like).dtype != like.dtype:
        raise PrecisionError(
            f"These are the numbers of a model in {like.dtype}, and rounded they would be another's. Compile it with "
            "the dtype that you want, dtype=torch.float32 or torch.float64."
        )


def paired(stock: StockAttention) -> tuple[list[tuple[nn.Module, StockLayer]], nn.Module]:
    """Each attention layer with its lift, and the affine map after the last."""
    stages = list(stock.stages)
    found = [(lift, layer) for lift, layer in zip(stages[::2], stages[1::2], strict=False)
             if isinstance(layer, StockLayer)]  # fmt: skip
    return found, stages[-1] if len(stages) % 2 else nn.Identity()


def _own_keys(keep: slice, tokens: int) -> tuple[int, int]:
    """Where the first position's keys begin, and how far apart those of two are: copies, or keys shared behind all."""
    return (tokens, 0) if keep.step is None else (0, keep.step)


def _with_idle(weights: Tensor, most: int) -> Tensor:
    """Matrices (heads, ...) with zeros for heads up to so many."""
    return torch.cat([weights, weights.new_zeros(most - len(weights), *weights.shape[1:])])


def _config(network: Hooked, tokens: int, features: int) -> TransformerBridgeConfig:
    """What TransformerLens is told. Sizes that differ from block to block are those of the first, d_head also by
    block; there is one layer of attention a block, no mask of later positions unless a theorem has it, and no more."""
    found = network.attentions
    heads, width, size = found[0].W_Q.shape if found else (0, features, 1)
    first = next(network.parameters())
    masked = any(isinstance(layer.mask, Tensor) for layer in found)
    config = TransformerBridgeConfig(
        d_model=width, d_head=size, n_layers=len(found), n_ctx=tokens, n_heads=heads, d_vocab=1, d_mlp=0,
        per_layer_head_dim=[layer.size for layer in found], attn_only=True, normalization_type=None,
        attention_dir="causal" if masked else "bidirectional", default_prepend_bos=False, architecture="anchorhead",
        device=str(first.device), dtype=first.dtype, n_params=sum(p.numel() for p in network.parameters()),
    )  # fmt: skip
    config.act_fn = None
    return config


def _anywhere(x: Tensor) -> None:
    """Of a network that has no domain."""
