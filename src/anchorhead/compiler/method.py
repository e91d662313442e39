"""What a method is: a way to make a proved model of a target.

`ah.compile` reads what it was given as one of three kinds of targets, and hands it to a method:

    one       a continuous function of one variable on an interval or all of R (`target.py`)
    several   formulas or a traced function on a box, as a circuit (`circuit_target.py`)
    opaque    a function that cannot be looked into, on a box (`tracing/opaque.py`)

A method says which of them it takes. One for a single head need only fit: `HeadMethod.fit` gives a `Fit`, how many keys
it can have and the head with that many; rounding, search, proof and the model follow from it (docs/extending.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from anchorhead.arithmetic import Array
from anchorhead.errors import InputError, PrecisionError, ToleranceError
from anchorhead.expression.domain import real, shown, whole
from anchorhead.head.head import Head
from anchorhead.progress import Progress, tell_outer

if TYPE_CHECKING:
    from anchorhead.compiler.target import Target
    from anchorhead.model.compiled import CompiledModel

DTYPES = {torch.float64: "float64", torch.float32: "float32"}
LARGEST_TOL = 1e100


@dataclass(frozen=True)
class Wish:
    """What is asked of a model: an error to keep or a number of keys, in a dtype; a declared Lipschitz constant."""

    tol: float | None = None
    keys: int | None = None
    torch_dtype: torch.dtype = torch.float64
    lipschitz: float | None = None
    progress: Progress = tell_outer
    limit: int | None = None
    hurried: bool = False
    """Whether other routes wait: a large head that hardly gains by more keys is then given up, and so is a graph with a
    function that takes pieces."""
    literal: bool = False
    """Whether the bound is to hold for the softmax written out."""
    largest_value: float | None = None
    """The largest constant or gain that a head may have."""

    def __post_init__(self) -> None:
        if self.keys is not None and self.tol is not None:
            raise InputError("Give tol or keys, not both: tol searches the number of keys, keys the best error.")
        if self.torch_dtype not in DTYPES:
            if isinstance(self.torch_dtype, torch.dtype):
                raise PrecisionError(
                    f"dtype={self.torch_dtype} has no certified evaluation; use torch.float64 or torch.float32."
                )
            raise InputError(f"dtype={self.torch_dtype!r} must be a dtype of torch: torch.float64 or torch.float32.")
        if self.tol is not None:
            self._set("tol", check_tol(self.tol))
        if self.keys is not None:
            self._set("keys", _at_least_one("keys", self.keys, ""))
        if self.limit is not None:
            self._set("limit", _at_least_one("limit", self.limit, ", the most keys to use"))
        if self.largest_value is not None:
            if not 0 < real(self.largest_value) < LARGEST_TOL:
                raise InputError(f"largest_value={shown(self.largest_value)} must be a positive number.")
            self._set("largest_value", real(self.largest_value))
        if self.lipschitz is not None:
            if not 0 <= real(self.lipschitz) < LARGEST_TOL:
                raise InputError(f"lipschitz={shown(self.lipschitz)} must be a number from 0 to {LARGEST_TOL:g}.")
            self._set("lipschitz", real(self.lipschitz))

    def _set(self, name: str, value: float) -> None:
        """Once it is checked, what was given as a number of Python."""
        object.__setattr__(self, name, value)

    @property
    def dtype(self) -> str:
        """The dtype's name."""
        return DTYPES[self.torch_dtype]

    def check_limit(self, keys: int) -> None:
        """Refuses a model of more keys than may be used."""
        if self.limit is not None and keys > self.limit:
            raise ToleranceError(
                f"The target takes {keys} keys, and limit={self.limit}. Raise limit=, or use a larger tol."
            )

    def tolerance(self, usual: float) -> float:
        """The tolerance, or the usual one; what has no keys of its own to choose refuses them."""
        if self.keys is not None:
            raise InputError("keys= is for functions of one variable; give tol, and the keys are shared out.")
        return usual if self.tol is None else self.tol


def check_tol(tol: Any) -> float:
    """A tolerance as a positive finite number."""
    found = real(tol)
    if not 0 < found < LARGEST_TOL:
        raise InputError(
            f"tol={shown(tol)} must be a positive number below {LARGEST_TOL:g}, the error that you can accept."
        )
    return found


def _at_least_one(name: str, value: Any, meant: str) -> int:
    """A whole number of keys."""
    found = whole(value)
    if found is None or found < 1:
        raise InputError(f"{name}={shown(value)} must be a whole number of at least 1{meant}.")
    return found


@dataclass
class Goal:
    """The approximation error wanted, the largest value allowed, and points to include in the samples."""

    error: float
    limit: float
    extra: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Fit:
    """A method applied to a target: heads with `least` to `most` keys.

    build: the head with that many keys that is best for a goal. cuts: points where boxes of its proof should begin.
    estimate: about the error that it has with so many keys, much faster than building it; sizes that are out of reach
    are then not built. size: how many keys a goal takes, where the fit knows it; only that size is then built.
    exact: whether keys= asks for just that number. large_values: whether values may be much larger than the target, as
    where affine values cancel. unit: what a 1 of its goals and of its heads' values stands for, a power of two.

    >>> head = ah.Head.of(slopes=[-1.0, 1.0], intercepts=[0.0, 0.0], constants=[-1.0, 1.0], horner=True)
    >>> ah.Fit("pair", 2, 2, lambda keys, goal: head).build(2, None).keys
    2
    """

    method: str
    least: int
    most: int
    build: Callable[[int, Goal], Head]
    cuts: Callable[[Head], list[float]] = lambda head: []
    estimate: Callable[[int, Goal], float] | None = None
    size: Callable[[Goal], int | None] | None = None
    exact: bool = False
    large_values: bool = True
    unit: float = 1.0

    def __post_init__(self) -> None:
        name = self.method
        if not (isinstance(name, str) and name.isidentifier() and len(name) <= 40):
            raise InputError(f"A method has a plain name of at most 40 letters, and {name!r:.60} is none.")
        if not (type(self.least) is type(self.most) is int and 1 <= self.least <= self.most):
            raise InputError(f"A fit has a least and a largest number of keys, not {self.least!r} and {self.most!r}.")


class Method(ABC):
    """A way to make models; `name` is its short name, `takes` the kinds of targets.

    >>> class Careful(ah.Method):
    ...     name, takes = "careful", ("one",)
    ...     def compile(self, target, wish):                      # half of what was asked for
    ...         return ah.compile(str(target.expression), (target.low, target.high), tol=wish.tol / 2, method="smooth")
    >>> ah.compile("sin(3*x)", (-1, 1), tol=1e-4, method=Careful()).certificate.bound <= 5e-5
    True
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[str, ...]]
    samples: ClassVar[bool] = False
    """Whether a callable is sampled and never traced."""

    @abstractmethod
    def compile(self, target: Any, wish: Wish) -> CompiledModel:
        """The proved model, or an `AnchorheadError` that says what prevents it."""


class HeadMethod(Method):
    """A way to fit one head to a function of one variable.

    >>> class Steps(ah.HeadMethod):
    ...     name = "steps"
    ...     def fit(self, target):
    ...         anchors = lambda keys: [target.low + (k + 0.5) * (target.high - target.low) / keys for k in range(keys)]
    ...         def build(keys, goal):
    ...             near, beta = anchors(keys), 8.0 * keys**2
    ...             return ah.Head.of(slopes=[2 * beta * a for a in near], intercepts=[-beta * a * a for a in near],
    ...                               constants=[target.function()(a) for a in near], horner=False)
    ...         return ah.Fit(self.name, 2, 64, build)
    >>> ah.compile("sin(x)", (0, 1), tol=0.05, method=Steps()).method
    'steps'
    """

    takes = ("one",)

    @abstractmethod
    def fit(self, target: Target) -> Fit:
        """The fit; InputError where the method is not for such a target."""

    def compile(self, target: Target, wish: Wish) -> CompiledModel:
        """The smallest head that is proved to keep the tolerance, or the best with so many keys."""
        from anchorhead.compiler.head_route import compile_head  # which searches with fits, and is given one here

        return compile_head(target, self.scaled_fit(target), wish)

    def scaled_fit(self, target: Target) -> Fit:
        """The fit to the target in its unit, which is 1 where the target is of ordinary size."""
        fit = self.fit(target.in_units())
        if not isinstance(fit, Fit):
            raise InputError(f"{type(self).__name__}.fit gave a {type(fit).__name__} in place of an ah.Fit.")
        return replace(fit, unit=target.unit)
