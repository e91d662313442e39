"""A network of heads as literal self-attention on a sequence of n tokens, layer by layer, with its matrices.

Every token has K copies of itself, K the most keys that a head of the layer has: column (i, k) holds token i's state,
a one, the one-hot rows of k and of i, and for each head its value for key k, which is affine in the token
(docs/mathematics.md 2.9, 3.3). A head's W_Q reads its query off the state; its W_K reads slope and intercept of key k
off the one-hot row of k, and puts -S against the one-hot row of every other token, so that a token attends to its own
copies only; keys that a head does not have lie S below too. Maxima and the target's own attention have keys that depend
on the token: those are rows of their own. What is carried on is a head whose values are the same for all k. W_O keeps
column (i, 0).

S exceeds every difference of scores for arguments up to `REACH` by 800, so that exp gives exactly zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, SizeError
from anchorhead.head.parameters import check_tensor
from anchorhead.model.affine import AppendRows, MixSequence, PositionWise, TokenWise
from anchorhead.model.attention import Attention
from anchorhead.model.form import require_tokens
from anchorhead.model.group import HeadRows
from anchorhead.model.layered import Layer, LayeredNetwork
from anchorhead.model.network import Network
from anchorhead.model.self_attention import REACH, SILENCE

MOST_ENTRIES = 1 << 27


class LayeredSelfAttention(Network):
    """Lift and attention for each layer, then one affine map: (..., n, inputs) to (..., n, outputs)."""

    def __init__(self, stages: list[nn.Module], layers: list[Attention], tokens: int, inputs: int) -> None:
        super().__init__(stages, (tokens, inputs))
        self.attentions = layers
        self.tokens, self.inputs = tokens, inputs
        self.reach = REACH

    def check(self, x: Tensor) -> None:
        check_tensor(x, self.attentions[0].query.dtype, (self.tokens, self.inputs), what="network")

    def matrices(self) -> list[dict[str, Tensor]]:
        """W_Q, W_K, W_V, W_O of every layer, each with its heads in front, in the paper's orientation."""
        return [a.matrices(int(a.keep.stop)) for a in self.attentions]


def layered_as_self_attention(network: LayeredNetwork, tokens: int) -> LayeredSelfAttention:
    """The literal network for that many tokens, each of which is one input, flat."""
    require_tokens(tokens)
    if not network.layers:
        raise InputError("This model is an affine map: it has no attention layer to write as matrices.")
    stages: list[nn.Module] = []
    attentions = []
    inputs = width = math.prod(network.input_shape)
    for layer in network.sequence:
        lift, attention = _layer(layer, width, tokens)
        stages += [lift, attention]
        attentions.append(attention)
        width = attention.heads
    stages.append(TokenWise(network.last.weight, network.last.bias))
    return LayeredSelfAttention(stages, attentions, tokens, inputs)


def _layer(layer: Layer, width: int, n: int) -> tuple[nn.Module, Attention]:
    weight, bias = layer.rows.weight.detach(), layer.rows.bias.detach()
    rows = torch.cat([weight, bias[:, None]], dim=1).split(layer.sizes)  # affine in (state, 1)
    heads = [_carry(int(k), width, weight.dtype) for k in layer.kept]
    for group, part in zip(layer.parts, rows, strict=True):
        heads += group.on_sequences(part)
    most = max(head.values.shape[0] for head in heads)
    columns, size = n * most, max(head.query.shape[0] for head in heads)
    signal = sum(head.key_rows.shape[1] for head in heads if head.key_rows is not None)
    total = columns * (width + len(heads) + signal) * (width + 1) + len(heads) * (size + n) * (width + 2 * n + signal)
    if total > MOST_ENTRIES:
        raise SizeError(
            f"A layer with {len(heads)} heads of up to {most} keys as matrices on {n} tokens needs {total:,} numbers, "
            f"and {MOST_ENTRIES:,} are allowed; take fewer tokens, or call the model itself, which needs none of them."
        )
    lift, starts = _lift(heads, width, n, most)
    return lift, _attention(heads, starts, width, n, most, size, weight.dtype)


def _lift(heads: list[HeadRows], width: int, n: int, most: int) -> tuple[nn.Sequential, list[int]]:
    """Columns of rows: state, values, keys that depend on the token, one, one-hot of k, one-hot of the token."""
    blocks = [torch.eye(width, width + 1, dtype=heads[0].query.dtype).expand(most, -1, -1)]
    blocks += [_padded(head.values, most).unsqueeze(1) for head in heads]
    starts, at = [], width + len(heads)
    for head in heads:
        starts.append(at)
        if head.key_rows is not None:
            blocks.append(_padded(head.key_rows, most))
            at += head.key_rows.shape[1]
    rows = torch.cat(blocks, dim=1).repeat(n, 1, 1)  # (columns, rows, state + 1)
    dtype = rows.dtype
    constants = torch.cat([torch.ones(n * most, 1, dtype=dtype), torch.eye(most, dtype=dtype).repeat(n, 1),
                           torch.eye(n, dtype=dtype).repeat_interleave(most, dim=0)], dim=1)  # fmt: skip
    copies = MixSequence(torch.eye(n, dtype=dtype).repeat_interleave(most, dim=0))
    return nn.Sequential(copies, PositionWise(rows[..., :-1], rows[..., -1]), AppendRows(constants)), starts


def _attention(heads: list[HeadRows], starts: list[int], width: int, n: int, most: int, size: int,
               dtype: torch.dtype) -> Attention:  # fmt: skip
    signal = sum(head.key_rows.shape[1] for head in heads if head.key_rows is not None)
    one = width + len(heads) + signal
    total = one + 1 + most + n
    query, key = (torch.zeros(len(heads), size + 1 + n, total, dtype=dtype) for _ in range(2))
    value = torch.zeros(len(heads), 1, total, dtype=dtype)
    for h, head in enumerate(heads):
        silence = _silence(head)
        rows, count = head.query.shape[0], head.values.shape[0]
        query[h, :rows, :width], query[h, :rows, one] = head.query[:, :-1], head.query[:, -1]
        if head.constant_keys is not None:
            key[h, :rows, one + 1 : one + 1 + count] = head.constant_keys.T
        if head.key_rows is not None:
            key[h, :rows, starts[h] : starts[h] + rows] = torch.eye(rows, dtype=dtype)
        query[h, size, one] = 1
        key[h, size, one + 1 + count : one + 1 + most] = -silence
        query[h, size + 1 :, one + 1 + most :] = torch.eye(n, dtype=dtype)
        key[h, size + 1 :, one + 1 + most :] = -silence * (1 - torch.eye(n, dtype=dtype))
        value[h, 0, width + h] = 1
    return Attention(query, key, value, keep=slice(0, n * most, most), stack=True)


def _silence(head: HeadRows) -> float:
    if head.constant_keys is None:
        size = head.query.abs().sum().item() * (head.key_rows.abs().sum().item() if head.key_rows is not None else 1.0)
        return 2 * REACH * REACH * max(size, 1.0) + SILENCE
    return 2 * (head.constant_keys.abs().sum(1).max().item() * REACH) + SILENCE


def _padded(rows: Tensor, most: int) -> Tensor:
    if rows.shape[0] == most:
        return rows
    return torch.cat([rows, rows.new_zeros(most - rows.shape[0], *rows.shape[1:])])


def _carry(place: int, width: int, dtype: torch.dtype) -> HeadRows:
    value = torch.zeros(1, width + 1, dtype=dtype)
    value[0, place] = 1
    nothing = torch.zeros(1, width + 1, dtype=dtype)
    return HeadRows(nothing, torch.zeros(1, 1, dtype=dtype), None, value)
