"""What is printed of a bound is not below it, and is written as Python writes floats."""

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.digits import Down, Up, above, interval

FORMS = (".1g", ".3g", ".4g", ".6g", ".1e", ".2e", ".3e")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def unit(text: str, form: str) -> Decimal:
    """One in the last digit that the format may show of the number in the text."""
    after = int(form[1]) - (form[-1] == "g")
    return Decimal(1).scaleb(Decimal(text).adjusted() - after)


@given(NUMBERS, st.sampled_from(FORMS))
@example(0.12235, ".3g")
@example(9.9951e-7, ".3g")
@example(5e-324, ".3g")
@example(2.2e-311, ".3g")
@example(1.7976931348623157e308, ".2e")
@example(-0.12235, ".3g")
def test_a_printed_bound_is_not_below_the_bound_and_within_one_unit_of_its_last_digit(value: float, form: str) -> None:
    up, down = f"{Up(value):{form}}", f"{Down(value):{form}}"
    assert Decimal(down) <= Decimal(value) <= Decimal(up)
    assert float(down) <= value <= float(up)
    if value:
        assert Decimal(up) - Decimal(value) < unit(up, form)
        assert Decimal(value) - Decimal(down) < unit(down, form)


@given(st.integers(-999, 999), st.integers(-300, 300), st.sampled_from((".3g", ".2e", ".6g")))
def test_numbers_that_the_digits_hold_are_written_as_floats_are(digits: int, power: int, form: str) -> None:
    exact = Decimal(digits).scaleb(power)
    nearest = float(exact)
    both = {f"{Up(nearest):{form}}", f"{Down(nearest):{form}}"}
    assert format(nearest, form) in both
    if Decimal(nearest) == exact:
        assert len(both) == 1


@given(NUMBERS.filter(lambda v: abs(v) < 1e15))
def test_places_after_the_point_are_rounded_the_same_way(value: float) -> None:
    up, down = f"{Up(value):.3f}", f"{Down(value):.3f}"
    assert Decimal(down) <= Decimal(value) <= Decimal(up)
    assert Decimal(up) - Decimal(down) <= Decimal("0.001")
    assert format(value, ".3f").lstrip("-") in {up.lstrip("-"), down.lstrip("-")}


@pytest.mark.parametrize("value", [0.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("form", FORMS)
def test_zero_and_what_is_not_finite_are_written_as_floats_are(value: float, form: str) -> None:
    assert f"{Up(value):{form}}" == f"{Down(value):{form}}" == format(value, form)


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not as ''"):
        f"{Up(1.0)}"


@given(NUMBERS)
def test_a_bound_above_a_claim_is_printed_so_that_it_is(claimed):
    found, said = above(math.nextafter(claimed, math.inf), claimed).split(", above the claimed ")
    assert found != said
    assert above(7.2612e-08, 7.2608e-08) == "7.262e-08, above the claimed 7.261e-08"


@given(st.tuples(NUMBERS, st.floats(allow_nan=False)))
def test_the_ends_of_a_domain_are_printed_with_the_digits_that_they_take(ends):
    assert tuple(map(float, interval(ends)[1:-1].split(", "))) == ends


def test_a_printed_domain_is_the_one_of_the_proof():
    certificate = ah.compile("1/(1.5708-x)", (0, 1.5707963), tol=1e-2).certificate
    assert " on [0, 1.5707963], " in str(certificate)
    assert "[0, 1.5707963]" in str(ah.distance("tan(x)", "x", (0, 1.5707963), tol=1e-2))
