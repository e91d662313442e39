"""Heads by name in a network with hook points: where they are, what they look at and write, a hook for another value.

A number may be written in several layers: in one by the head that computes it, in later ones by heads that carry it on.
A name alone is the head that computes; a name and a layer the one that writes it there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.display import facts, page
from anchorhead.errors import InputError, ShapeError
from anchorhead.export.points import points_said
from anchorhead.model.head_mechanism import HeadMechanism
from anchorhead.model.mechanism import Mechanism
from anchorhead.model.stated import at_positions, positions_said

Hook = tuple[str, Callable[..., Tensor]]
"""The name of a hook point, and what is done there, as `run_with_hooks` takes them."""
PUT = "_heads_put"
"""Of the z that an ablation returns: the heads in whose place it has a value."""


class Named:
    """What a network with hook points and one with a bridge share. Each head writes entry 0 of its z."""

    stated: Mechanism | None
    """What every head does in the network that was made; None where heads have no meaning each."""
    cfg: Any
    hook_dict: Mapping[str, Any]
    own_keys: Sequence[tuple[int, int]]
    """Of every block, where the keys of the first position begin, and how many lie between those of two positions."""

    @property
    def running(self) -> int:
        """How many tokens the prompt has that runs; zero of what is no prompt."""
        return 0

    @abstractmethod
    def point(self, block: int, part: str) -> str:
        """The hook point of a block's q, k, v or z, (batch, positions, heads, features), or pattern (batch, heads,
        positions, keys)."""

    @property
    @abstractmethod
    def mechanism(self) -> Mechanism | None:
        """What every head does, of a compiled model whose heads have a meaning each; None for others. Its errors are
        infinite once numbers of the network were changed."""

    @property
    def names(self) -> list[list[str]]:
        """What each head of each block writes, by name."""
        return [] if self.stated is None else [list(names) for names in self.stated.states]

    def where(self, name: str, layer: int | None = None) -> tuple[int, int]:
        """The block and the head that compute a number of that name, or that write it in a layer."""
        found, _ = self._signed(name, layer)
        return found.layer, found.head

    def ablation(self, name: str, value: float | Tensor | np.ndarray = 0.0, layer: int | None = None) -> Hook:
        """A hook that puts a value in the place of what a head writes, zero unless given: for `run_with_hooks`. Of a
        head that writes minus what the name says, minus the value.

        value: a number, or a tensor or array (batch, positions), such as what the head wrote for other inputs; in a
        prompt also of the place of the head alone, (batch, n), (batch, m), or (batch, 1) of the prompt.
        layer: where the number is written, if not by the head that computes it.
        """
        found, sign = self._signed(name, layer)
        value = torch.as_tensor(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" else value
        if isinstance(value, bool) or not isinstance(value, Real | Tensor):
            raise InputError(f"A head writes numbers, and {value!r:.60} is neither a number nor a tensor of them.")

        def ablate(z: Tensor, hook: Any) -> Tensor:
            put = at_positions(found, value, self.running, z.shape[:2]) if isinstance(value, Tensor) else value
            if isinstance(put, Tensor) and put.ndim and put.shape != z.shape[:2]:
                raise ShapeError(
                    f"The value for {name!r} has shape {tuple(put.shape)}; the input has (batch, positions) "
                    f"{tuple(z.shape[:2])}, and a number for each is needed.{positions_said(found)}"
                )
            others: frozenset[int] = getattr(z, PUT, frozenset())
            if found.head in others:
                raise InputError(f"{name!r:.80} is the head called {found.name!r:.80}, for which another ablation was "
                                 "given: give one for each head.")  # fmt: skip
            z = z.clone()
            z[:, :, found.head, 0] = sign * (put if isinstance(put, Tensor) else float(put))
            setattr(z, PUT, others | {found.head})
            return z

        return self.point(found.layer, "z"), ablate

    def written(self, cache: Any, name: str, layer: int | None = None) -> Tensor:
        """What a head wrote, (batch, positions), in a cache of `run_with_cache`; without a batch (positions). Of a head
        that writes minus what the name says, minus that: the number of the name."""
        head, sign = self._signed(name, layer)
        found: Tensor = self._cached(cache, head.layer, "z", -2)[..., head.head, 0]
        return found if sign > 0 else -found

    def reading(self, cache: Any, name: str, layer: int | None = None) -> list[Hook]:
        """Hooks that have a head read what it read in another run, of which that is the cache, and all others what they
        read: with an ablation in the other run, the path from one head to another."""
        found, _ = self._signed(name, layer)

        def read(value: Tensor, hook: Any, other: Tensor) -> Tensor:
            if other.shape != value.shape:
                raise ShapeError(f"What {name!r} read is {tuple(other.shape)} in the cache at {hook.name}, and "
                                 f"{tuple(value.shape)} in this run: give inputs of the same shape.")  # fmt: skip
            value = value.clone()
            value[:, :, found.head] = other[:, :, found.head]
            return value

        return [(self.point(found.layer, part), partial(read, other=self._cached(cache, found.layer, part, -2)))
                for part in "qkv"]  # fmt: skip

    def pattern(self, cache: Any, name: str, layer: int | None = None) -> Tensor:
        """The weights of a head over its own keys, (batch, positions, keys), in a cache of `run_with_cache`; of one
        that looks at the tokens of a prompt over all positions, (batch, positions, positions)."""
        found, _ = self._signed(name, layer)
        weights = self._cached(cache, found.layer, "pattern", -3).select(-3, found.head)
        start, apart = self.own_keys[found.layer]
        at = start + apart * torch.arange(weights.shape[-2], device=weights.device)
        if found.kind == "pool":
            return weights[..., at]
        keys = at[:, None] + torch.arange(found.keys, device=weights.device)
        return weights.gather(-1, keys.expand(*weights.shape[:-2], -1, -1))

    def _repr_html_(self) -> str:
        """What a notebook shows: sizes, hook points, and what every head writes, to which proved error."""
        rows = [("layers, heads in each", f"{self.cfg.n_layers}, {self.cfg.n_heads}"), ("dtype", str(self.cfg.dtype)),
                ("hook points", points_said(self.hook_dict))]  # fmt: skip
        stated = self.mechanism
        return page(type(self).__name__, facts(rows), "" if stated is None else stated.html())

    def _signed(self, name: str, layer: int | None) -> tuple[HeadMechanism, int]:
        if self.stated is None:
            raise InputError("The heads of this network have no names: it is not a compiled network of named heads.")
        return self.stated.signed(name, layer)

    def _cached(self, cache: Any, block: int, part: str, axis: int) -> Tensor:
        """What a cache holds at a block's z or pattern, whose heads are along that axis."""
        point, heads = self.point(block, part), max(map(len, self.names))
        try:
            found = None if isinstance(cache, Tensor) else cache[point]
        except (KeyError, TypeError, IndexError):
            found = None
        if found is None and hasattr(cache, "keys") and any(key in self.hook_dict for key in cache):
            raise InputError(f"The cache has other hook points, and no {point}, which is needed: have names_filter of "
                             "this network's run_with_cache keep it, or leave names_filter out.")  # fmt: skip
        if not isinstance(found, Tensor) or found.ndim not in (3, 4) or found.shape[axis] != heads:
            raise InputError(
                f"The cache holds no {point} with {heads} heads, so that it is not this network's: give the second "
                "result of this network's run_with_cache, with that hook point among its names."
            )
        return found
