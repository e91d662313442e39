"""Products and least squares that give the same bits on every machine, without BLAS (see `arithmetic.py`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchorhead.arithmetic import CHUNK, Array


def product(left: Array, right: Array) -> Array:
    """The matrix product, to about 2^-60 of the largest terms, whatever order and instructions BLAS has.

    Rows of the one and columns of the other are cut into slices of whole numbers, so short that the products of
    slices and all their partial sums are whole numbers below 2^53. BLAS then has nothing to round. (K. Ozaki, T. Ogita,
    S. Oishi, S. M. Rump, *Error-free transformations of matrix multiplication*, Numerical Algorithms 59, 2012.) Small
    products are plain sums over the inner axis instead, which is faster. Leading axes are so many products at once.
    """
    inner = left.shape[-1]
    if left.shape[-2] * inner * right.shape[-1] <= CHUNK:
        return np.add.reduce(left[..., None] * right[..., None, :, :], -2)
    bits = (52 - inner.bit_length()) // 2
    (a, b, c), down = _slices(left, bits, -1)
    (x, y, z), across = _slices(right, bits, -2)
    total = (a @ z + b @ y + c @ x) * 2.0**-bits
    total = (total + (a @ y + b @ x)) * 2.0**-bits
    return (total + a @ x) * down * across


def _slices(matrix: Array, bits: int, axis: int) -> tuple[list[Array], Array]:
    """Three matrices of whole numbers of so many bits, and the unit of the first in each row or column."""
    largest = np.abs(matrix).max(axis, keepdims=True)
    unit = np.ldexp(1.0, np.maximum(np.frexp(largest)[1] - bits, -1000))
    rest, slices = matrix / unit, []
    for _ in range(3):
        slices.append(np.rint(rest))
        rest = (rest - slices[-1]) * 2.0**bits
    return slices, unit


def least_squares(columns: Array, targets: Array, ridge: Array) -> Array:
    """x that minimises |sum of x_j columns_j - target|² + sum of (ridge_j x_j)², (..., unknowns, targets).

    columns: (..., unknowns, samples), targets: (..., targets, samples), ridge: (unknowns,), positive. By Gram and
    Schmidt's method in its modified form, with the targets as further columns, which is as stable as Householder's
    for this purpose (Å. Björck, BIT 7, 1967). Leading axes are so many problems at once.
    """
    *several, unknowns, samples = columns.shape
    rows = np.zeros((*several, unknowns + targets.shape[-2], samples + unknowns))
    rows[..., :unknowns, :samples], rows[..., unknowns:, :samples] = columns, targets
    rows[..., np.arange(unknowns), samples + np.arange(unknowns)] = ridge
    shares = _orthogonalise(rows, unknowns)
    return _unit_upper_solved(shares[..., :unknowns], shares[..., unknowns:])


class Orthogonal(NamedTuple):
    """W = leftᵀ · diag(sizes) · right⁻¹ for a matrix W of more rows than columns; the rows of `left` are orthonormal.

    sizes fall, roughly like singular values, and `right` is a permuted unit triangular matrix of moderate numbers.
    So right · (sizes/(sizes² + λ²)) · left f is the least squares solution with about a ridge λ.
    """

    left: Array
    sizes: Array
    right: Array


def orthogonal(columns: Array) -> Orthogonal:
    """The decomposition of the matrix with these columns, (..., unknowns, samples): Gram and Schmidt, largest first.

    Once more without choosing, since the small ones are not quite orthogonal to the others the first time.
    """
    *several, unknowns, samples = columns.shape
    order, rows, shares = _largest_first(columns.reshape(-1, unknowns, samples))
    sizes = _normalised(rows)
    again = _orthogonalise(rows, unknowns)
    ratios = np.minimum(sizes[..., None, :] / sizes[..., :, None], 1.0)
    inverse = _unit_upper_solved(again * ratios, np.broadcast_to(np.eye(unknowns), shares.shape))
    inverse = _unit_upper_solved(shares, inverse)
    right = np.empty_like(inverse)
    np.put_along_axis(right, order[..., None], inverse, -2)
    sizes = sizes * _normalised(rows)
    return Orthogonal(*(part.reshape(*several, *part.shape[1:]) for part in (rows, sizes, right)))


def _largest_first(columns: Array) -> tuple[NDArray[np.int64], Array, Array]:
    """Gram and Schmidt's method for each matrix, the largest remainder first: the order, the rows and shares in it."""
    rows, every = columns.copy(), np.arange(len(columns))
    order = np.zeros(rows.shape[:2], dtype=np.int64)
    shares, left = np.zeros((*rows.shape[:2], rows.shape[1])), np.ones(rows.shape[:2])
    for j in range(rows.shape[1]):
        chosen = np.argmax((np.add.reduce(rows * rows, -1) + 1e-300) * left, -1)
        row = rows[every, chosen]
        left[every, chosen] = 0.0
        order[:, j] = chosen
        sizes = np.add.reduce(rows * row[:, None], -1)
        share = sizes / np.maximum(sizes[every, chosen], 1e-300)[:, None]
        shares[:, j] = share
        share *= left
        rows -= share[..., None] * row[:, None]
    shares = np.triu(np.take_along_axis(shares, order[:, None], -1))
    return order, np.take_along_axis(rows, order[..., None], -2), shares


def _normalised(rows: Array) -> Array:
    """Makes the rows of length one, in place; what their lengths were."""
    sizes = np.maximum(np.sqrt(np.add.reduce(rows * rows, -1)), 1e-150)
    rows /= sizes[..., None]
    return sizes


def _orthogonalise(rows: Array, count: int) -> Array:
    """Makes the first rows orthogonal to each other and the others to them, in place; what was taken off each."""
    scratch = np.empty_like(rows)
    shares = np.zeros((*rows.shape[:-2], count, rows.shape[-2]))
    for j in range(count):
        later, held = rows[..., j:, :], scratch[..., j:, :]
        np.multiply(later, later[..., :1, :], out=held)
        sizes = np.add.reduce(held, -1)
        share = sizes / np.maximum(sizes[..., :1], 1e-300)
        shares[..., j, j:] = share
        np.multiply(share[..., 1:, None], later[..., :1, :], out=held[..., 1:, :])
        later[..., 1:, :] -= held[..., 1:, :]
    return shares


def _unit_upper_solved(matrix: Array, right: Array) -> Array:
    """x with matrix · x = right, for ones on the diagonal and zeros below."""
    found = right.copy()
    for j in range(matrix.shape[-1] - 2, -1, -1):
        found[..., j, :] -= np.add.reduce(matrix[..., j, j + 1 :, None] * found[..., j + 1 :, :], -2)
    return found
