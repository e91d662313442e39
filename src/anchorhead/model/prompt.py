"""A network on a prompt: layers of affine maps and attention, on the tokens, on the prompt, and on the queries.

The state is that of `layered.py`, but lies in three places (`circuit/places.py`): (..., n, wires) at the tokens,
(..., 1, wires) for the prompt, (..., m, wires) at the queries. A layer's affine map is the one that is stored; a row of
it is read in its place, from the wires there and from the prompt's, which every token and every query sees (attention
to one key). Groups are evaluated where their rows are; pools read queries in their own place and the rest at tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.layout import LayerPlan, read_at, states
from anchorhead.circuit.places import Place
from anchorhead.circuit.rows import StoredMap, Wiring
from anchorhead.head.module import HeadModule
from anchorhead.head.own_precision import in_own_precision
from anchorhead.model.affine import TokenWise
from anchorhead.model.layered import Layer, LayeredNetwork, build
from anchorhead.model.pool import Pools

State = dict[Place, Tensor]


class Rows:
    """Which rows of a stored map are read in which place, and from which places of the state."""

    def __init__(self, rows: Sequence[Place], held: Sequence[Place]) -> None:
        shared = [k for k, place in enumerate(held) if place is Place.PROMPT]
        self.rows: dict[Place, list[int]] = {}
        self.columns: dict[Place, list[int]] = {}
        for place in dict.fromkeys(rows):
            self.rows[place] = [r for r, found in enumerate(rows) if found is place]
            own = [k for k, found in enumerate(held) if found is place] if place is not Place.PROMPT else []
            self.columns[place] = own + shared

    def read(self, affine: TokenWise, state: State) -> dict[Place, Tensor]:
        """The rows of each place."""
        found = {}
        for place, rows in self.rows.items():
            seen = state[place]
            if place is not Place.PROMPT:
                shared = state[Place.PROMPT].expand(*seen.shape[:-1], -1)
                seen = torch.cat([seen, shared], dim=-1)
            weight = affine.weight[rows][:, self.columns[place]]
            found[place] = seen @ weight.mT + affine.bias[rows]
        return found


class PromptLayer:
    """How one `Layer` is run on a prompt."""

    def __init__(self, circuit: Circuit, plan: LayerPlan, held: Sequence[int]) -> None:
        self.at = [read_at(circuit, group) for group in plan.groups]
        self.own = [circuit.place(group[0]) for group in plan.groups]
        places = [circuit.places[wire] for wire in held]
        self.rows = Rows([place for group in self.at for place in group], places)
        self.kept = {place: _of(place, places, plan.kept) for place in Place}

    def parts(self, layer: Layer, state: State) -> Iterator[tuple[Any, Place, dict[Place, Tensor]]]:
        """Each group of the layer, its place, and its rows in each place where it reads."""
        found = self.rows.read(layer.rows, state)
        begun = dict.fromkeys(Place, 0)
        for group, own, at in zip(layer.parts, self.own, self.at, strict=True):
            rows = {}
            for place in dict.fromkeys(at):
                end = begun[place] + at.count(place)
                rows[place] = found[place][..., begun[place] : end]
                begun[place] = end
            yield group, own, rows

    def run(self, layer: Layer, state: State, mask: Tensor | None) -> State:
        made: dict[Place, list[Tensor]] = {place: [state[place][..., kept]] for place, kept in self.kept.items()}
        for group, own, rows in self.parts(layer, state):
            made[own].append(group(*pooled(group, own, rows, state), mask) if isinstance(group, Pools)
                             else group(rows[own]))  # fmt: skip
        return {place: torch.cat(parts, dim=-1) for place, parts in made.items()}


def pooled(group: Pools, own: Place, rows: dict[Place, Tensor], state: State) -> tuple[Tensor, Tensor]:
    """What a pool asks with in its own place, and what it finds at the tokens."""
    return rows[own] if group.size else state[own][..., :0], rows[Place.TOKEN]


class PromptNetwork(LayeredNetwork):
    """tokens (..., n, t) and queries (..., m, k) to (..., m, outputs); without queries to (..., 1, outputs)."""

    def __init__(self, layers: Sequence[Layer], last: TokenWise, circuit: Circuit, plans: Sequence[LayerPlan]) -> None:
        super().__init__(layers, last)
        held = list(states(circuit, plans))
        self.plans = [PromptLayer(circuit, plan, wires) for plan, wires in zip(plans, held, strict=False)]
        places = [circuit.places[wire] for wire in held[-1]]
        self.answers = circuit.answers
        self.last_rows = Rows([self.answers] * len(circuit.outputs), places)

    @in_own_precision
    def forward(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        *_, last = self.run(tokens, query, mask)
        return self.last_rows.read(self.last, last)[self.answers]

    def run(self, tokens: Tensor, query: Tensor | None, mask: Tensor | None) -> Iterator[State]:
        """The state before the first layer, and after each."""
        state = {Place.TOKEN: tokens, Place.PROMPT: tokens[..., :1, :0],
                 Place.QUERY: tokens[..., :1, :0] if query is None else query}  # fmt: skip
        yield state
        for plan, layer in zip(self.plans, self.sequence, strict=True):
            state = plan.run(layer, state, mask)
            yield state

    def literal(self) -> PromptNetwork:
        found = copy.copy(self)
        found._modules = dict(self._modules)
        found.layers = torch.nn.ModuleList(layer.literal() for layer in self.sequence)
        found.last = copy.deepcopy(self.last)
        return found

    @in_own_precision
    def weights(self, tokens: Tensor, query: Tensor | None, mask: Tensor | None) -> list[Tensor]:
        """The attention weights of every group of heads, layer by layer."""
        found = []
        for plan, layer, state in zip(self.plans, self.sequence, self.run(tokens, query, mask), strict=False):
            for group, own, rows in plan.parts(layer, state):
                if isinstance(group, Pools):
                    found.append(group.token_weights(*pooled(group, own, rows, state), mask).transpose(-3, -2))
                else:
                    found.append(group.weights(rows[own]))
        return found


def build_prompt(circuit: Circuit, plans: Sequence[LayerPlan], maps: Sequence[StoredMap], wiring: Wiring,
                 heads: Sequence[HeadModule], dtype: torch.dtype) -> PromptNetwork:  # fmt: skip
    """The network of a prompt's circuit, from the same numbers as any other."""
    plain = build(circuit, plans, maps, wiring, heads, dtype)
    return PromptNetwork(plain.sequence, plain.last, circuit, plans)


def _of(place: Place, held: Sequence[Place], kept: Sequence[int]) -> list[int]:
    """The kept places of the state, as numbers among the wires of this place."""
    own = [k for k, found in enumerate(held) if found is place]
    return [own.index(k) for k in kept if held[k] is place]
