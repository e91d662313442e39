"""Gradient descent inside one forward pass: fixed weights, the data in the prompt, a layer for each step.

    w_{t+1} = prox( w_t - η (mean of dl/ds(w_t·x_i, y_i) x_i + l2 w_t) + μ (w_t - w_{t-1}) )

*Layer 0*, where the loss needs it, forms the products y_i x_i. *A step* is one softmax per term of the loss
(`terms.py`), uniform attention over the examples, which is their mean, also under a mask, an affine map with residual
connections, and for l1 a second softmax per coordinate, soft thresholding v - clip(v, -η l1, η l1). Nothing else.

*Fast*: the heads' softmax by Horner's rule, all examples at once, so that a step is two matrix products with X as in
the algorithm itself. *Literal* (`literal.py`): every softmax as written. *Self-attention* (`self_attention.py`): with
W_Q, W_K, W_V for small prompts. `stability.py` proves how far the iterates can be from the algorithm's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, ShapeError
from anchorhead.head.own_precision import in_own_precision
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.arguments import DTYPES, counts, dtype_name, positive
from anchorhead.in_context.bounds import Bounds, OutsideBoundsError, read_bounds, read_penalties
from anchorhead.in_context.certificate import certify
from anchorhead.in_context.gradient_terms import gradient_terms
from anchorhead.in_context.labels import PAIRS, LabelHead, label_head
from anchorhead.in_context.losses import Loss, read_loss
from anchorhead.in_context.soft_threshold import Shrink, shrinking
from anchorhead.in_context.stability import rounded_products
from anchorhead.in_context.terms import Gradient

if TYPE_CHECKING:
    from anchorhead.in_context.convergence import Convergence
    from anchorhead.in_context.literal import LiteralDescent
    from anchorhead.in_context.self_attention import SelfAttentionDescent

CLIP = ", or clip with outside='clip'"


@dataclass(frozen=True)
class Algorithm:
    """What is run: the loss, the step and its penalties; l1 and l2 for every coordinate."""

    loss: Loss
    features: int
    examples: int
    steps: int
    rate: float
    l2: tuple[float, ...]
    l1: tuple[float, ...]
    momentum: float


@dataclass(frozen=True)
class Prompt:
    """A prompt that was checked: X (..., n, d), y (..., n), weights of the mean, the start, and sums made once.

    products: y_i x_i where the loss needs them; shift: the part of the gradient that does not depend on w.
    """

    X: Tensor
    y: Tensor
    weights: Tensor
    start: Tensor
    products: Tensor | None
    shift: Tensor


def gradient_descent(
    loss: str | Loss,
    *,
    features: int,
    examples: int,
    steps: int,
    learning_rate: float,
    l2: float | Sequence[float] = 0.0,
    l1: float | Sequence[float] = 0.0,
    momentum: float = 0.0,
    bounds: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float64,
    outside: str = "error",
) -> GradientDescent:
    """A network that runs gradient descent on the prompt it is given: model(X, y) returns w after the last step.

    loss: squared, logistic, huber, poisson, quantile, hinge, a formula in the prediction s and the label y, or a Loss.
    l2, l1: penalties l2·w²/2 and l1·|w|, one for all coordinates or one each (0 for an intercept).
    bounds: the largest absolute entry of x, y and w, by default 6, 50 and 20; also s, the largest |w·x|, and curvature,
        the largest eigenvalue of X^T X/n, where they are known to be smaller than what x and w imply.
    outside: "error" for a prompt outside the bounds (also called "refuse"), or "clip" it, with a warning.
    """
    algorithm = _read(read_loss(loss), features, examples, steps, learning_rate, l2, l1, momentum)
    dtype_name(dtype)
    if outside not in ("error", "refuse", "clip"):
        raise InputError(f"outside={outside!r} must be 'error' (or 'refuse', which is the same) or 'clip'.")
    declared = read_bounds(bounds, algorithm.features)
    if algorithm.loss.labels in PAIRS and declared.y < 1:
        raise InputError(f"bounds['y']={declared.y:g} leaves out the labels of the loss {algorithm.loss.name}; use 1.")
    off = rounded_products(algorithm.features, declared.x, declared.w, DTYPES[dtype])
    gradient = gradient_terms(algorithm.loss, declared, off)
    return GradientDescent(algorithm, gradient, declared, dtype, clip=outside == "clip")


class GradientDescent(limits.Claimed):
    """The network; see `gradient_descent`. Attributes: `certificate`, `algorithm`, `bounds`."""

    def __init__(
        self, algorithm: Algorithm, gradient: Gradient, declared: Bounds, dtype: torch.dtype, *, clip: bool
    ) -> None:
        super().__init__()
        self.algorithm, self.gradient, self.dtype, self.clip = algorithm, gradient, dtype, clip
        self.terms = nn.ModuleList(gradient.terms)
        self.labels: LabelHead | None = label_head(algorithm.loss, declared) if gradient.carries_labels else None
        self.shrink: Shrink | None = shrinking(algorithm.l1, algorithm.rate) if any(algorithm.l1) else None
        self.proof = proof = certify(algorithm, gradient, declared, self.labels, self.shrink, DTYPES[dtype])
        self.deviation_bounds: list[float] = proof.deviations
        """Bounds on the Euclidean distances of w_0, ..., w_T from the algorithm's; the certificate has the last."""
        self.bounds: Bounds = proof.bounds
        self.register_buffer("l2", torch.tensor(algorithm.l2, dtype=dtype))
        self.claim(proof.certificate)

    l2: Tensor

    @property
    def keys(self) -> int:
        """Keys an example attends to in one step."""
        return sum(len(term.keys) for term in self.gradient.terms)

    def forward(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """w_T, (..., d), for examples X (..., n, d) and labels y (..., n); mask (..., n) is True where one counts."""
        return self._run(X, y, w0, mask)[-1]

    def trajectory(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """All iterates, (..., steps + 1, d), the start first."""
        return torch.stack(self._run(X, y, w0, mask, keep=True), dim=-2)

    def exact(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The iterates of the algorithm itself, computed plainly in float64."""
        from anchorhead.in_context.reference import plain_iterates

        return plain_iterates(self.algorithm, self.prompt(X, y, w0, mask))

    def convergence(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Convergence:
        """Measured deviation, proved deviation and distance to the optimum, step by step."""
        from anchorhead.in_context.convergence import converge

        return converge(self, X, y, w0, mask)

    def literal(self) -> LiteralDescent:
        """The same network with every softmax as written; prompts are not checked."""
        from anchorhead.in_context.literal import LiteralDescent

        return LiteralDescent(self)

    def as_self_attention(self, examples: int | None = None) -> SelfAttentionDescent:
        """The same network as self-attention with its matrices, for a small fixed number of examples."""
        from anchorhead.in_context.self_attention import SelfAttentionDescent

        return SelfAttentionDescent(self, self.algorithm.examples if examples is None else examples)

    @in_own_precision
    def _run(self, X: Tensor, y: Tensor, w0: Tensor | None, mask: Tensor | None, *, keep: bool = False) -> list[Tensor]:
        prompt = self.prompt(X, y, w0, mask)
        before = w = prompt.start
        kept, reached, sizes = [w], [], [w.abs().amax()]
        for _ in range(self.algorithm.steps):
            s = (prompt.X @ w.unsqueeze(-1)).squeeze(-1)
            before, w = w, self._update(prompt, s, w, before)
            reached.append(s.abs().amax())
            sizes.append(w.abs().amax())
            kept = [*kept, w] if keep else [w]
        self._check_iterates(reached, sizes)
        return kept

    def _update(self, prompt: Prompt, s: Tensor, w: Tensor, before: Tensor) -> Tensor:
        """One step from the predictions s."""
        algorithm = self.algorithm
        gradient = prompt.shift + self.l2 * w
        found = [(term, term(s, prompt.y)) for term in self.gradient.terms]
        for index, carried in enumerate((prompt.X, prompt.products)):
            parts = [term.carry[index] * phi for term, phi in found if term.carry[index] != 0]
            if parts and carried is not None:
                gradient = gradient + ((sum(parts) * prompt.weights).unsqueeze(-2) @ carried).squeeze(-2)
        w = w - algorithm.rate * gradient + (algorithm.momentum * (w - before) if algorithm.momentum else 0.0)
        return w if self.shrink is None else self.shrink(w)

    def prompt(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Prompt:
        """The prompt, checked against the shapes, the loss's labels and the bounds, and what is formed of it once."""
        algorithm = self.algorithm
        limits.check_shapes(X, y, algorithm.features, algorithm.examples, self.dtype)
        limits.check_mask(mask, y)
        if mask is not None:
            X, y = torch.where(mask.unsqueeze(-1), X, 0.0), torch.where(mask, y, self._neutral_label())
        X = limits.within(X, self.bounds.x, "X", clip=self.clip, option=CLIP)
        limits.check_labels(y, algorithm.loss.labels, algorithm.loss.name)
        y = limits.within(y, self.bounds.y, "y", clip=self.clip, option=CLIP)
        weights = limits.mean_weights(X, mask)
        self._check_curvature(X, weights)
        start = self._start(X, w0)
        products = None if self.labels is None else self.labels(y).unsqueeze(-1) * X
        shift = (weights.unsqueeze(-2) @ X).squeeze(-2) * self.gradient.constant
        if products is not None and self.gradient.on_label:
            shift = shift + (weights.unsqueeze(-2) @ products).squeeze(-2) * self.gradient.on_label
        return Prompt(X, y, weights, start, products, shift)

    def _neutral_label(self) -> float:
        return -1.0 if self.algorithm.loss.labels == "signs" else 0.0

    def _start(self, X: Tensor, w0: Tensor | None) -> Tensor:
        shape = (*X.shape[:-2], self.algorithm.features)
        if w0 is None:
            return X.new_zeros(shape)
        if not isinstance(w0, Tensor) or w0.dtype != self.dtype or w0.shape[-1:] != shape[-1:] or w0.ndim > len(shape):
            raise ShapeError(f"w0 must be a {self.dtype} tensor of shape {shape} or ({shape[-1]},).")
        if any(own not in (1, size) for own, size in zip(w0.shape[::-1], shape[::-1], strict=False)):
            raise ShapeError(f"w0 is {tuple(w0.shape)} and the prompt wants {shape}.")
        return limits.within(w0, self.bounds.w, "w0", clip=False).expand(shape)

    def _check_curvature(self, X: Tensor, weights: Tensor) -> None:
        """Refuses a prompt for which the learning rate is too large; nothing to do if it never is."""
        if self.bounds.curvature >= self.algorithm.features * self.bounds.x**2:
            return
        trace = float((X.detach().double().square().sum(-1) * weights.double()).sum(-1).max())
        if trace * (1 + 1e-6) <= self.bounds.curvature:  # weights are rounded in float32, and sums in float64
            return
        found = limits.largest_curvature(X, weights)
        if not found <= self.bounds.curvature:
            raise OutsideBoundsError(
                f"The largest eigenvalue of X^T X/n is {found:.4g}, and learning_rate={self.algorithm.rate:g} is "
                f"proved stable up to {self.bounds.curvature:.4g}. Use a learning rate that is "
                f"{found / self.bounds.curvature:.3g} times smaller, or standardise the data."
            )

    def _check_iterates(self, reached: list[Tensor], sizes: list[Tensor]) -> None:
        """Refuses a run whose predictions or iterates left the bounds; the first such step is named."""
        if torch.compiler.is_compiling() or not reached:
            return
        for values, limit, name in ((sizes, self.bounds.w, "w"), (reached, self.bounds.s, "s")):
            wrong = (~(torch.stack(values).double() <= limit * (1 + limits.SLACK))).nonzero()
            if len(wrong):
                step = int(wrong[0])
                what = "|w·x|" if name == "s" else "an entry of w"
                raise OutsideBoundsError(
                    f"At step {step} {what} reached {values[step].item():.10g}, outside the declared {limit:g}, so the "
                    f"heads no longer apply. Declare a larger bounds[{name!r}], or standardise the data."
                )

    def extra_repr(self) -> str:
        a = self.algorithm
        return f"{a.loss.name}, {a.steps} steps of {a.rate:g}, {a.examples} x {a.features}, {self.keys} keys"


def _read(loss: Loss, features: int, examples: int, steps: int, rate: float, l2: float | Sequence[float],
          l1: float | Sequence[float], momentum: float) -> Algorithm:  # fmt: skip
    features, examples, steps = counts(features=features, examples=examples, steps=steps)
    rate = positive("learning_rate", rate)
    if not (isinstance(momentum, int | float) and 0 <= momentum < 1):
        raise InputError(f"momentum={momentum!r} must be at least 0 and below 1.")
    return Algorithm(loss, features, examples, steps, rate, read_penalties("l2", l2, features),
                     read_penalties("l1", l1, features), float(momentum))  # fmt: skip
