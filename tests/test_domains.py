"""A domain is what was asked for, in every form in which it may be given."""

from decimal import Decimal
from fractions import Fraction

import pytest

import anchorhead as ah
from anchorhead.options import read_domain


@pytest.mark.parametrize("third", [Fraction(1, 3), Fraction(-1, 3), Decimal("0.1"), 2**53 + 1])
def test_exact_ends_of_a_domain_are_inside_it(third):
    for text, low, high in (("x", third, 2 * abs(third)), ("x", -2 * abs(third), third), ("x + y", third, 2**60)):
        for found in ah.compile(text, (low, high), tol=1e6).certificate.domain:
            assert Fraction(found[0]) <= low < high <= Fraction(found[1])


def test_the_short_domain_option_is_read_like_the_long_one():
    assert read_domain(["=-100:100"]) == read_domain(["-100:100"]) == (-100.0, 100.0)
    with pytest.raises(ah.InputError, match="LOW:HIGH for all variables, as in --domain=-1:1"):
        read_domain(["-100"])


def test_ends_on_the_command_line_may_be_ratios():
    (low, high), other = read_domain(["x=1/3:2/3", "y=-1/2:1"]).values()
    assert Fraction(low) < Fraction(1, 3) < Fraction(2, 3) < Fraction(high)
    assert high - low < 0.334
    assert other == (-0.5, 1.0)
    for wrong in ("1/0:1", "1/:1", "a/b:1"):
        with pytest.raises(ah.InputError, match="must read NAME=LOW:HIGH"):
            read_domain([f"x={wrong}"])


def test_a_model_in_place_of_a_path_is_said_to_be_one():
    with pytest.raises(ah.FileError, match="path of a file is wanted, and a CompiledModel was given"):
        ah.verify(ah.compile("x", (0, 1)))
