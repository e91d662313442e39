"""Learning algorithms that run inside one forward pass of softmax attention, on the examples in the prompt."""

from anchorhead.in_context.bounds import Bounds, ClippedWarning, OutsideBoundsError
from anchorhead.in_context.gradient_descent import GradientDescent, gradient_descent
from anchorhead.in_context.losses import Loss, hinge, huber, logistic, poisson, quantile, squared

__all__ = [
    "Bounds",
    "ClippedWarning",
    "GradientDescent",
    "Loss",
    "OutsideBoundsError",
    "gradient_descent",
    "hinge",
    "huber",
    "logistic",
    "poisson",
    "quantile",
    "squared",
]
