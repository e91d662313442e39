"""What rounding adds to a look-up on a grid, in both of its forms (docs/mathematics.md 1.5).

**A sum** of N terms that are not negative, in any order. The nearest number to a + b is at least as near as a and as b
are, so an addition errs by at most min(a, b), and by at most ρ(a + b). Let m terms be *large*, and the others sum to a
share σ of all. Additions of two sums with large terms in them are m - 1, and each errs by ρ of the whole; where one
operand has none, the error is that operand at most, and those operands have no term in common: σ in all; among small
terms it is a share e^(Nρ) - 1 of σ, by which they grow. So the error, relative to the sum, is at most

    δ  =  min( e^(Nρ) - 1,  σ(2e^(Nρ) - 1) + 2mρ )

float16 and bfloat16 are summed in float32, as torch does, so that ρ is that of float32 for them. What is said of a sum
of terms holds for Σ w_i v_i, relative to Σ w_i |v_i| <= V.

**A stage** is a softmax over N scores and the mean of N values by its weights. The normaliser errs by δ, weights by
that, by a few roundings of exp and of the quotient, and where they are below what the dtype holds by Nτ or σ at most, τ
being the least number; the mean errs by δ again. With δ <= 1/2 and δ' = δ + min(σ, Nτ) a stage adds at most

    V(e^(1.4δ + δ' + 16ρ) - 1)

*Literally* there is one stage, of all g^D grid points, of which at most 2^D are large: those between whose cells X
lies. *Fast*, it is a stage for each of the D coordinates, of g cells, of which at most two are large.

**Scores.** Ramps are means of p anchors on [0, 1], each off by r as a stage with p keys is, a bump by 2r + ρ. Scores
are β times a sum of D bumps: off by at most η = β(D(2r + ρ) + (D² + 8D)ρ). That multiplies the weights elsewhere, ε, by
e^(2η) at most, and moves weights between cells that are right. A ramp's own scores, off by 2ρβ' with β' its β, let what
it is away from 0 or 1 beyond its slope grow by e^(4ρβ').
"""

from __future__ import annotations

import math

import torch

from anchorhead.theorems.grid import Grid, saturation

SUMMED = torch.finfo(torch.float32).eps / 2
FEW = 16
"""Roundings of exp, of a quotient, of a product, of a result and of stored values, together."""


def sum_error(terms: int, large: int, small: float, unit: float) -> float:
    """δ."""
    grown = math.expm1(min(terms * unit, 700.0))
    return min(grown, small * (2 * grown + 1) + 2 * large * unit)


def blurred_error(grid: Grid, beta: float, anchors: int, ramp_beta: float, dtype: torch.dtype) -> float:
    """ε of the bound as scores are computed, where β is that of the look-up."""
    unit = torch.finfo(dtype).eps / 2
    settled = saturation(anchors, ramp_beta / (anchors - 1) ** 2) * math.exp(min(4 * unit * ramp_beta, 700.0))
    ramp = _stage(anchors, anchors, 1.0, dtype)
    count = grid.coordinates
    eta = beta * (count * (2 * ramp + unit) + (count**2 + 8 * count) * unit)
    return min(1.0, grid.selection_error(beta, settled) * math.exp(min(2 * eta, 700.0)))


def lookup_rounding(grid: Grid, error: float, size: float, dtype: torch.dtype) -> float:
    """What both forms of a look-up of values of that size add, ε being that error."""
    count = grid.coordinates
    fast = count * math.log1p(_stage(grid.levels, 2, error / count, dtype))
    literal = math.log1p(_stage(grid.points, min(2**count, grid.points), error, dtype))
    share = math.expm1(max(fast, literal)) if size else 0.0
    return size * share + (count + min(2**count, grid.points)) * _least(dtype)


def own_rounding(grid: Grid, count: int, heads: int, error: float, spread: float, size: float,
                 dtype: torch.dtype) -> float:  # fmt: skip
    """The same of so many grids of heads on n columns, whose values are measured from the middle of their range: the
    sum over heads is one over all of their columns, of which two in each grid are large."""
    summed = sum_error(count * heads * grid.tokens, 2 * count, error, _summing(dtype))
    stage = _stage(grid.tokens, 2, error, dtype)
    unit = torch.finfo(dtype).eps / 2
    return spread * ((1 + stage) * math.exp(summed) - 1) + 8 * unit * (spread + size) + 2 * count * _least(dtype)


def _stage(terms: int, large: int, small: float, dtype: torch.dtype) -> float:
    """What a softmax over so many scores and the mean of values by it add, relative to the values."""
    unit = torch.finfo(dtype).eps / 2
    delta = sum_error(terms, large, small, _summing(dtype))
    if delta > 1 / 2:
        return math.inf
    return math.expm1(2.4 * delta + min(small, terms * _least(dtype)) + FEW * unit)


def _summing(dtype: torch.dtype) -> float:
    """ρ of a sum."""
    return min(SUMMED, torch.finfo(dtype).eps / 2)


def _least(dtype: torch.dtype) -> float:
    """The least number that is not zero."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
