"""An algorithm as plain self-attention, with its matrices, for prompts of a fixed small size.

The state is one vector z, tensor after tensor. A head is an affine lift of z to tokens and softmax(Q K^T + mask) V with
Q = tokens W_Q and so on; what it gives is put behind z, and an affine map makes the next state of all that, which
holds the residual connections. For a call phi(u)·v there are K tokens for every u, one a key, with features

    (u, 1 | slope_k, level_k | constant_k v)        or        (x_i, f, 1 | slope_k w, slope_k, level_k | constant_k v)

where u = x_i·w + f is an inner product itself, so that W_Q, W_K, W_V select a part each; the mask lets the tokens of
one u see each other only. Where the keys are examples of the prompt there is a token for each of them. The affine maps
are read off by running the algorithm on zero and on all unit vectors at once, as a batch: the head's outputs, too, are
coordinates of their own. Calls of which none needs another's output stand side by side in one layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorhead.errors import ShapeError, SizeError
from anchorhead.in_context.bounds import counts
from anchorhead.in_context.heads import InnerHead, Keys, Lookup
from anchorhead.in_context.network import InContextNetwork, State, require_tensors
from anchorhead.in_context.reading import Literal, Reading, with_sinks
from anchorhead.model.affine import TokenWise

MOST_ENTRIES = 75_000_000


@dataclass(frozen=True)
class Match:
    """u = rows·columns before it is formed, (..., d) each. What is added to u is one more product."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, u: Any) -> Match:
        """Of a number, u·1."""
        return u if isinstance(u, Match) else cls(u.unsqueeze(-1), torch.ones_like(u).unsqueeze(-1))

    def squeeze(self, axis: int) -> Match:
        """The same without an axis of one, counted from the end."""
        return Match(self.rows.squeeze(axis - 1), self.columns.squeeze(axis - 1))

    def __rmul__(self, factor: Any) -> Match:
        return Match(factor * self.rows, self.columns)

    def __add__(self, other: Any) -> Match:
        more = torch.zeros_like(self.rows[..., 0]) + other
        parts = Match.of(more)
        return Match(torch.cat([self.rows, parts.rows], -1), torch.cat([self.columns, parts.columns], -1))


class Call(NamedTuple):
    """A head's tokens on every vector of a basis, (vectors, u, keys, features), and how many of them are the query."""

    tokens: Tensor
    match: int


class Calls(Literal):
    """Notes every call of an algorithm that runs on a basis; what a call gives is taken from `given`, or zero."""

    def __init__(self, given: list[Tensor] | None = None) -> None:
        super().__init__()
        self.given, self.found, self.shapes = given, list[Call](), list[torch.Size]()

    def match(self, X: Tensor, W: Tensor) -> Match:
        return Match(*torch.broadcast_tensors(X.unsqueeze(-2), W.unsqueeze(-3)))

    def attend(self, head: InnerHead | Lookup, at: tuple[Any, ...], v: Tensor | None) -> Tensor:
        keys, arguments = head.read_keys(), head.arguments(*at)
        shape = Match.of(arguments[0]).rows.shape[:-1]
        self.shapes.append(torch.Size([*shape[1:], keys.width(v)]))
        if self.given is None:
            return keys.levels.new_zeros(shape[0], *self.shapes[-1])
        self.found.append(_tokens(keys, arguments, None if v is None else v.expand(*shape, -1), shape))
        return self.given[len(self.found) - 1]

    def blend(
        self, rows: Tensor, columns: Tensor, values: Tensor, mask: Tensor | None = None, sink: float | None = None
    ) -> Tensor:
        if sink is not None:
            columns, values = with_sinks(columns, values, sink)
        shape, factor = rows.shape[:-1], 1.0 if sink is None else math.exp(sink)
        self.shapes.append(torch.Size([*shape[1:], values.shape[-1]]))
        if self.given is None:
            return rows.new_zeros(shape[0], *self.shapes[-1])
        keys = torch.cat([columns, values], -1).unsqueeze(-3).expand(*shape, -1, -1)
        _require_room(2 * keys.numel())
        query = rows.unsqueeze(-2).expand(*keys.shape[:-1], -1)
        self.found.append(Call(torch.cat([query, keys], -1), rows.shape[-1]))
        return factor * self.given[len(self.found) - 1]


def _require_room(entries: int) -> None:
    if entries > MOST_ENTRIES:
        raise SizeError(f"A lift of {entries:,} entries is too large to write out; use fewer examples or features.")


def _tokens(keys: Keys, arguments: list[Any], v: Tensor | None, shape: torch.Size) -> Call:
    """See the top."""
    matched, one = [Match.of(u) for u in arguments], keys.levels.new_ones(*shape, 1)
    query = torch.cat([*(m.rows for m in matched), one], -1)
    scores = [m.columns.unsqueeze(-2) * by.unsqueeze(-1) for m, by in zip(matched, keys.slopes, strict=True)]
    key = torch.cat([*scores, one.unsqueeze(-2) * keys.levels.unsqueeze(-1)], -1)
    value = keys.values(arguments[0], v).expand(*shape, len(keys.levels), -1)
    _require_room(key.numel() * 2 + value.numel())
    tokens = torch.cat([query.unsqueeze(-2).expand_as(key), key, value], -1)
    return Call(tokens.reshape(shape[0], -1, *tokens.shape[-2:]), query.shape[-1])


def _affine(images: Tensor, size: int) -> TokenWise:
    """An affine map of z, from what it gives at zero and at the unit vectors, (1 + size, ...)."""
    return TokenWise((images[1 : 1 + size] - images[0]).flatten(1).T, images[0].flatten())


class Head(nn.Module):
    """One self-attention head on lifted tokens: z to what it gives for every u, flat."""

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    mask: Tensor

    def __init__(self, call: Call, size: int) -> None:
        super().__init__()
        _, groups, self.keys, self.width = call.tokens.shape
        self.lift = _affine(call.tokens, size)
        eye = torch.eye(self.width, dtype=torch.float64, device=call.tokens.device)
        self.register_buffer("W_Q", eye[:, : call.match])
        self.register_buffer("W_K", eye[:, call.match : 2 * call.match])
        self.register_buffer("W_V", eye[:, 2 * call.match :])
        own = torch.arange(groups, device=eye.device).repeat_interleave(self.keys)
        self.register_buffer("mask", own[:, None] != own[None, :])

    def forward(self, z: Tensor) -> Tensor:
        x = self.lift(z).unflatten(-1, (-1, self.width))
        scores = (x @ self.W_Q) @ (x @ self.W_K).mT
        found = scores.masked_fill(self.mask, -math.inf).softmax(-1) @ (x @ self.W_V)
        return found[..., :: self.keys, :].flatten(-2)  # all tokens of one u have the same output: the first


class Layer(nn.Module):
    """Heads side by side; what they give is put behind z."""

    def __init__(self, heads: list[Head]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, *(head(z) for head in self.heads)], -1)


def _stage(function: Callable[[Reading, State], State], state: State) -> tuple[nn.Sequential, State]:
    """The layers of a function from states to states, an affine map last; and a state of the shapes that it gives."""
    plain = Calls()
    function(plain, {name: v.unsqueeze(0) for name, v in state.items()})
    shapes = [*(v.shape for v in state.values()), *plain.shapes]
    sizes = [math.prod(shape) for shape in shapes]
    total = sum(sizes)
    _require_room(total**2)
    units = torch.eye(total, dtype=torch.float64, device=next(iter(state.values())).device)
    basis = torch.cat([torch.zeros_like(units[:1]), units])
    parts = [p.reshape(-1, *shape) for p, shape in zip(basis.split(sizes, -1), shapes, strict=True)]
    calls = Calls(parts[len(state) :])
    after = function(calls, dict(zip(state, parts, strict=False)))
    layers: list[nn.Module] = []
    known = end = sum(sizes[: len(state)])
    heads: list[Head] = []
    for call, size in zip(calls.found, sizes[len(state) :], strict=True):
        if heads and bool((call.tokens[1 + known : 1 + end] != call.tokens[0]).any()):
            layers, heads, known = [*layers, Layer(heads)], [], end
        heads.append(Head(call, known))
        end += size
    layers += [Layer(heads)] if heads else []
    images = torch.cat([v.flatten(1) for v in after.values()], -1)
    return nn.Sequential(*layers, _affine(images, total)), {name: v[0] for name, v in after.items()}


class SelfAttentionRun(nn.Module):
    """The whole network, a prompt to its result as one tensor, in float64: `first`, then `step` as often as there are
    steps, then `last`."""

    def __init__(self, model: InContextNetwork, examples: int) -> None:
        super().__init__()
        (self.examples,) = counts(examples=examples)
        self.shapes, self.steps = model.shapes(self.examples), model.steps
        _require_room(sum(math.prod(shape) for shape in self.shapes.values()) ** 2)
        like = next(model.parameters()).detach().double()
        blank = {name: like.new_zeros(shape) for name, shape in self.shapes.items()}
        self.first, state = _stage(lambda how, prompt: model.begin(how, *prompt.values()), blank)
        self.step, state = _stage(model.step, state) if self.steps else (nn.Sequential(), state)
        self.last, result = _stage(lambda how, state: {"": model.joined(model.end(how, state))}, state)
        self.output_shape = result[""].shape

    @property
    def layers(self) -> list[Layer]:
        """All layers of attention; those of a step are repeated."""
        return [part for stage in (self.first, self.step, self.last) for part in stage if isinstance(part, Layer)]

    def matrices(self) -> dict[str, Tensor]:
        """Every matrix and mask by name; those of a step are the same in all steps."""
        return self.state_dict()

    def forward(self, *prompt: Tensor) -> Tensor:
        require_tensors(prompt)
        X, shape = prompt[0], next(iter(self.shapes.values()))
        if X.shape[-2:] != shape:
            raise ShapeError(
                f"This network is for {shape[0]} examples of {shape[1]} features, and X is {tuple(X.shape)}."
            )
        batch, parts = X.shape[:-2], []
        for index, own in enumerate(self.shapes.values()):
            given = prompt[index] if index < len(prompt) else None
            given = X.new_zeros(own) if given is None else given
            parts.append(given.double().expand((*batch, *own)).reshape(*batch, -1))
        z = self.first(torch.cat(parts, -1))
        for _ in range(self.steps):
            z = self.step(z)
        return self.last(z).unflatten(-1, self.output_shape)
