"""Gradient descent inside one forward pass: fixed weights, the data in the prompt, a layer for each step.

    w_{t+1} = prox( w_t - η (mean of dl/ds(w_t·x_i, y_i) x_i + l2 w_t) + μ (w_t - w_{t-1}) )

*Layer 0*, where the loss needs it, forms the products y_i x_i. *A step* is one softmax per term of the loss
(`terms.py`), uniform attention over the examples, which is their mean, also under a mask, an affine map with residual
connections, and for l1 a second softmax per coordinate, soft thresholding v - clip(v, -η l1, η l1). Nothing else.

*Fast*: the heads' softmax by Horner's rule, all examples at once, so that a step is two matrix products with X as in
the algorithm itself. *Literal*: every softmax as written; the score of key k for example i is an inner product of
(x_i, y_i, 1) with (a slope_k w, b slope_k, c slope_k + level_k), its value constant_k·(p x_i + q y_i x_i)/n.
*Self-attention* (`matrices.py`): with W_Q, W_K, W_V for small prompts. `stability.py` proves how far iterates can be
from the algorithm's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.prompt import lower_state
from anchorhead.circuit.step import Pair
from anchorhead.errors import InputError
from anchorhead.expression.graph import Expression, Node, constant, substituted, variable
from anchorhead.expression.primitives import add, mul
from anchorhead.head.own_precision import in_own_precision
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import DTYPES, Bounds, OutsideBoundsError, counts, is_number, positive, read_penalties
from anchorhead.in_context.certificate import Proof, certify
from anchorhead.in_context.convergence import Convergence, converge
from anchorhead.in_context.gradient_terms import gradient_terms
from anchorhead.in_context.heads import PAIRS, Clip, InnerHead, label_head
from anchorhead.in_context.losses import Loss, read_loss
from anchorhead.in_context.network import InContextNetwork, Layers, State, in_double
from anchorhead.in_context.reading import Exact, Reading
from anchorhead.in_context.stability import rounded_products
from anchorhead.in_context.terms import Gradient
from anchorhead.model.outside import behind_transforms
from anchorhead.progress import Progress, telling

if TYPE_CHECKING:
    from anchorhead.in_context.matrices import SelfAttentionRun

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
    progress: bool | Progress = True,
) -> GradientDescent:
    """A network that runs gradient descent on the prompt it is given: model(X, y) returns w after the last step.

    loss: squared, logistic, huber, poisson, quantile, hinge, a formula in the prediction s and the label y, or a Loss.
    l2, l1: penalties l2·w²/2 and l1·|w|, one for all coordinates or one each (0 for an intercept).
    bounds: the largest absolute entry of x, y and w, by default 6, 50 and 20; also s, the largest |w·x|, and curvature,
        the largest eigenvalue of X^T X/n, where they are known to be smaller than what x and w imply.
    outside: "error" for a prompt outside the bounds (also called "refuse"), or "clip" it, with a warning.
    progress: as for `ah.compile`.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> descent = ah.in_context.gradient_descent("squared", features=2, examples=4, steps=100, learning_rate=0.5)
    >>> [round(w, 6) for w in descent(X, y).tolist()], descent.certificate.level
    ([1.0, 2.0], 'proved')
    """
    algorithm = read_algorithm(read_loss(loss), features, examples, steps, learning_rate, l2, l1, momentum)
    name = limits.dtype_name(dtype)
    if outside not in ("error", "refuse", "clip"):
        raise InputError(f"outside={outside!r} must be 'error' (or 'refuse', which is the same) or 'clip'.")
    declared = limits.read_bounds(bounds, algorithm.features)
    if algorithm.loss.labels in PAIRS and declared.y < 1:
        raise InputError(f"bounds['y']={declared.y:g} leaves out the labels of the loss {algorithm.loss.name}; use 1.")
    off = rounded_products(algorithm.features, declared.x, declared.w, name)
    with telling("making a network for gradient descent", progress):
        gradient = gradient_terms(algorithm.loss, declared, off)
        if not (gradient.terms or gradient.constant or gradient.on_label):
            raise InputError(
                f"The loss {algorithm.loss.name} does not depend on the prediction s = w·x, so it has no gradient to "
                "descend; give a formula in s and the label y, such as (s - y)**2."
            )
        return GradientDescent(algorithm, gradient, declared, dtype, clip=outside == "clip")


class GradientDescent(InContextNetwork):
    """The network; see `gradient_descent`. Attributes: `certificate`, `algorithm`, `bounds`.

    >>> descent = ah.in_context.gradient_descent("logistic", features=2, examples=4, steps=10, learning_rate=0.5)
    >>> descent.certificate.level, descent.bounds.x
    ('proved', 6.0)
    """

    l2: Tensor

    def __init__(
        self, algorithm: Algorithm, gradient: Gradient, declared: Bounds, dtype: torch.dtype, *, clip: bool
    ) -> None:
        super().__init__()
        self.algorithm, self.gradient, self.dtype, self.clip = algorithm, gradient, dtype, clip
        self.steps = algorithm.steps
        self.terms = nn.ModuleList(gradient.terms)
        wanted = gradient.carries_labels
        self.labels: InnerHead | None = label_head(algorithm.loss.labels, declared.y) if wanted else None
        self.shrink: Clip | None = Clip(algorithm.l1, algorithm.rate) if any(algorithm.l1) else None
        self.proof = proof = self._proved(declared)
        self.deviation_bounds: list[float] = proof.deviations
        """Bounds on the Euclidean distances of w_0, ..., w_T from the algorithm's; the certificate has the last."""
        self.bounds: Bounds = proof.bounds
        self.register_buffer("l2", torch.tensor(algorithm.l2, dtype=torch.float64))
        self.claim(proof.certificate)

    def _proved(self, declared: Bounds) -> Proof:
        return certify(self.algorithm, self.gradient, declared, self.labels, self.shrink, DTYPES[self.dtype])

    def turn(self) -> tuple[str, Circuit, tuple[Pair, ...]]:
        """One step as formulas of a token (x, y) and the state w, for `ah.program`: its name, circuit and box."""
        algorithm, found = self.algorithm, self.bounds
        if any(algorithm.l1) or algorithm.momentum:
            raise InputError("A program runs gradient descent without momentum and l1; leave them out.")
        x, w = ([variable(f"{name}{k}") for k in range(algorithm.features)] for name in "xw")
        values = {"s": functools.reduce(add, map(mul, w, x)), "y": variable("y")}
        slope = substituted(algorithm.loss.expression.outputs[0], values)
        rate, outputs = constant(Fraction(algorithm.rate)), []
        for own, entry, l2 in zip(w, x, algorithm.l2, strict=True):
            step = add(Node("mean", (mul(slope, entry),)), mul(constant(Fraction(l2)), own))
            outputs.append(add(own, mul(constant(Fraction(-1)), mul(rate, step))))
        names = tuple(str(node.value) for node in (*x, values["y"], *w))
        sizes = [found.x] * len(x) + [found.y] + [found.w] * len(w)
        circuit = lower_state(Expression(tuple(outputs), names), len(x) + 1)
        return f"gradient descent on {algorithm.loss.name}", circuit, tuple((-size, size) for size in sizes)

    @property
    def keys(self) -> int:
        """Keys an example attends to in one step."""
        return sum(term.keys for term in self.gradient.terms)

    def forward(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """w_T, (..., d), for examples X (..., n, d) and labels y (..., n); mask (..., n) is True where one counts, or
        float64 shares, which take the place of 1/n and are at most 1 in all."""
        return self._iterates(X, y, w0, mask)[-1]

    def trajectory(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """All iterates, (..., steps + 1, d), the start first."""
        return torch.stack(self._iterates(X, y, w0, mask, keep=True), dim=-2)

    def exact(self, *prompt: Any, **named: Any) -> Tensor:
        """The iterates of the algorithm itself, computed plainly in float64, (..., steps + 1, d)."""
        states = self.states(Exact(), *in_double(self.checked(*prompt, **named)))
        return torch.stack([state["w"] for state in states], dim=-2)

    def convergence(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> Convergence:
        """Measured deviation, proved deviation and distance to the optimum, step by step."""
        return converge(self, X, y, w0, mask)

    def as_self_attention(self, examples: int | None = None) -> SelfAttentionRun:
        """The same network as self-attention with its matrices, for a small fixed number of examples."""
        most = self.algorithm.examples
        if examples is not None and not counts(examples=examples)[0] <= most:
            raise InputError(f"examples={examples} must be 1 to {most}.")
        return super().as_self_attention(most if examples is None else examples)

    def begin(self, how: Reading, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> State:
        """X, y, the iterates, the part of the gradient that does not depend on them, and what each head carries."""
        products = None if self.labels is None else how.carry(self.labels, (y,), X)
        weights = limits.mean_weights(X, mask).unsqueeze(-1)

        def values(p: float, q: float) -> Tensor:
            """(p + q y_i) x_i over the number of examples."""
            return weights * (p * X if products is None or not q else p * X + q * products)

        w = X.new_zeros((*X.shape[:-2], X.shape[-1])) if w0 is None else w0
        shift = values(self.gradient.constant, self.gradient.on_label).sum(-2)
        carried = {f"carried_{i}": values(*term.carry) for i, term in enumerate(self.gradient.terms)}
        return {"X": X, "y": y, "w": w, "before": w, "shift": shift, **carried}

    def slope(self, how: Reading, state: State) -> tuple[Any, Tensor]:
        """The predictions, and the gradient of the objective at w."""
        w = state["w"]
        s, gradient = how.match(state["X"], w.unsqueeze(-2)).squeeze(-1), state["shift"] + self.l2.to(w.dtype) * w
        for i, term in enumerate(self.gradient.terms):
            gradient = gradient + how.gather(term, (s, state["y"]), state[f"carried_{i}"])
        return s, gradient

    def step(self, how: Reading, state: State) -> State:
        algorithm, w = self.algorithm, state["w"]
        moved = w - algorithm.rate * self.slope(how, state)[1]
        if algorithm.momentum:
            moved = moved + algorithm.momentum * (w - state["before"])
        if self.shrink is not None:
            clipped = how.value(self.shrink, moved.double() / self.shrink.scales)
            moved = moved - (self.shrink.sizes * clipped).to(moved.dtype)
        return state | {"w": moved, "before": w}

    def end(self, how: Reading, state: State) -> Tensor:
        return state["w"]

    def layers(self) -> Layers:
        step = [self.gradient.terms] if self.shrink is None else [self.gradient.terms, [self.shrink]]
        return [*([] if self.labels is None else [(1, [self.labels])]), *((self.steps, heads) for heads in step)]

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        features = self.algorithm.features
        return {"X": (examples, features), "y": (examples,), "w0": (features,)}

    @in_own_precision
    def _iterates(self, *prompt: Any, keep: bool = False) -> list[Tensor]:
        """All iterates, or the last alone."""
        how, kept, sizes = _Watching(), list[Tensor](), list[Tensor]()
        for state in self.states(how, *self.looked_at(*prompt)):
            kept = [*kept, state["w"]] if keep else [state["w"]]
            sizes.append(state["w"].abs().amax())
        self._check_state(state)
        self._check_iterates(how.reached, sizes)
        return kept

    def checked(self, X: Tensor, y: Tensor, w0: Tensor | None = None, mask: Tensor | None = None) -> tuple[Any, ...]:
        """The prompt, checked against the shapes, the loss's labels and the bounds, and the start with it."""
        algorithm, bounds = self.algorithm, self.bounds
        limits.check_examples(X, y, algorithm.features, algorithm.examples, self.dtype)
        X, y = limits.masked(X, y, mask, -1.0 if algorithm.loss.labels == "signs" else 0.0)
        X = limits.within(X, bounds.x, "X", clip=self.clip, option=CLIP)
        algorithm.loss.check_labels(y)
        y = limits.within(y, bounds.y, "y", clip=self.clip, option=CLIP)
        self._check_curvature(X, mask)
        start = X.new_zeros(algorithm.features) if w0 is None else w0
        start = limits.each_prompt(start, (algorithm.features,), X, self.dtype, "w0")
        return X, y, limits.within(start, bounds.w, "w0"), mask

    def _check_curvature(self, X: Tensor, mask: Tensor | None) -> None:
        limits.check_curvature(X, mask, self.bounds, f"learning_rate={self.algorithm.rate:g}",
                               "Use a learning rate that is as many times smaller")  # fmt: skip

    def check_run(self, states: Sequence[State], result: Tensor) -> None:
        self._check_state(states[-1])
        reached = [(s["X"] @ s["w"].unsqueeze(-1)).abs().amax() for s in states[:-1]]
        self._check_iterates(reached, [state["w"].abs().amax() for state in states])

    def _check_state(self, state: State) -> None:
        """Refuses a run whose last state is not what the bounds say; here the iterates are all there is."""

    def _check_iterates(self, reached: list[Tensor], sizes: list[Tensor]) -> None:
        """Refuses a run whose predictions or iterates left the bounds; the first such step is named."""
        if torch.compiler.is_compiling():
            return
        for values, limit, name in ((sizes, self.bounds.w, "w"), (reached, self.bounds.s, "s")):
            found = behind_transforms(lambda v: v.flatten(0, -2).amax(0).tolist(), torch.stack(values).unsqueeze(0))
            for step, most in enumerate(found or ()):
                if not most <= limit * (1 + limits.SLACK):
                    what = "|w·x|" if name == "s" else "an entry of w"
                    raise OutsideBoundsError(
                        f"At step {step} {what} reached {most:.10g}, outside the declared {limit:g}, so the heads no "
                        f"longer apply. Declare a larger bounds[{name!r}], or standardise the data."
                    )

    def extra_repr(self) -> str:
        a = self.algorithm
        return f"{a.loss.name}, {a.steps} steps of {a.rate:g}, {a.examples} x {a.features}, {self.keys} keys"


class _Watching(Reading):
    """Notes how far the predictions reach."""

    def __init__(self) -> None:
        super().__init__()
        self.reached: list[Tensor] = []

    def match(self, X: Tensor, W: Tensor) -> Tensor:
        found: Tensor = super().match(X, W)
        self.reached.append(found.abs().amax())
        return found


def read_algorithm(loss: Loss, features: int, examples: int, steps: int, rate: float, l2: float | Sequence[float],
                   l1: float | Sequence[float], momentum: float) -> Algorithm:  # fmt: skip
    """Checked."""
    features, examples, steps = counts(features=features, examples=examples, steps=steps)
    rate = positive("learning_rate", rate)
    if not (is_number(momentum) and 0 <= momentum < 1):
        raise InputError(f"momentum={momentum!r} must be at least 0 and below 1.")
    return Algorithm(loss, features, examples, steps, rate, read_penalties("l2", l2, features),
                     read_penalties("l1", l1, features), float(momentum))  # fmt: skip
