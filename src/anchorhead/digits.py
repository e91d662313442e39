"""Numbers that are printed in a few digits without saying more than is known.

A bound that is rounded to nearest may be printed below itself, and what is printed is then not proved. So upper bounds
are printed rounded up and lower ones down: `f"{Up(bound):.3g}"` has the form that `f"{bound:.3g}"` has, and is
the least number of that many digits which is not below the bound. The ends of a domain are printed with the digits that
they take. Measured numbers are rounded to nearest, as usual.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

FORM = re.compile(r"\.(\d+)([efg])")
WIDE = Context(prec=1000)
"""Digits enough for every float."""


class Up(float):
    """A number that is never printed as less than it is."""

    towards = ROUND_CEILING

    def __format__(self, form: str) -> str:
        found = FORM.fullmatch(form)
        if found is None:
            raise ValueError(f"A bound is printed as .3g, .2e or .1f, and not as {form!r}.")
        if not math.isfinite(self) or self == 0:
            return format(float(self), form)
        digits, kind = int(found[1]), found[2]
        exact = Decimal(self)
        last = -digits if kind == "f" else exact.adjusted() - max(digits - (kind == "g"), 0)
        rounded = exact.quantize(Decimal(1).scaleb(last), rounding=self.towards, context=WIDE)
        return f"{rounded:f}" if kind == "f" else _scientific(rounded, max(digits - (kind == "g"), 0), kind == "g")


class Down(Up):
    """A number that is never printed as more than it is."""

    towards = ROUND_FLOOR


def _scientific(number: Decimal, after: int, general: bool) -> str:
    """A decimal number of 1 + `after` digits as a float in the formats e and g is written."""
    mantissa, _, power = f"{number:.{after}e}".partition("e")
    if general and -4 <= int(power) <= after:
        return f"{float(number):.{after + 1}g}"
    if general and "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(power):+03d}"


def above(found: float, claimed: float) -> str:
    """A bound that was found and the smaller one that is claimed, in as many digits as tell them apart, or more."""
    for digits in range(3, 18):
        texts = [f"{Up(value):.{digits}g}" for value in (found, claimed)]
        if texts[0] != texts[1]:
            break
    return f"{texts[0]}, above the claimed {texts[1]}"


def exactly(value: float) -> str:
    """A float in as few digits as tell it from others: 0, 1e-300, 1.5707963."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def interval(ends: tuple[float, float]) -> str:
    """An interval as text; R where it is all."""
    return "R" if ends == (-math.inf, math.inf) else f"[{exactly(ends[0])}, {exactly(ends[1])}]"


def counted(count: int, what: str) -> str:
    """1 norm, 2 norms, 3 boxes."""
    several = f"{what}es" if what.endswith("x") else f"{what}s"
    return f"{count:,} {what if count == 1 else several}"
