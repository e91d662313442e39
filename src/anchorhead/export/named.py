"""Heads by name in a network with hook points: where they are, what they wrote, and a hook that puts another value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from anchorhead.errors import InputError, ShapeError
from anchorhead.model.mechanism import Mechanism

Hook = tuple[str, Callable[..., Tensor]]
"""The name of a hook point, and what is done there, as `run_with_hooks` takes them."""


class Named:
    """What a network with hook points and one with a bridge share. Each head writes entry 0 of its z."""

    mechanism: Mechanism | None
    """What every head does, of a compiled model whose heads have a meaning each; None for others."""

    @abstractmethod
    def z_point(self, block: int) -> str:
        """The hook point of a block's z, (batch, queries, heads, features)."""

    @property
    def names(self) -> list[list[str]]:
        """What each head of each block writes, by name."""
        return [] if self.mechanism is None else [list(names) for names in self.mechanism.states]

    def where(self, name: str) -> tuple[int, int]:
        """The block and the head that compute a number of that name."""
        if self.mechanism is None:
            raise InputError("The heads of this network have no names: it is not a compiled network of named heads.")
        found = self.mechanism.head(name)
        return found.layer, found.head

    def ablation(self, name: str, value: float | Tensor = 0.0) -> Hook:
        """A hook that puts a value in the place of what a head writes, zero unless given: for `run_with_hooks`.

        value: a number, or a tensor (batch, tokens), such as what the head wrote for other inputs.
        """
        block, head = self.where(name)
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
            raise InputError(f"A head writes numbers, and {value!r:.60} is neither a number nor a tensor of them.")

        def ablate(z: Tensor, hook: Any) -> Tensor:
            if isinstance(value, Tensor) and value.ndim and value.shape != z.shape[:2]:
                raise ShapeError(
                    f"The value for {name!r} has shape {tuple(value.shape)}; the input has (batch, tokens) "
                    f"{tuple(z.shape[:2])}, and a number for each is needed."
                )
            z = z.clone()
            z[:, :, head, 0] = value
            return z

        return self.z_point(block), ablate

    def written(self, cache: Any, name: str) -> Tensor:
        """What a head wrote, (batch, tokens), in a cache of `run_with_cache`."""
        block, head = self.where(name)
        point, heads = self.z_point(block), max(map(len, self.names))
        try:
            z = cache[point]
        except (KeyError, TypeError, IndexError):
            z = None
        if not isinstance(z, Tensor) or z.ndim != 4 or z.shape[2] != heads:
            raise InputError(
                f"The cache holds no {point} with {heads} heads, so that it is not this network's: give the second "
                "result of this network's run_with_cache, with that hook point among its names."
            )
        found: Tensor = z[:, :, head, 0]
        return found
