"""What the compiler computes with: accurate, and fixed by IEEE 754 rather than by a library."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx

from anchorhead import arithmetic, descent, linear_algebra
from anchorhead.enclosure.arrays import sample
from anchorhead.enclosure.balls import enclose
from anchorhead.expression import parse
from anchorhead.expression.functions import FUNCTIONS

pytestmark = pytest.mark.processor
DRAW = np.random.default_rng(7)
RANGES = {
    "exp": (-740, 709), "expm1": (-40, 40), "log": (1e-300, 1e6), "log1p": (-0.999, 1e6), "sin": (-1e6, 1e6),
    "cos": (-1e6, 1e6), "sinh": (-30, 30), "cosh": (-30, 30), "tanh": (-30, 30),
}  # fmt: skip


DEFINED = {
    "log": (0.01, 9), "log2": (0.01, 9), "log10": (0.01, 9), "sqrt": (0.01, 9), "rsqrt": (0.01, 9),
    "reciprocal": (0.1, 9), "log1p": (-0.9, 9), "acosh": (1.01, 9), "asin": (-0.99, 0.99), "acos": (-0.99, 0.99),
    "atanh": (-0.99, 0.99), "tan": (-1.5, 1.5),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_functions_are_right_to_a_few_ulps(name: str) -> None:
    low, high = RANGES[name]
    x = np.concatenate([DRAW.uniform(low, high, 3000), DRAW.uniform(max(low, -1), min(high, 1), 3000)])
    if low < 0 < high:
        x = np.concatenate([x, 10.0 ** DRAW.uniform(-12, -1, 1000), [0.0]])
    exact = np.array(arithmetic.pointwise(getattr(arb, name), x.tolist()))
    apart = np.abs(getattr(arithmetic, name)(x) - exact)
    assert (apart <= 4 * np.spacing(np.abs(exact))).all()


def test_exponentials_beyond_the_range() -> None:
    found = arithmetic.exp(np.array([-math.inf, -800.0, -745.0, 709.7, 710.0, math.inf, math.nan]))
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2] == 5e-324
    assert 1e308 < found[3] < math.inf
    assert found[4:6].tolist() == [math.inf, math.inf]
    assert math.isnan(found[6])
    assert arithmetic.log(np.array([0.0, math.inf])).tolist() == [-math.inf, math.inf]
    assert np.isnan(arithmetic.log(np.array([-1.0, math.nan]))).all()
    assert np.isnan(arithmetic.sin(np.array([math.inf, math.nan]))).all()
    assert arithmetic.sin(np.array([1e22])) == pytest.approx(-0.8522008497671888)


@pytest.mark.parametrize("x", [0.3, 1e-300, 2.0**-1022, 1.0, 2.0, 2.0 + 2**-51, 3e200])
def test_powers_of_two_next_to_a_number(x: float) -> None:
    up, down = arithmetic.binary_ceiling(x), arithmetic.binary_floor(x)
    assert math.frexp(up)[0] == math.frexp(down)[0] == 0.5
    assert down <= x <= up
    assert up in (down, 2 * down)
    assert (up == down) == (math.frexp(x)[0] == 0.5)


@pytest.mark.parametrize("shape", [(3, 4, 5), (40, 33, 70), (2, 1000, 90)])
def test_products_are_those_of_fractions(shape: tuple[int, int, int]) -> None:
    """Also where rows and columns are of very different sizes."""
    rows, inner, columns = shape
    left = DRAW.normal(size=(rows, inner)) * 10.0 ** DRAW.integers(-200, 100, (rows, 1))
    right = DRAW.normal(size=(inner, columns)) * 10.0 ** DRAW.integers(-80, 80, (1, columns))
    found = linear_algebra.product(left, right)
    for i, j in [(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 3)]:
        terms = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(left[i], right[:, j], strict=True)]
        apart = abs(Fraction(float(found[i, j])) - sum(terms))
        assert apart <= inner * Fraction(2) ** -52 * max(abs(term) for term in terms)


def test_products_leave_blas_nothing_to_round() -> None:
    """Permuting the inner axis permutes the sums; a rounded sum would change."""
    left, right = DRAW.normal(size=(60, 200)), DRAW.normal(size=(200, 60))
    order = DRAW.permutation(200)
    assert np.array_equal(linear_algebra.product(left, right), linear_algebra.product(left[:, order], right[order]))


def test_least_squares_of_many_problems_at_once() -> None:
    columns, targets = DRAW.normal(size=(5, 7, 40)), DRAW.normal(size=(5, 2, 40))
    ridge = 10.0 ** DRAW.uniform(-3, 0, 7)
    found = linear_algebra.least_squares(columns, targets, ridge)
    for one, several, result in zip(columns, targets, found, strict=True):
        matrix = np.vstack([one.T, np.diag(ridge)])
        expected = np.linalg.lstsq(matrix, np.vstack([several.T, np.zeros((7, 2))]))[0]
        assert np.allclose(result, expected, rtol=1e-10, atol=1e-12)


def test_nearly_dependent_columns_stay_orthogonal() -> None:
    """Gaussians so wide that their singular values fall to 1e-16: the decomposition still reproduces them."""
    u = np.linspace(-1, 1, 60)
    columns = np.exp(-((u - np.linspace(-1, 1, 20)[:, None]) ** 2))
    found = linear_algebra.orthogonal(columns)
    assert np.abs(found.left @ found.left.T - np.eye(20)).max() < 1e-14
    assert np.abs((found.left.T * found.sizes) @ np.linalg.inv(found.right) - columns.T).max() < 1e-14
    assert found.sizes[-1] < 1e-14 * found.sizes[0]
    assert np.abs(found.right).max() < 100


def test_descents_find_their_minima_together() -> None:
    places = [np.array([2.0, -3.0]), np.array([-1.0, 4.0])]
    asked: list[int] = []

    def valley(points: list[np.ndarray]) -> list[float]:
        asked.append(len(points))
        return [float(min(np.sum((p - q) ** 2 * [1, 10]) + i for i, q in enumerate(places))) for p in points]

    simplices = [place + np.array([[0.5, 0.6], [0.7, 0.5], [0.5, 0.9]]) for place in places]
    found = descent.descend(valley, simplices, 200)
    for i, (value, place) in enumerate(found):
        assert value == pytest.approx(i, abs=1e-3)
        assert np.abs(place - places[i]).max() < 0.05
    assert asked[0] == 6
    assert sum(asked) < 2 * 200


def test_equal_values_leave_the_older_point_first() -> None:
    ((value, place),) = descent.descend(lambda points: [1.0] * len(points), [np.array([[0.0], [1.0]])], 50)
    assert value == 1.0
    assert place.tolist() == [0.0]


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"min", "max", "clip", "pow", "prelu"}))
def test_sampled_targets_are_accurate(name: str) -> None:
    """Every function, at places where it is defined, against its ball."""
    expression = parse(f"{name}(x)")
    low, high = DEFINED.get(name, (-9, 9))
    x = np.linspace(low, high, 301)
    (found,) = sample(expression, {"x": x})
    with ctx.workprec(100):
        exact = np.array([float(enclose(expression, {"x": arb(v)})) for v in x.tolist()])
    assert np.abs(found - exact).max() <= 2e-15 * max(1.0, float(np.abs(exact).max()))


def test_sampled_powers_and_constants() -> None:
    x = np.array([0.5, 2.0, 3.0])
    values = sample(parse(["x**3", "x**-2", "x**1.5", "x**(1/3)", "pi + 0*x", "2"], ("x",)), {"x": x})
    expected = [x**3, 1 / x**2, x * np.sqrt(x), np.cbrt(x), [math.pi] * 3, [2.0] * 3]
    for found, wanted in zip(values, expected, strict=True):
        assert found == pytest.approx(np.array(wanted), rel=1e-15)
