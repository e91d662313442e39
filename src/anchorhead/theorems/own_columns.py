"""The second layer of `two_layer` on the n columns themselves: many heads, n keys each (docs/mathematics.md 1.5).

The grid points v_0, ..., v_{P-1}, P = g^D, are numbered with the last coordinate fastest. Layer 1's ramps count the
edges below a coordinate, its digit; so the number of the cell is an affine function of the ramps,

    u(X) = sum over coordinates c of  g^(D-1-c) · (sum of the ramps of c)

Every column is given u and a row of the identity, against which a head writes its own keys: n - 2 consecutive numbers
i with score -β(u - i)² and value f(v_i), and a *sentinel* of value 0 one step outside either end, as in
`multi_head.py`; the first sentinel of all is v_0 and the last v_{P-1}, and they carry their values. All heads are
added. Values are measured from the middle of their range, which an affine map adds again, and which hands every column
its own part.

*Inside a cell*, away from slopes, ramps are within s of 0 and 1, so u is within (P - 1)s <= 1/8 of the cell's number i
(s is made so small), and within 1/4 as it is computed. The m-th number beside i has a gap of at least m² - m/2 >= m/2,
so with q = e^(-β/2) the head that holds i leaves at most 2q/(1 - q) of its weight to others, a head that has i as its
sentinel q/(1 - q) (there are two at the most), and any other, whose nearest column is a silent sentinel at least one
step from i, q^5/(1 - q). Each unit of stray weight costs half of the values' spread S, where it comes from and where it
goes:

    |error| <= ω(w/2) + εS,        ε = (3q + H q^5/2)/(1 - q)

*On a slope* u runs through the numbers between two cells. The two nearest share their weight as in `multi_head.py`,
within one head or between two, so the output is a blend of two values, but for ε' = 2H(n - 1)e^-β of S. It can be
those of any cells: |error| <= ω(w/2) + S(1 + ε'). Slopes have a share of the volume that is as small as one likes, so
the error is small in every L_p norm, which is the paper's statement.

*Everywhere*: the mean of K such look-ups, their edges moved by w/K from one to the next, side by side in the same two
layers. With slopes narrower than w/K a coordinate is on a slope in one of them at most, and X in D of them, so

    |error| <= ω(w/2) + εS + min(1, D/K) S(1 + ε')        in the sup norm

*Rounding.* Scores are β(2u'i' - i'²) with |u'|, |i'| <= P/2, off by η = 8ρβ(P/2)² between keys (`precision.py`), which
multiplies q by e^(2η); a dtype with η > 1/8 is refused.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from anchorhead.arithmetic import log_of
from anchorhead.digits import Up
from anchorhead.errors import InputError, PrecisionError
from anchorhead.head.parameters import AsBuilt, constant
from anchorhead.model.affine import PositionWise
from anchorhead.model.attention import CHUNK_ENTRIES, Attention, LiteralAttention
from anchorhead.theorems.anchors import check_count, check_selection_error, score_rows
from anchorhead.theorems.grid import WIDENED, Grid
from anchorhead.theorems.multi_head import windows

UNSURE = 1 / 8
"""The largest η."""


def own_beta(selection_error: float) -> float:
    """β at which ε is at most `selection_error`, but for other heads' share, which is its fifth power."""
    check_selection_error(selection_error)
    return 2 * log_of(8 / selection_error)


def ramp_error(grid: Grid, selection_error: float) -> float:
    """The selection error of the ramps, at which u is within 1/4 of a whole number away from slopes."""
    return min(selection_error, 1 / (8 * grid.points))


def stray(grid: Grid, beta: float, dtype: torch.dtype) -> tuple[float, float]:
    """ε and ε'."""
    unsure = score_blur(grid, beta, dtype)
    heads, n = head_count(grid), grid.tokens
    q = math.exp(min(2 * unsure - beta / 2, -1e-3))
    inside = (3 * q + heads * q**5 / 2) / (1 - q)
    return inside, 2 * heads * (n - 1) * math.exp(2 * unsure - beta)


def score_blur(grid: Grid, beta: float, dtype: torch.dtype) -> float:
    """η."""
    return 4 * torch.finfo(dtype).eps * beta * (grid.points / 2) ** 2


def head_count(grid: Grid) -> int:
    """H: as many as the grid points without the two at the ends need."""
    return max(1, -(-(grid.points - 2) // (grid.tokens - 2)))


def list_size(grid: Grid) -> int:
    """How many numbers the windows of all heads hold together."""
    return (grid.tokens - 2) * head_count(grid) + 2


def require_columns(grid: Grid, *, attention: bool) -> None:
    """Refuses sequences whose columns cannot hold keys."""
    least = 3 if attention else 2
    if grid.tokens < least:
        why = "two columns of every head are sentinels" if attention else "a head with one key is constant"
        raise InputError(
            f'columns="own" needs at least {least} tokens, not {grid.tokens}: {why}. Leave out columns, or pad the '
            "sequence."
        )


class NumberColumns(nn.Module):
    """Bumps to n columns (..., n, K + n): the number of the cell in every grid, from the middle, and the identity."""

    def __init__(self, digits: nn.Parameter, tokens: int) -> None:
        super().__init__()
        self.digits, self.eye = digits, constant(torch.eye(tokens, dtype=digits.dtype))

    def forward(self, bumps: Tensor) -> Tensor:
        number = numbered(bumps, self.digits).unsqueeze(-2).expand(*bumps.shape[:-2], len(self.eye), -1)
        return torch.cat([number, self.eye.expand(*bumps.shape[:-2], *self.eye.shape)], -1)


def numbered(bumps: Tensor, digits: Tensor) -> Tensor:
    """u from the middle, (..., K): a bump of level l counts l - (g - 1)/2 times its coordinate's place value in its own
    grid, and nothing in the others."""
    return bumps.flatten(-2) @ digits.flatten(1).mT


class OwnLookup(AsBuilt):
    """Bumps (..., nKd, g) to the mean over K grids of the values of the cell, (..., n, d_out), by heads on n columns.

    values: (K, P, n, d_out). The coordinates of the bumps are tokens, then grids, then features.
    """

    def __init__(self, grids: list[Grid], values: Tensor, beta: float) -> None:
        super().__init__()
        self.grids, self.grid, self.tokens, self.beta = grids, grids[0], grids[0].tokens, beta
        middle = values.amax((0, 1)) / 2 + values.amin((0, 1)) / 2
        self.digits = constant(self._digits().to(values.dtype))
        self.second = self._attention((values - middle).flatten(2) / len(grids), beta)
        own = torch.eye(middle.numel(), dtype=values.dtype).unflatten(0, values.shape[2:])
        self.parts = PositionWise(own, middle)
        self.built()

    @property
    def values(self) -> Tensor:
        """The values of all grids as they are stored, (K·P, n·d_out)."""
        held = self._listed(self.second.value[:, :, len(self.grids) :].mT)[:, : self.grid.points]
        return (held * len(self.grids)).flatten(0, 1) + self.parts.bias.flatten()

    def mixed(self) -> float:
        """What grids in which X may be on a slope, and stray weights, add in units of S."""
        inside, beyond = stray(self.grid, self.beta, self.digits.dtype)
        return inside + min(1.0, self.grid.coordinates / len(self.grids)) * (1 + beyond)

    def _listed(self, windows: Tensor) -> Tensor:
        """What heads (K·H, n, ...) have in their windows, as one list for every grid, (K, (n - 2)H + 2, ...)."""
        each = windows.unflatten(0, (len(self.grids), -1))
        return torch.cat([each[:, 0, :1], each[:, :, 1:-1].flatten(1, 2), each[:, -1, -1:]], 1)

    def _digits(self) -> Tensor:
        """(K, nKd, g)."""
        grid, count = self.grid, len(self.grids)
        places = grid.levels ** torch.arange(grid.coordinates - 1, -1, -1, dtype=torch.float64)
        levels = torch.arange(grid.levels, dtype=torch.float64) - (grid.levels - 1) / 2
        each = places.unflatten(0, (grid.tokens, 1, grid.features)).unsqueeze(-1) * levels
        own = torch.eye(count, dtype=torch.float64)[:, None, :, None, None]
        return (own * each).flatten(1, 3)

    def _fixed(self) -> list[Tensor]:
        return [*self.second.parameters(), self.digits]

    def _attention(self, values: Tensor, beta: float) -> Attention:
        """The heads of all grids; the last of each repeats the last grid point where the list does not fill it."""
        n, dtype, count = self.tokens, values.dtype, len(self.grids)
        heads = head_count(self.grid)
        size = list_size(self.grid)
        slope, square = score_rows(torch.arange(size, dtype=torch.float64) - (self.grid.points - 1) / 2)
        listed = torch.cat([values, values[:, -1:].expand(-1, size - values.shape[1], -1)], 1)
        window = torch.arange(n) + (n - 2) * torch.arange(heads)[:, None]
        query = torch.zeros(count, heads, 2, count + n, dtype=dtype)
        query[torch.arange(count), :, 0, torch.arange(count)] = query[..., 1, count:] = 1
        key = torch.zeros(count, heads, 2, count + n, dtype=torch.float64)
        key[..., 0, count:], key[..., 1, count:] = beta * slope[window], beta * square[window]
        value = torch.zeros(count, heads, values.shape[-1], count + n, dtype=dtype)
        value[..., count:] = listed[:, window].mT
        value[:, 1:, :, count] = 0
        value[:, :-1, :, -1] = 0
        return Attention(query.flatten(0, 1), key.to(dtype).flatten(0, 1), value.flatten(0, 1))

    def arranged(self) -> bool:
        """Whether the heads' values are those of one list for every grid, with silent sentinels."""
        held = self._listed(self.second.value[:, :, len(self.grids) :].mT)[:, : self.grid.points]
        return torch.equal(self._attention(held, self.beta).value, self.second.value)

    def forward(self, bumps: Tensor) -> Tensor:
        """The scores of a list once, and every head's softmax over its window of them; see `MultiHead.fast`."""
        if self.evaluated_literally:
            found: Tensor = self._stages()(bumps)
            return found
        n, count = self.tokens, len(self.grids)
        u = numbered(bumps, self.digits)
        keys, values = self.second.key[:, :, count:], self.second.value[:, :, count:]
        lists = self._listed(keys.mT)
        rows = max(1, CHUNK_ENTRIES // (values.shape[0] * n))
        out = []
        for chunk in u.reshape(u.numel() // count, count, 1).split(rows):
            each = zip(chunk.unbind(1), lists, values.unflatten(0, (count, -1)), strict=True)
            parts = [windows(own * one[:, 0] + one[:, 1], held) for own, one, held in each]
            out.append(torch.stack(parts).sum(0))
        whole = torch.cat(out).reshape(*u.shape[:-1], 1, values.shape[1])
        return self.parts(whole.expand(*u.shape[:-1], n, -1))

    def matrices(self) -> dict[str, Tensor]:
        """between.digits (K, nKd, g), of all bumps the number of the cell in every grid, from the middle; between.rows,
        the identity below it; layer2.W_Q, ...; after.weight (n, d_out, n d_out) and after.bias (n, d_out)."""
        around = {"between.digits": self.digits, "between.rows": torch.eye(self.tokens).to(self.digits)}
        parts = {"after.weight": self.parts.weight, "after.bias": self.parts.bias}
        layer = {f"layer2.{k}": w for k, w in self.second.matrices(self.tokens).items()}
        return {name: matrix.detach() for name, matrix in (around | layer | parts).items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of `matrices()`, none of which are made."""
        around = {"between.digits": tuple(self.digits.shape), "between.rows": (self.tokens, self.tokens)}
        parts = {"after.weight": tuple(self.parts.weight.shape), "after.bias": tuple(self.parts.bias.shape)}
        return around | {f"layer2.{k}": shape for k, shape in self.second.shapes(self.tokens).items()} | parts

    def literal(self) -> nn.Sequential:
        """A copy of the stages as the theorem has them."""
        return copy.deepcopy(self._stages())

    def _stages(self) -> nn.Sequential:
        return nn.Sequential(NumberColumns(self.digits, self.tokens), LiteralAttention(self.second), self.parts)


def read_shifts(shifts: int, grid: Grid, *, own: bool) -> list[Grid]:
    """The grids whose look-ups are averaged."""
    count = check_count(shifts, "shifts", 1)
    if count > 1 and not own:
        raise InputError(
            f'shifts={count} are for two_layer with columns="own"; elsewhere the bound holds in the sup norm without '
            "them. Leave them out."
        )
    if count > 1 and not WIDENED * grid.slope * count < 1:
        raise InputError(
            f"shifts={count} with slope={grid.slope:g}: slopes would overlap. Use a slope below "
            f"{1 / (WIDENED * count):.3g}."
        )
    return grid.shifted(count)


def require_own(grid: Grid, beta: float, dtype: torch.dtype) -> None:
    """Refuses a dtype or a β in which the numbers of cells cannot be told apart."""
    if not score_blur(grid, beta, dtype) <= UNSURE:
        raise PrecisionError(
            f'{dtype} cannot number {grid.points:,} grid points for columns="own": rounding may move '
            f"scores by {Up(score_blur(grid, beta, dtype)):.3g}, and {UNSURE:g} is allowed. Use a wider "
            "dtype, fewer levels, or leave out columns."
        )
    if not max(stray(grid, beta, dtype)) <= 0.5:
        raise InputError(
            f'beta={beta:g} is too small for columns="own": heads that are to be silent would be heard. Use '
            f"{own_beta(1e-6):.3g}, which is taken where none is given, or more."
        )
