"""A network of many heads: layers of affine maps and attention, made from a circuit and the numbers of its heads.

The state (..., S) holds the wires that are still needed, in a fixed order. A layer is

    rows = weight · state + bias              what its heads look at, their partners, scores and values
    new  = the heads' outputs                 attention, head by head, each over keys of its own
    state = (wires still needed, new)         a residual connection

and the outputs are one more affine map. Steps of a layer that share a head (the same numbers) are evaluated together.
*Fast*: a head as `head_attention.py` evaluates it; where it carries a partner, times the partner, which is the same
since all values have that factor. *Literal*: scores, softmax, values for every head.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from anchorhead.errors import StructureError
from anchorhead.expression.circuit import Attend, Circuit, Largest, Line, Step, Times
from anchorhead.expression.exact import stored
from anchorhead.network.affine import TokenWise, constant, followed, unchanged
from anchorhead.network.head_attention import CARRYING, HeadAttention
from anchorhead.network.network import check_input
from anchorhead.network.own_precision import in_own_precision

DTYPE_NAMES = {torch.float64: "float64", torch.float32: "float32"}


class Heads(nn.Module):
    """Steps of one head, α h(t) + β t + γ, times a partner each or not: `count` queries t, then the partners.

    That is a head with values α·value_k + β t + γ over the same keys; values holds (α, β, γ) as (3, count).
    """

    def __init__(self, head: HeadAttention, values: Tensor, *, partners: bool) -> None:
        super().__init__()
        self.head, self.count, self.partners = head, values.shape[1], partners
        self.values = constant(values)
        self._look()

    def _look(self) -> None:
        """What need not be computed, as long as the values are these: α = 1, β = 0, γ = 0 for all steps, or β = 0."""
        self._seen = self.values.detach().clone()
        self._plain = bool((self._seen == self._seen.new_tensor([[1.0], [0.0], [0.0]])).all())
        self._tilted = bool(self._seen[1].any())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._look()

    @property
    def keys(self) -> int:
        return self.head.keys

    def forward(self, rows: Tensor) -> Tensor:
        queries = rows[..., : self.count]
        found = self.head(queries)
        live = followed([self.values])
        if not (live or torch.compiler.is_compiling() or unchanged([self.values], [self._seen])):
            self._look()
        if live or not self._plain:
            scale, tilt, shift = self.values
            found = found * scale + (queries * tilt + shift if live or self._tilted else shift)
        return found * rows[..., self.count :] if self.partners else found

    def literal(self) -> LiteralHeads:
        return LiteralHeads(self)


class LiteralHeads(nn.Module):
    """Scores, softmax over keys, values; where there is a partner a key's value is its constant times the partner."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.head, self.count, self.partners = heads.head.literal(), heads.count, heads.partners
        scale, tilt, shift = (v[:, None] for v in heads.values)
        self.constants = constant(scale * self.head.constants + shift)
        self.gains = constant(scale * self.head.gains + tilt)
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
    """Steps max(u_1..u_m): softmax of sharpness·u over values u."""

    def __init__(self, count: int, size: int, sharpness: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.count, self.keys = count, size
        self.sharpness = constant(torch.tensor(sharpness, dtype=dtype))

    def weights(self, rows: Tensor) -> Tensor:
        """(..., count, m)."""
        return (rows.unflatten(-1, (self.count, self.keys)) * self.sharpness).softmax(-1)

    def forward(self, rows: Tensor) -> Tensor:
        values = rows.unflatten(-1, (self.count, self.keys)).unsqueeze(-1)
        return (self.weights(rows).unsqueeze(-2) @ values).squeeze(-1).squeeze(-1)


class Attentions(nn.Module):
    """The target's own softmax attention: `count` queries of size d over m keys each, with values of a width."""

    def __init__(self, count: int, size: int, keys: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.count, self.size, self.keys, self.width = count, size, keys, width
        self.one = constant(torch.ones(1, dtype=dtype))

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (..., count, 1, d + 1), keys (..., count, m, d + 1) with their offsets, values."""
        g, d, m, w = self.count, self.size, self.keys, self.width
        query, key, offset, value = rows.split([g * d, g * m * d, g * m, g * m * w], dim=-1)
        one = self.one.expand(*rows.shape[:-1], g, 1, 1)
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
        self, rows: TokenWise, groups: Sequence[nn.Module], sizes: Sequence[int], kept: Tensor, steps: Sequence[int]
    ) -> None:
        super().__init__()
        self.rows, self.groups = rows, nn.ModuleList(groups)
        self.sizes, self.steps = tuple(sizes), tuple(steps)
        self.register_buffer("kept", kept)

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
        return Layer(copy.deepcopy(self.rows), groups, self.sizes, self.kept.clone(), self.steps)

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


@dataclass(frozen=True)
class Part:
    """What computes a step: a head that looks at `query` with values (α, β, γ), or a maximum's sharpness."""

    head: HeadAttention | None = None
    query: Line | None = None
    values: tuple[float, float, float] = (1.0, 0.0, 0.0)
    sharpness: float = 0.0


def build(circuit: Circuit, parts: Sequence[Part], dtype: torch.dtype) -> LayeredNetwork:
    """The network of a circuit whose step i is computed by parts[i]."""
    depths = circuit.depths()
    last_use = _last_uses(circuit, depths)
    held = list(range(len(circuit.inputs)))
    layers = []
    for depth in range(1, max(depths, default=0) + 1):
        steps = [i for i, d in enumerate(depths) if d == depth]
        groups = _groups(circuit, steps, parts)
        ordered = [i for group in groups for i in group]
        lines = [_rows([circuit.steps[i] for i in group], [parts[i] for i in group]) for group in groups]
        rows = affine([line for part in lines for line in part], held, dtype)
        modules = [_module([circuit.steps[i] for i in group], [parts[i] for i in group], dtype) for group in groups]
        kept = [k for k, wire in enumerate(held) if last_use.get(wire, 0) > depth]
        layers.append(
            Layer(rows, modules, [len(part) for part in lines], torch.tensor(kept, dtype=torch.int64), ordered)
        )
        held = [held[k] for k in kept]
        for i in ordered:
            held += range(circuit.starts[i], circuit.starts[i] + circuit.steps[i].width)
    return LayeredNetwork(layers, affine(circuit.outputs, held, dtype), circuit.input_shape, circuit.output_shape)


def _last_uses(circuit: Circuit, depths: Sequence[int]) -> dict[int, float]:
    found: dict[int, float] = {}
    for step, depth in zip(circuit.steps, depths, strict=True):
        for line in step.lines():
            for wire in line.terms:
                found[wire] = max(found.get(wire, 0), depth)
    for line in circuit.outputs:
        for wire in line.terms:
            found[wire] = math.inf
    return found


def _groups(circuit: Circuit, steps: Sequence[int], parts: Sequence[Part]) -> list[list[int]]:
    """Steps of one layer that one module evaluates together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i in steps:
        step = circuit.steps[i]
        kind: tuple[object, ...] = (type(step),)
        if isinstance(step, Largest):
            kind += (len(step.arguments), parts[i].sharpness)
        elif isinstance(step, Attend):
            kind += (len(step.query), len(step.offsets), step.width)
        else:
            kind += (id(parts[i].head),)
        groups.setdefault(kind, []).append(i)
    return list(groups.values())


def _rows(steps: Sequence[Step], parts: Sequence[Part]) -> list[Line]:
    """The lines that a group reads, in the order in which its module expects them."""
    attends = [step for step in steps if isinstance(step, Attend)]
    if attends:
        found = [q for s in attends for q in s.query]
        found += [k for s in attends for row in s.keys for k in row]
        found += [o for s in attends for o in s.offsets]
        return found + [v for s in attends for row in s.values for v in row]
    if isinstance(steps[0], Largest):
        return [line for step in steps for line in step.lines()]
    queries = [part.query for part in parts if part.query is not None]
    return queries + [s.partner for s in steps if isinstance(s, Times)]


def _module(steps: Sequence[Step], parts: Sequence[Part], dtype: torch.dtype) -> nn.Module:
    first, count = steps[0], len(steps)
    if isinstance(first, Attend):
        return Attentions(count, len(first.query), len(first.offsets), first.width, dtype)
    if isinstance(first, Largest):
        return Maxima(count, len(first.arguments), parts[0].sharpness, dtype)
    head = parts[0].head
    assert head is not None
    values = torch.tensor([part.values for part in parts], dtype=dtype).T
    return Heads(head, values, partners=isinstance(first, Times))


def affine(lines: Sequence[Line], held: Sequence[int], dtype: torch.dtype) -> TokenWise:
    """The lines as one affine map on the wires held, in this order, each number stored in the dtype."""
    name, place = DTYPE_NAMES[dtype], {wire: k for k, wire in enumerate(held)}
    rows, columns, entries = [], [], []
    for r, line in enumerate(lines):
        for wire, c in line.terms.items():
            rows.append(r)
            columns.append(place[wire])
            entries.append(stored(c, name))
    weight = torch.zeros(len(lines), len(held), dtype=dtype)
    weight[rows, columns] = torch.tensor(entries, dtype=dtype)
    return TokenWise(weight, torch.tensor([stored(line.bias, name) for line in lines], dtype=dtype))
