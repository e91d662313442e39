"""Attention is universal in context, with a number: any Lipschitz function of a prompt as a measure, for every length.

A prompt of n tokens in a box is the measure μ that puts mass 1/n on each; F is a function of measures with
|F(μ) - F(ν)| <= L W_1(μ, ν), the cost of moving one onto the other. Order, where it matters, is a coordinate i/n, and a
query's coordinates are coordinates of every token. Three layers, the same weights for all n:

*1.* Every token attends to N fixed keys, the centres of cells; the values are the steps 1[j <= i], so that it becomes
the cumulative sums of its weights. *2.* Uniform attention over the tokens: their mean S. *3.* S attends to all K
lattice measures k/M, with scores β(2 S·k/M - |k/M|²) and the values F of them.

`lattice.py` states and proves the bound. It is conditional on L, which the caller declares; neighbouring lattice
measures, which are a known distance apart, must not contradict it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import AnchorheadError, InputError, MissingPartError, OutsideRangeError, ShapeError, asked
from anchorhead.file.save import write
from anchorhead.head.parameters import check_tensor
from anchorhead.in_context import bounds as limits
from anchorhead.in_context.bounds import counts, dtype_name, positive
from anchorhead.in_context.heads import Lookup
from anchorhead.in_context.lattice import CHOICE, Lattice, read_ranges
from anchorhead.in_context.network import InContextNetwork, Layers, State, in_double, stated
from anchorhead.in_context.reading import Reading
from anchorhead.model.core import stored
from anchorhead.model.outside import behind_transforms
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import rest_above

Function = Callable[[Tensor, Tensor], Tensor]
BATCH = 4096
MOST_CODES = 2**62
ROOM = 1 + 1e-9
"""What the values' own rounding may take when the declared constant is held against them."""
SAME = 2.0**-20
"""Values of F of one measure that differ by this share may be the same but for rounding."""


def universal(
    F: Function,
    tokens: Mapping[str, tuple[float, float]],
    cells: int | Sequence[int],
    masses: int,
    *,
    lipschitz: float,
    examples: int = 1_000_000,
    dtype: torch.dtype = torch.float64,
    progress: bool | Progress = True,
) -> Universal:
    """A network for F of a prompt: model(tokens, mask=None), (..., n, t) to (..., outputs), for every n.

    F(points, weights): points (p, t) and weights (..., p), not negative and of sum one, to (...) or (..., outputs), in
        float64; it depends on the weighted points alone.
    tokens: the range of every coordinate of a token by name.
    cells: for every coordinate, or one number for all; masses: M, in whose parts mass is counted.
    lipschitz: L with |F(μ) - F(ν)| <= L W_1(μ, ν) for every output, W_1 for Euclidean distances.
    examples: the longest prompt; only rounding depends on it.
    progress: as for `ah.compile`.

    >>> def mean(points, weights):
    ...     return weights @ points[:, 0]
    >>> model = ah.in_context.universal(mean, {"x": (0, 1)}, cells=4, masses=4, lipschitz=1.0)
    >>> prompt = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64)
    >>> abs(model(prompt).item() - 0.5) <= model.bound
    True
    """
    constant = positive("lipschitz", lipschitz)
    names, ranges = read_ranges(tokens)
    (most,) = counts(examples=examples)
    name = dtype_name(dtype)
    if not callable(F):
        raise InputError(f"F must be a callable of points (p, t) and weights (..., p), not {F!r}.")
    lattice = Lattice.read(ranges, cells, masses)
    with telling("making a network for a function of prompts", progress):
        return Universal(F, names, lattice, lattice_values(F, lattice), constant, most, dtype, UNIT[name])


class Universal(InContextNetwork):
    """See `universal`. `bound` is that of the certificate, `lattice` has the nodes.

    >>> def mean(points, weights):
    ...     return weights @ points[:, 0]
    >>> model = ah.in_context.universal(mean, {"x": (0, 1)}, cells=4, masses=4, lipschitz=1.0)
    >>> model.bound == model.certificate.bound
    True
    """

    F: Function | None
    middle: Tensor

    def __init__(self, F: Function | None, names: tuple[str, ...], lattice: Lattice, values: Tensor,
                 lipschitz: float, examples: int, dtype: torch.dtype, unit: float) -> None:  # fmt: skip
        """values: F of every lattice measure, (K, outputs); F: None where these are all that is known of it."""
        super().__init__()
        object.__setattr__(self, "F", F)  # the caller's, and no part of the network even where it is a module
        self.names, self.lattice, self.lipschitz = names, lattice, lipschitz
        self.examples, self.dtype = examples, dtype
        middle = torch.tensor([(low + high) / 2 for low, high in lattice.ranges], dtype=dtype)
        self.register_buffer("middle", middle)
        nodes = torch.tensor(lattice.points())
        sums = torch.tensor(lattice.sums())
        self._hold_against(values, sums)
        self.cells, self.measures = _cells(lattice, nodes - middle, dtype), _measures(lattice, sums, values, dtype)
        size = float(self.measures.constants.double().abs().max()) * (1 + 2 * unit) / lipschitz
        with precision():
            exact, whole = (
                upper(lipschitz * lattice.error(self.measures.beta, examples, u, size if u else 0.0))
                for u in (0.0, unit)
            )
        said = (
            f"|F(μ) - F(ν)| <= {lipschitz:g} W_1(μ, ν), which was declared",
            "F returns its own values exactly, and depends on the weighted points alone",
            f"prompts have at most {examples:,} tokens, which every run checks",
        )
        sizes = dict.fromkeys(names, 1.0)
        claim = stated("F of a prompt", sizes, dtype_name(dtype), exact, rest_above(whole, exact), said, "conditional")
        self.claim(replace(claim, domain=lattice.ranges))

    def __getattr__(self, name: str) -> Any:
        """What is not there; what theorems' networks of one sequence have says so in a sentence."""
        if name in ("plot", "matrices", "to_stock_attention"):
            raise MissingPartError(
                f"A network for prompts of every length has no {name}(): its first and last head are `cells` and "
                "`measures`, with slopes, levels and constants of every key, `attention(tokens)` has the weights, "
                "`as_self_attention(n).matrices()` W_Q, W_K and W_V for n tokens, and `anchorhead explore` shows the "
                "first head."
            )
        return super().__getattr__(name)

    @property
    def bound(self) -> float:
        """What |network - F| stays below, for every prompt, if F is as declared."""
        return self.certificate.bound

    @property
    def keys(self) -> int:
        """Lattice measures, the keys of the last head; `resources.keys` counts those of all heads."""
        return self.measures.keys

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """F of every prompt, (..., outputs); mask (..., n) is True for tokens that count."""
        found: Tensor = self.fast(tokens, mask)
        return found

    def begin(self, how: Reading, tokens: Tensor, mask: Tensor | None = None) -> State:
        steps = how.look_up(self.cells, *(tokens - self.middle.to(tokens.dtype)).unbind(-1))
        mean = limits.mean_weights(tokens, mask).unsqueeze(-2) @ steps
        return {"found": how.look_up(self.measures, *(mean.squeeze(-2) - 0.5).unbind(-1))}

    def end(self, how: Reading, state: State) -> Tensor:
        return state["found"]

    def layers(self) -> Layers:
        return [(1, [self.cells]), (1, [_Mean(self.examples)]), (1, [self.measures])]

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        return {"tokens": (examples, len(self.names))}

    def exact(self, *prompt: Any, **named: Any) -> Tensor:
        """F itself at every prompt."""
        tokens, mask = in_double(self.checked(*prompt, **named))
        if self.F is None:
            raise AnchorheadError(
                "This network is from a file, which holds F of the lattice's measures and not F itself, a Python "
                "function; compare with the function."
            )
        shares = limits.mean_weights(tokens, mask)
        flat = zip(tokens.reshape(-1, *tokens.shape[-2:]), shares.reshape(-1, shares.shape[-1]), strict=True)
        found = [_values(self.F, points, weights[None]) for points, weights in flat]
        return torch.cat(found).reshape(*tokens.shape[:-2], -1)

    def checked(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Any, ...]:
        check_tensor(tokens, self.dtype, name="tokens", what="network")
        if tokens.ndim < 2 or tokens.shape[-1] != len(self.names):
            raise ShapeError(f"tokens must be (..., n, {len(self.names)}), and is {tuple(tokens.shape)}.")
        if not tokens.numel():
            raise ShapeError(f"tokens has no entries, {tuple(tokens.shape)}: an empty prompt is no measure.")
        if tokens.shape[-2] > self.examples:
            raise ShapeError(
                f"The prompt has {tokens.shape[-2]:,} tokens and the certificate is for {self.examples:,} at most; "
                f"make the network with examples={tokens.shape[-2]}."
            )
        limits.masked(tokens, tokens[..., 0], mask)
        if mask is not None:
            tokens = torch.where(mask.unsqueeze(-1), tokens, self.middle)
        self._check_ranges(tokens)
        return tokens, mask

    def _check_ranges(self, tokens: Tensor) -> None:
        for name, (low, high), values in zip(self.names, self.lattice.ranges, tokens.unbind(-1), strict=True):
            found = behind_transforms(lambda v: (float(v.amin()), float(v.amax())), values)
            if found is not None and not (found[0] >= low and found[1] <= high):
                if not np.isfinite(found).all():
                    raise InputError(f"A token has a {name} that is not finite; remove it or mask it.")
                worst = found[0] if found[0] < low else found[1]
                raise OutsideRangeError(
                    f"A token has {name} = {worst:.6g}, outside the declared [{low:g}, {high:g}]. Declare a wider "
                    "range for it, or mask it."
                )

    def extra_repr(self) -> str:
        sizes = f"{self.lattice.nodes} nodes, masses in {self.lattice.masses}ths, {self.keys:,} keys"
        return f"F of ({', '.join(self.names)}), {sizes}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file that holds all that `ah.load` needs; of F its values on the lattice."""
        record = {
            "kind": "theorem",
            "theorem": "universal",
            "dtype": dtype_name(self.dtype),
            "built": self.certificate.level != "unproved",
            "variables": list(self.names),
            "ranges": [list(pair) for pair in self.lattice.ranges],
            "cells": list(self.lattice.cells),
            "masses": self.lattice.masses,
            "lipschitz": self.lipschitz,
            "examples": self.examples,
        }
        write(record, {name.replace(".", "_"): stored(value) for name, value in self.state_dict().items()}, path)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: what it was made of, what it costs, what is known of it."""
        known = {"theorem": "universal", "variables": list(self.names), "ranges": self.lattice.ranges}
        sizes = {"cells": self.lattice.cells, "masses": self.lattice.masses, "nodes": self.lattice.nodes}
        more = {"certificate": self.certificate.as_dict(), "resources": vars(self.resources)}
        return known | sizes | {"lipschitz": self.lipschitz, "examples": self.examples} | more

    def __str__(self) -> str:
        cost = self.resources
        return (
            f"universal: F of a prompt of up to {self.examples:,} tokens ({', '.join(self.names)}), {self.dtype}\n"
            f"{self.certificate}\n"
            f"nodes N = {self.lattice.nodes}, masses in {self.lattice.masses}ths, {self.keys:,} lattice measures, the "
            f"keys of the last head, β = {cost.beta:.6g}\n"
            f"layers {cost.layers}, heads {cost.heads}, keys {cost.keys:,} in all of them, parameters "
            f"{cost.parameters:,}, logits up to {cost.logit_range:.4g}"
        )

    def _hold_against(self, values: Tensor, sums: Tensor) -> None:
        """Refuses a constant that neighbours, one unit of mass a step of the path apart, contradict; they are found by
        their numbers as digits of one, where that fits into 62 bits."""
        base = self.lattice.masses + 1
        if base ** (self.lattice.nodes - 1) > MOST_CODES:
            return
        rounded = 1e-12 if self.F is not None else 4 * torch.finfo(self.dtype).eps  # values of a file are rounded
        powers = torch.tensor([base**j for j in range(self.lattice.nodes - 2, -1, -1)])
        codes = sums @ powers  # increasing, as the keys are in lexicographic order
        for j, step in enumerate(self.lattice.steps()):
            wanted = codes + powers[j]
            at = torch.searchsorted(codes, wanted).clamp(max=len(codes) - 1)
            moved = (values[at] - values)[codes[at] == wanted].abs()
            allowed = self.lipschitz * step / self.lattice.masses * ROOM + rounded * float(values.abs().max())
            if moved.numel() and float(moved.max()) > allowed:
                least = float(moved.max()) * self.lattice.masses / step
                raise InputError(
                    f"lipschitz={self.lipschitz:g} is too small: two measures {step / self.lattice.masses:.4g} apart "
                    f"have values {float(moved.max()):.4g} apart. Declare {least:.4g} or more, if F is Lipschitz "
                    "at all."
                )


class _Mean:
    """Uniform attention over the longest prompt."""

    beta = logit_range = 0.0

    def __init__(self, keys: int) -> None:
        self.keys = keys


def lattice_values(F: Function, lattice: Lattice) -> Tensor:
    """F of every lattice measure, (K, outputs), in float64."""
    nodes, sums = torch.tensor(lattice.points()), torch.tensor(lattice.sums())
    ends = torch.nn.functional.pad(sums, (1, 0)), torch.nn.functional.pad(sums, (0, 1), value=lattice.masses)
    weights = (ends[1] - ends[0]).double() / lattice.masses
    found = torch.cat([_values(F, nodes, part) for part in weights.split(BATCH)])
    for k in sorted({0, len(weights) // 2, len(weights) - 1}):
        _require_of_measures(F, nodes, weights[k], found[k])
    return found


def _require_of_measures(F: Function, nodes: Tensor, weights: Tensor, value: Tensor) -> None:
    """Refuses an F that depends on how many points there are, or on other measures that it is given at once: here the
    points are given in reverse, each as two of half the weight."""
    twice = _values(F, nodes.flip(0).repeat(2, 1), weights.flip(0).repeat(2)[None] / 2)[0]
    off = float((twice - value).abs().max()) if twice.shape == value.shape else float("inf")
    if not off <= SAME * (1 + float(value.abs().max())):
        raise InputError(
            f"F differs by {off:.3g} where every point is given as two of half its weight, in another order, and by "
            "itself; it must depend on the weighted points alone, as (weights * points[:, 0]).sum(-1) does, not on "
            "how many they are, nor on other rows of weights."
        )


def _values(F: Function, points: Tensor, weights: Tensor) -> Tensor:
    """F of some measures, (rows, outputs); weights: (rows, points)."""
    rows = len(weights)
    found: Any = asked(
        F, points, weights, name="F", at=f"points {tuple(points.shape)} and weights {tuple(weights.shape)}",
        advice="F is called with points (p, t) and weights (..., p), tensors, and must return a tensor (...) or "
        "(..., outputs).",
    )  # fmt: skip
    if not isinstance(found, Tensor) or found.ndim not in (1, 2) or len(found) != rows or not found.numel():
        given = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ShapeError(
            f"F returned {given} for {rows} measures; for points (p, t) and weights ({rows}, p) it must return a "
            f"tensor ({rows},) or ({rows}, outputs)."
        )
    if not found.is_floating_point() or not bool(found.isfinite().all()):
        raise InputError("F returned something other than finite floating numbers; it must, for every measure.")
    return found.detach().double().reshape(rows, -1)


def in_order(terms: Tensor) -> Tensor:
    """The sum over the last axis from left to right: the same bits on every machine."""
    return reduce(torch.add, terms.unbind(-1))


def _cells(lattice: Lattice, apart: Tensor, dtype: torch.dtype) -> Lookup:
    """The first head: scores -Λ((z - c)/w)² but for what all nodes share, measured from the middle of the box."""
    steep = CHOICE / torch.tensor(lattice.widths, dtype=torch.float64) ** 2
    slopes, levels = 2 * steep * apart, -in_order(steep * apart**2)
    steps = torch.ones(lattice.nodes, lattice.nodes - 1, dtype=torch.float64).triu()
    return Lookup(slopes.T.to(dtype), levels.to(dtype), steps.to(dtype), CHOICE, lattice.logits()[0])


def _measures(lattice: Lattice, sums: Tensor, values: Tensor, dtype: torch.dtype) -> Lookup:
    """The last head: scores -β|S - k/M|² but for what all keys share, measured from 1/2."""
    beta, apart = lattice.beta(), sums.double() / lattice.masses - 0.5
    slopes, levels = 2 * beta * apart, -beta * in_order(apart**2)
    return Lookup(slopes.T.to(dtype), levels.to(dtype), values.to(dtype), beta, lattice.logits()[1])
