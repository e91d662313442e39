"""A model as torch's own modules: `nn.MultiheadAttention` and `nn.Linear`, and constants added to positions.

A network of this library is affine lifts and attention layers. With tokens as rows, Z (N, D), a layer has for each head
the scores (Z W_Q^T)(Z W_K^T)^T and the values Z W_V^T, any number of rows in W_Q, W_K and W_V, and no 1/sqrt(d).

*Attention.* `nn.MultiheadAttention` has H heads of one size s for queries, keys and values alike, reads E = H s
features and divides scores by sqrt(s). So s is at least the rows of W_Q and of W_V, E at least D, and

    in_proj_weight   three parts, rows h s, ..:   (sqrt(s) W_Q | 0),  (W_K | 0),  (W_V | 0),  and zero rows below
    out_proj.weight  takes head h's d_v values:   to rows h d_v, .. where heads stack,  to rows 0, .. where they add up

without biases; where sqrt(s) W_Q would overflow, W_K has the factor. Features from D on are zero, and so are the rows
that fill up a head: both add zeros to scores and to values, and the scores are sqrt(s)/sqrt(s) times the model's. s is
a power of four where there is room, since sqrt(s) is then a power of two and nothing is rounded. W_O selects positions:
those are the queries, and all positions are keys. (A W_O that mixes positions becomes part of the next lift.) A causal
mask is `attn_mask`.

*Lifts.* The affine stages before a layer map (n, d) to (N, D) by z -> L z + C, where C is what they make of zero and L
is their derivative, the same everywhere. C is added to the positions, as a positional embedding is. L is one
`nn.Linear` on the features where each token becomes K positions by itself and all tokens do so alike (d numbers to K E,
read as K positions); otherwise one `nn.Linear` from all n d numbers of the sequence to all N E.

A plain softmax with a read-out (`attention_then_softmax`) is one more attention layer, with one constant query.

Torch has a fast path for attention that hides the softmax from an exported graph. It is not taken where projections
have no bias, so that `ah.walk` sees queries, keys, softmax and values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, cast

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, PrecisionError, ShapeError, SizeError, StructureError
from anchorhead.head.parameters import check_tensor, constant
from anchorhead.model.affine import AppendRows, MixSequence, PositionGain, PositionWise, TokenWise
from anchorhead.model.attention import Attention, LiteralAttention
from anchorhead.model.network import Network

MOST_ENTRIES = 1 << 27
CHUNK = 64
"""Directions at a time in which the derivative of a lift is taken."""


class StockLift(nn.Module):
    """An affine map of sequences, (batch, n, d) to (batch, N, E): one `nn.Linear`, and a constant for each position.

    whole: the Linear reads the sequence as one vector; otherwise it reads every token by itself.
    """

    def __init__(self, weight: Tensor, positions: Tensor, *, whole: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.linear.weight = nn.Parameter(weight)
        self.positions = constant(positions)
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.linear(x.flatten(-2) if self.whole else x)
        return moved.reshape(*x.shape[:-2], *self.positions.shape) + self.positions


class StockLayer(nn.Module):
    """`nn.MultiheadAttention` with the kept positions as queries and all as keys: (batch, N, E) to (batch, n, rows)."""

    def __init__(self, attention: nn.MultiheadAttention, keep: slice, rows: int, mask: Tensor | None) -> None:
        super().__init__()
        self.attention, self.keep, self.rows = attention, keep, rows
        self.register_buffer("mask", mask)

    def forward(self, z: Tensor) -> Tensor:
        return self._call(z, need_weights=False)[0][..., : self.rows]

    def weights(self, z: Tensor) -> Tensor:
        """(batch, heads, queries, keys), as `nn.MultiheadAttention` returns them."""
        return cast(Tensor, self._call(z, need_weights=True)[1])

    def _call(self, z: Tensor, *, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        mask = cast(Tensor | None, self.mask)
        found: tuple[Tensor, Tensor | None] = self.attention(
            z[..., self.keep, :], z, z, need_weights=need_weights, average_attn_weights=False, attn_mask=mask
        )
        return found


class StockAttention(Network):
    """Lifts and attention layers in a row, all of torch's own modules: (batch, n, d) to (batch, n, outputs)."""

    def __init__(self, stages: Sequence[nn.Module], tokens: int, features: int) -> None:
        super().__init__(stages)
        self.tokens, self.features = tokens, features

    def check(self, x: Tensor) -> None:
        """Refuses an input of another shape or dtype."""
        check_tensor(x, next(self.parameters()).dtype, (self.tokens, self.features), what="network")
        if x.ndim > 3:
            raise ShapeError(
                f"The input has shape {tuple(x.shape)}; nn.MultiheadAttention takes (batch, {self.tokens}, "
                f"{self.features}), with one batch dimension: x.flatten(0, {x.ndim - 3}) has it."
            )


def to_stock_attention(model: nn.Module, tokens: int | None = None) -> StockAttention:
    """The same function as a stack of `nn.MultiheadAttention` and `nn.Linear`, in the model's dtype.

    Of a compiled model it works on sequences of `tokens` inputs (1 unless given), each flat: (batch, tokens, inputs) to
    (batch, tokens, outputs). A theorem's network has its own (batch, n, d).
    """
    return stock_form(_network(model, tokens))


def stock_form(network: Network) -> StockAttention:
    """A network on sequences of a fixed length, of that length."""
    if network.size is None:
        raise StructureError("A network on sequences of no fixed length was to be written as stock attention.")
    n, d = network.size
    parts = _parts(list(network.literal().stages), next(network.parameters()).new_zeros(n, d))
    for exact in (True, False):
        total = sum(part.entries(exact) for part in parts)
        if total <= MOST_ENTRIES:
            return _finite(StockAttention([stage for part in parts for stage in part.build(exact)], n, d))
    raise SizeError(
        f"As nn.MultiheadAttention and nn.Linear on sequences of {n} this model needs {total:,} entries, and "
        f"{MOST_ENTRIES:,} are allowed; take fewer tokens, keys or levels (a larger tolerance has fewer), or call the "
        "model itself, which needs none of them."
    )


def _finite(built: StockAttention) -> StockAttention:
    """Refuses numbers that overflow when they are multiplied by the root of the size of a head."""
    if not all(p.isfinite().all() for p in built.parameters()):
        dtype = next(built.parameters()).dtype
        raise PrecisionError(
            f"As nn.MultiheadAttention this model has numbers that {dtype} does not: queries and keys are those of the "
            "model times the root of the size of a head. Take a wider dtype, or the model's literal form."
        )
    return built.requires_grad_(False)


def _network(model: nn.Module, tokens: int | None) -> Network:
    """The affine and attention stages on sequences of a fixed length."""
    make: Any = getattr(model, "as_self_attention", None)
    network = model if make is None else make(1 if tokens is None else tokens)
    if not isinstance(network, Network) or network.size is None:
        raise InputError(
            f"{type(model).__name__} has no form as layers of nn.MultiheadAttention on sequences of a fixed length; "
            + _instead(model)
        )
    own, _ = network.size
    if tokens is not None and tokens != own:
        raise InputError(f"tokens={tokens!r} was asked for, and this network is built for sequences of {own}.")
    return network


def _instead(model: Any) -> str:
    """What can be had of what has no stock form."""
    if isinstance(getattr(model, "model", None), nn.Module):
        return "give its .model."
    if isinstance(getattr(getattr(model, "report", None), "places", None), list):
        return (
            "it is a converted model, whose modules are its own: register_forward_hook on report.places[i].module sees "
            "what goes into the heads of a place and what comes out."
        )
    if hasattr(model, "as_self_attention"):
        return (
            "ah.to_hooked(model) has hook points at its steps, model.attention(...) its weights on a prompt, and "
            "model.as_self_attention(examples) its matrices, in modules such as step[0].heads[0]."
        )
    if hasattr(model, "sequence") and hasattr(model, "layer"):
        return (
            "its prompt is a program: model.sequence(program, x) is that as one sequence, and model.layer(sequence) "
            "its layer. The compiled model that a program was made of can have hook points."
        )
    if isinstance(model, PathLike) or (isinstance(model, str) and model.endswith(".safetensors")):
        return f"give the model itself, ah.load({str(model)!r:.80})."
    return "give a result of ah.compile, of ah.in_context, of ah.theorems, or of a model's as_self_attention."


@dataclass
class _Part:
    """Affine stages on sequences (n, d), and the attention layer after them, if any."""

    affine: list[nn.Module]
    zero: Tensor  # (n, d)
    layer: Attention | None

    @cached_property
    def constants(self) -> Tensor:
        """C, (N, D): what the affine stages make of zero."""
        return self._run(self.zero).detach()

    @cached_property
    def whole(self) -> bool:
        """Whether the lift must read the sequence as one vector."""
        return not _alike(self.affine, len(self.zero))

    def _run(self, z: Tensor) -> Tensor:
        for stage in self.affine:
            z = stage(z)
        return z

    def size(self, exact: bool) -> int:
        """s, the features of a head: those of queries and values, and so many that the heads' hold the lift's."""
        if self.layer is None:
            raise StructureError("A part without attention has no heads, and its heads' features were asked for.")
        share = -(-self.constants.shape[1] // self.layer.heads)
        least = max(self.layer.query.shape[1], self.layer.value.shape[1], share)
        return 4 ** (((least - 1).bit_length() + 1) // 2) if exact else least

    def width(self, exact: bool) -> int:
        """E, the features that the lift writes."""
        return self.constants.shape[1] if self.layer is None else self.layer.heads * self.size(exact)

    def entries(self, exact: bool) -> int:
        """How many numbers the modules of this part hold."""
        if self.layer is None and not self.affine:
            return 0
        (n, d), positions, width = self.zero.shape, self.constants.shape[0], self.width(exact)
        linear = positions * width * n * d if self.whole else positions * width * d // n
        return linear + positions * width + (0 if self.layer is None else 4 * width * width)

    def build(self, exact: bool) -> list[nn.Module]:
        """The lift and the layer."""
        if self.layer is None:
            return [self._lift(self.width(exact))] if self.affine else []
        return [self._lift(self.width(exact)), _stock_layer(self.layer, self.constants, self.size(exact))]

    def _lift(self, width: int) -> StockLift:
        n, d = self.zero.shape
        positions, features = self.constants.shape[0], self.constants.shape[1]
        if self.whole:
            directions = torch.eye(n * d).to(self.zero).unflatten(1, (n, d))
        else:  # all tokens move at once, and the first one's positions are read
            directions = torch.eye(d).to(self.zero).unsqueeze(1).expand(d, n, d)
            positions //= n
        weight = self.zero.new_zeros(positions, width, len(directions))
        for i, some in enumerate(directions.split(CHUNK)):
            moved = torch.func.jvp(self._run, (torch.zeros_like(some),), (some,))[1]
            columns = slice(i * CHUNK, i * CHUNK + len(some))
            weight[:, :features, columns] = moved.detach()[:, :positions].permute(1, 2, 0)
        filled = nn.functional.pad(self.constants, (0, width - features))
        return StockLift(weight.flatten(0, 1), filled, whole=self.whole)


def _parts(stages: list[nn.Module], zero: Tensor) -> list[_Part]:
    """The stages up to each attention layer, and those after the last."""
    parts: list[_Part] = []
    affine: list[nn.Module] = []
    for stage in itertools.chain.from_iterable(map(_as_attention, stages)):
        if not isinstance(stage, LiteralAttention):
            affine.append(stage)
            continue
        layer = stage.attention
        parts.append(_Part(affine, zero, layer))
        kept = len(range(parts[-1].constants.shape[0])[layer.keep])
        zero = zero.new_zeros(kept, _rows(layer))
        affine = [] if layer.output is None else [_Mixed(layer)]
    return [*parts, _Part(affine, zero, None)]


def _as_attention(stage: nn.Module) -> list[nn.Module]:
    """A stage that can be attention, such as a plain softmax with a read-out, as the stages that compute it so."""
    make: Any = getattr(stage, "as_attention", None)
    return [stage] if make is None else make()


def _alike(stages: list[nn.Module], n: int) -> bool:
    """Whether each of n tokens becomes positions of its own, and all do so by the same linear map."""
    if n == 1:
        return True
    copies = 1
    for stage in stages:
        if isinstance(stage, MixSequence):
            before = n * copies
            copies *= len(stage.weight) // before
            one_hot = torch.eye(before).to(stage.weight).repeat_interleave(max(copies * n // before, 1), dim=0)
            if not torch.equal(stage.weight, one_hot):
                return False
        elif isinstance(stage, PositionWise | PositionGain):
            each = (stage.weight if isinstance(stage, PositionWise) else stage.gain).unflatten(0, (n, copies))
            if not bool((each == each[0]).all()):
                return False
        elif not isinstance(stage, TokenWise | AppendRows):
            return False
    return True


def _stock_layer(layer: Attention, lifted: Tensor, size: int) -> StockLayer:
    """The layer on sequences like `lifted` as `nn.MultiheadAttention` with heads of that size."""
    heads, d_v, features = layer.heads, layer.value.shape[1], lifted.shape[1]
    like = layer.value.detach()
    projections = like.new_zeros(3, heads, size, heads * size)
    room = torch.finfo(like.dtype).max / math.sqrt(size)
    scales = (size, 1, 1) if layer.query.abs().max() <= room else (1, size, 1)
    for block, weight, scale in zip(projections, (layer.query, layer.key, layer.value), scales, strict=True):
        block[:, : weight.shape[1], :features] = weight.detach() * math.sqrt(scale)
    output = like.new_zeros(heads * size, heads, size)
    for h in range(heads):
        start = h * d_v if _stacked(layer) else 0
        output[start : start + d_v, h, :d_v] = torch.eye(d_v).to(like)
    attention = nn.MultiheadAttention(heads * size, heads, bias=False, batch_first=True, device="meta")
    attention.in_proj_weight = nn.Parameter(projections.flatten(0, 2))
    attention.out_proj.weight = nn.Parameter(output.flatten(1))
    mask = None
    if layer.causal:
        index = torch.arange(len(lifted), device=like.device)
        mask = index > index[layer.keep, None]
    return StockLayer(attention, layer.keep, _rows(layer), mask)


def _stacked(layer: Attention) -> bool:
    """Whether heads are written below each other: also where W_O, which comes later, has yet to tell them apart."""
    return layer.stack or layer.output is not None


def _rows(layer: Attention) -> int:
    return layer.value.shape[1] * (layer.heads if _stacked(layer) else 1)


class _Mixed(nn.Module):
    """What a W_O that mixes positions does with the heads, which stand below each other."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Tensor) -> Tensor:
        return self.layer.combine(z.unflatten(-1, (self.layer.heads, -1)).transpose(-3, -2))
