"""A function of a prompt with TransformerLens' hook points: one sequence of the prompt's tokens and the queries.

*Positions.* The n tokens come first and the m queries behind them; a model without queries has one position behind its
tokens, where it answers. A position holds all the numbers of the state (`model/layered.py`): a token's are zero at the
queries and a query's at the tokens; the prompt's are at every position, each of which computes them for itself. So a
row of a layer's map, which reads the wires of its own place and the prompt's (`circuit/places.py`), is the stored row
on the whole state, the same at all positions, and nothing but attention leads from one position to another.

*Keys.* Every position has K copies of itself, K the most keys that a head of the layer has, with the numbers of
`model/self_attention.py`; behind them all stands the *sink*, whose features are zero. A head may look

    at the keys of its own position                    where it computes a function, a product, or carries a number on,
    at the first copy of every token that counts       where it is attention over the prompt,
    at the sink alone                                  where it has nothing to do: a token's head at a query, and back.

The value of the sink is zero, so that what a head writes where it has nothing to do is zero, which is what the state of
the next layer has to hold there. What a head may not see has the score minus infinity, as a causal mask has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.circuit.layout import states
from anchorhead.circuit.places import Place
from anchorhead.circuit.pool import MOST_LITERAL
from anchorhead.errors import InputError, ShapeError, SizeError
from anchorhead.export.lens import Block, Hooked, paired, refuse_options
from anchorhead.model.core import require_tokens
from anchorhead.model.pool import Pools
from anchorhead.model.prompt_core import Prompt, PromptModel
from anchorhead.model.self_attention import heads_of
from anchorhead.model.stock import StockLayer, stock_form

MOST_SCORES = 1 << 27


class Sight:
    """What the heads of a layer may look at: where each has something to do, whether at the tokens, how many keys."""

    def __init__(self, places: Sequence[Place], pools: Sequence[bool], keys: Sequence[int], heads: int) -> None:
        """heads: with idle ones behind, which have nothing to do anywhere."""
        idle = heads - len(places)
        self.tokens = torch.tensor([place is not Place.QUERY for place in places] + [False] * idle)
        self.queries = torch.tensor([place is not Place.TOKEN for place in places] + [False] * idle)
        self.pools = torch.tensor([*pools, *[False] * idle])
        self.keys, self.copies = torch.tensor([*keys, *[0] * idle]), max(keys)

    def seen(self, n: int, positions: int, mask: Tensor) -> Tensor:
        """(batch, heads, positions, keys), given which tokens count, (batch, n)."""
        device = mask.device
        is_token = torch.arange(positions, device=device) < n
        at_home = torch.where(is_token, self.tokens.to(device)[:, None], self.queries.to(device)[:, None])
        counted = nn.functional.pad(mask, (0, positions - n))[:, None, None, :]
        itself = torch.eye(positions, dtype=torch.bool, device=device)
        looks = torch.where(self.pools.to(device)[:, None, None], counted, itself)  # (batch, heads, positions, of whom)
        copies = torch.arange(self.copies, device=device) < self.keys.to(device)[:, None]
        keys = looks[..., None] & at_home[:, :, None, None] & copies[:, None, None, :]
        sink = ~at_home[:, :, None].expand(len(mask), -1, -1, -1)
        return torch.cat([keys.flatten(-2), sink], dim=-1)


class PromptBlock(Block):
    """(batch, positions, d) to (batch, positions, rows), for any number of tokens and queries."""

    def __init__(self, lift: nn.Module, layer: StockLayer, most: int, sight: Sight) -> None:
        super().__init__(lift, layer, most)
        self.sight = sight

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """mask: (batch, n), which tokens count."""
        positions, copies = x.shape[1], self.sight.copies
        keys = self.lift(x.unsqueeze(-2)).flatten(1, 2)
        keys = torch.cat([keys, torch.zeros_like(keys[:, :1])], dim=1)
        seen = self.sight.seen(mask.shape[1], positions, mask)
        made = self.attn(self.hook_resid_pre(keys), slice(0, positions * copies, copies), ~seen)
        out: Tensor = self.hook_attn_out(made)
        return out[..., : self.rows]


class HookedPrompt(Hooked):
    """A model of a prompt: `hooked(tokens, query, mask)` is what `model(tokens, query, mask)` is, for one dimension of
    batches: tokens (batch, n, t), query (batch, m, k), mask (batch, n).

    tokens: how many there must be, where it was said. Then the prompt may be one tensor too, as `sequence` makes it.
    """

    def __init__(self, blocks: Sequence[PromptBlock], last: nn.Module, model: PromptModel, tokens: int | None) -> None:
        self._model, self._running = [model], 0
        super().__init__(blocks, last, model.literal_mechanism(), (tokens or MOST_LITERAL, sum(model.network.sizes)))
        self.tokens, self.asks = tokens, model.network.sizes[1] > 0

    @property
    def running(self) -> int:
        return self._running

    def sequence(self, tokens: Tensor, query: Tensor | None = None) -> Tensor:
        """A prompt as one tensor (batch, n + m, t + k): zero where tokens have no number, and queries none."""
        given, asked, _ = self._checked(tokens, query, None)
        return given if asked is None else self._joined(given, asked)

    def forward(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None, **other: Any) -> Tensor:
        refuse_options(other)
        return self.run(tokens, query, mask)

    def run(self, *given: Any) -> Tensor:
        tokens, query, mask = self._checked(*self._parted(*given))
        n = self._running = tokens.shape[1]
        x = self.hook_embed(self._joined(tokens, tokens[:, :1, :0] if query is None else query))
        self._require_room(x)
        mask = torch.ones_like(tokens[..., 0], dtype=torch.bool) if mask is None else mask
        for block in self.through:
            x = block(x, mask)
        out: Tensor = self.last(x[:, n:].unsqueeze(-2)).squeeze(-2)
        return out.squeeze(1) if query is None else out

    def _joined(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """The positions of the first state."""
        t, k = self._model[0].network.sizes
        rows = nn.functional.pad(queries, (t, 0))
        return torch.cat([nn.functional.pad(tokens, (0, k)), rows], dim=1)

    def _parted(self, tokens: Any, query: Any = None, mask: Any = None) -> tuple[Any, Any, Any]:
        """Tokens and queries, of a prompt that may be one tensor."""
        t, k = self._model[0].network.sizes
        if not k or query is not None or not isinstance(tokens, Tensor) or tokens.shape[-1] != t + k:
            return tokens, query, mask
        n = self.tokens
        if n is None or tokens.ndim != 3 or tokens.shape[1] < n:
            raise ShapeError(
                f"A prompt of shape {tuple(tokens.shape)} was given without query=. As one tensor it is (batch, n + m, "
                f"{t + k}), and to_hooked(model, tokens=n) says how many of its positions are tokens."
            )
        if tokens[:, :n, t:].any() or tokens[:, n:, :t].any():
            raise InputError(f"A prompt as one tensor has zeros in the last {k} columns of its {n} tokens, and in the "
                             f"first {t} of its queries: hooked.sequence(tokens, query) makes it.")  # fmt: skip
        return tokens[:, :n, :t], tokens[:, n:, t:], mask

    def _checked(self, tokens: Any, query: Any, mask: Any) -> Prompt:
        found = self._model[0].looked_at(tokens, query, mask)
        if found[0].ndim != 3:
            raise ShapeError(f"tokens has shape {tuple(tokens.shape)}; hook points take one dimension of prompts in "
                             "front, (batch, n, numbers): unsqueeze(0) or flatten(0, -3) has it.")  # fmt: skip
        if self.tokens not in (None, found[0].shape[1]):
            raise ShapeError(f"The prompt has {found[0].shape[1]} tokens, and to_hooked was told tokens={self.tokens}; "
                             "without it prompts of every length are taken.")  # fmt: skip
        return found

    def _require_room(self, x: Tensor) -> None:
        batch, positions = x.shape[:2]
        copies = max((block.sight.copies for block in self.blocks if isinstance(block, PromptBlock)), default=0)
        total = batch * self.cfg.n_heads * positions * (positions * copies + 1)
        if total > MOST_SCORES:
            raise SizeError(f"{batch} prompts of {positions} positions have {total:,} scores in a layer, and "
                            f"{MOST_SCORES:,} are allowed; take fewer prompts at a time, or shorter ones.")  # fmt: skip


def hooked_prompt(model: PromptModel, tokens: int | None = None) -> HookedPrompt:
    """See `ah.to_hooked`."""
    if tokens is not None:
        require_tokens(tokens)
    core = model.network
    pairs, last = paired(stock_form(core.at_position()))
    most = max(layer.attention.num_heads for _, layer in pairs)
    held = list(states(core.circuit, core.placed.plans))
    blocks = []
    for (lift, stock), layer, before, after in zip(pairs, core.layered.sequence, held, held[1:], strict=False):
        pools = [False] * len(layer.kept)
        pools += [isinstance(group, Pools) for group in layer.parts for _ in range(group.count * group.width)]
        keys = [len(head.values) for head in heads_of(layer, len(before))]
        sight = Sight([core.circuit.places[wire] for wire in after], pools, keys, most)
        blocks.append(PromptBlock(lift, stock, most, sight))
    return HookedPrompt(blocks, last, model, tokens)
