"""A function of a prompt as a network of heads: what `layered_core.py` is for inputs of a fixed size.

`model(tokens, query, mask)` takes prompts of any length; the numbers are the same for all of them, and so is the
certificate. What cannot be answered is refused before anything is computed: an empty prompt, a mask that hides all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.pool import Pool
from anchorhead.enclosure.exact import as_float
from anchorhead.errors import InputError, ShapeError
from anchorhead.head.parameters import check_tensor
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.layered import MODULES
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.outside import behind_transforms
from anchorhead.model.pool import Pools
from anchorhead.model.probe import Probe
from anchorhead.model.prompt import PromptNetwork, build_prompt
from anchorhead.model.self_attention import SelfAttention, layers_on_sequences

Prompt = tuple[Tensor, Tensor | None, Tensor | None]
OF_PROMPTS = "This is a function of a whole prompt, and not of single tokens: "


class PromptCore(LayeredCore):
    """tokens (..., n, t), query (..., m, k) where there are queries, to (..., m, outputs), or else (..., outputs)."""

    layered: PromptNetwork
    build = staticmethod(build_prompt)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many numbers a token has, and a query."""
        return self.circuit.tokens, len(self.circuit.inputs) - self.circuit.tokens

    def check(self, x: Tensor) -> None:
        raise InputError(
            f"{OF_PROMPTS}call it as model(tokens, query, mask). What takes inputs one by one cannot have it."
        )

    def prompt(self, tokens: Any, query: Any = None, mask: Any = None) -> Prompt:
        """What was given, checked: tokens that do not count replaced by ones that are in range, batches alike."""
        own, asked = self.sizes
        check_rows(tokens, self.dtype, own, "tokens", "n")
        if (query is None) != (asked == 0):
            said = "takes no query" if asked == 0 else f"needs query=, (..., m, {asked})"
            raise InputError(f"The model of {self.circuit.inputs} {said}.")
        if mask is not None:
            tokens = check_mask(tokens, mask, self.placed.claim.box[:own])
        if query is None:
            return tokens, None, mask
        check_rows(query, self.dtype, asked, "query", "m")
        try:
            batch = torch.broadcast_shapes(tokens.shape[:-2], query.shape[:-2])
        except RuntimeError:
            raise ShapeError(
                f"tokens {tuple(tokens.shape)} and query {tuple(query.shape)} have batches that do not fit each other."
            ) from None
        mask = None if mask is None else mask.expand(*batch, -1)
        return tokens.expand(*batch, -1, -1), query.expand(*batch, -1, -1), mask

    def forward(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return self.answer(self.layered, *self.prompt(tokens, query, mask))

    def answer(self, network: nn.Module, tokens: Tensor, query: Tensor | None, mask: Tensor | None) -> Tensor:
        """What a network makes of a prompt that was checked."""
        found: Tensor = network(tokens, query, mask)
        return found.squeeze(-2) if query is None else found

    def literal(self) -> nn.Module:
        return LiteralPrompt(self, self.layered.literal())

    def attention(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> list[Tensor]:
        return self.layered.weights(*self.prompt(tokens, query, mask))

    def exact(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        given, asked, counted = self.prompt(tokens, query, mask)
        double = None if asked is None else asked.double()
        found = exact_answer(self.circuit, given.double(), double, counted).to(self.dtype)
        return found.squeeze(-2) if query is None else found

    def on_sequences(self, tokens: int) -> SelfAttention:
        raise InputError(
            f"{OF_PROMPTS}model.literal() has its softmax written out, model.attention its weights, and "
            "ah.to_hooked(model) is one sequence of tokens and queries, with hook points."
        )

    def at_position(self) -> SelfAttention:
        """Its layers at one position that holds a token's numbers and a query's: what `export/prompt_lens.py` runs at
        all positions of a prompt, where pools look at those of the tokens."""
        return layers_on_sequences(self.layered, len(self.circuit.inputs), 1)


class LiteralPrompt(nn.Module):
    """The literal evaluation."""

    def __init__(self, core: PromptCore, network: PromptNetwork) -> None:
        super().__init__()
        self.network, self._core = network, [core]

    def forward(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        [core] = self._core
        return core.answer(self.network, *core.prompt(tokens, query, mask))


class PromptModel(CompiledModel):
    """A function of a prompt of any length as softmax attention: `model(tokens, query=None, mask=None)`.

    tokens are (..., n, t) for any n from 1, query is (..., m, k), and mask is (..., n), True for tokens that count. The
    result is (..., m, outputs), or (..., outputs) of a model without a query.

    >>> spread = ah.in_context.compile("var(x)", {"x": (-1, 1)}, tol=1e-4)
    >>> [round(spread(torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]).item(), 3) for n in (2, 3, 101)]
    [1.0, 0.667, 0.34]
    """

    network: PromptCore

    def forward(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return self.network.answer(self.network.layered, *self.looked_at(tokens, query, mask))

    def looked_at(self, tokens: Any, query: Any = None, mask: Any = None) -> Prompt:
        """What was given, checked; numbers outside the domain do what `outside` says."""
        prompt, own = self.network.prompt(tokens, query, mask), self.network.sizes[0]
        self.look(prompt[0], self._domain[:own], ", in a token,")
        if prompt[1] is not None:
            self.look(prompt[1], self._domain[own:], ", in a query,")
        return prompt

    def attention(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> list[Tensor]:
        """The attention weights, one entry for each group of heads, layer by layer, each summing to one at the end.

        They are (..., rows, heads, keys): for every token, for the prompt or for every query, over the keys of a head
        or over the prompt's tokens.
        """
        return self.network.attention(tokens, query, mask)

    def exact(self, tokens: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The target itself, in torch, at the same prompts: no heads, no approximation."""
        return self.network.exact(tokens, query, mask)

    def probe(self, x: Tensor) -> Probe:
        raise InputError(f"{OF_PROMPTS}compare model(tokens, query) with model.exact(tokens, query).")

    def to_stock_attention(self, tokens: int | None = None) -> nn.Module:
        return self.network.on_sequences(0)


def exact_answer(circuit: Circuit, tokens: Tensor, query: Tensor | None, mask: Tensor | None) -> Tensor:
    """The circuit itself on a prompt, (..., m, outputs), or (..., 1, outputs) without queries."""
    wires = list(tokens.split(1, dim=-1)) + ([] if query is None else list(query.split(1, dim=-1)))
    for step in circuit.steps:
        lines = [_line(line, wires) for line in step.lines()]
        if isinstance(step, Pool):
            d = len(step.query)
            asked = _beside(lines[:d]) if d else tokens[..., :1, :0]
            wires.append(Pools(1, d, mean=step.is_mean)(asked, _beside([*lines[d:], tokens[..., :0]]), mask))
        else:
            wires += MODULES[step.name].exact(step, _beside(lines)).split(1, dim=-1)
    rows = query[..., :0] if query is not None else tokens[..., :1, :0]
    return _beside([*(_line(line, wires) for line in circuit.outputs), rows])


def _line(line: Line, wires: list[Tensor]) -> Tensor:
    total = wires[0].new_full((1, 1), as_float(line.bias))
    for wire, c in line.terms.items():
        total = total + as_float(c) * wires[wire]
    return total


def _beside(parts: list[Tensor]) -> Tensor:
    """Tensors (..., rows, columns) next to each other, where some have one row for all."""
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], dim=-1)


def check_rows(x: Any, dtype: torch.dtype, size: int, name: str, rows: str) -> None:
    """Refuses what is not tokens or queries of that size, (..., n, size), or a prompt without a token."""
    check_tensor(x, dtype, (), name=name)
    if x.ndim < 2 or x.shape[-1] != size:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}; this model takes (..., {rows}, {size}).")
    if name == "tokens" and x.shape[-2] == 0:
        raise ShapeError("The prompt has no tokens, and a mean over none is not defined; give at least one.")


def check_mask(tokens: Tensor, mask: Any, box: Sequence[tuple[float, float]]) -> Tensor:
    """The tokens, with ones in range in the place of those that do not count; refuses a mask that hides all."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != tokens.shape[:-1]:
        shape = tuple(tokens.shape[:-1])
        raise ShapeError(f"mask must be boolean with the shape {shape}, True for tokens that count.")
    if behind_transforms(lambda m: not m.any(-1).all(), mask):
        raise ShapeError("The mask hides every token of a prompt, and a mean over none is not defined.")
    return torch.where(mask.unsqueeze(-1), tokens, tokens.new_tensor([low for low, _ in box]))
