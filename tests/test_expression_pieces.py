"""A target with kinks is cut where they are and is the same function on its pieces; singularities are named."""

from __future__ import annotations

from functools import cache
from math import inf, pi, sqrt

import pytest
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorhead.enclosure.balls import enclose, jet
from anchorhead.enclosure.pieces import kinks, pieces, singularities
from anchorhead.errors import ExpressionError, SingularityError
from anchorhead.expression import parse

# text, low, high: the kinks and the formulas between them
CUT = [
    ("relu(x)", -inf, inf, [0], ["0", "x"]),
    ("abs(x)", -2, 3, [0], ["-x", "x"]),
    ("abs(x)", 0, 3, [], ["x"]),
    ("clip(x, -1, 1)", -inf, inf, [-1, 1], ["-1", "x", "1"]),
    ("clip(x, 0, 0.1)", -1, 1, [0, 0.1], ["0", "x", "0.1"]),
    ("elu(x)", -inf, inf, [0], ["expm1(x)", "x"]),
    ("celu(x, 2)", -inf, inf, [0], ["2*expm1(0.5*x)", "x"]),
    ("leaky_relu(x)", -inf, inf, [0], ["0.01*x", "x"]),
    ("hardswish(x)", -inf, inf, [-3, 3], ["0", "x*(1/6*(x + 3))", "x"]),
    ("hardsigmoid(x)", -inf, inf, [-3, 3], ["0", "1/6*(x + 3)", "1"]),
    ("softshrink(x)", -inf, inf, [-0.5, 0.5], ["x + 0.5", "0", "x + -0.5"]),
    ("relu6(x)", -inf, inf, [0, 6], ["0", "x", "6"]),
    ("gelu(x)", -inf, inf, [], None),
    ("max(x, x - 1)", -5, 5, [], ["x"]),
    ("max(x, x + 1 - 1)", -5, 5, [], ["x"]),
    ("max(sin(x)**2 + cos(x)**2, 1)", -1, 1, [], None),
    ("max(x, 0) + min(x, 0)", -5, 5, [], ["x"]),
    ("abs(x**2)", -1, 1, [], ["x**2"]),
    ("abs(x**3)", -1, 1, [0], ["-x**3", "x**3"]),
    ("max(min(x, 0), 5)", -1, 1, [], ["5"]),
    ("abs(x**2 - 2)", -3, 3, [-sqrt(2), sqrt(2)], None),
    ("abs(sin(x))", -4, 4, [-pi, 0, pi], None),
    ("abs(x - 1/3)", -1, 1, [1 / 3], None),
    ("abs(log(x))", 0.1, 5, [1], ["-log(x)", "log(x)"]),
    ("abs(x - sin(x))", -1, 1, [0], None),
    ("relu(tanhshrink(x - 0.25))", -1, 1, [0.25], None),
    ("max(x, sin(x))", -inf, inf, [0], ["sin(x)", "x"]),
    ("max(sinh(x) - sin(x), x**3/3)", -1, 2, [0], None),
    ("abs(cos(x) - 1 + x**2/2)", -1, 1, [], None),
    ("max(exp(x), 1)", -inf, inf, [0], ["1", "exp(x)"]),
    ("relu(x - 123456)", -inf, inf, [123456], None),
    ("min(max(x, -1), max(x**2, 0.25))", -3, 3, [-1, 0.25, 0.5, 1], ["-1", "x", "0.25", "x**2", "x"]),
]

FINITE = [
    ("sqrt(x)", 0, 1),
    ("sqrt(x)", 0, 0.3),
    ("x**0.3", 0, 0.7),
    ("sqrt(1 - x**2)", -1, 1),
    ("sqrt(0.3 - x)", 0, 0.3),
    ("sqrt(abs(x))", -1, 1),
    ("asin(x)", -1, 1),
    ("acosh(x)", 1, 4),
    ("log(x)", 1e-9, 1),
    ("tan(x)", -1.5, 1.5),
    ("1/(x**2 + 1e-8)", -1, 1),
    ("x**-2", 1, 5),
    ("1/(1 + exp(-x))", -inf, inf),
    ("log(x**2 + 1e-3)", -inf, inf),
    ("gelu(x)", -inf, inf),
    ("exp(x)", -inf, inf),
]

SINGULAR = [
    ("1/x", -1, 1, r"^1/x is not finite near x = 0: the formula divides by x"),
    ("sin(x)/x", -1, 1, r"divides by x, an interval around 0"),
    ("3 + 1/(x - 0.1)", 0, 1, r"^1/\(x - 0.1\) is not finite near x = 0.1"),
    ("x*log(x)", 0, 1, r"^log\(x\) is not finite near x = 0: x is not positive"),
    ("sqrt(x)", -1e-9, 1, r"x is negative"),
    ("x**0.5", -1, 1, r"power of x"),
    ("x**(2/3)", -1, 1, r"Choose a domain for x where x >= 0, or"),
    ("log(x - 1)", -1, 3, r"where x - 1 > 0, or"),
    ("asin(x)", -1, 1.1, r"near x = 1: x is not between"),
    ("tan(x)", 0, 3, r"near x = 1.5708"),
    ("1/sin(x)", 1, 4, r"near x = 3.14159"),
    ("atanh(x)", -1, 0, r"near x = -1"),
    ("1/(x - 1000)", -inf, inf, r"near x = 1000"),
    ("1/0*x", 0, 1, r"^1/0 is not finite"),
]


@cache
def cut(text, low, high):
    return pieces(parse(text).node, "x", low, high)


@pytest.mark.parametrize(("text", "low", "high", "places", "formulas"), CUT)
def test_kinks_and_pieces(text, low, high, places, formulas):
    found = cut(text, low, high)
    assert [piece.low for piece in found] == [low, *places]
    assert [piece.high for piece in found] == [*places, high]
    assert kinks(parse(text).node, "x", low, high) == places
    if formulas is not None:
        assert [str(piece.node) for piece in found] == formulas


@pytest.mark.parametrize(("text", "low", "high"), [case[:3] for case in CUT])
@settings(max_examples=6, deadline=None)
@given(share=st.floats(0.001, 0.999))
def test_a_piece_is_the_target_and_smooth(text, low, high, share):
    node = parse(text).node
    for piece in cut(text, low, high):
        left, right = max(piece.low, -20.0), min(piece.high, 200_000.0 if "123456" in text else 20.0)
        x = left + (right - left) * share
        assert abs(enclose(piece.node, {"x": arb(x)}) - enclose(node, {"x": arb(x)})).lower() < 1e-9
        assert len(jet(piece.node, "x", arb(left).union(arb(right)), 3)) in (1, 4)
        assert len(jet(piece.node, "x", arb(x), 3)) == 4


def test_infinitely_many_kinks_are_refused():
    with pytest.raises(ExpressionError, match="too many to be found"):
        pieces(parse("abs(sin(x))").node, "x", -inf, inf)


@pytest.mark.parametrize(("text", "low", "high"), FINITE)
def test_finite_targets_pass(text, low, high):
    singularities(parse(text).node, "x", low, high)


@pytest.mark.parametrize(("text", "low", "high", "words"), SINGULAR)
def test_singularities_are_named_with_their_place(text, low, high, words):
    with pytest.raises(SingularityError, match=words):
        singularities(parse(text).node, "x", low, high)
