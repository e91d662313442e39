"""How far a function moves within a distance is bounded, whatever its slopes."""

import mpmath as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorhead.enclosure.variation import moved
from anchorhead.expression.graph import Node
from anchorhead.expression.parse import parse

FUNCTIONS = {
    "sqrt(u)": mp.sqrt,
    "asin(u)": mp.asin,
    "exp(-3*sqrt(u))": lambda u: mp.exp(-3 * mp.sqrt(u)),
    "abs(u - 0.5)**0.3": lambda u: abs(u - mp.mpf(1) / 2) ** (mp.mpf(3) / 10),
    "sin(20*u)": lambda u: mp.sin(20 * u),
    "max(u, u**2 + 0.1) + tanh(1e5*u - 5e4)/100": lambda u: (
        max(u, u**2 + mp.mpf(1) / 10) + mp.tanh(100000 * u - 50000) / 100
    ),
}


def node(text: str) -> Node:
    return parse(text, ["u"]).outputs[0]


@settings(max_examples=200)
@given(st.sampled_from(sorted(FUNCTIONS)), st.floats(0, 1), st.floats(0, 1), st.floats(1e-12, 0.5), st.floats(-1, 1))
def test_values_at_places_within_a_distance_are_no_further_apart(text, first, second, distance, share):
    low, high = min(first, second), max(first, second)
    u = low + (high - low) * abs(share)
    v = min(max(u + share * distance, low), high)
    with mp.workdps(40):
        apart = abs(FUNCTIONS[text](mp.mpf(u)) - FUNCTIONS[text](mp.mpf(v)))
        assert apart <= moved(node(text), low, high, max(distance, abs(u - v)))


def test_it_is_close_where_slopes_have_no_bound():
    assert moved(node("sqrt(u)"), 0.0, 1.0, 1e-8) < 1.06e-4
    assert moved(node("sin(20*u)"), 0.0, 1.0, 1e-8) < 2.2e-7
