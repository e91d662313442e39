"""Bounds on the distance from the minimiser hold in all units that floats have: against fractions and mpmath."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorhead.in_context.minimiser_bound import distances
from anchorhead.in_context.minimiser_units import Problem

SEEDS, SCALES = st.integers(0, 10**6), st.integers(-300, 300)


def drawn(seed, scale, label_scale, weight_scale=0):
    draw = np.random.default_rng(seed)
    X = (draw.standard_normal((9, 2)) + draw.uniform(-3, 3, 2)) * 10.0**scale
    return draw, X, draw.standard_normal(9) * 10.0**label_scale, draw.uniform(0.5, 1, 9) * 10.0**weight_scale


def exact_ridge(X, y, weights, l2):
    """Coefficients of two columns and the intercept, by Cramer's rule."""
    rows = [[Fraction(v) for v in row] for row in X.tolist()]
    labels, shares = [Fraction(v) for v in y.tolist()], [Fraction(v) for v in weights.tolist()]
    total = sum(shares)
    mean = [sum(p * r[j] for p, r in zip(shares, rows, strict=True)) / total for j in range(2)]
    middle = sum(p * v for p, v in zip(shares, labels, strict=True)) / total
    apart = [[r[j] - mean[j] for j in range(2)] for r in rows]
    A = [[sum(p * r[i] * r[j] for p, r in zip(shares, apart, strict=True)) + (i == j) * Fraction(l2)
          for j in range(2)] for i in range(2)]  # fmt: skip
    b = [sum(p * r[i] * (v - middle) for p, r, v in zip(shares, apart, labels, strict=True)) for i in range(2)]
    det = A[0][0] * A[1][1] - A[0][1] * A[1][0]
    w = [(b[0] * A[1][1] - b[1] * A[0][1]) / det, (b[1] * A[0][0] - b[0] * A[1][0]) / det]
    return [*w, middle - w[0] * mean[0] - w[1] * mean[1]]


def as_floats(values):
    """Rounded; a test takes only those that floats have."""
    try:
        return np.array([float(v) for v in values])
    except OverflowError:
        return None


def holds(problem, near, exact, most):
    """Whether there is a bound, and then it is true and of about the size of what was changed."""
    found = distances(problem, near[:-1], near[-1])
    if isinstance(found, str):
        return False
    for bound, mine, true in zip(found, near, exact, strict=True):
        assert abs(Fraction(float(mine)) - Fraction(true)) <= Fraction(float(bound))
    assert (found <= most).all()
    return True


@settings(max_examples=200, deadline=None)
@given(
    SEEDS, SCALES, SCALES, st.integers(-200, 200), st.one_of(st.none(), st.integers(-250, 250)), st.integers(-16, -3)
)
def test_squares_in_all_units(seed, scale, label_scale, weight_scale, penalty, off):
    draw, X, y, weights = drawn(seed, scale, label_scale, weight_scale)
    l2 = 0.0 if penalty is None else 10.0**penalty
    exact = exact_ridge(X, y, weights, l2)
    near = as_floats(exact)
    if near is None or not (np.abs(near) > 1e-290).all():
        return
    moved = near * (1 + 10.0**off * draw.uniform(-1, 1, 3))
    with np.errstate(over="ignore"):
        largest = np.abs(y).max() * np.array([*(1 / np.abs(X - X.mean(0)).max(0)), 1.0])
    holds(Problem(X, y, weights, True, l2=l2), moved, exact, 1e5 * 10.0**off * largest + 1e-280)


@pytest.mark.parametrize("scale", [-300, -200, -158, 0, 158, 300])
@pytest.mark.parametrize("label_scale", [-300, -158, 0, 158, 300])
def test_squares_have_a_bound_wherever_floats_have_the_coefficients(scale, label_scale):
    _, X, y, weights = drawn(0, scale, label_scale)
    exact = exact_ridge(X, y, weights, 0.0)
    near = as_floats(exact)
    if near is None or not (np.abs(near) > 1e-290).all():
        return
    assert holds(Problem(X, y, weights, True), near, exact, 1e-11 * np.abs(near).max())


@settings(max_examples=60, deadline=None)
@given(SEEDS, SCALES, SCALES, st.floats(0, 1.5))
def test_the_lasso_of_one_column_in_all_units(seed, scale, label_scale, share):
    _, X, y, _ = drawn(seed, scale, label_scale)
    x, ones = [Fraction(v) for v in X[:, 0].tolist()], np.ones(9)
    slope = sum(a * Fraction(b) for a, b in zip(x, y.tolist(), strict=True))
    l1 = as_floats([abs(slope) * Fraction(share)])
    if l1 is None or not 1e-280 < l1[0] < 1e300:
        return
    exact = max(abs(slope) - Fraction(l1[0]), 0) / sum(a * a for a in x) * (1 if slope > 0 else -1)
    near = as_floats([exact])
    if near is None or 0 < abs(near[0]) < 1e-290:
        return
    with np.errstate(over="ignore"):
        size = np.abs(y).max() / np.abs(X[:, 0]).max()
    problem = Problem(X[:, :1], y, ones, False, l1=float(l1[0]))
    assert holds(problem, np.append(near, 0.0), [exact, 0], 1e-11 * size + 1e-290)


@pytest.mark.parametrize("scale", [-300, -150, 0, 150, 300])
@pytest.mark.parametrize(("loss", "size"), [("logistic", 0), ("poisson", -280), ("poisson", 0), ("poisson", 280)])
def test_losses_in_all_units(loss, size, scale):
    _, X, _, _ = drawn(3, scale, 0)
    x = X[:, 0]
    y = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1.0]) if loss == "logistic" else np.arange(1.0, 10.0) * 10.0**size
    with mpmath.workdps(60):
        unit, top = mpmath.mpf(10) ** scale, mpmath.mpf(float(y.max()))
        inside = [(mpmath.mpf(float(a)) / unit, mpmath.mpf(float(b))) for a, b in zip(x, y, strict=True)]

        def slopes(w, c):
            first = [((1 / (1 + mpmath.exp(-s)) if loss == "logistic" else mpmath.exp(s)) - b, a)
                     for a, b in inside for s in [w * a + c]]  # fmt: skip
            return sum(f * a for f, a in first) / top, sum(f for f, _ in first) / top

        start = 0 if loss == "logistic" else mpmath.log(top / 2)
        w, c = mpmath.findroot(slopes, (mpmath.mpf("0.01"), start), tol=1e-80, maxsteps=200)
        exact = [Fraction(mpmath.nstr(w / unit, 50)), Fraction(mpmath.nstr(c, 50))]
    near = as_floats(exact) * (1 + 1e-12)
    problem = Problem(x[:, None], y, np.ones(9), True, loss)
    assert holds(problem, near, exact, 1e-7 * np.array([10.0**-scale, 1.0]))
