"""Networks as literal self-attention on a sequence of n tokens, layer by layer, with their matrices.

*Shared keys*, where a head's values are constants: the lift appends one column a key, after the tokens, with the key's
numbers and its value. A token's own column must not be attended to: its score is -S, so that its weight is zero.

*Copies*, where values depend on the token that asks: every token has K copies of itself, K the most keys that a head of
the layer has. Column (i, k) holds token i's state, a one, the one-hot rows of k and of i, and for each head its value
for key k, which is affine in the token (docs/mathematics.md 2.3). A head's W_Q reads its query off the state; its W_K
reads the numbers of key k off the one-hot row of k, and puts -S against the one-hot row of every other token, so that a
token attends to its own copies only, which lose no digits by it; keys that a head does not have lie S below too. Maxima
and the target's own attention have keys that depend on the token: those are rows of their own. What is carried on is a
head whose values are the same for all k. W_O keeps column (i, 0).

S exceeds every difference of scores for arguments up to `REACH` by 800, so that exp gives exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, SizeError
from anchorhead.head.module import HeadModule
from anchorhead.head.parameters import check_tensor
from anchorhead.model.affine import AppendColumns, AppendRows, MixSequence, PositionWise, TokenWise
from anchorhead.model.apply import Heads
from anchorhead.model.attention import Attention
from anchorhead.model.core import require_tokens
from anchorhead.model.group import HeadRows
from anchorhead.model.layered import Layer, LayeredNetwork
from anchorhead.model.network import Network

MOST_ENTRIES = 1 << 27
REACH = 100.0
SILENCE = 800.0


class SelfAttention(Network):
    """Lift and attention for each layer, and an affine map after the last if there is one: (..., n, inputs) to
    (..., n, outputs). Right for arguments up to `reach`."""

    def __init__(self, stages: Sequence[nn.Module], columns: Sequence[int], tokens: int, inputs: int) -> None:
        super().__init__(stages, (tokens, inputs))
        self.tokens, self.inputs, self.columns, self.reach = tokens, inputs, tuple(columns), REACH

    @property
    def attentions(self) -> list[Attention]:
        """The attention layers."""
        return [stage for stage in self.stages if isinstance(stage, Attention)]

    def check(self, x: Tensor) -> None:
        check_tensor(x, self.attentions[0].query.dtype, (self.tokens, self.inputs), what="network")

    def matrices(self) -> list[dict[str, Tensor]]:
        """W_Q, W_K, W_V, W_O of every layer, each with its heads in front, in the paper's orientation (tokens as
        columns)."""
        return [layer.matrices(count) for layer, count in zip(self.attentions, self.columns, strict=True)]


def head_on_sequences(head: HeadModule, tokens: int) -> SelfAttention:
    """One head, on sequences (..., tokens, 1)."""
    require_tokens(tokens)
    (rows,) = Heads(head, 1, None, partners=False).on_sequences(torch.tensor([[1.0, 0.0]], dtype=head.dtype))
    if rows.constant_keys is not None and not head.gains.any():
        return shared_keys(rows.query, rows.constant_keys, rows.values[:, 1:], tokens)
    alone = torch.zeros(head.keys, rows.query.shape[0], 2, dtype=head.dtype)  # one head: its keys stand in the copies
    alone[..., -1] = 0 if rows.constant_keys is None else rows.constant_keys
    lift, attention = copied_keys([replace(rows, constant_keys=None, key_rows=alone)], 1, tokens)
    return SelfAttention([lift, attention], [tokens * head.keys], tokens, 1)


def shared_keys(query: Tensor, keys: Tensor, values: Tensor, n: int) -> SelfAttention:
    """One layer: query (size, inputs + 1), affine in the token; keys (K, size); values (K, outputs)."""
    (size, inputs), (count, outputs), dtype = query.shape, values.shape, keys.dtype
    total = (n + count) * (size + 2 + outputs)
    if total > MOST_ENTRIES:
        raise SizeError(
            f"A head of {count} keys as matrices on {n} tokens needs {total:,} numbers, and "
            f"{MOST_ENTRIES:,} are allowed; take fewer tokens, or call the model itself, which needs none of them."
        )
    silence = 2 * keys.abs().sum(1).max().item() * REACH + SILENCE
    rows = torch.zeros(n + count, size + 2 + outputs, dtype=dtype)  # below the token: one, the key, silence, values
    rows[:, 0] = 1
    rows[:n, size + 1] = -silence
    rows[n:, 1 : size + 1], rows[n:, size + 2 :] = keys.detach(), values.detach()
    width = inputs - 1 + rows.shape[1]
    w_query, w_key = (torch.zeros(1, size + 1, width, dtype=dtype) for _ in range(2))
    w_query[0, :size, :inputs], w_query[0, size, inputs - 1] = query.detach(), 1
    w_key[0, :, inputs : inputs + size + 1] = torch.eye(size + 1, dtype=dtype)
    w_value = torch.zeros(1, outputs, width, dtype=dtype)
    w_value[0, :, inputs + size + 1 :] = torch.eye(outputs, dtype=dtype)
    lift = nn.Sequential(AppendColumns(torch.zeros(count, inputs - 1, dtype=dtype)), AppendRows(rows))
    attention = Attention(w_query, w_key, w_value, keep=slice(0, n), live=slice(n, n + count))
    return SelfAttention([lift, attention], [n + count], n, inputs - 1)


def layers_on_sequences(network: LayeredNetwork, inputs: int, tokens: int) -> SelfAttention:
    """A network of heads, on sequences of inputs, flat."""
    require_tokens(tokens)
    if not network.layers:
        raise InputError(
            "This model is an affine map: it has no attention layer to write as matrices or to hook. "
            "model.mechanism.outputs are its lines, and model.literal() is the map as a module."
        )
    stages: list[nn.Module] = []
    columns, width = [], inputs
    for layer in network.sequence:
        lift, attention = copied_keys(heads_of(layer, width), width, tokens)
        stages += [lift, attention]
        columns.append(int(attention.keep.stop))
        width = attention.heads
    stages.append(TokenWise(network.last.weight, network.last.bias))
    return SelfAttention(stages, columns, tokens, inputs)


def heads_of(layer: Layer, width: int) -> list[HeadRows]:
    """Heads that carry what is kept, and those of the layer's groups."""
    weight, bias = layer.rows.weight.detach(), layer.rows.bias.detach()
    rows = torch.cat([weight, bias[:, None]], dim=1).split(layer.sizes)  # affine in (state, 1)
    heads = [_carry(int(k), width, weight.dtype) for k in layer.kept]
    for group, part in zip(layer.parts, rows, strict=True):
        heads += group.on_sequences(part)
    return heads


def copied_keys(heads: Sequence[HeadRows], width: int, n: int) -> tuple[nn.Module, Attention]:
    """One layer: the lift that copies tokens, and the attention of the heads."""
    most = max(head.values.shape[0] for head in heads)
    columns, size = n * most, max(head.query.shape[0] for head in heads)
    signal = sum(head.key_rows.shape[1] for head in heads if head.key_rows is not None)
    total = columns * (width + len(heads) + signal) * (width + 1) + len(heads) * (size + n) * (width + 2 * n + signal)
    if total > MOST_ENTRIES:
        raise SizeError(
            f"A layer with {len(heads)} heads of up to {most} keys as matrices on {n} tokens needs {total:,} numbers, "
            f"and {MOST_ENTRIES:,} are allowed; take fewer tokens, or call the model itself, which needs none of them."
        )
    plain = all(head.constant_keys is None and len(head.values) == most for head in heads)
    marks = 0 if plain else most  # one-hot rows of k, which constant keys and missing ones are read off
    lift, starts = _lift(heads, width, n, most, marks)
    return lift, _attention(heads, starts, width, n, most, size, marks)


def _lift(heads: Sequence[HeadRows], width: int, n: int, most: int, marks: int) -> tuple[nn.Sequential, list[int]]:
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
    constants = torch.cat([torch.ones(n * most, 1, dtype=dtype), torch.eye(most, marks, dtype=dtype).repeat(n, 1),
                           torch.eye(n, dtype=dtype).repeat_interleave(most, dim=0)], dim=1)  # fmt: skip
    copies = MixSequence(torch.eye(n, dtype=dtype).repeat_interleave(most, dim=0))
    return nn.Sequential(copies, PositionWise(rows[..., :-1], rows[..., -1]), AppendRows(constants)), starts


def _attention(heads: Sequence[HeadRows], starts: list[int], width: int, n: int, most: int, size: int,
               marks: int) -> Attention:  # fmt: skip
    dtype = heads[0].query.dtype
    signal = sum(head.key_rows.shape[1] for head in heads if head.key_rows is not None)
    one = width + len(heads) + signal
    total = one + 1 + marks + n
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
        key[h, size, one + 1 + count : one + 1 + marks] = -silence
        query[h, size + 1 :, one + 1 + marks :] = torch.eye(n, dtype=dtype)
        key[h, size + 1 :, one + 1 + marks :] = -silence * (1 - torch.eye(n, dtype=dtype))
        value[h, 0, width + h] = 1
    return Attention(query, key, value, keep=slice(0, n * most, most), stack=True)


def _silence(head: HeadRows) -> float:
    if head.constant_keys is None:
        size = head.query.abs().sum().item() * (head.key_rows.abs().sum().item() if head.key_rows is not None else 1.0)
        return 2 * REACH * REACH * max(size, 1.0) + SILENCE
    return 2 * (head.constant_keys.abs().sum(1).max().item() * REACH) + SILENCE


def _padded(rows: Tensor, most: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(most - rows.shape[0], *rows.shape[1:])])


def _carry(place: int, width: int, dtype: torch.dtype) -> HeadRows:
    value = torch.zeros(1, width + 1, dtype=dtype)
    value[0, place] = 1
    nothing = torch.zeros(1, width + 1, dtype=dtype)
    return HeadRows(nothing, torch.zeros(1, 1, dtype=dtype), None, value)
