"""Functions of a prompt, and learning algorithms that run on its examples inside one forward pass of attention."""

from typing import Any

from anchorhead.in_context.bounds import Bounds, ClippedWarning, OutsideBoundsError
from anchorhead.in_context.compile import compile
from anchorhead.in_context.convergence import Convergence
from anchorhead.in_context.gradient_descent import GradientDescent, gradient_descent
from anchorhead.in_context.kernel_regression import (
    KernelRegression,
    NearestNeighbour,
    kernel_regression,
    nearest_neighbour,
)
from anchorhead.in_context.kernel_ridge import KernelRidgeNetwork, kernel_ridge
from anchorhead.in_context.lattice import UniversalPlan, plan_universal
from anchorhead.in_context.losses import Loss, hinge, huber, logistic, poisson, quantile, squared
from anchorhead.in_context.network_step import NetworkStep, network_step
from anchorhead.in_context.newton import Newton, newton
from anchorhead.in_context.newton_descent import NewtonDescent, newton_descent
from anchorhead.in_context.shrinkage import Shrinkage, shrinkage
from anchorhead.in_context.truncated_linear import TruncatedLinear, truncated_linear
from anchorhead.in_context.universal import Universal, universal
from anchorhead.model.prompt_core import PromptModel

__all__ = [
    "Bounds",
    "ClippedWarning",
    "Convergence",
    "GradientDescent",
    "KernelRegression",
    "KernelRidgeNetwork",
    "Loss",
    "NearestNeighbour",
    "NetworkStep",
    "Newton",
    "NewtonDescent",
    "OutsideBoundsError",
    "PromptModel",
    "Shrinkage",
    "TruncatedLinear",
    "Universal",
    "UniversalPlan",
    "compile",
    "gradient_descent",
    "hinge",
    "huber",
    "kernel_regression",
    "kernel_ridge",
    "logistic",
    "nearest_neighbour",
    "network_step",
    "newton",
    "newton_descent",
    "plan_universal",
    "poisson",
    "quantile",
    "shrinkage",
    "squared",
    "truncated_linear",
    "universal",
]

SQUARES = ("Lasso", "LinearRegression", "Ridge")
LOSSES = ("HuberRegressor", "LogisticRegression", "PoissonRegressor")
KERNELS = ("KernelRidge", "NadarayaWatson")
ESTIMATORS = SQUARES + LOSSES + KERNELS


def __dir__() -> list[str]:
    return sorted([*__all__, *ESTIMATORS])


def __getattr__(name: str) -> Any:
    """Estimators need scikit-learn, and are loaded when first used."""
    if name not in ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from anchorhead.in_context import estimators, kernel_estimators, kernel_ridge_estimator, loss_estimators
    except ModuleNotFoundError as error:
        raise ImportError("Estimators need scikit-learn: pip install 'anchorhead[sklearn]'.") from error
    place = {**dict.fromkeys(SQUARES, estimators), **dict.fromkeys(LOSSES, loss_estimators),
             "KernelRidge": kernel_ridge_estimator, "NadarayaWatson": kernel_estimators}  # fmt: skip
    return getattr(place[name], name)
