"""Lines of many terms are bounded in floats: against exact fractions, and against the balls."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorhead.circuit.line import Line
from anchorhead.circuit.rows import Row, rounded_row
from anchorhead.proof.long_lines import LONG, LongLine

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=True) | st.floats(-1e-300, 1e-300) | st.just(0.0)
COEFFICIENTS = st.floats(-1e3, 1e3).filter(bool) | st.sampled_from([1.0, -0.5, 5e-324, -1e-308])


@st.composite
def lines(draw):
    count = draw(st.integers(LONG, LONG + 8))
    line = Line(dict(enumerate(draw(st.lists(COEFFICIENTS, min_size=count, max_size=count)))), draw(NUMBERS))
    ends = [sorted(draw(st.tuples(NUMBERS, NUMBERS))) for _ in range(count)]
    errors = draw(st.lists(st.floats(0, 10) | st.just(0.0), min_size=count, max_size=count))
    dtype = draw(st.sampled_from(["float64", "float32"]))
    return line, [(a, b) for a, b in ends], errors, rounded_row(line, dtype)


@settings(max_examples=200, deadline=None)
@given(lines())
def test_ranges_and_errors_hold_exactly_and_are_tight(drawn):
    line, ranges, errors, row = drawn
    long = LongLine.of(line, row)
    low, high = long.range(ranges)
    exact = {w: Fraction(c) for w, c in line.terms.items()}
    ends = [sum((min, max)[side](c * Fraction(x) for x in ranges[w]) for w, c in exact.items()) for side in (0, 1)]
    least, most = (end + Fraction(line.bias) for end in ends)
    largest = [max(abs(Fraction(a)), abs(Fraction(b))) for a, b in ranges]
    size = sum(abs(c) * w for c, w in zip(exact.values(), largest, strict=True))
    room = (size + abs(Fraction(line.bias))) * Fraction(1, 10**14) + Fraction(1, 10**300)
    assert Fraction(low) <= least <= Fraction(low) + room
    assert Fraction(high) - room <= most <= Fraction(high)
    error, total = long.error(ranges, errors)
    stored = [Fraction(row.terms.get(w, 0.0)) for w in exact]
    wanted = sum(abs(c) * Fraction(e) for c, e in zip(stored, errors, strict=True))
    wanted += sum(abs(c - x) * w for c, x, w in zip(stored, exact.values(), largest, strict=True))
    wanted += abs(Fraction(row.bias) - Fraction(line.bias))
    assert wanted <= Fraction(error) <= wanted * (1 + Fraction(1, 10**14)) + Fraction(1, 10**300)
    assert sum(abs(c) * (w + Fraction(e)) for c, w, e in zip(stored, largest, errors, strict=True)) <= Fraction(total)


def test_what_has_no_error_keeps_none():
    line = Line({w: 1.0 for w in range(LONG)}, 0)
    long = LongLine.of(line, rounded_row(line, "float64"))
    assert long.range([(0.0, 0.0)] * LONG) == (0.0, 0.0)
    assert long.error([(-1.0, 1.0)] * LONG, [0.0] * LONG)[0] == 0.0


@pytest.mark.parametrize("line", [Line({0: 1.0}, 0), Line({w: Fraction(1, 3) for w in range(LONG)}, 0)])
def test_short_lines_and_fractions_are_for_balls(line):
    assert LongLine.of(line, None) is None


def test_rows_with_wires_of_their_own_are_for_balls():
    line = Line({w: 1.0 for w in range(LONG)}, 0)
    assert LongLine.of(line, Row({LONG: 1.0}, 0.0)) is None
