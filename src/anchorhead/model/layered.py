"""A network of many heads: layers of affine maps and attention, made from stored maps and the heads of its steps.

The state (..., S) holds the wires that are still needed, in a fixed order. A layer is

    rows = weight · state + bias              what its heads look at, their partners, scores and values
    new  = the heads' outputs                 attention, head by head, each over keys of its own
    state = (wires still needed, new)         a residual connection

and the outputs are one more affine map. Steps of a layer that share a head (the same numbers) are evaluated together.
*Fast*: a head as `head/module.py` evaluates it; where it carries a partner, times the partner, which is the same
since all values have that factor. *Literal*: scores, softmax, values for every head.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from anchorhead.circuit.circuit import Attend, Circuit, Largest, Times
from anchorhead.circuit.layout import LayerPlan, rows_of, states
from anchorhead.circuit.rows import PLAIN, StoredMap, Wiring
from anchorhead.errors import StructureError
from anchorhead.head.module import CARRYING, HeadAttention
from anchorhead.head.own_precision import in_own_precision
from anchorhead.head.parameters import constant
from anchorhead.model.affine import TokenWise
from anchorhead.model.network import check_input


class Heads(nn.Module):
    """Steps of one head, α h(t) + β t + γ, times a partner each or not: `count` queries t, then the partners.

    That is a head with values α·value_k + β t + γ over the same keys; values holds (α, β, γ) as (3, count), or nothing
    where every step takes its head as it is.
    """

    def __init__(self, head: HeadAttention, count: int, values: Tensor | None, *, partners: bool) -> None:
        super().__init__()
        self.head, self.count, self.partners = head, count, partners
        self.values = None if values is None else constant(values)

    @property
    def keys(self) -> int:
        return self.head.keys

    def forward(self, rows: Tensor) -> Tensor:
        queries = rows[..., : self.count]
        found = self.head(queries)
        if self.values is not None:
            scale, tilt, shift = self.values
            found = found * scale + (queries * tilt + shift)
        return found * rows[..., self.count :] if self.partners else found

    def literal(self) -> LiteralHeads:
        return LiteralHeads(self)


class LiteralHeads(nn.Module):
    """Scores, softmax over keys, values; where there is a partner a key's value is its constant times the partner."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.head, self.count, self.partners = heads.head.literal(), heads.count, heads.partners
        constants, gains = self.head.constants, self.head.gains
        if heads.values is None:
            self.constants, self.gains = (constant(v.expand(heads.count, -1)) for v in (constants, gains))
        else:
            scale, tilt, shift = (v[:, None] for v in heads.values)
            self.constants, self.gains = constant(scale * constants + shift), constant(scale * gains + tilt)
        if self.partners and bool(self.gains.any()):
            raise StructureError(CARRYING)

    def weights(self, rows: Tensor) -> Tensor:
        """(..., count, keys)."""
        return self.head.weights(rows[..., : self.count])

    def forward(self, rows: Tensor) -> Tensor:
        if self.partners:
            values = rows[..., self.count :].unsqueeze(-1) * self.constants
        else:
            values = rows.unsqueeze(-1) * self.gains + self.constants
        return (self.weights(rows).unsqueeze(-2) @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1)


class Maxima(nn.Module):
    """Steps max(u_1..u_m): softmax of sharpness·u over values u; sharpness is (count,)."""

    def __init__(self, size: int, sharpness: Tensor) -> None:
        super().__init__()
        self.count, self.keys = len(sharpness), size
        self.sharpness = constant(sharpness)

    def weights(self, rows: Tensor) -> Tensor:
        """(..., count, m)."""
        return (rows.unflatten(-1, (self.count, self.keys)) * self.sharpness[:, None]).softmax(-1)

    def forward(self, rows: Tensor) -> Tensor:
        values = rows.unflatten(-1, (self.count, self.keys)).unsqueeze(-1)
        return (self.weights(rows).unsqueeze(-2) @ values).squeeze(-1).squeeze(-1)


class Attentions(nn.Module):
    """The target's own softmax attention: `count` queries of size d over m keys each, with values of a width."""

    def __init__(self, count: int, size: int, keys: int, width: int) -> None:
        super().__init__()
        self.count, self.size, self.keys, self.width = count, size, keys, width

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (..., count, 1, d + 1), keys (..., count, m, d + 1) with their offsets, values."""
        g, d, m, w = self.count, self.size, self.keys, self.width
        query, key, offset, value = rows.split([g * d, g * m * d, g * m, g * m * w], dim=-1)
        one = rows.new_ones(1).expand(*rows.shape[:-1], g, 1, 1)
        query = torch.cat([query.unflatten(-1, (g, 1, d)), one], dim=-1)
        key = torch.cat([key.unflatten(-1, (g, m, d)), offset.unflatten(-1, (g, m, 1))], dim=-1)
        return query, key, value.unflatten(-1, (g, m, w))

    def weights(self, rows: Tensor) -> Tensor:
        """(..., count, m)."""
        query, key, _ = self._parts(rows)
        return (query @ key.mT).softmax(-1).squeeze(-2)

    def forward(self, rows: Tensor) -> Tensor:
        query, key, value = self._parts(rows)
        return ((query @ key.mT).softmax(-1) @ value).squeeze(-2).flatten(-2)


Group = Heads | LiteralHeads | Maxima | Attentions


class Layer(nn.Module):
    """One layer; `kept` are the places of the state that are carried on."""

    kept: Tensor

    def __init__(
        self,
        rows: TokenWise,
        groups: Sequence[nn.Module],
        sizes: Sequence[int],
        kept: Tensor,
        steps: Sequence[Sequence[int]],
    ) -> None:
        super().__init__()
        self.rows, self.groups = rows, nn.ModuleList(groups)
        self.sizes, self.group_steps = tuple(sizes), tuple(list(part) for part in steps)
        self.register_buffer("kept", kept)

    @property
    def steps(self) -> list[int]:
        """The steps of the circuit that the layer evaluates, in the order of its outputs."""
        return [i for part in self.group_steps for i in part]

    def forward(self, state: Tensor) -> Tensor:
        parts = self.rows(state).split(self.sizes, dim=-1)
        found = [group(part) for group, part in zip(self.groups, parts, strict=True)]
        return torch.cat([state[..., self.kept], *found], dim=-1)

    @property
    def parts(self) -> list[Group]:
        """The groups, each of which evaluates steps of one kind."""
        return cast(list[Group], list(self.groups))

    def literal(self) -> Layer:
        groups = [group.literal() if isinstance(group, Heads) else copy.deepcopy(group) for group in self.parts]
        return Layer(copy.deepcopy(self.rows), groups, self.sizes, self.kept.clone(), self.group_steps)

    def weights(self, state: Tensor) -> Tensor:
        """(..., heads, keys), keys that a head does not have with weight zero."""
        parts = self.rows(state).split(self.sizes, dim=-1)
        found = [_weights(group, part) for group, part in zip(self.parts, parts, strict=True)]
        most = max(w.shape[-1] for w in found)
        return torch.cat([nn.functional.pad(w, (0, most - w.shape[-1])) for w in found], dim=-2)


def _weights(group: Group, rows: Tensor) -> Tensor:
    return group.literal().weights(rows) if isinstance(group, Heads) else group.weights(rows)


class LayeredNetwork(nn.Module):
    """(..., *input_shape) to (..., *output_shape)."""

    def __init__(
        self, layers: Sequence[Layer], last: TokenWise, input_shape: tuple[int, ...], output_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last
        self.input_shape, self.output_shape = input_shape, output_shape

    @property
    def sequence(self) -> list[Layer]:
        """The layers in order."""
        return cast(list[Layer], list(self.layers))

    @in_own_precision
    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        state = x.flatten(-len(self.input_shape))
        for layer in self.layers:
            state = layer(state)
        return self.last(state).unflatten(-1, self.output_shape) if self.output_shape else self.last(state).squeeze(-1)

    @in_own_precision
    def states(self, x: Tensor) -> list[Tensor]:
        """The state before the first layer, and after each."""
        state = x.flatten(-len(self.input_shape))
        found = [state]
        for layer in self.layers:
            state = layer(state)
            found.append(state)
        return found

    def literal(self) -> LayeredNetwork:
        """A copy of the numbers as scores, softmax and values."""
        layers = [layer.literal() for layer in self.sequence]
        return LayeredNetwork(layers, copy.deepcopy(self.last), self.input_shape, self.output_shape)

    @in_own_precision
    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights of each layer, (..., heads, keys)."""
        self.check(x)
        return [layer.weights(s) for layer, s in zip(self.sequence, self.states(x), strict=False)]

    def check(self, x: Tensor) -> None:
        """Refuses what is not a tensor of the network's dtype and of its input's shape."""
        check_input(x, self.input_shape, self.last.weight.dtype)


def build(circuit: Circuit, plans: Sequence[LayerPlan], maps: Sequence[StoredMap], wiring: Wiring,
          heads: Sequence[HeadAttention], dtype: torch.dtype) -> LayeredNetwork:  # fmt: skip
    """The network of a circuit: these layers, with these affine maps; `heads` are those that the wiring names."""
    layers, widths = [], [len(held) for held in states(circuit, plans)]
    for plan, stored, width in zip(plans, maps, widths, strict=False):
        groups = [_group(circuit, group, wiring, heads, dtype) for group in plan.groups]
        sizes = [len(rows_of(circuit, group)) for group in plan.groups]
        kept = torch.tensor(plan.kept, dtype=torch.int64)
        layers.append(Layer(affine(stored, width, dtype), groups, sizes, kept, plan.groups))
    last = affine(maps[-1], widths[-1], dtype)
    return LayeredNetwork(layers, last, circuit.input_shape, circuit.output_shape)


def _group(circuit: Circuit, group: Sequence[int], wiring: Wiring, heads: Sequence[HeadAttention],
           dtype: torch.dtype) -> nn.Module:  # fmt: skip
    first, count = circuit.steps[group[0]], len(group)
    values = [wiring.values[i] for i in group]
    if isinstance(first, Attend):
        return Attentions(count, len(first.query), len(first.offsets), first.width)
    if isinstance(first, Largest):
        return Maxima(len(first.arguments), torch.tensor([v[0] for v in values], dtype=dtype))
    kept = None if all(v == PLAIN for v in values) else torch.tensor(values, dtype=dtype).T
    return Heads(heads[wiring.uses[group[0]].head], count, kept, partners=isinstance(first, Times))


def affine(stored: StoredMap, width: int, dtype: torch.dtype) -> TokenWise:
    """A stored map on states of that width as a module."""
    weight = torch.zeros(len(stored.bias), width, dtype=dtype)
    lengths = torch.tensor(stored.starts, dtype=torch.int64).diff()
    rows = torch.arange(len(stored.bias)).repeat_interleave(lengths)
    weight[rows, torch.tensor(stored.columns, dtype=torch.int64)] = torch.tensor(stored.entries, dtype=dtype)
    return TokenWise(weight, torch.tensor(stored.bias, dtype=dtype))
