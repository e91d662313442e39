"""The route for another row map than softmax: the head whose values are solved for it, as small as keeps the tolerance.

The map constructs a head of any size (`row_maps/`). Sizes grow by a quarter until one keeps the tolerance on samples,
those below it are bisected, and the first that is proved to keep it is the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anchorhead.compiler.method import Wish
from anchorhead.compiler.target import Target
from anchorhead.digits import Up
from anchorhead.errors import InputError, ToleranceError
from anchorhead.head.head import Head
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.mapped_core import MappedCore, mapped, measured
from anchorhead.row_maps import RowMap

GOALS = (1e-4, 1e-7, 1e-10, 1e-13)
"""Errors to be fitted for where none is asked for, in the target's unit."""
TRIES = 6
"""Sizes that keep the tolerance on samples and are tried to be proved."""


def compile_mapped(target: Any, row_map: Any, wish: Wish) -> CompiledModel:
    """The smallest head that was found and proved, or the best of so many keys."""
    if not isinstance(row_map, RowMap):
        raise InputError(f"row_map={row_map!r:.60} must be one of ah.row_maps, such as ah.row_maps.Sigmoid().")
    if not isinstance(target, Target) or not target.bounded or target.relative or wish.largest_value is not None:
        raise InputError("row_map= is for a function of one variable on a bounded domain, with an absolute error and "
                         "values as they come; leave it out, or give such a target.")  # fmt: skip
    if row_map.sizes is None:
        raise InputError(
            f"{row_map.name} has no construction of its own. Compile the head without row_map, and use "
            "model.with_row_map to see what is left of it; largest_value= keeps its values small."
        )
    return _Construction(target, row_map, wish).run(*row_map.sizes)


class _Construction:
    def __init__(self, target: Target, row_map: RowMap, wish: Wish) -> None:
        self.target, self.map, self.wish = target, row_map, wish
        self.domain = target.low, target.high
        self.best = ""

    def run(self, least: int, most: int) -> CompiledModel:
        most = min(most, self.wish.limit or most)
        if self.wish.keys is not None:
            if not least <= self.wish.keys <= most:
                raise InputError(f"keys={self.wish.keys}: {self.map.name} is built with {least} to {most} keys.")
            heads = [self._head(self.wish.keys, goal * self.target.unit) for goal in GOALS]
            return self._model(min(heads, key=self._error))
        tol = self.wish.tolerance(1e-6)
        keys = self._smallest(lambda size: self._error(self._head(size, tol)) <= tol, least, most)
        for _ in range(TRIES):
            if keys is None:
                break
            self.wish.progress(f"{self.map.name}: {keys} keys, proving")
            model = self._model(self._head(keys, tol))
            if model.certificate.bound <= tol:
                return model
            kept = model.certificate
            self.best = (f"Of {keys} keys {Up(kept.bound):.3g} is proved, of which rounding in {kept.dtype} is "
                         f"{Up(kept.rounding):.3g}.")  # fmt: skip
            keys = min(most, keys + max(1, keys // 16))
        raise ToleranceError(
            f"tol={tol:g} for {self.target.expression} under {self.map.name} was not reached; it may have {most} keys. "
            f"{self.best} Use a larger tol, or softmax."
        )

    def _smallest(self, keeps: Callable[[int], bool], least: int, most: int) -> int | None:
        """The smallest size that was found to keep the tolerance on samples; None where none does."""
        failed, size = least - 1, least
        while not keeps(size):
            if size == most:
                return None
            failed, size = size, min(most, size + max(1, size // 4))
        while size - failed > 1:
            middle = (size + failed) // 2
            failed, size = (failed, middle) if keeps(middle) else (middle, size)
        return size

    def _head(self, keys: int, goal: float) -> Head:
        self.wish.progress(f"{self.map.name}: {keys} keys")
        unit = self.target.unit
        found = self.map.construct(self.target.in_units().function(), *self.domain, keys, goal / unit)
        return found.times(unit).rounded(self.wish.dtype)

    def _error(self, head: Head) -> float:
        found = measured(MappedCore(head, self.map, self.target.expression), self.domain)
        self.best = f"The last that was tried has {head.keys} and is {found:.3g} off."
        return found

    def _model(self, head: Head) -> CompiledModel:
        return CompiledModel(*mapped(head, self.map, self.target.expression, self.domain), self.map.name)
