"""In-context gradient descent as plain self-attention, with its matrices, for prompts of a fixed small size.

The prompt and the iterates are one vector z = (X, y, w, w of the step before, products). A layer is an affine lift of z
to tokens, softmax(Q K^T + mask) V with Q = tokens W_Q and so on, and an affine map of z and the layer's outputs to the
next z, which holds the residual connections. For a head with K keys there are n·K tokens, one for each example i and
key k, with features

    (x_i, y_i, 1 | on_s_k w, on_y_k, level_k | value_k (p x_i + q y_i x_i))

so that W_Q, W_K, W_V select a part each; the mask lets the tokens of an example see each other only. All affine maps
are matrices, read off by applying them to unit vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, ShapeError, SizeError
from anchorhead.head.module import HeadModule
from anchorhead.in_context.soft_threshold import Shrink
from anchorhead.in_context.terms import Keys

if TYPE_CHECKING:
    from anchorhead.in_context.gradient_descent import GradientDescent

MOST_ENTRIES = 50_000_000
Blocks = dict[str, Tensor]


class Affine(nn.Module):
    """x to matrix x + shift, from an affine function of vectors."""

    def __init__(self, function: Callable[[Tensor], Tensor], size: int) -> None:
        super().__init__()
        shift = function(torch.zeros(size, dtype=torch.float64))
        if shift.numel() * size > MOST_ENTRIES:
            raise SizeError(
                f"A lift of {shift.numel():,} x {size:,} entries is too large to write out; use fewer examples or "
                "features."
            )
        columns = [function(row) - shift for row in torch.eye(size, dtype=torch.float64)]
        self.register_buffer("matrix", torch.stack(columns, -1))
        self.register_buffer("shift", shift)

    matrix: Tensor
    shift: Tensor

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.matrix.mT + self.shift


class Head(nn.Module):
    """One self-attention head on lifted tokens: z to (..., tokens, out)."""

    def __init__(self, tokens: Callable[[Tensor], Tensor], size: int, match: int, groups: Tensor) -> None:
        super().__init__()
        example = tokens(torch.zeros(size, dtype=torch.float64))
        self.tokens, self.width = example.shape
        self.lift = Affine(lambda z: tokens(z).flatten(), size)
        eye = torch.eye(self.width, dtype=torch.float64)
        self.register_buffer("W_Q", eye[:, :match])
        self.register_buffer("W_K", eye[:, match : 2 * match])
        self.register_buffer("W_V", eye[:, 2 * match :])
        self.register_buffer("mask", groups[:, None] != groups[None, :])

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    mask: Tensor

    def forward(self, z: Tensor) -> Tensor:
        x = self.lift(z).unflatten(-1, (self.tokens, self.width))
        scores = (x @ self.W_Q) @ (x @ self.W_K).mT
        return scores.masked_fill(self.mask, -math.inf).softmax(-1) @ (x @ self.W_V)


class Layer(nn.Module):
    """Heads side by side, then an affine map of z and their outputs."""

    def __init__(self, heads: list[Head], size: int, combine: Callable[[Tensor, list[Tensor]], Tensor]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        shapes = [(h.tokens, h.W_V.shape[1]) for h in heads]
        sizes = [size, *(math.prod(shape) for shape in shapes)]

        def combined(joint: Tensor) -> Tensor:
            z, *outputs = joint.split(sizes)
            return combine(z, [o.reshape(shape) for o, shape in zip(outputs, shapes, strict=True)])

        self.combine = Affine(combined, sum(sizes))

    def forward(self, z: Tensor) -> Tensor:
        found: Tensor = self.combine(torch.cat([z, *(head(z).flatten(-2) for head in self.heads)], -1))
        return found


class SelfAttentionDescent(nn.Module):
    """The whole network: (X, y, w0) to w_T through `layers`, in float64."""

    def __init__(self, model: GradientDescent, examples: int) -> None:
        super().__init__()
        if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= model.algorithm.examples:
            raise InputError(f"examples={examples} must be 1 to {model.algorithm.examples}.")
        self.examples, self.model = examples, [model]
        n, d = examples, model.algorithm.features
        self.sizes = {"X": n * d, "y": n, "w": d, "before": d, "products": n * d}
        self.size = sum(self.sizes.values())
        first = [] if model.labels is None else [self._label_layer(model.labels.keys)]
        step = [self._step_layer()] + ([] if model.shrink is None else [self._shrink_layer(model.shrink)])
        self.first, self.step = nn.ModuleList(first), nn.ModuleList(step)

    @property
    def layers(self) -> list[Layer]:
        """Layer 0, where there is one, and the layers of a step; a step's layers are repeated."""
        return [*self.first, *self.step]

    def matrices(self) -> dict[str, Tensor]:
        """Every matrix and mask by name; those of a step are the same in all steps."""
        return dict(self.named_buffers())

    def forward(self, X: Tensor, y: Tensor, w0: Tensor | None = None) -> Tensor:
        if not (isinstance(X, Tensor) and isinstance(y, Tensor)):
            raise InputError("X and y must be torch tensors; use torch.as_tensor.")
        if X.shape[-2:] != (self.examples, self.model[0].algorithm.features):
            raise ShapeError(
                f"This network is for {self.examples} examples of {self.model[0].algorithm.features} features, and X "
                f"is {tuple(X.shape)}."
            )
        X, y = X.double(), y.double()
        w = X.new_zeros((*X.shape[:-2], X.shape[-1])) if w0 is None else w0.double()
        z = torch.cat([X.flatten(-2), y, w, w, torch.zeros_like(X).flatten(-2)], -1)
        for layer in self.first:
            z = layer(z)
        for _ in range(self.model[0].algorithm.steps):
            for layer in self.step:
                z = layer(z)
        return self._blocks(z)["w"]

    def _blocks(self, z: Tensor) -> Blocks:
        return dict(zip(self.sizes, z.split(list(self.sizes.values()), -1), strict=True))

    def _changed(self, z: Tensor, **new: Tensor) -> Tensor:
        return torch.cat(list((self._blocks(z) | new).values()), -1)

    def _head(self, keys: Keys, carry: tuple[float, float], *, with_w: bool) -> Head:
        n, d = self.examples, self.model[0].algorithm.features
        count = len(keys)

        def tokens(z: Tensor) -> Tensor:
            blocks = self._blocks(z)
            X, products = blocks["X"].reshape(n, d), blocks["products"].reshape(n, d)
            query = torch.cat([X, blocks["y"].unsqueeze(-1), torch.ones(n, 1, dtype=torch.float64)], -1)
            on_s = torch.outer(keys.on_s, blocks["w"]) if with_w else torch.zeros(count, d, dtype=torch.float64)
            key = torch.cat([on_s, torch.stack([keys.on_y, keys.level], -1)], -1)
            value = (carry[0] * X + carry[1] * products).unsqueeze(1) * keys.value.unsqueeze(-1)
            return torch.cat([query.repeat_interleave(count, 0), key.repeat(n, 1), value.flatten(0, 1)], -1)

        return Head(tokens, self.size, d + 2, torch.arange(n).repeat_interleave(count))

    def _outputs(self, head: Tensor) -> Tensor:
        """Of an example's tokens, which all have the same output up to their query, the first."""
        return head.reshape(self.examples, -1, head.shape[-1])[:, 0]

    def _label_layer(self, keys: Keys) -> Layer:
        head = self._head(keys, (1.0, 0.0), with_w=False)
        return Layer([head], self.size, lambda z, out: self._changed(z, products=self._outputs(out[0]).flatten()))

    def _step_layer(self) -> Layer:
        model = self.model[0]
        algorithm, gradient, n = model.algorithm, model.gradient, self.examples
        heads = [self._head(term.keys, term.carry, with_w=True) for term in gradient.terms]
        l2 = torch.tensor(algorithm.l2, dtype=torch.float64)

        def combine(z: Tensor, out: list[Tensor]) -> Tensor:
            blocks = self._blocks(z)
            total = gradient.constant * blocks["X"].reshape(n, -1)
            total = total + gradient.on_label * blocks["products"].reshape(n, -1)
            total = sum((self._outputs(o) for o in out), total)
            w = blocks["w"]
            moved = w - algorithm.rate * (total.mean(0) + l2 * w) + algorithm.momentum * (w - blocks["before"])
            return self._changed(z, w=moved, before=w)

        return Layer(heads, self.size, combine)

    def _shrink_layer(self, shrink: Shrink) -> Layer:
        head, where, sizes = shrink.head, shrink.where, shrink.sizes

        def combine(z: Tensor, out: list[Tensor]) -> Tensor:
            w = self._blocks(z)["w"].clone()
            w[where] = w[where] - sizes * out[0].reshape(len(where), -1)[:, 0]
            return self._changed(z, w=w)

        return Layer([self._clip_head(head, where, sizes)], self.size, combine)

    def _clip_head(self, head: HeadModule, where: Tensor, sizes: Tensor) -> Head:
        """Tokens (v, 1 | slope_k, level_k | constant_k + gain_k v) with v = w_j over its threshold."""
        pieces = torch.arange(len(head.sizes)).repeat_interleave(torch.tensor(head.sizes))
        slopes = head.slopes.detach() + head.gate_slopes.detach()[pieces]
        levels = head.intercepts.detach() + head.gate_levels.detach()[pieces]
        constants, gains = head.constants.detach(), head.gains.detach()
        count = head.keys

        def tokens(z: Tensor) -> Tensor:
            v = (self._blocks(z)["w"][where] / sizes).repeat_interleave(count)
            columns = [v, torch.ones_like(v), slopes.repeat(len(where)), levels.repeat(len(where))]
            value = constants.repeat(len(where)) + gains.repeat(len(where)) * v
            return torch.stack([*columns, value], -1)

        return Head(tokens, self.size, 2, torch.arange(len(where)).repeat_interleave(count))
