"""Kernel regression as scikit-learn estimators: fit keeps the data, predict gives them to a network as its prompt.

Columns are centred and measured in `unit_`, a power of two near the kernel's length, and labels scaled inside, which
changes no prediction but for rounding. `network_` is the network that runs. For a query that is further out than twice
the examples one is made for that query's own power of two, so that no answer depends on what else is asked.
`certificate_` bounds in the units of the labels how far a prediction is from the method's own, for the examples and
queries as they are centred and measured inside: of NadarayaWatson by what is proved of its network, of KernelRidge
(`kernel_ridge_estimator.py`) by what its weights leave of the linear system.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from flint import arb
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from anchorhead.arithmetic import binary_ceiling, binary_floor
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, ToleranceError
from anchorhead.in_context.bounds import SLACK, positive
from anchorhead.in_context.coefficient_certificate import ASSUMPTIONS
from anchorhead.in_context.fit import averages
from anchorhead.in_context.kernel_regression import KernelRegression, kernel_regression
from anchorhead.in_context.kernel_ridge import KernelRidgeNetwork
from anchorhead.in_context.linear_models import dense, read_weights
from anchorhead.in_context.network import no_file, stated
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import Certificate

LEAST, FURTHEST = 2.0**-20, 2.0**190
"""The smallest and the largest bound on entries that is declared, in lengths."""
ENTRIES = 2**24
"""Scores of one part of a prediction, after which progress is told."""
COMPARED = 256
"""At about so many points answers are looked at where nothing is proved."""
UNSETTLED = 1e-6
"""What rounding may do to answers where nothing is proved, and weights may leave, in units of the largest label."""


class Kernel(RegressorMixin, BaseEstimator):
    """What both share: checking, centring, and running the network."""

    progress: bool | Progress

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.target_tags.multi_output = True
        return tags

    @abstractmethod
    def _network(self, bounds: dict[str, float]) -> KernelRegression | KernelRidgeNetwork:
        """The network for prompts of these sizes."""

    @property
    @abstractmethod
    def _method(self) -> str:
        """What is predicted by, with its parameters."""

    @property
    @abstractmethod
    def _narrow(self) -> tuple[str, str]:
        """What is wrong with the kernel where its length is small beside the range of X, and what to do."""

    @abstractmethod
    def _units(self) -> float:
        """A power of two near the kernel's length."""

    def __sklearn_is_fitted__(self) -> bool:
        """Not after a fit that was refused."""
        return "certificate_missing_" in vars(self)

    def _fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        self.__dict__.pop("certificate_missing_", None)
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse=True, y_numeric=True, multi_output=True)
        X = dense(X)
        if y.dtype.kind not in "biuf":
            raise InputError(
                f"y holds {y.dtype.name}, and {type(self).__name__} predicts numbers; encode the labels as numbers, or "
                "for classes use ah.in_context.LogisticRegression."
            )
        weights = read_weights(sample_weight, len(X))
        weights = np.ones(len(X)) if weights is None else weights
        self._most = float(weights.max())
        counting = weights / self._most > 0
        X, y, weights = X[counting], y[counting], weights[counting] / self._most
        self._centre, self._size, self.unit_ = averages(X.T, None), float(np.abs(y).max()) or 1.0, self._units()
        self._X, self._y = self._measured(X), torch.tensor(y.T / self._size, dtype=torch.float64)
        self._roots = torch.tensor(weights).sqrt()
        reach = binary_ceiling(max(float(self._X.abs().max()), LEAST))
        if not reach <= FURTHEST:
            raise self._decided(f"the examples are up to {reach:.1e} times {self.unit_:.1e} apart")
        with telling(f"fitting {type(self).__name__}", self.progress) as report:
            self.network_ = self._network({"x": reach, "query": 2 * reach, "y": 1.0})
            self.certificate_, self.certificate_missing_ = self._learn(report)
        return self

    def _further(self, reach: float) -> Any:
        """The network for queries up to this."""
        return self._network(self.network_.limits | {"query": reach})

    @abstractmethod
    def _learn(self, report: Progress) -> tuple[Certificate | None, str]:
        """What is done before a query is there, and the certificate, or why there is none."""

    @abstractmethod
    def _answer(self, network: Any, query: torch.Tensor) -> torch.Tensor:
        """The answers of a network, (queries, targets), in units of the largest label."""

    def _decided(self, said: str) -> ToleranceError:
        wrong, advice = self._narrow
        return ToleranceError(
            f"{wrong} beside the range of X that rounding in float64 decides: {said}. Use {advice}, or scale the "
            "columns."
        )

    def _measured(self, X: np.ndarray) -> torch.Tensor:
        """Rows less the examples' mean, in the kernel's unit."""
        with np.errstate(over="ignore"):
            return torch.tensor((X - self._centre) / self.unit_)

    def _columns(self) -> torch.Tensor:
        """Labels (n, targets)."""
        return self._y.reshape(-1, len(self._X)).mT

    def predict(self, X: Any) -> np.ndarray:
        """The method's prediction at every row."""
        check_is_fitted(self)
        X = dense(validate_data(self, X, reset=False, dtype=np.float64, accept_sparse=True))
        query = self._measured(X)
        tops = query.abs().amax(1)
        if not float(tops.max()) <= FURTHEST:
            raise InputError(
                f"Row {int(tops.argmax())} of X is {float(tops.max()):.1e} times {self.unit_:.1e}, about the kernel's "
                f"length, from the examples' mean, and answers are given for up to {FURTHEST:.1e}; leave it out."
            )
        near = ~self._vanishing(query)
        found = np.zeros((len(query), self._columns().shape[1]))
        with telling(f"predicting by {type(self).__name__}", self.progress) as report:
            if near.any():
                found[near.numpy()] = self._answers(query[near], report) * self._size
        return found if self._y.ndim == 2 else found[:, 0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: a fit has no file with a proof."""
        raise no_file(type(self).__name__)

    def _answers(self, query: torch.Tensor, report: Progress) -> np.ndarray:
        """In units of the largest label, (queries, targets)."""
        own, tops = self.network_.limits["query"], query.abs().amax(1).numpy()
        reaches = np.where(tops <= own, own, np.ldexp(1.0, np.frexp(tops)[1]))
        found, done = np.zeros((len(query), self._columns().shape[1])), 0
        for reach in np.unique(reaches).tolist():
            network = self.network_ if reach == own else self._further(reach)
            rows = torch.tensor(np.flatnonzero(reaches == reach))
            for part in rows.split(max(1, ENTRIES // len(self._X))):
                report(f"{done:,} of {len(query):,} queries are answered from {len(self._X):,} examples")
                found[part.numpy()] = self._answer(network, query[part]).numpy()
                done += len(part)
        return found

    def _vanishing(self, query: torch.Tensor) -> torch.Tensor:
        """Which queries are so far from all examples that their answer is zero within the certificate's bound."""
        return torch.zeros(len(query), dtype=torch.bool)

    def _stated(self, approximation: float, rounding: float) -> Certificate:
        """Of bounds in units of the largest label, which is divided by and multiplied with, rounded both times."""
        own = self.network_.certificate
        rounding += 2.0**-51 * self.network_.gain
        said = (
            "of this fit only: the examples and queries as they are centred and over unit_ inside, and the labels over "
            "their largest",
            "the domain is that of the queries, in the units of the data",
        )
        reach = self.network_.limits["query"] * self.unit_
        ends = np.nextafter(self._centre - reach, np.inf), np.nextafter(self._centre + reach, -np.inf)
        domain = tuple((float(low), float(high)) for low, high in zip(*ends, strict=True))
        return replace(own, expression=self._method, level="proved", domain=domain,
                       variables=tuple(f"x{j}" for j in range(len(domain))),
                       approximation=approximation * self._size * (1 + 2.0**-50),
                       rounding=rounding * self._size * (1 + 2.0**-50),
                       assumptions=(*ASSUMPTIONS, *said))  # fmt: skip


class UnprovedRegression(KernelRegression):
    """Kernel regression where rounding might, in the worst case, decide: all that is known is that answers are means.

    Of means in floats, weights with rounding; so two are apart by twice the largest label and what sums add.
    """

    def certified(self, said: str, error: Any, *assumptions: str) -> Certificate:
        size = arb(self.limits["y"]) * (1 + arb(SLACK))
        with precision():
            whole = upper(2 * size + self.summed(size, self.unit))
        return stated(said, dict(self.limits), self.unit_name, whole, 0.0, assumptions, "trivial")


class NadarayaWatson(Kernel):
    """The mean of the labels with weights exp(-|q - x|²/(2 bandwidth²)).

    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
    >>> round(float(ah.in_context.NadarayaWatson(bandwidth=0.1).fit(X, y).predict([[1.0]])[0]), 3)
    3.0
    """

    def __init__(self, bandwidth: float = 1.0, *, progress: bool | Progress = True) -> None:
        self.bandwidth, self.progress = bandwidth, progress

    def fit(self, X: Any, y: Any, **others: Any) -> NadarayaWatson:
        """Keeps the examples; nothing is learned before a query is there. y may have several columns."""
        if others:
            raise InputError(
                f"NadarayaWatson.fit takes X and y, and was given {', '.join(others)}: all examples count alike here. "
                "Leave it out."
            )
        return self._fit(X, y)

    @property
    def _method(self) -> str:
        return f"Nadaraya-Watson regression of bandwidth {self.bandwidth:g}"

    @property
    def _narrow(self) -> tuple[str, str]:
        return f"bandwidth={self.bandwidth!r} is so small", "a larger bandwidth"

    def _units(self) -> float:
        return binary_floor(positive("bandwidth", self.bandwidth))

    def _network(self, bounds: dict[str, float]) -> KernelRegression:
        width = self.bandwidth / self.unit_
        try:
            return kernel_regression(self._X.shape[1], width, examples=len(self._X), bounds=bounds)
        except ToleranceError:
            return UnprovedRegression(self._X.shape[1], len(self._X), width, bounds, torch.float64)

    def _learn(self, report: Progress) -> tuple[Certificate | None, str]:
        own = self.network_.certificate
        if own.level == "proved":
            return self._stated(own.approximation, own.rounding), ""
        few = (0.75 * self._X + 0.25 * self._X.roll(1, 0))[:: max(1, len(self._X) // COMPARED)]
        off = max(float((self.network_(self._X, y, few) - self.network_.exact(self._X, y, few)).abs().max())
                  for y in self._columns().mT)  # fmt: skip
        if not off <= UNSETTLED:
            raise self._decided(f"between examples answers are off by up to {off:.1g} of the largest label")
        return None, (
            f"rounding in float64 may, in the worst case, move predictions by as much as labels differ: bandwidth="
            f"{self.bandwidth!r} is small beside the range of X; at {len(few):,} points between examples they are off "
            f"by {off:.1e} of the largest label. Use a larger bandwidth, or scale the columns, for a certificate"
        )

    def _answer(self, network: Any, query: torch.Tensor) -> torch.Tensor:
        return torch.stack([network(self._X, y, query) for y in self._columns().mT], -1)
