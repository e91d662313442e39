"""Canonical text of a node, such that parsing it gives the node back.

Brackets are written where Python's grammar needs them and nowhere else: sums and products lean left, ** leans right
and binds tighter than a minus sign on its left. A number is written as an integer, as a finite decimal where it has
one that is not too long, and as a quotient of integers otherwise; all three are exact.
"""

from __future__ import annotations

from fractions import Fraction

from anchorhead.errors import ExpressionError
from anchorhead.expression.graph import Node, number_of, ordered

SUM, PRODUCT, SIGN, POWER, ATOM = range(5)
LONGEST = 1_000_000
LONGEST_NUMBER = 6_644
"""Bits of a number of 2,000 digits."""
FURTHEST = 2_000
"""The largest power of ten that is read."""
MOST_ZEROS = 20
INFIX = {"add": (" + ", SUM), "sub": (" - ", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}


def text(node: Node) -> str:
    """The node as text. A shared part is written out at each place where it is used."""
    return texts(node)[node]


def texts(node: Node) -> dict[Node, str]:
    """The text of every part of a node, in one pass."""
    written: dict[Node, tuple[str, int]] = {}
    for part in ordered([node]):
        written[part] = _write(part, [written[arg] for arg in part.args])
        if len(written[part][0]) > LONGEST:
            raise ExpressionError(
                f"An expression takes more than {LONGEST} characters to write out, since its parts are used many "
                "times over; it can be evaluated, but not be written as text."
            )
    return {part: found for part, (found, _) in written.items()}


def _write(node: Node, args: list[tuple[str, int]]) -> tuple[str, int]:
    if node.op == "constant":
        return _number(number_of(node))
    if node.op == "variable":
        return str(node.value), ATOM
    if not args:
        return node.op, ATOM
    if isinstance(node.value, str):  # its arguments are in another order than it was written with
        return node.value, ATOM
    if node.op in INFIX:
        sign, level = INFIX[node.op]
        return _bracket(args[0], level) + sign + _bracket(args[1], level + 1), level
    if node.op == "neg":
        return "-" + _bracket(args[0], SIGN), SIGN
    if node.op == "pow":
        return _bracket(args[0], ATOM) + "**" + _bracket(args[1], SIGN), POWER
    if node.op == "power":
        return _bracket(args[0], ATOM) + "**" + _bracket(_number(number_of(node)), SIGN), POWER
    return f"{node.op}({', '.join(arg for arg, _ in args)})", ATOM


def _bracket(written: tuple[str, int], level: int) -> str:
    return written[0] if written[1] >= level else f"({written[0]})"


def _number(number: Fraction) -> tuple[str, int]:
    sign = "-" if number < 0 else ""
    above, below = abs(number.numerator), number.denominator
    twos, fives = _multiplicity(below, 2), _multiplicity(below, 5)
    places = max(twos, fives)
    scaled = above * 10**places // below
    if below != 2**twos * 5**fives or scaled.bit_length() > LONGEST_NUMBER:
        return f"{sign}{above}/{below}", PRODUCT
    return sign + _decimal(str(scaled), places), SIGN if sign else ATOM


def _decimal(digits: str, places: int) -> str:
    """digits / 10**places, in a form that `parse` reads."""
    short = digits.rstrip("0")
    if len(digits) - len(short) > MOST_ZEROS:
        return f"{short[0]}.{short[1:]}e{len(digits) - 1}" if len(short) > 1 else f"{short}e{len(digits) - 1}"
    if places == 0:
        return digits
    if places > FURTHEST:
        return f"{digits[0]}.{digits[1:]}e{len(digits) - 1 - places}"
    if places > len(digits) + 4:
        return f"{digits}e-{places}"
    digits = digits.rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}"


def _multiplicity(number: int, prime: int) -> int:
    """How often the prime divides the number, by its squares' squares, largest first."""
    powers = [prime]
    while number % powers[-1] == 0:
        powers.append(powers[-1] ** 2)
    count = 0
    for k in reversed(range(len(powers))):
        if number % powers[k] == 0:
            number //= powers[k]
            count += 2**k
    return count
