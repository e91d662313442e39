"""Losses l(s, y) of a prediction s = w·x and a label y, and what gradient descent needs of them: dl/ds.

A loss is a name of a built-in one, a formula in s and y, which is differentiated, or a `Loss`. Losses with a kink, the
absolute value and the hinge, have gradients that jump, and no continuous network follows a jump; they are smoothed over
a stated `width`, and the smoothed loss is what is descended exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from torch import Tensor

from anchorhead.errors import InputError
from anchorhead.expression.derivative import derivative
from anchorhead.expression.graph import Expression, Node, with_differences
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate
from anchorhead.in_context.bounds import is_number, positive
from anchorhead.model.outside import behind_transforms

VARIABLES = ("s", "y")
SMOOTHED = 1 / 64
"""The width over which Huber's curvature falls from one to zero, in units of delta."""


@dataclass(frozen=True)
class Loss:
    """A loss by the formula of its derivative dl/ds in s and y.

    curvature: formulas whose product is d²l/ds², which Newton's steps need, or near it; found by differentiation where
        there are none. labels: which labels it takes: "real", "nonnegative", "zero_one" or "signs" (-1 and 1).

    >>> cosh = ah.in_context.Loss("tanh(s - y)", name="log cosh")
    >>> ah.in_context.gradient_descent(cosh, features=2, examples=4, steps=10, learning_rate=0.5).certificate.level
    'proved'
    """

    gradient: str
    name: str = "custom"
    labels: str = "real"
    curvature: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.labels, str) or self.labels not in LABELS:
            raise InputError(f"labels={self.labels!r} must be one of {', '.join(LABELS)}.")
        if not isinstance(self.gradient, str):
            raise InputError(f"gradient={self.gradient!r} must be a formula in s and y, as text.")
        _ = self.expression  # refuses what cannot be read

    @classmethod
    def of(cls, formula: str, labels: str = "real") -> Loss:
        """The loss that a formula in s and y is, differentiated.

        With labels "signs" or "zero_one" y may multiply s as it likes: there are but two functions of s.

        >>> margin = ah.in_context.Loss.of("log(1 + exp(-y*s))", labels="signs")
        >>> ah.in_context.gradient_descent(margin, features=2, examples=4, steps=10, learning_rate=0.5).resources.keys
        42
        """
        slope: Node = with_differences(derivative(parse(formula, VARIABLES).outputs[0], "s"))
        return cls(Expression((slope,), VARIABLES).text[0], formula, labels)

    @cached_property
    def expression(self) -> Expression:
        """dl/ds as an expression in s and y."""
        return parse(self.gradient, VARIABLES)

    @cached_property
    def factors(self) -> tuple[Loss, ...]:
        """The factors of d²l/ds², each as if it were a gradient; none where it is one everywhere."""
        formulas = self.curvature
        if not formulas:
            formulas = tuple(Expression((derivative(self.expression.outputs[0], "s"),), VARIABLES).text)
        return tuple(Loss(text, self.name, self.labels) for text in formulas if text != "1")

    def slope(self, s: Tensor, y: Tensor) -> Tensor:
        """dl/ds, plainly."""
        found: Tensor = evaluate(self.expression.outputs[0], {"s": s, "y": y})
        return found.expand_as(s)

    def check_labels(self, y: Tensor) -> None:
        """Refuses labels outside the loss's domain."""
        said, right = LABELS[self.labels]
        wrong = behind_transforms(lambda v: v[~right(v)].flatten()[:1].tolist(), y)
        if wrong:
            raise InputError(f"A label is {wrong[0]:g}; the loss {self.name} takes {said}.")


LABELS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "real": ("finite numbers", lambda y: y.isfinite()),
    "nonnegative": ("numbers that are not negative", lambda y: y >= 0),
    "zero_one": ("0 or 1", lambda y: (y == 0) | (y == 1)),
    "signs": ("-1 or 1", lambda y: y.abs() == 1),
}


def squared() -> Loss:
    """(s - y)²/2.

    >>> ah.in_context.squared().gradient
    's - y'
    """
    return Loss("s - y", "squared")


def logistic() -> Loss:
    """log(1 + exp(s)) - y s, labels 0 and 1.

    >>> ah.in_context.logistic().gradient
    'sigmoid(s) - y'
    """
    return Loss("sigmoid(s) - y", "logistic", "zero_one", ("sigmoid(s)", "sigmoid(-s)"))


def huber(delta: float = 1.35) -> Loss:
    """(s - y)²/2 where that is within delta of zero, and linear beyond; its curvature is smoothed at the ends.

    >>> ah.in_context.huber(delta=1.0).gradient
    'clip(s - y, -1, 1)'
    """
    size, width = _positive("delta", delta), exact_text(SMOOTHED * positive("delta", delta))
    window = f"sigmoid(({size} - s + y)/{width})", f"sigmoid(({size} + s - y)/{width})"
    return Loss(f"clip(s - y, -{size}, {size})", "huber", curvature=window)


def poisson() -> Loss:
    """exp(s) - y s, labels that are not negative.

    >>> ah.in_context.poisson().gradient
    'exp(s) - y'
    """
    return Loss("exp(s) - y", "poisson", "nonnegative")


def quantile(level: float = 0.5, width: float = 0.05) -> Loss:
    """The pinball loss of that level, its corner rounded over `width`: slope -level below y and 1 - level above it.

    >>> ah.in_context.quantile(level=0.75, width=0.125).gradient
    'sigmoid((s - y)/0.125) - 0.75'
    """
    if not is_number(level) or not 0 < level < 1:
        raise InputError(f"level={level!r} must lie between 0 and 1.")
    return Loss(f"sigmoid((s - y)/{_positive('width', width)}) - {exact_text(level)}", "quantile")


def hinge(width: float = 0.05) -> Loss:
    """max(0, 1 - y s), its corner rounded over `width`, labels -1 and 1.

    Its derivative -y sigmoid((1 - y s)/width) equals sigmoid((s - y)/width) - (1 + y)/2 for both labels.

    >>> ah.in_context.hinge(width=0.125).gradient
    'sigmoid((s - y)/0.125) - (1 + y)/2'
    """
    return Loss(f"sigmoid((s - y)/{_positive('width', width)}) - (1 + y)/2", "hinge", "signs")


BUILT_IN = {
    "squared": squared,
    "logistic": logistic,
    "huber": huber,
    "poisson": poisson,
    "quantile": quantile,
    "hinge": hinge,
}


def read_loss(loss: str | Loss) -> Loss:
    """A `Loss` from a name or a formula in s and y."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise InputError(f"loss={loss!r} must be a name, a formula in s and y, or an ah.in_context.Loss.")
    if loss in BUILT_IN:
        made: Loss = BUILT_IN[loss]()
        return made
    if loss.isidentifier() and loss not in VARIABLES:
        raise InputError(
            f"There is no loss named {loss!r}; there are {', '.join(BUILT_IN)}, and any formula in the prediction s "
            "and the label y, such as log(cosh(s - y))."
        )
    return Loss.of(loss)


def _positive(name: str, number: float) -> str:
    return exact_text(positive(name, number))


def exact_text(number: float) -> str:
    """All digits of a float: 1.35 in a formula would be 27/20, which is another number and no float."""
    return format(Decimal(float(number)), "f")
