"""Taylor coefficients of the primitives at a ball: c_j encloses f^(j)(v)/j! for every v in the ball.

Each rule is a formula or a recurrence in c_0 .. c_(j-1) and v that holds at every point v, read in ball arithmetic;
by inclusion it holds for all points of the ball at once. Recurrences come from the differential equation that the
function satisfies: s' = s (1 - s) for sigmoid, t' = 1 + t^2 for tan, g' = -2 v g for exp(-v^2), q g' = p q' g for a
power p of a quadratic q (the derivatives of the inverse functions). A list that is shorter than asked for says that
the function has no more derivatives that are finite on the ball.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from flint import arb

from anchorhead.enclosure import ranges
from anchorhead.enclosure.ranges import exact

Coefficients = list[arb]


def exponential(v: arb, order: int) -> Coefficients:
    return _over_factorials([ranges.exp(v)], order)


def expm1(v: arb, order: int) -> Coefficients:
    return [ranges.expm1(v), *exponential(v, order)[1:]]


def _over_factorials(cycle: Coefficients, order: int) -> Coefficients:
    """f^(j)/j!, where the derivatives repeat."""
    result, factorial = [], 1
    for j in range(order + 1):
        factorial *= max(j, 1)
        result.append(cycle[j % len(cycle)] / factorial if j > 1 else cycle[j % len(cycle)])
    return result


def logarithm(v: arb, order: int) -> Coefficients:
    return _log_like(ranges.log(v), v, order)


def log1p(v: arb, order: int) -> Coefficients:
    return _log_like(ranges.log1p(v), v + 1, order)


def _log_like(value: arb, v: arb, order: int) -> Coefficients:
    """log^(j)/j! = -(-1/v)^j / j."""
    if not value.is_finite():
        return [value]
    step = -ranges.power(v, -1)
    result, last = [value], arb(-1)
    for j in range(1, order + 1):
        last = last * step
        result.append(last / j)
    return result


def sine(v: arb, order: int) -> Coefficients:
    s, c = ranges.sin(v), ranges.cos(v)
    return _over_factorials([s, c, -s, -c], order)


def cosine(v: arb, order: int) -> Coefficients:
    s, c = ranges.sin(v), ranges.cos(v)
    return _over_factorials([c, -s, -c, s], order)


def hyperbolic_sine(v: arb, order: int) -> Coefficients:
    return _over_factorials([ranges.sinh(v), ranges.cosh(v)], order)


def hyperbolic_cosine(v: arb, order: int) -> Coefficients:
    return _over_factorials([ranges.cosh(v), ranges.sinh(v)], order)


def tangent(v: arb, order: int) -> Coefficients:
    """t' = 1 + t^2."""
    t = [v.tan()]
    if not t[0].is_finite():
        return t
    for n in range(order):
        squares = ranges.square(t[0]) + 1 if n == 0 else _convolution(t, t, n)
        t.append(squares / (n + 1))
    return t


def _convolution(left: Coefficients, right: Coefficients, n: int) -> arb:
    total = left[0] * right[n]
    for i in range(1, n + 1):
        total = total + left[i] * right[n - i]
    return total


def sigmoid(v: arb, order: int) -> Coefficients:
    """s' = s (1 - s), with 1 - s = sigmoid(-v), and on a wide ball s (1 - s) = 1/4 - (s - 1/2)^2, which is tighter but
    where the last digits of s are all that is left of it.

    So (n+1) s_(n+1) = s_n (1 - 2 s_0) - sum of s_i s_(n-i) over 0 < i < n.
    """
    s, rest = [ranges.sigmoid(v)], ranges.sigmoid(-v)
    if order:
        wide = ranges.is_wide(v)
        square = arb(0.25) - ranges.square(s[0] - arb(0.5))
        s.append(ranges.hull(ranges.ZERO, square.upper().min((s[0] * rest).upper())) if wide else s[0] * rest)
    gap = rest - s[0]
    for n in range(1, order):
        # Of the products s_i s_(n-i) with 0 < i < n each but the middle one appears twice.
        total = s[n] * gap
        for i in range(1, (n + 1) // 2):
            total = total - 2 * (s[i] * s[n - i])
        if n % 2 == 0:
            total = total - s[n // 2] * s[n // 2]
        s.append(total / (n + 1))
    return s


def softplus(v: arb, order: int) -> Coefficients:
    """softplus' = sigmoid."""
    slopes = sigmoid(v, order - 1) if order else []
    return [ranges.softplus(v), *(slope / (j + 1) if j else slope for j, slope in enumerate(slopes))]


def hyperbolic_tangent(v: arb, order: int) -> Coefficients:
    """tanh v = 2 sigmoid(2v) - 1, which keeps the derivatives' relative accuracy where tanh is near 1."""
    s = sigmoid(2 * v, order) if order else [v]
    return [ranges.tanh(v), *(s[j] * 2 ** (j + 1) for j in range(1, order + 1))]


def error_function(v: arb, order: int) -> Coefficients:
    return [ranges.erf(v), *_gaussian_integral(v, order)]


def complementary_error_function(v: arb, order: int) -> Coefficients:
    return [ranges.erfc(v), *(-slope for slope in _gaussian_integral(v, order))]


def _gaussian_integral(v: arb, order: int) -> Coefficients:
    """Coefficients 1.. of erf: erf' = g = 2/sqrt(pi) exp(-v^2), and (n+1) g_(n+1) = -2 (v g_n + g_(n-1))."""
    if not order:
        return []
    g = [ranges.exp(-ranges.square(v)) * 2 / arb.const_sqrt_pi()]
    twice = -2 * v
    for n in range(order - 1):
        g.append((twice * g[n] - 2 * g[n - 1] if n else twice * g[n]) / (n + 1))
    return [slope / (j + 1) if j else slope for j, slope in enumerate(g)]


def _inverse(
    name: str, constant_term: int, square_term: int, exponent: Fraction, sign: int = 1
) -> Callable[[arb, int], Coefficients]:
    """A function whose derivative is sign * q**exponent, q = constant_term + square_term * v^2.

    With q(v + t) = q_0 + q_1 t + q_2 t^2 and g = q**p, the equation q g' = p q' g reads
    (n+1) q_0 g_(n+1) = (p - n) q_1 g_n + (2p - n + 1) q_2 g_(n-1).
    """
    value = ranges.RANGES[name]

    def coefficients(v: arb, order: int) -> Coefficients:
        first = value(v)
        if not first.is_finite() or not order:
            return [first]
        if square_term * constant_term < 0:
            quadratic = (1 - v) * (1 + v) * constant_term
        else:
            quadratic = ranges.square(v) + 1
        if not quadratic > 0:
            return [first]
        doubled = int(2 * exponent)
        step = square_term / quadratic
        linear = v * step
        g = [sign * ranges.power(quadratic, exponent)]
        for n in range(order - 1):
            following = linear * g[n] * (doubled - 2 * n)
            if n:
                following = following + step * g[n - 1] * (doubled - n + 1)
            g.append(following / (n + 1))
        return [first, *(slope / (j + 1) if j else slope for j, slope in enumerate(g))]

    return coefficients


def powers(v: arb, exponent: int | Fraction | arb, order: int) -> Coefficients:
    """c_j = binomial(p, j) v^(p-j); at v = 0 a power that is not whole has the derivatives below its exponent."""
    if (exponent < 0 or isinstance(exponent, Fraction | arb)) and v.rel_accuracy_bits() > 6:
        return _powers_away_from_zero(v, exponent, order)
    result: Coefficients = []
    for j, binomial in enumerate(_binomials(exponent, order)):
        if binomial == 0:
            result.append(ranges.ZERO)
            continue
        part = ranges.power(v, exponent - j)
        if not part.is_finite():
            return result or [ranges.NAN]
        result.append(part if binomial == 1 else part * exact(binomial))
    return result


def _binomials(p: int | Fraction | arb, order: int) -> Sequence[Fraction | arb]:
    """binomial(p, j), exactly where p is a fraction."""
    if isinstance(p, arb):
        balls = [ranges.ONE]
        for j in range(order):
            balls.append(balls[-1] * (p - j) / (j + 1))
        return balls
    found = [Fraction(1)]
    for j in range(order):
        found.append(found[-1] * (p - j) / (j + 1))
    return found


def _powers_away_from_zero(v: arb, exponent: int | Fraction | arb, order: int) -> Coefficients:
    """c_j = c_(j-1) (p-j+1) / (j v), for a small ball."""
    result = [ranges.power(v, exponent)]
    if not result[0].is_finite():
        return result
    above, below = (exponent, 1) if isinstance(exponent, arb) else (exponent.numerator, exponent.denominator)
    step = 1 / (v * below)
    for j in range(1, order + 1):
        result.append(result[-1] * step * (above - (j - 1) * below) / j)
    return result


HALF = Fraction(-1, 2)

TAYLOR: dict[str, Callable[[arb, int], Coefficients]] = {
    "exp": exponential,
    "expm1": expm1,
    "log": logarithm,
    "log1p": log1p,
    "sin": sine,
    "cos": cosine,
    "tan": tangent,
    "asin": _inverse("asin", 1, -1, HALF),
    "acos": _inverse("acos", 1, -1, HALF, sign=-1),
    "atan": _inverse("atan", 1, 1, Fraction(-1)),
    "sinh": hyperbolic_sine,
    "cosh": hyperbolic_cosine,
    "tanh": hyperbolic_tangent,
    "asinh": _inverse("asinh", 1, 1, HALF),
    "acosh": _inverse("acosh", -1, 1, HALF),
    "atanh": _inverse("atanh", 1, -1, Fraction(-1)),
    "erf": error_function,
    "erfc": complementary_error_function,
    "sigmoid": sigmoid,
    "softplus": softplus,
}
