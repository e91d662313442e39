"""Cells, bumps and the bound of the two universal theorems (Theorem 3.3; docs/mathematics.md 1.5, 1.6).

f maps [low, high]^(n x d) to R^(n x d_out). Each of the D = nd coordinates is cut into g cells of width w
with centres c_1..c_g. A *ramp* ρ_e(x) rises from 0 to 1 around the edge e between two cells, over a width δ,
and is one attention head: anchors on [0, 1], u = (x - e)/δ + 1/2. With ρ_0 = 1 and ρ_g = 0 the bump of cell
l is ρ_{l-1} - ρ_l; the bumps of a coordinate sum to one. For a grid point v, R_v(X) is the sum of its D
bumps, and softmax over β R_v weighs the values f(v). The softmax factorises, R_v being a sum: it is the
product over coordinates of a softmax over the g bumps. So the output is the mean of f(v) where the
coordinates of v are drawn independently, each by its own softmax.

**Bound.** Let s bound the ramps' distance from 0 and 1 outside their slopes (`saturation`). If x lies in a
cell away from the slopes, its bump is at least 1 - 2s and the others at most s, so the weight elsewhere is
at most (g-1) exp(-β(1 - 3s)). On a slope the two bumps at that edge sum to at least 1 - 2s, the larger is
at least 1/2 - s, the others are at most s: the weight on cells other than these two is at most
(g-2) exp(-β(1/2 - 2s)); s <= 1/8 is required. With ε the larger of the two, times D, the union bound says
that but for weight ε every coordinate of v is a centre within r = w/2 of x, or r = (w + δ)/2 on a slope.
Hence, with ω a modulus of continuity of f and S the spread of the stored values (further than S from the value of x's
own cell no blend of values can be, whatever the weights),

    sup error  <=  ω(r) + min(ε·(S + ω(r)), S) + rounding

and in L_p the slopes matter only by their share of the volume, at most D(g-1)δ/(high - low); elsewhere the error is
that of r = w/2, which is the smaller, so that the mean is largest where slopes have all of that share.
Rounding of values, scores and sums is in `grid_rounding.py`; it also makes ε a little larger. It moves an edge by a few
units in the last place of the inputs, at most δ/16, which is allowed for by counting slopes as δ·9/8 wide.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anchorhead.arithmetic import log_of
from anchorhead.digits import Down, Up
from anchorhead.errors import InputError, PrecisionError, ShapeError, SizeError, asked
from anchorhead.theorems.anchors import check_count, check_range, check_selection_error

Modulus = Callable[[float], float]
WIDENED = 9 / 8
MOST_COORDINATES = 100_000


@dataclass(frozen=True)
class Grid:
    """D = tokens * features coordinates in g levels, with slopes of width `slope` times a cell."""

    tokens: int
    features: int
    levels: int
    low: float
    high: float
    slope: float

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("features", 1), ("levels", 2)):
            check_count(getattr(self, name), name, least)
        if self.coordinates > MOST_COORDINATES:
            raise InputError(
                f"tokens={self.tokens} and features={self.features} are {self.coordinates:,} coordinates, above "
                f"{MOST_COORDINATES:,}; a grid has levels to that power of points."
            )
        check_range(self.low, self.high)
        if not 0 < self.slope < 1:
            raise InputError(f"slope={self.slope} must lie strictly between 0 and 1; it is a share of a cell's width.")

    @property
    def coordinates(self) -> int:
        return self.tokens * self.features

    @property
    def points(self) -> int:
        return self.levels**self.coordinates

    @property
    def cell(self) -> float:
        return (self.high - self.low) / self.levels

    def centres(self) -> Tensor:
        """c_1..c_g in float64."""
        return self.low + self.cell * (torch.arange(self.levels, dtype=torch.float64) + 0.5)

    def edges(self) -> Tensor:
        """The g - 1 interior edges in float64."""
        return self.low + self.cell * torch.arange(1, self.levels, dtype=torch.float64)

    def shifted(self, shifts: int) -> list[Grid]:
        """So many grids with the same cells, each moved down by another part of one; where there are several they have
        a level more, so that they cover the box."""
        if shifts == 1:
            return [self]
        lows = [self.low - self.cell * k / shifts for k in range(shifts)]
        size = self.cell * (self.levels + 1)
        return [replace(self, levels=self.levels + 1, low=low, high=low + size) for low in lows]

    def blur(self, dtype: torch.dtype) -> float:
        """How far rounding may move an edge for inputs in the box, by units of the smallest normal number at least."""
        return 4 * torch.finfo(dtype).eps * max(abs(self.low), abs(self.high), torch.finfo(dtype).tiny)

    def resolves(self, dtype: torch.dtype) -> bool:
        """Whether rounding moves an edge by no more than the bound allows for."""
        return self.blur(dtype) <= self.allowed_blur

    @property
    def allowed_blur(self) -> float:
        """A sixteenth of a slope, which `WIDENED` counts at either side."""
        return self.slope * self.cell / 16

    def require_resolution(self, dtype: torch.dtype) -> None:
        """Refuses slopes that inputs in this dtype cannot resolve."""
        if not self.resolves(dtype):
            raise PrecisionError(
                f"{dtype} cannot resolve {self.levels} levels on [{self.low}, {self.high}]: rounding may move an "
                f"edge by {Up(self.blur(dtype)):.3g}, and {Down(self.allowed_blur):.3g} is allowed for, a sixteenth "
                "of the slope between two cells. Use a wider dtype, fewer levels or a larger slope."
            )

    def beta(self, selection_error: float, saturation: float) -> float:
        """The β at which the weight outside the right cells is at most `selection_error`."""
        check_selection_error(selection_error)
        if saturation > 1 / 8:
            raise InputError(
                f"At selection_error={selection_error} a ramp settles only to within {saturation:.3g} of 0 and 1, and "
                "its cells cannot be told apart; take a smaller selection_error, 1e-6 unless there is a reason."
            )
        share = selection_error / self.coordinates
        core = log_of((self.levels - 1) / share) / (1 - 3 * saturation)
        slopes = log_of(max(self.levels - 2, share) / share) / (0.5 - 2 * saturation)
        return max(core, slopes)

    def selection_error(self, beta: float, saturation: float) -> float:
        """ε of the bound at this β; a weight, so 1 where nothing better follows."""
        if saturation > 1 / 8:
            return 1.0
        core = (self.levels - 1) * math.exp(-beta * (1 - 3 * saturation))
        slopes = (self.levels - 2) * math.exp(-beta * (0.5 - 2 * saturation))
        return min(1.0, self.coordinates * max(core, slopes))

    def sup_bound(self, modulus: Modulus, error: float, spread: float) -> float:
        """Bound on the sup error from a modulus of continuity in the sup norm of the input."""
        near = modulus(self.cell * (1 + WIDENED * self.slope) / 2)
        return near + min(error * (spread + near), spread)

    def mean_bound(self, modulus: Modulus, error: float, spread: float, order: float, entries: int, sup: float,
                   shifts: int = 1) -> float:  # fmt: skip
        """Bound on (∫ sum over entries |error|^order dX)^(1/order) over the box; sup: what the error is everywhere, and
        so on slopes; shifts: how many grids there are. It is never above what follows from sup alone."""
        near = modulus(self.cell / 2)
        inside = min(near + min(error * (spread + near), spread), sup)
        edges = shifts * self.levels if shifts > 1 else self.levels - 1
        share = min(1.0, self.coordinates * edges * WIDENED * self.slope * self.cell / (self.high - self.low))
        if not sup:
            return 0.0
        mean = (entries * ((1 - share) * (inside / sup) ** order + share)) ** (1 / order)  # in units of the largest
        try:
            return sup * mean * (self.high - self.low) ** (self.coordinates / order)
        except OverflowError:
            return math.inf


def saturation(anchors: int, gap: float) -> float:
    """How far a ramp head with p anchors on [0, 1] is from 0 at u <= 0, or from 1 at u >= 1; gap is βh²."""
    step = 1 / (anchors - 1)
    return sum(m * step * math.exp(-gap * m * m) for m in range(1, anchors))


def short(count: int) -> str:
    """A whole number of any size for a message: 65,536, or 4.1e+15."""
    if count < 10**9:
        return f"{count:,}"
    exponent = int((count.bit_length() - 1) * math.log10(2))
    exponent += count >= 10 ** (exponent + 1)
    return f"{count // 10 ** (exponent - 1) / 10:.1f}e+{exponent}"


def memory_limit() -> int:
    """Bytes that a construction may take: half of the memory that is free now."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return free // 2


def require_memory(grid: Grid, output_features: int, dtype: torch.dtype) -> None:
    """Refuses a grid whose values would not fit, with its size and the limit."""
    size = torch.finfo(dtype).bits // 8
    needed = grid.points * (grid.tokens * output_features + 2) * size * 2
    limit = memory_limit()
    if needed > limit:
        raise SizeError(
            f"{grid.levels} levels for {grid.tokens} x {grid.features} coordinates make "
            f"{grid.levels}^{grid.coordinates} = {short(grid.points)} grid points, which need "
            f"{short(needed // 2**30)} GiB; the limit here is {limit / 2**30:.3g} GiB. Take fewer levels, tokens or "
            "features: no construction that knows f by its values alone does essentially better."
        )


def grid_values(f: Callable[[Tensor], Tensor], grid: Grid, output_features: int | None, dtype: torch.dtype) -> Tensor:
    """f at every grid point, as (points, tokens, d_out), the last coordinate running fastest."""
    require_memory(grid, output_features or 1, dtype)
    centres = grid.centres().to(dtype)
    digits = grid.levels ** torch.arange(grid.coordinates - 1, -1, -1)
    found = []
    for index in torch.arange(grid.points).split(4096):
        inputs = centres[(index[:, None] // digits) % grid.levels].unflatten(-1, (grid.tokens, grid.features))
        found.append(_checked(_asked(f, inputs), inputs, grid, output_features, dtype))
        if len(found) == 1:
            require_memory(grid, found[0].shape[-1], dtype)
            _require_apart(f, inputs, found[0], dtype)
    return torch.cat(found)


def _require_apart(f: Callable[[Tensor], Tensor], inputs: Tensor, values: Tensor, dtype: torch.dtype) -> None:
    """Refuses an f that mixes the sequences of a batch, as `X.mean()` does, or draws at random."""
    room = torch.finfo(dtype).eps ** 0.5 * float(values.abs().max())
    for k in sorted({0, len(inputs) // 2, len(inputs) - 1}):
        alone = torch.as_tensor(_asked(f, inputs[k : k + 1])).to(values)
        off = float((alone - values[k : k + 1]).abs().max()) if alone.shape == values[k : k + 1].shape else math.inf
        if not off <= room:
            raise InputError(
                f"f of a grid point by itself is not what it is in a batch of {len(inputs):,} of them: they differ by "
                f"{off:.3g}. f works on batches, (..., tokens, features) to (..., tokens, d_out), each sequence by "
                "itself: write X.mean(-2, keepdim=True) in place of X.mean(), and draw nothing at random."
            )


def _asked(f: Callable[[Tensor], Tensor], inputs: Tensor) -> object:
    """What f returns for a batch of grid points, without its gradients."""
    found: object = asked(
        f, inputs, name="f", at=f"a batch of grid points of shape {tuple(inputs.shape)}",
        advice="f works on batches, (..., tokens, features) to (..., tokens, d_out).",
    )  # fmt: skip
    return found.detach() if isinstance(found, Tensor) else found


def _checked(values: object, inputs: Tensor, grid: Grid, features: int | None, dtype: torch.dtype) -> Tensor:
    want = (*inputs.shape[:-2], grid.tokens, features or "d_out")
    given = tuple(values.shape) if isinstance(values, Tensor) else f"a {type(values).__name__}"
    if (
        not isinstance(values, Tensor)
        or len(given) != 3
        or given[:2] != want[:2]
        or (features and given[2] != features)
    ):
        raise ShapeError(
            f"f returned {given} for an input of shape {tuple(inputs.shape)}; it must return a tensor of shape "
            f"({', '.join(map(str, want))}): f works on batches, (..., tokens, features) to (..., tokens, d_out)."
        )
    if values.is_complex():
        raise InputError("f returned complex numbers; give its real and imaginary parts as two output features.")
    if not values.shape[-1]:
        raise ShapeError("f returned no output features; it must return (..., tokens, d_out) with d_out of at least 1.")
    if not values.isfinite().all():
        if dtype != torch.float64:
            raise PrecisionError(
                f"f returned a value that is not finite at a grid point, in {str(dtype).removeprefix('torch.')}. Use a "
                "wider dtype, scale f, or restrict low and high to where f is finite."
            )
        raise InputError(
            "f returned a value that is not finite at a grid point; restrict low and high to where f is finite."
        )
    return values.to(dtype)
