"""Functions of a prompt, and learning algorithms that run on its examples inside one forward pass of attention."""

from typing import Any

from anchorhead.in_context.bounds import Bounds, ClippedWarning, OutsideBoundsError
from anchorhead.in_context.compile import compile
from anchorhead.in_context.convergence import Convergence
from anchorhead.in_context.gradient_descent import GradientDescent, gradient_descent
from anchorhead.in_context.losses import Loss, hinge, huber, logistic, poisson, quantile, squared
from anchorhead.in_context.network_step import NetworkStep, network_step
from anchorhead.in_context.newton import Newton, newton
from anchorhead.in_context.truncated_linear import TruncatedLinear, truncated_linear
from anchorhead.model.prompt_core import PromptModel

__all__ = [
    "Bounds",
    "ClippedWarning",
    "Convergence",
    "GradientDescent",
    "Loss",
    "NetworkStep",
    "Newton",
    "OutsideBoundsError",
    "PromptModel",
    "TruncatedLinear",
    "compile",
    "gradient_descent",
    "hinge",
    "huber",
    "logistic",
    "network_step",
    "newton",
    "poisson",
    "quantile",
    "squared",
    "truncated_linear",
]

ESTIMATORS = ("HuberRegressor", "Lasso", "LinearRegression", "LogisticRegression", "PoissonRegressor", "Ridge")


def __getattr__(name: str) -> Any:
    """Estimators need scikit-learn, and are loaded when first used."""
    if name not in ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from anchorhead.in_context import estimators
    except ModuleNotFoundError as error:
        raise ImportError("Estimators need scikit-learn: pip install 'anchorhead[sklearn]'.") from error
    return getattr(estimators, name)
