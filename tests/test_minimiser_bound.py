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


def solved(A, b):
    """A x = b in fractions; None where A is singular."""
    rows = [[*row, right] for row, right in zip(A, b, strict=True)]
    for i in range(len(rows)):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for r in range(len(rows)):
            if r != i and rows[r][i]:
                rows[r] = [a - rows[r][i] * c for a, c in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


def exact_lasso(X, y, l1, near):
    """The minimiser with the signs of `near` and zeros where it has them, and an intercept; None where that is none."""
    n, kept = len(X), np.flatnonzero(near)
    columns = [[Fraction(float(v)) for v in X[:, j]] for j in range(X.shape[1])]
    own = [*(columns[j] for j in kept), [Fraction(1)] * n]
    labels, penalty = [Fraction(float(v)) for v in y], Fraction(l1)
    signs = [*(int(np.sign(near[j])) for j in kept), 0]
    dot = lambda a, b: sum(u * v for u, v in zip(a, b, strict=True))
    found = solved([[dot(a, b) for b in own] for a in own],
                   [dot(a, labels) - penalty * s for a, s in zip(own, signs, strict=True)])  # fmt: skip
    if found is None or any(w * s < 0 for w, s in zip(found[:-1], signs[:-1], strict=True)):
        return None
    rest = [dot([column[i] for column in own], found) - labels[i] for i in range(n)]
    if any(abs(dot(columns[j], rest)) >= penalty for j in range(X.shape[1]) if not near[j]):
        return None
    whole = [Fraction(0)] * X.shape[1]
    for j, w in zip(kept, found[:-1], strict=True):
        whole[j] = w
    return [*whole, found[-1]]


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(-100, 100), st.floats(0.02, 1.2), st.integers(-16, -6), st.integers(1, 14))
def test_the_lasso_with_more_columns_than_examples(seed, scale, share, off, columns):
    from sklearn.linear_model import Lasso

    draw = np.random.default_rng(seed)
    X, y = draw.standard_normal((6, columns)).round(3), draw.standard_normal(6).round(3)
    alpha = share * float(np.abs((X - X.mean(0)).T @ (y - y.mean())).max()) / 6
    near = Lasso(alpha, tol=1e-12, max_iter=100_000).fit(X, y)
    X, l1 = np.ldexp(X, scale), float(np.ldexp(6 * alpha, scale))
    exact = exact_lasso(X, y, l1, near.coef_)
    if exact is None:
        return
    moved = as_floats(exact) * (1 + 10.0**off * draw.uniform(-1, 1, columns + 1))
    size = np.append(np.ldexp(np.full(columns, 1.0), -scale), 1.0)
    assert holds(Problem(X, y, np.ones(6), True, l1=l1), moved, exact, 1e9 * 10.0**off * size) or share < 0.2


def test_a_column_beside_its_copy_has_no_bound_of_the_lasso():
    _, X, y, _ = drawn(5, 0, 0)
    X, l1 = np.column_stack([X, X[:, 0]]), 0.1 * float(np.abs(X[:, 0] @ y))
    from sklearn.linear_model import Lasso

    near = Lasso(l1 / 9, tol=1e-12).fit(X, y)
    assert near.coef_[[0, 2]].any()
    assert "columns 0 and 2 are linearly dependent" in distances(Problem(X, y, np.ones(9), True, l1=l1), near.coef_,
                                                                  near.intercept_)  # fmt: skip


def exact_classes(X, y, weights, l2, count):
    """Coefficients (classes, columns and an intercept) whose rows sum to zero, by Newton's method in mpmath."""
    Z = [[mpmath.mpf(float(v)) for v in row] + [mpmath.mpf(1)] for row in X]
    w, width = [mpmath.mpf(float(v)) for v in weights], len(Z[0])
    free = (count - 1) * width  # the last class is minus the others
    l2 = mpmath.mpf(float(l2))

    def gradient(t):
        rows = [list(t[c * width : (c + 1) * width]) for c in range(count - 1)]
        rows.append([-sum(row[j] for row in rows) for j in range(width)])
        g = [[l2 * row[j] if j < width - 1 else mpmath.mpf(0) for j in range(width)] for row in rows]
        for z, label, share in zip(Z, y, w, strict=True):
            e = [mpmath.exp(mpmath.fdot(row, z)) for row in rows]
            for c in range(count):
                slope = share * (e[c] / sum(e) - (c == label))
                for j in range(width):
                    g[c][j] += slope * z[j]
        return [g[c][j] - g[-1][j] for c in range(count - 1) for j in range(width)]

    with mpmath.workdps(50):
        t = mpmath.matrix([mpmath.mpf(0)] * free)
        for _ in range(60):
            here = mpmath.matrix(gradient(t))
            J, step = mpmath.matrix(free, free), mpmath.mpf(10) ** -25
            for k in range(free):
                ahead = t.copy()
                ahead[k] += step
                J[:, k] = (mpmath.matrix(gradient(ahead)) - here) / step
            moved = mpmath.lu_solve(J, here)
            t -= moved
            if max(abs(v) for v in moved) < mpmath.mpf(10) ** -40:
                break
        rows = [list(t[c * width : (c + 1) * width]) for c in range(count - 1)]
        rows.append([-sum(row[j] for row in rows) for j in range(width)])
        return [[Fraction(mpmath.nstr(v, 45)) for v in row] for row in rows]


@pytest.mark.heavy
@settings(max_examples=12, deadline=None)
@given(SEEDS, st.integers(3, 4), st.integers(-60, 60), st.integers(-3, 2), st.integers(-16, -8))
def test_several_classes_in_all_units(seed, count, scale, penalty, off):
    draw = np.random.default_rng(seed)
    X, y = draw.standard_normal((14, 2)) + draw.uniform(-3, 3, 2), np.arange(14) % count
    weights, l2 = draw.uniform(0.5, 2, 14), 10.0**penalty
    exact = exact_classes(X, y, weights, l2, count)
    near = np.array([as_floats(row) for row in exact])
    near = near * (1 + 10.0**off * draw.uniform(-1, 1, near.shape))
    shift = int(scale)
    problem = Problem(np.ldexp(X, shift), y, weights, True, "classes", float(np.ldexp(l2, 2 * shift)))
    found = distances(problem, np.ldexp(near[:, :-1], -shift), near[:, -1])
    assert not isinstance(found, str)
    for bounds, mine, true in zip(found, near, exact, strict=True):
        unit = np.append(np.ldexp(bounds[:-1], shift), bounds[-1])
        for bound, a, b in zip(unit, mine, true, strict=True):
            assert abs(Fraction(float(a)) - b) <= Fraction(float(bound))
        assert (unit <= 1e5 * 10.0**off).all()


def test_classes_of_columns_that_depend_on_each_other_have_no_bound():
    draw, X, _, _ = drawn(5, 0, 0)
    X, y = np.column_stack([X, X[:, 0] + X[:, 1]]), np.arange(9) % 3
    found = distances(Problem(X, y, np.ones(9), True, "classes"), 0.1 * draw.standard_normal((3, 3)), np.zeros(3))
    assert "columns 0, 1 and 2 are linearly dependent" in found
