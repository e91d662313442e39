"""The certificate of fitted coefficients: of numbers, where others are of functions on a domain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorhead.digits import Up
from anchorhead.display import facts, page, sentence
from anchorhead.proof.certificate import Certificate

ASSUMPTIONS = (
    "of this fit only: the data and coefficients as the floats that they are, the objective in real numbers",
    "float64 as IEEE 754 has it, sums of products in any order, exp right to 4 units in the last place",
)


@dataclass(frozen=True, repr=False)
class CoefficientCertificate(Certificate):
    """How far coefficients are from the minimiser's: `outputs` for each and, last, the intercept if one is fitted, and
    `bound` for all.

    The domain is that of the data that they were fitted to.
    """

    intercept: bool = True
    each: str = "targets"
    """What has coefficients of its own, where there are several."""

    @classmethod
    def of(cls, X: np.ndarray, bounds: np.ndarray, intercept: bool, said: str, each: str) -> CoefficientCertificate:
        """bounds: (..., d + 1) with an intercept, else (..., d)."""
        return cls(
            expression=said,
            domain=tuple(zip(X.min(0).tolist(), X.max(0).tolist(), strict=True)),
            dtype="float64",
            level="proved",
            approximation=float(bounds.max()),
            rounding=0.0,
            boxes=0,
            assumptions=ASSUMPTIONS,
            outputs=tuple(float(v) for v in bounds.ravel()),
            variables=tuple(f"x{j}" for j in range(X.shape[1])),
            intercept=intercept,
            each=each,
        )

    def __str__(self) -> str:
        return (
            f"{self.level}: {self.expression} are within {Up(self.bound):.3g} of those of the fit, {self._counted()}, "
            f"{self.dtype}; outputs has a bound for each"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        names = [*self.variables, *(["intercept"] if self.intercept else [])]
        rows = [("of", self.expression), ("coefficients", self._counted()), ("level", self.level),
                ("bound", f"{Up(self.bound):.3g}")]  # fmt: skip
        each = [(f"bound of {names[i % len(names)]}", f"{Up(bound):.3g}") for i, bound in enumerate(self.outputs)]
        assumed = sentence("\n".join(f"Assuming that {a}." for a in self.assumptions))
        return page("Certificate", sentence(str(self)), facts(rows), facts(each), assumed)

    def _counted(self) -> str:
        columns = len(self.variables)
        targets = len(self.outputs) // (columns + self.intercept)
        said = f"{columns} coefficient{'s' * (columns > 1)}" + " and the intercept" * self.intercept
        return said if targets == 1 else f"{said} of each of {targets} {self.each}"
