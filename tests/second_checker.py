"""A second checker of model files, written from docs/format.md alone: it shares no code with the package.

    python tests/second_checker.py FILE...        or    check(path) -> Verdict

It needs the standard library and python-flint, whose balls (`arb`) enclose real numbers; every inequality below is
decided on balls, so what it calls proved is proved up to flint and this file. How:

*A head.* On a box with midpoint c and radius r the error E = target - head has |E| <= sum_{j<n} |E_j(c)| r^j +
|E_n(box)| r^n with E_j the Taylor coefficients (`arb_series`); boxes are halved until that is at most the claim, or the
error at a midpoint is certainly larger. Where the sign of what a kink looks at is open on a box, E is, at each point,
one of its branches: all are bounded. Where derivatives do not exist (sqrt at 0), the plain enclosure of E serves.

A relative claim is one on 1 - head/target, by the same boxes; at a zero, which only heads for u and u² may have, by
c tanh(su) = csu(1 - θ) with 0 <= θ <= (su)²/3.

*A far side*, x >= b (or -x >= b): sub-formulas are polynomials in x plus a rest <= r exp(-λ(x - b)) (`Tail`), the
weights of all keys but the last likewise, and what divides by an exponential vanishes (`Grown`);
x exp(-λ(x-b)) <= b exp(-(λ - 1/b)(x-b)) serves products. Slopes of target
and end key differ by the rounding of the stored gain; times |x|, that is counted under the claimed rounding (1 + |x|).

*A network.* Let z be the exact value of a wire, in an interval Z, and z' the model's, |z' - z| <= e. A stored row
b + sum m_j z'_j that stands for the exact line l_0 + sum l_j z_j errs by at most |b - l_0 + sum (m_j - l_j) Z_j| +
sum |m_j| e_j. A head that claims |F - h| <= d on a domain that holds all queries t' gives α h(t') + β t' + γ, which
differs from phi(u), u = r t + c, by L r e_t + |(α F(t') + β t' + γ) - phi(r t' + c)| + |α| d, L a Lipschitz constant of
phi between all u and u'; the middle term is polynomial for `identity` and `square` and (α-1) phi + β t' + γ for
`plain`, where phi is looked up at t' in place of u, which costs what phi moves within |t - u| + e_t. Times a partner v:
E(|v| + e_v) + |phi| e_v. The maximum is 1-Lipschitz, and softmax at sharpness α falls short of it by at most λ/α where
(m-1) exp(-1-λ) = λ: with gaps d_j = α(max - u_j) the shortfall s/α has sum (d_j - s) exp(-d_j) = s, and (d - s) exp(-d)
<= exp(-1-s). Attention whose scores err by η and values by e_v errs by e_v + η (largest value - smallest value)/2,
since the derivative in the scores is a covariance. All this on the whole box, and
on halves of it where that is too coarse.

*A prompt.* Its tokens are anywhere in their box, so that their sides are not halved. Attention over them errs as above,
by e_v + V tanh(η/2) if values span V. A mean of products of deviations is a covariance (`Covariance`). The bound is
confirmed but for a thousandth of it, by which slopes on a whole interval are enclosed too wide.

*A grid.* As a head, with Taylor polynomials in several variables (`Jet`).

*Other row maps.* Weights are smooth functions of the scores, or affine in x between rational places (`MAP_PIECES`), so
that the head under them is followed as above. What a softmax in few bits does is compared at points.

*A distance.* Its upper end as a claim on |f - g|, piece by piece; its lower end at the place that is named.

Left out, and said so in the verdict: rounding, of results and of queries (no simple bound comes near the claims). That
the circuit of a network is its formulas is compared at 30 points to more than 200 digits: a test, not a proof.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import random
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from flint import arb, arb_series, ctx, fmpq

BITS, ORDER, BOXES, CELLS, GRID_ORDER = 160, 8, 20_000, 3_000, 5
PROMPT_ROOM = 1e-3
INFINITE = arb("inf")
Tree = tuple[Any, ...]


class Refused(Exception):
    """The file is malformed, or its claim false, or could not be confirmed."""


class NotChecked(Exception):
    """The claim may hold; this checker has no way to judge it."""


@dataclass
class Verdict:
    status: str = "holds"  # or "refused", or "not checked"
    reason: str = ""
    checked: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.status == "holds"


# Formulas: text -> tree -> values of any kind that adds, multiplies, divides and knows the primitive functions.

PRIMITIVE = set("exp log sin cos atan asin acos erfc sqrt tanh sigmoid softplus1".split())
SELU = "1.0507009873554804934193349852946", "1.6732632423543772848170429916717"
MACROS = {  # as torch documents them; where(c, a, b) is a for c >= 0 and b for c <= 0, and continuous
    "abs": "x: where(x, x, -x)",
    "acosh": "x: log(x + sqrt(x**2 - 1))",
    "asinh": "x: where(x, log(x + sqrt(x**2 + 1)), -log(sqrt(x**2 + 1) - x))",
    "atanh": "x: log((1 + x)/(1 - x))/2",
    "celu": "x, a=1: where(x, x, a*(exp(x/a) - 1))",
    "clip": "x, low, high: min(max(x, low), high)",
    "cosh": "x: (exp(x) + exp(-x))/2",
    "elu": "x, a=1: where(x, x, a*(exp(x) - 1))",
    "erf": "x: 1 - erfc(x)",
    "exp2": "x: exp(x*log(2))",
    "expm1": "x: exp(x) - 1",
    "gelu": "x: x*erfc(-x/sqrt(2))/2",
    "gelu_tanh": "x: x*sigmoid(2*sqrt(2/pi)*(x + 0.044715*x**3))",
    "hardsigmoid": "x: clip(x/6 + 1/2, 0, 1)",
    "hardswish": "x: x*hardsigmoid(x)",
    "hardtanh": "x, low=-1, high=1: clip(x, low, high)",
    "leaky_relu": "x, a=0.01: where(x, x, a*x)",
    "log10": "x: log(x)/log(10)",
    "log1p": "x: log(1 + x)",
    "log2": "x: log(x)/log(2)",
    "logsigmoid": "x: -softplus1(-x)",
    "mish": "x: x*tanh(softplus1(x))",
    "prelu": "x, a: where(x, x, a*x)",
    "reciprocal": "x: 1/x",
    "relu": "x: where(x, x, 0)",
    "relu6": "x: clip(x, 0, 6)",
    "rrelu": "x, low=1/8, high=1/3: where(x, x, x*(low + high)/2)",
    "rsqrt": "x: 1/sqrt(x)",
    "selu": f"x: {SELU[0]}*where(x, x, {SELU[1]}*(exp(x) - 1))",
    "silu": "x: x*sigmoid(x)",
    "sinh": "x: (exp(x) - exp(-x))/2",
    "softplus": "x, beta=1: softplus1(beta*x)/beta",
    "softshrink": "x, a=0.5: where(x - a, x - a, where(-x - a, x + a, 0))",
    "softsign": "x: x/(1 + abs(x))",
    "square": "x: x**2",
    "tan": "x: sin(x)/cos(x)",
    "tanhshrink": "x: x - tanh(x)",
}


def parse(text: str, names: list[str]) -> Tree:
    """The tree of a formula in the given variables; only what the format allows."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as reason:
        raise Refused(f"{text[:60]!r} is not a formula") from reason
    operators = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}

    def tree(node: ast.AST) -> Tree:
        match node:
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                return "number", Fraction(ast.get_source_segment(text.strip(), node) or "")
            case ast.Name(id=name) if name in names:
                return "variable", name
            case ast.Name(id="pi" | "e" as name):
                return "constant", name
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=part):
                return ("-", ("number", Fraction(0)), tree(part)) if isinstance(sign, ast.USub) else tree(part)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in operators:
                return operators[type(op)], tree(left), tree(right)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return "call", name, *map(tree, args)
        raise Refused(f"{text[:60]!r} has a part that no formula may have")

    return tree(body)


def rational(tree: Tree) -> Fraction | None:
    """The exact value of a tree of numbers, where it is rational by plain arithmetic."""
    if tree[0] == "number":
        return tree[1]
    if tree[0] not in "+-*/":
        return None
    left, right = rational(tree[1]), rational(tree[2])
    if left is None or right is None or (tree[0] == "/" and right == 0):
        return None
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[tree[0]]


def number(exact: Fraction | int | float) -> arb:
    exact = Fraction(exact)
    return arb(fmpq(exact.numerator, exact.denominator))


class Branches:
    """Decides `where`: by the sign on the box, or as told; remembers what it did, and where the sign was open."""

    def __init__(self, told: list[bool] | None = None) -> None:
        self.told, self.taken, self.open = told or [], list[bool](), list[int]()

    def __call__(self, value: Any) -> bool:
        place, sign = len(self.taken), constant_term(value)
        if place < len(self.told):
            choice = self.told[place]
        else:
            choice = not bool(sign < 0)
            if choice and not sign >= 0:
                self.open.append(place)
        self.taken.append(choice)
        return choice


def branches(evaluate: Callable[[Branches], Any]) -> Iterator[tuple[Any, list[bool]]]:
    """The value for every way to decide the open signs, and the decisions."""
    waiting: list[list[bool]] = [[]]
    for count in itertools.count():
        if not waiting:
            return
        if count > 64:
            raise ZeroDivisionError("too many kinks in one box")
        choose = Branches(waiting.pop())
        yield evaluate(choose), choose.taken
        waiting += [[*choose.taken[:place], False] for place in choose.open]


def constant_term(value: Any) -> arb:
    return value[0] if isinstance(value, arb_series) else value if isinstance(value, arb) else value.sign()


def evaluate(tree: Tree, variables: dict[str, Any], choose: Branches) -> Any:
    kind, *parts = tree
    if kind == "number":
        return number(parts[0])
    if kind == "variable":
        return variables[parts[0]]
    if kind == "constant":
        return arb.pi() if parts[0] == "pi" else arb.const_e()
    if kind == "exact":
        return parts[0]
    if kind != "call":
        left = evaluate(parts[0], variables, choose)
        if kind == "**":
            return power(left, rational(parts[1]), lambda: evaluate(parts[1], variables, choose))
        right = evaluate(parts[1], variables, choose)
        return (
            left + right
            if kind == "+"
            else left - right
            if kind == "-"
            else left * right
            if kind == "*"
            else left / right
        )
    name, *arguments = parts
    if name == "where":
        return evaluate(arguments[1 if choose(evaluate(arguments[0], variables, choose)) else 2], variables, choose)
    values = [evaluate(argument, variables, choose) for argument in arguments]
    if name in ("max", "min") and len(values) > 1:
        best = values[0]
        for value in values[1:]:
            best = best if choose(best - value if name == "max" else value - best) else value
        return best
    if name == "pow" and len(values) == 2:
        return power(values[0], rational(arguments[1]), lambda: values[1])
    if name in PRIMITIVE and len(values) == 1:
        return primitive(name, values[0])
    if name not in MACROS:
        raise NotChecked(f"{name} is not a function that this checker knows")
    names, defaults, body = MACRO_TREES[name]
    if not len(names) - len(defaults) <= len(values) <= len(names):
        raise Refused(f"{name} has {len(values)} arguments")
    values += [evaluate(default, {}, choose) for default in defaults[len(defaults) - len(names) + len(values) :]]
    return evaluate(body, dict(zip(names, values, strict=True)), choose)


POOLS = {"mean": 1, "var": 1, "std": 1, "cov": 2, "attend": 2}


def pooled(tree: Tree, tokens: list[dict[str, Any]], query: dict[str, Any]) -> Tree:
    """The tree with what it says of all tokens as numbers."""
    if tree[0] in ("number", "variable", "constant"):
        return tree
    if tree[0] != "call" or tree[1] not in POOLS:
        return tuple(pooled(part, tokens, query) if isinstance(part, tuple) else part for part in tree)
    name, *inner = tree[1:]
    if len(inner) != POOLS[name]:
        raise Refused(f"{name} has {len(inner)} arguments")
    inner = [pooled(part, tokens, query) for part in inner]
    columns = [[evaluate(part, token | query, Branches()) for token in tokens] for part in inner]
    if name == "attend":
        return "exact", attention(columns[0], [[v] for v in columns[1]])[0]
    if name == "mean":
        return "exact", mean(columns[0])
    left, right = ([v - mean(column) for v in column] for column in (columns[0], columns[-1]))
    found = mean([a * b for a, b in zip(left, right, strict=True)])
    return "exact", found.sqrt() if name == "std" else found


def mean(numbers: list[arb]) -> arb:
    return sum(numbers, arb(0)) / len(numbers)


def macro(text: str) -> tuple[list[str], list[Tree], Tree]:
    head, body = text.split(":")
    pairs = [part.strip().partition("=") for part in head.split(",")]
    names = [name for name, _, _ in pairs]
    return names, [parse(default, []) for _, _, default in pairs if default], parse(body, names)


MACRO_TREES = {name: macro(text) for name, text in MACROS.items()}


def power(base: Any, exact: Fraction | None, exponent: Callable[[], Any]) -> Any:
    if exact is None:
        return real_power(base, exponent())
    if exact.denominator == 2 and exact.numerator in (1, -1):
        root = primitive("sqrt", base)
        return root if exact > 0 else number(1) / root
    if exact.denominator != 1:
        return real_power(base, number(exact))
    result, count, square = number(1), abs(exact.numerator), base
    while count:
        result = result * square if count % 2 else result
        count //= 2
        square = square * square if count else square
    return result if exact >= 0 else number(1) / result


def real_power(base: Any, exponent: Any) -> Any:
    if isinstance(base, arb) and isinstance(exponent, arb) and exponent > 0 and not base > 0:
        top = primitive("exp", base.upper().log() * exponent) if base.upper() > 0 else arb(0)
        return arb(0).union(top)  # from 0 up to the power of the largest
    return primitive("exp", primitive("log", base) * exponent)


def primitive(name: str, u: Any) -> Any:
    if not isinstance(u, (arb, arb_series)):
        return u.apply(name)
    if name in ("tanh", "sigmoid", "softplus1"):
        right = constant_term(u).mid() > 0  # the same function written so that nothing overflows
        small = ((-2 if name == "tanh" else -1) * (u if right else -u)).exp()
        if name == "softplus1":
            return (1 + small).log() + (u if right else 0)
        if name == "sigmoid":
            return 1 / (1 + small) if right else small / (1 + small)
        return (1 - 2 * small / (1 + small)) * (1 if right else -1)
    if isinstance(u, arb) and name in ("sqrt", "asin", "acos"):  # monotone; enclosed where it is defined
        low, high = (u.lower(), u.upper()) if name == "sqrt" else (u.lower().min(arb(1)), u.upper().min(arb(1)))
        low, high = (x.max(arb(0 if name == "sqrt" else -1)) for x in (low, high))
        return getattr(low, name)().union(getattr(high, name)())
    return getattr(u, name)()


class Arithmetic:
    """What follows from sums and products."""

    __add__: Callable[..., Any]
    __mul__: Callable[..., Any]

    def __neg__(self) -> Any:
        return self * arb(-1)

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __rmul__(self, other: Any) -> Any:
        return self * other


class Jet(Arithmetic):
    """A Taylor polynomial in several variables, by total degree."""

    tables: ClassVar[dict[tuple[int, int], tuple[list[tuple[int, ...]], list[tuple[int, int, int]]]]] = {}

    def __init__(self, variables: int, order: int, terms: list[arb]) -> None:
        self.shape, self.terms = (variables, order), terms

    @classmethod
    def table(cls, variables: int, order: int) -> tuple[list[tuple[int, ...]], list[tuple[int, int, int]]]:
        """The exponents in order, and which two multiply to which."""
        if (variables, order) not in cls.tables:
            exponents = [e for e in itertools.product(range(order + 1), repeat=variables) if sum(e) <= order]
            exponents.sort(key=lambda e: (sum(e), e))
            place = {e: i for i, e in enumerate(exponents)}
            sums = [
                (i, j, tuple(a + b for a, b in zip(p, q, strict=True)))
                for p, i in place.items()
                for q, j in place.items()
            ]
            cls.tables[variables, order] = exponents, [(i, j, place[s]) for i, j, s in sums if s in place]
        return cls.tables[variables, order]

    @classmethod
    def variable(cls, variables: int, order: int, index: int, value: arb) -> Jet:
        exponents, _ = cls.table(variables, order)
        unit = tuple(int(i == index) for i in range(variables))
        return cls(variables, order, [value if i == 0 else arb(int(e == unit)) for i, e in enumerate(exponents)])

    def like(self, terms: list[arb]) -> Jet:
        return Jet(*self.shape, terms)

    def sign(self) -> arb:
        return self.terms[0]

    def __add__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            return self.like([a + b for a, b in zip(self.terms, other.terms, strict=True)])
        return self.like([self.terms[0] + other, *self.terms[1:]])

    def __mul__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return self.like([a * other for a in self.terms])
        terms = [arb(0)] * len(self.terms)
        for i, j, k in self.table(*self.shape)[1]:
            terms[k] += self.terms[i] * other.terms[j]
        return self.like(terms)

    def composed(self, outer: Callable[[arb_series], Any]) -> Jet:
        order = self.shape[1]
        series = outer(arb_series([self.terms[0], 1], order + 1))
        rest = self.like([arb(0), *self.terms[1:]])
        result = self.like([arb(0)] * len(self.terms)) + series[order]
        for degree in reversed(range(order)):
            result = result * rest + series[degree]
        return result

    def apply(self, name: str) -> Jet:
        return self.composed(lambda s: primitive(name, s))

    def __truediv__(self, other: Any) -> Jet:
        return self * (other.composed(lambda s: 1 / s) if isinstance(other, Jet) else 1 / other)

    def __rtruediv__(self, other: Any) -> Jet:
        return self.composed(lambda s: 1 / s) * other


class Tail(Arithmetic):
    """A polynomial in y plus a rest of at most size·exp(-rate (y - start)), for all y >= start > 0."""

    def __init__(self, start: arb, terms: list[arb], size: arb | int = 0, rate: arb | None = None) -> None:
        while len(terms) > 1 and terms[-1] == 0:
            terms = terms[:-1]
        self.start, self.terms, self.size = start, terms, arb(size).upper()
        self.rate = INFINITE if rate is None else rate.lower()

    def lift(self, other: Any) -> Tail:
        return other if isinstance(other, Tail) else Tail(self.start, [arb(other)])

    def rests(self, *rests: tuple[arb, arb]) -> tuple[arb, arb]:
        """One rest that bounds the sum of several (size, rate)."""
        live = [(size, rate.lower()) for size, rate in rests if size != 0]
        if any(not rate >= 0 for _, rate in live):
            raise NotChecked("a part of the formula does not vanish fast enough on an unbounded side")
        return sum((size for size, _ in live), arb(0)), min((rate for _, rate in live), default=INFINITE)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Grown):
            return other + self
        other = self.lift(other)
        terms = [a + b for a, b in itertools.zip_longest(self.terms, other.terms, fillvalue=arb(0))]
        return Tail(self.start, terms, *self.rests((self.size, self.rate), (other.size, other.rate)))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Grown):
            return other * self
        other = self.lift(other)
        terms = [arb(0)] * (len(self.terms) + len(other.terms) - 1)
        rests = [(self.size * other.size, self.rate + other.rate)]
        for i, a in enumerate(self.terms):
            rests.append((abs(a).upper() * self.start**i * other.size, other.rate - i / self.start))
            for j, b in enumerate(other.terms):
                terms[i + j] += a * b
        for j, b in enumerate(other.terms):
            rests.append((abs(b).upper() * self.start**j * self.size, self.rate - j / self.start))
        return Tail(self.start, terms, *self.rests(*rests))

    def smooth(self, outer: Callable[[Any], Any]) -> Tail:
        """A smooth function of what tends to a constant, by the mean value theorem."""
        slope = outer(arb_series([self.terms[0] + arb(0, self.size), 1], 2))[1]
        return Tail(self.start, [outer(self.terms[0])], abs(slope).upper() * self.size, self.rate)

    def __truediv__(self, other: Any) -> Tail:
        if isinstance(other, Grown):
            return self * other.inverse()
        other = self.lift(other)
        if len(other.terms) > 1:
            raise NotChecked("a quotient with a divisor that grows, on an unbounded side")
        return self * other.smooth(lambda s: 1 / s)

    def __rtruediv__(self, other: Any) -> Tail:
        return self.lift(other) / self

    def leaves(self) -> tuple[int, arb, arb]:
        """Direction d, value u0 and speed k: d·value >= d·u0 + k (y - start) for all y."""
        shifted = list(self.terms)
        for first in range(len(shifted) - 1):
            for i in reversed(range(first, len(shifted) - 1)):
                shifted[i] += self.start * shifted[i + 1]
        for direction in (1, -1):
            if all(direction * term >= 0 for term in shifted[1:]):
                return direction, shifted[0] - direction * self.size, abs(shifted[1]).lower()
        raise NotChecked("a part of the formula turns around on an unbounded side")

    def sign(self) -> arb:
        if len(self.terms) == 1:
            sign = self.terms[0] + arb(0, self.size)
        else:
            direction, u0, _ = self.leaves()
            sign = arb(direction) if direction * u0 >= 0 else arb(0, 1)
        if not (sign >= 0 or sign < 0):
            raise NotChecked("a kink is not decided on an unbounded side")
        return sign

    def apply(self, name: str) -> Any:
        if len(self.terms) == 1:
            return self.smooth(lambda s: primitive(name, s))
        direction, u0, speed = self.leaves()
        far = direction * u0
        if name == "exp" and direction > 0:
            return Grown(self.start, u0.exp(), speed, 1)
        limits = {"sigmoid": (1, 0), "tanh": (1, -1), "erfc": (0, 2), "softplus1": (0, 0)}
        if name == "exp" and direction < 0:
            limit, size, rate = 0, u0.exp(), arb(1)
        elif name in ("sigmoid", "softplus1"):
            limit, size, rate = limits[name][direction < 0], (-far).exp(), arb(1)
        elif name == "tanh":
            limit, size, rate = direction, 2 * (-2 * far).exp(), arb(2)
        elif name == "erfc" and far > 0:  # the hazard rate of erfc at u is at least 2u
            limit, size, rate = limits[name][direction < 0], far.erfc(), 2 * far
        else:
            raise NotChecked(f"{name} of something unbounded, on an unbounded side")
        line = self if name == "softplus1" and direction > 0 else self.lift(limit)
        return line + Tail(self.start, [arb(0)], size, rate * speed)


class Grown(Arithmetic):
    """direction·f >= low·exp(rate (y - start)) for all y >= start, low and rate > 0: what is divided by it vanishes."""

    def __init__(self, start: arb, low: arb, rate: arb, direction: int) -> None:
        self.start, self.low, self.rate, self.direction = start, low.lower(), rate.lower(), direction
        if not (self.low > 0 and self.rate > 0):
            raise NotChecked("what grows on an unbounded side does so too late")

    def __add__(self, other: Any) -> Grown:
        if isinstance(other, Grown):
            if other.direction != self.direction:
                raise NotChecked("a difference of what grows, on an unbounded side")
            return self if self.rate > other.rate else other
        terms, size = (other.terms, other.size) if isinstance(other, Tail) else ([arb(other)], arb(0))
        if not self.rate * self.start >= len(terms) - 1:  # (y/start)^i <= exp(i (y - start)/start)
            raise NotChecked("a polynomial that outgrows an exponential, on an unbounded side")
        most = sum((abs(a).upper() * self.start**i for i, a in enumerate(terms)), size)
        return Grown(self.start, self.low - most, self.rate, self.direction)

    def __mul__(self, other: Any) -> Grown:
        if isinstance(other, Grown):
            return Grown(self.start, self.low * other.low, self.rate + other.rate, self.direction * other.direction)
        if isinstance(other, Tail) and len(other.terms) > 1:
            raise NotChecked("a product of what grows, on an unbounded side")
        factor = other.terms[0] + arb(0, other.size) if isinstance(other, Tail) else arb(other)
        turned = self.direction * (1 if factor > 0 else -1)
        return Grown(self.start, self.low * factor.abs_lower(), self.rate, turned)

    def inverse(self) -> Tail:
        return Tail(self.start, [arb(0)], 1 / self.low, self.rate)

    def __rtruediv__(self, other: Any) -> Tail:
        return self.inverse() * other

    def __truediv__(self, other: Any) -> Grown:
        if isinstance(other, (Tail, Grown)):
            raise NotChecked("a quotient of what grows, on an unbounded side")
        return self * (1 / arb(other))

    def sign(self) -> arb:
        return arb(self.direction)

    def apply(self, name: str) -> Tail | Grown:
        if name == "sqrt" and self.direction > 0:
            return Grown(self.start, self.low.sqrt(), self.rate / 2, 1)
        if name == "exp" and self.direction < 0:  # exp(rate t) >= 1 + rate t
            return Tail(self.start, [arb(0)], (-self.low).exp(), self.low * self.rate)
        raise NotChecked(f"{name} of what grows exponentially, on an unbounded side")


# Bounding functions of one variable.


def interval(low: arb, high: arb) -> arb:
    return low.union(high)


def size_on(function: Callable[[Any, Branches], Any], low: arb, high: arb) -> arb:
    """A bound on |function| between low and high: the better of a Taylor form and the plain enclosure."""
    middle = ((low + high) / 2).mid()
    box, radius = interval(low, high), arb((high - middle).max(middle - low).upper())
    bounds = []
    for order in (ORDER, 0):
        try:
            worst = arb(0)
            for over, taken in branches(partial(function, arb_series([box, 1], order + 1) if order else box)):
                if order:
                    at = function(arb_series([middle, 1], order), Branches(taken))
                    terms = [at[j] if j < order else over[j] for j in range(order + 1)]
                    bound = sum((abs(term).upper() * radius**j for j, term in enumerate(terms)), arb(0)).upper()
                else:
                    bound = abs(over).upper()
                worst = worst.max(bound) if bound.is_finite() else INFINITE
            bounds.append(worst)
        except (ValueError, ZeroDivisionError):
            bounds.append(INFINITE)
        if bounds[-1].is_finite():
            break
    return min(bounds)


def keeps(function: Callable[[Any, Branches], Any], low: arb, high: arb, claim: arb, what: str) -> int:
    """Shows |function| <= claim between low and high; the number of boxes that it took."""
    waiting, count = [(low, high)], 0
    while waiting:
        low, high = waiting.pop()
        count += 1
        if size_on(function, low, high) <= claim:
            continue
        middle = ((low + high) / 2).mid()
        try:
            found = abs(function(middle, Branches()))
        except ValueError:
            found = arb(0)
        if found > claim:
            raise Refused(
                f"{what} errs by {float(found.mid()):.3g} at {float(middle):.6g}, and {float(claim):.3g} is claimed"
            )
        if count > BOXES or not low < middle < high:
            raise Refused(f"{what} could not be shown to keep {float(claim):.3g} near {float(middle):.6g}")
        waiting += [(low, middle), (middle, high)]
    return count


# Heads.


@dataclass
class Head:
    """Stored numbers, with the gates added to the keys' scores."""

    slopes: list[arb]
    levels: list[arb]
    constants: list[arb]
    gains: list[arb]
    edges: list[arb]

    @classmethod
    def read(cls, tensors: Tensors, prefix: str, described: dict[str, Any]) -> Head:
        sizes, uniform = described["sizes"], described["uniform"]
        names = ("slopes", "intercepts", "constants", "gains", "gate_slopes", "gate_levels", "edges")
        slopes, intercepts, constants, gains, gate_slopes, gate_levels, edges = (
            [arb(x) for x in tensors[prefix + name]] for name in names
        )
        pieces = [piece for piece, size in enumerate(sizes) for _ in range(size)]
        keys = {len(pieces), len(slopes), len(intercepts), len(constants), len(gains)}
        if len(keys) != 1 or not pieces or min(sizes) < 1 or {len(sizes)} != {len(gate_slopes), len(gate_levels)}:
            raise Refused("the tensors of a head do not fit each other")
        steps = [b - a for a, b in itertools.pairwise(slopes)]
        if len(sizes) == 1 and (gate_slopes[0] != 0 or gate_levels[0] != 0):
            raise Refused("a head of one piece has a gate")
        if uniform is not False and (len(sizes) > 1 or any(not step > 0 or step != steps[0] for step in steps)):
            raise Refused("the slopes of a head are not evenly spaced, as it says")
        slopes = [slope + gate_slopes[piece] for slope, piece in zip(slopes, pieces, strict=True)]
        levels = [level + gate_levels[piece] for level, piece in zip(intercepts, pieces, strict=True)]
        return cls(slopes, levels, constants, gains, edges)

    def __call__(self, x: Any) -> Any:
        """The head on a ball or a series, weights relative to the key that leads at the middle."""
        middle = constant_term(x).mid()
        lead = max(range(len(self.slopes)), key=lambda k: (self.slopes[k] * middle + self.levels[k]).mid())
        over, under = arb(0) * x, arb(0) * x
        for slope, level, constant, gain in zip(self.slopes, self.levels, self.constants, self.gains, strict=True):
            weight = ((slope - self.slopes[lead]) * x + (level - self.levels[lead])).exp()
            over, under = over + weight * (gain * x + constant), under + weight
        return over / under

    def tail(self, start: arb, side: int) -> Tail:
        """The head minus nothing for y = side·x >= start: the last key's value and what the others add to it."""
        end = max(range(len(self.slopes)), key=lambda k: (side * self.slopes[k]).mid())
        total = Tail(start, [self.constants[end], side * self.gains[end]])
        for k in range(len(self.slopes)):
            rate = side * (self.slopes[end] - self.slopes[k])
            gap = (self.levels[k] - self.levels[end] - rate * start).exp()
            value = Tail(start, [self.constants[k] - self.constants[end], side * (self.gains[k] - self.gains[end])])
            total += value * Tail(start, [arb(0)], gap.upper(), rate) if k != end else 0
        return total


def check_head(
    tree: Tree, name: str, head: Head, domain: list[arb], claim: arb, rounding: arb, what: str, relative: bool = False
) -> int:
    edges, boxes = head.edges, 0
    if len(edges) < 2 or any(not a < b for a, b in itertools.pairwise(edges)):
        raise Refused(f"the edges of {what} do not increase")
    for end, edge, side in ((domain[0], edges[0], -1), (domain[1], edges[-1], 1)):
        if not (side * edge >= 1 if not end.is_finite() else end == edge):
            raise Refused(f"the boxes of {what} do not cover its domain")

    def error(x: Any, choose: Branches) -> Any:
        exact = evaluate(tree, {name: x}, choose)
        return 1 - head(x) / exact if relative else exact - head(x)

    unbounded = not all(end.is_finite() for end in domain)
    if relative and unbounded:
        raise Refused("a relative error is claimed on an unbounded domain")
    if unbounded and not rounding <= max(*map(abs, head.constants + head.gains), claim, arb(2) ** -100):
        raise Refused(f"the claimed rounding of {what} is larger than its values")
    for low, high in itertools.pairwise(edges):
        boxes += keeps(error, low, high, claim, what)
    for end, edge, side in ((domain[0], edges[0], -1), (domain[1], edges[-1], 1)):
        if not end.is_finite():
            boxes += check_tail(tree, name, head, abs(edge), side, claim, rounding, what, error)
    return boxes


def check_odd(text: str, head: Head, domain: list[arb], claim: arb, what: str) -> int:
    """c tanh(su) for u, or cu tanh(su) for u**2, relative to it: tanh(t)/t lies between 1 - t²/3 and 1."""
    ends, zeros = (head.constants, head.gains) if text == "u" else (head.gains, head.constants)
    mirrored = len(head.slopes) == 2 and head.slopes[0] == -head.slopes[1] and head.levels[0] == head.levels[1]
    if text not in ("u", "u**2") or not mirrored or ends[0] != -ends[1] or any(zero != 0 for zero in zeros):
        raise Refused(f"{what} claims a relative error at a zero of its function, and is no odd head for u or u**2")
    if len(head.edges) != 2 or [*head.edges] != domain:
        raise Refused(f"the boxes of {what} do not cover its domain")
    slope, reach = ends[1] * head.slopes[1], head.slopes[1] * max(abs(end) for end in domain)
    if not abs(slope - 1) + abs(slope) * reach**2 / 3 <= claim:
        raise Refused(f"{what} could not be shown to keep {float(claim):.3g}")
    return 1


def check_tail(
    tree: Tree, name: str, head: Head, start: arb, side: int, claim: arb, rounding: arb, what: str, error: Any
) -> int:
    """|error| <= claim + rounding·y for all y = side·x >= start, in closed form from start or a point further out."""
    boxes, trouble = 0, "the error could not be bounded"
    for _ in range(10):
        try:
            target = evaluate(tree, {name: Tail(start, [arb(0), arb(side)])}, Branches())
            rest = Tail(start, [arb(0)]) + target - head.tail(start, side)
            if len(rest.terms) > 2 or (len(rest.terms) == 2 and abs(rest.terms[1]) > rounding):
                raise Refused(f"{what} does not follow the target on an unbounded side")
            slope = rest.terms[1] if len(rest.terms) == 2 else arb(0)
            if abs(slope) <= rounding and abs(rest.terms[0]) + rest.size <= claim:
                return boxes
        except (NotChecked, ValueError, ZeroDivisionError) as reason:
            trouble = str(reason)
        boxes += keeps(error, min(side * start, 2 * side * start), max(side * start, 2 * side * start), claim, what)
        start = 2 * start
    raise NotChecked(f"{what}: {trouble}")


# Networks.


@dataclass
class Range:
    """An interval by its ends."""

    low: arb
    high: arb

    def __post_init__(self) -> None:
        self.low, self.high = self.low.lower(), self.high.upper()

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __mul__(self, other: Range | arb) -> Range:
        ends = (other.low, other.high) if isinstance(other, Range) else (other, other)
        products = [a * b for a in (self.low, self.high) for b in ends]
        return Range(min(p.lower() for p in products), max(p.upper() for p in products))

    def widened(self, by: arb) -> Range:
        return Range(self.low - by, self.high + by)

    def size(self) -> arb:
        return max(abs(self.low).upper(), abs(self.high).upper())


class Extents:
    """Range and Lipschitz constant of functions of one variable on intervals, remembered."""

    def __init__(self, pieces: int = 8) -> None:
        self.known: dict[Any, tuple[Range, arb, Range]] = {}
        self.pieces = pieces

    def __call__(self, tree: Tree, on: Range) -> tuple[Range, arb]:
        key = tree, on.low.str(20), on.high.str(20)
        if key not in self.known or not (self.known[key][2].low <= on.low and on.high <= self.known[key][2].high):
            self.known[key] = *self.enclosed(tree, on, self.pieces), on
        return self.known[key][:2]

    def enclosed(self, tree: Tree, on: Range, pieces: int) -> tuple[Range, arb]:
        """By second-order Taylor forms of the function and first-order ones of its derivative, piece by piece."""

        def phi(u: arb_series, choose: Branches) -> arb_series:
            return evaluate(tree, {"u": u}, choose) + 0 * u

        ends = [on.low + (on.high - on.low) * i / pieces for i in range(pieces + 1)]
        ends[0], ends[-1] = on.low, on.high
        values, slope = [], arb(0)
        for low, high in itertools.pairwise(ends):
            low, high = low.lower(), high.upper()
            middle = ((low + high) / 2).mid()
            swing = arb(0, max((high - middle).upper(), (middle - low).upper()))
            box = arb_series([interval(low, high), 1], 3)
            try:
                for over, taken in branches(partial(phi, box)):
                    at = phi(arb_series([middle, 1], 3), Branches(taken))
                    values.append(at[0] + at[1] * swing + over[2] * swing * swing)
                    slope = slope.max(abs(over[1]).upper().min(abs(at[1] + 2 * over[2] * swing).upper()))
            except (ValueError, ZeroDivisionError) as reason:
                raise TooCoarse("a function could not be enclosed") from reason
        if not all(value.is_finite() for value in values) or not slope.is_finite():
            raise TooCoarse("a function could not be enclosed")
        return Range(min(v.lower() for v in values), max(v.upper() for v in values)), slope

    def moves(self, tree: Tree, on: Range, distance: arb) -> tuple[Range, arb]:
        """The range, and how far values at places so close may be apart; slopes need not be bounded."""
        phi, values, most = partial(value_of, tree), [], arb(0)
        waiting = [(on.low, on.high)]
        while waiting:
            low, high = waiting.pop()
            near = Range(on.low.max(low - distance).lower(), on.high.min(high + distance).upper())
            over = [value for value, _ in branches(partial(phi, interval(near.low, near.high)))]
            if not all(value.is_finite() for value in over):
                raise TooCoarse("a function could not be enclosed")
            found = Range(min(v.lower() for v in over), max(v.upper() for v in over))
            varies = (found.high - found.low).upper()
            if not (high - low) < distance / 16 and len(values) + len(waiting) < 400:
                try:
                    bound = (self.enclosed(tree, near, 1)[1] * distance).upper()
                except TooCoarse:
                    bound = INFINITE
                if not bound < varies:  # neither slopes nor the values say much yet
                    middle = ((low + high) / 2).mid()
                    waiting += [(low, middle), (middle, high)]
                    continue
                most = most.max(bound)
            else:
                most = most.max(varies)
            values.append(found)
        return Range(min(v.low for v in values), max(v.high for v in values)), most


def value_of(tree: Tree, u: Any, choose: Branches) -> Any:
    return evaluate(tree, {"u": u}, choose) + 0 * u


Line = tuple[arb, dict[int, arb]]
SQUARE = parse("u**2", ["u"])


class Network:
    """A stored network and the circuit that it stands for, both with the rows and lines taken apart."""

    def __init__(self, record: dict[str, Any], tensors: Tensors) -> None:
        program, self.uses, self.layers = record["program"], record["uses"], record["layers"]
        self.functions = [parse(text, ["u"]) for text in program["functions"]]
        self.inputs, self.steps = len(program["inputs"]), program["steps"]
        self.first, count = [], self.inputs  # the wire of each step's first result
        self.lines: list[list[Any]] = []
        for step in self.steps:
            self.first.append(count)
            self.lines.append([self.read(part, count) for part in step[3 if step[0] in ("apply", "times") else 2 :]])
            count += len(step[5][0]) if step[0] == "attend" else 1
        self.outputs = [self.read(line, count) for line in program["outputs"]]
        self.heads = [Head.read(tensors, f"heads.{i}.", head) for i, head in enumerate(record["heads"])]
        self.described = record["heads"]
        self.scales, self.tilts, self.shifts = ([arb(x) for x in tensors[n]] for n in ("scales", "tilts", "shifts"))
        self.maps = [self.rows(tensors, f"maps.{i}.") for i in range(len(self.layers) + 1)]
        self.kept = [tensors[f"layers.{i}.kept"] for i in range(len(self.layers))]
        self.read_as: dict[
            tuple[int, str], tuple[Line, Line]
        ] = {}  # what a step reads, and the line that it stands for
        members = sorted(i for layer in self.layers for group in layer for i in group)
        sizes = {len(self.steps), len(self.uses), len(self.scales), len(self.tilts), len(self.shifts)}
        if members != list(range(len(self.steps))) or len(sizes) != 1:
            raise Refused("the steps are not each in one group")
        for step, use in zip(self.steps, self.uses, strict=True):
            alone = ("largest", "attend", "pool")
            if (step[0] in alone or use[0] in alone) and use != [step[0], -1, 0, 1]:
                raise Refused("a step is meant as what it is not")
            if step[0] == "times" and any(gain != 0 for gain in self.heads[use[1]].gains):
                raise Refused("the values of a product's head are not constants times the partner")
            if step[0] in ("apply", "times") and not (
                0 <= step[2] < len(self.functions) and 0 <= use[1] < len(self.heads)
            ):
                raise Refused("a step has no function or no head")
        if record.get("variables", program["inputs"]) != program["inputs"]:
            raise Refused("the inputs of the circuit are not the variables of the formulas")
        self.tokens = program.get("tokens", 0)
        if type(self.tokens) is not int or not 0 <= self.tokens <= self.inputs:
            raise Refused("the number of a token's inputs is none")
        self.place = self.placed()

    def placed(self) -> list[str]:
        """The place of every wire: a token's, the prompt's, or a query's."""
        own = ["token"] * self.tokens + ["query"] * (self.inputs - self.tokens)
        for step, lines in zip(self.steps, self.lines, strict=True):
            if step[0] == "pool":
                query, key, offset, value = lines
                if not self.tokens or len(query) != len(key):
                    raise Refused("a pool without tokens, or whose query and key differ in size")
                found = self.common(query, own)
                if found == "token" or self.common([*key, offset, value], own) == "query":
                    raise Refused("a pool asks with a token's number, or looks up a query's")
                own.append(found)
            else:
                own += [self.common(lines, own)] * (len(step[5][0]) if step[0] == "attend" else 1)
        if self.common(self.outputs, own) == "token" and self.tokens:
            raise Refused("an output is one of every token")
        return own

    @classmethod
    def common(cls, lines: Any, own: list[str]) -> str:
        """The place of what reads these lines, however nested."""
        if isinstance(lines, tuple):
            found = {own[wire] for wire in lines[1]}
        else:
            found = {cls.common(part, own) for part in lines}
        if len(found - {"prompt"}) > 1:
            raise Refused("numbers of a token and of a query meet")
        return next(iter(found - {"prompt"}), "prompt")

    def require_place(self, row: Line, place: str) -> None:
        if self.tokens and not {self.place[wire] for wire in row[1]} <= {place, "prompt"}:
            raise Refused("a row reads what there is not in its place")

    def read(self, part: Any, wires: int) -> Any:
        """Lines, however nested: a line begins with a number or a text."""
        if not part or isinstance(part[0], list):
            return [self.read(inner, wires) for inner in part]
        if len(part) % 2 == 0 or any(type(wire) is not int or not 0 <= wire < wires for wire in part[1::2]):
            raise Refused("a line looks at a wire that does not come before it")
        coefficients: dict[int, arb] = {}
        for wire, value in zip(part[1::2], part[2::2], strict=True):
            coefficients[wire] = coefficients.get(wire, arb(0)) + self.exact(value)
        return self.exact(part[0]), coefficients

    @staticmethod
    def exact(value: Any) -> arb:
        if isinstance(value, str) and value.startswith("="):
            return evaluate(parse(value[1:], []), {}, Branches())
        return number(Fraction(value))

    @staticmethod
    def rows(tensors: Tensors, prefix: str) -> list[tuple[arb, list[tuple[int, arb]]]]:
        entries, columns, starts, bias = (tensors[prefix + name] for name in ("entries", "columns", "starts", "bias"))
        pairs = [(column, arb(entry)) for column, entry in zip(columns, entries, strict=True)]
        if len(starts) != len(bias) + 1 or starts[0] != 0 or starts[-1] != len(pairs) or sorted(starts) != starts:
            raise Refused("the rows of a map do not fit its entries")
        return [(arb(b), pairs[i:j]) for b, i, j in zip(bias, starts, starts[1:], strict=False)]

    def group_lines(self, group: list[int]) -> list[tuple[int, str, Line]]:
        """The lines that the rows of a group stand for, in the rows' order: step, part, line."""
        kinds = {self.steps[i][0] for i in group}
        if kinds <= {"apply", "times"}:
            if len({self.uses[i][1] for i in group}) != 1 or len(kinds) != 1:
                raise Refused("a group has steps of different heads")
            queries = []
            for i in group:
                (bias, terms), centre, radius = self.lines[i][0], arb(self.uses[i][2]), arb(self.uses[i][3])
                queries.append((i, "query", ((bias - centre) / radius, {w: c / radius for w, c in terms.items()})))
            return queries + [(i, "partner", self.lines[i][1]) for i in group if self.steps[i][0] == "times"]
        if len({self.place[self.first[i]] for i in group}) != 1:
            raise Refused("a group has steps in different places")
        if kinds == {"pool"}:
            split = {i: [self.lines[i][0], self.lines[i][1], [self.lines[i][2]], [self.lines[i][3]]] for i in group}
            names = "query", "key", "offset", "value"
            return [(i, name, line) for k, name in enumerate(names) for i in group for line in split[i][k]]
        if kinds == {"largest"}:
            return [(i, "argument", line) for i in group for line in self.lines[i][0]]
        parts = [(i, part, self.lines[i][part]) for part in range(4) for i in group]
        return [
            (i, "query key offset value".split()[part], line)
            for i, part, lines in parts
            for row in ([[line] for line in lines] if part in (0, 2) else lines)
            for line in row
        ]

    def walk(self, values: Walk) -> list[Any]:
        """The outputs; `values` says what rows and steps are: balls at a point, or errors over a cell."""
        state = list(range(self.inputs))
        for layer, rows, kept in zip(self.layers, self.maps, self.kept, strict=False):
            state_after, place = [state[j] for j in self.places(kept, state)], 0
            for group in layer:
                lines = self.group_lines(group)
                found: dict[tuple[int, str], list[Any]] = {}
                for (i, part, line), row in zip(lines, rows[place : place + len(lines)], strict=True):
                    at = "token" if self.steps[i][0] == "pool" and part != "query" else self.place[self.first[i]]
                    self.read_as[i, part] = self.on_wires(row, state), line
                    self.require_place(self.read_as[i, part][0], at)
                    found.setdefault((i, part), []).append(values.row(*self.read_as[i, part]))
                for i in group:
                    results = values.step(self, i, {part: got for (j, part), got in found.items() if j == i})
                    for offset, result in enumerate(results):
                        values.put(self.first[i] + offset, result)
                        state_after.append(self.first[i] + offset)
                place += len(lines)
            if place != len(rows):
                raise Refused("a layer has rows that no step reads")
            state = state_after
        for row in self.maps[-1]:
            self.require_place(self.on_wires(row, state), "query" if self.tokens < self.inputs else "prompt")
        return [
            values.row(self.on_wires(row, state), line) for row, line in zip(self.maps[-1], self.outputs, strict=True)
        ]

    @staticmethod
    def places(kept: list[int], state: list[int]) -> list[int]:
        if any(not 0 <= j < len(state) for j in kept):
            raise Refused("a place is kept that the state has not")
        return kept

    def on_wires(self, row: tuple[arb, list[tuple[int, arb]]], state: list[int]) -> Line:
        coefficients: dict[int, arb] = {}
        self.places([column for column, _ in row[1]], state)
        for column, entry in row[1]:
            coefficients[state[column]] = coefficients.get(state[column], arb(0)) + entry
        return row[0], coefficients


class Point:
    """What the stored numbers compute at a point (`stored`), or the circuit does."""

    def __init__(self, inputs: list[arb], stored: bool) -> None:
        self.wires, self.stored = dict(enumerate(inputs)), stored

    def put(self, wire: int, value: Any) -> None:
        self.wires[wire] = value

    def row(self, row: Line, line: Line) -> arb:
        bias, terms = row if self.stored else line
        return sum((c * self.wires[w] for w, c in terms.items()), bias)

    def step(self, net: Network, i: int, rows: dict[str, list[arb]]) -> list[arb]:
        kind, use, head = net.steps[i][0], net.uses[i], net.uses[i][1]
        if kind in ("apply", "times"):
            (t,), (v,) = rows["query"], rows.get("partner", [arb(1)])
            if self.stored:
                return [(net.scales[i] * net.heads[head](t) + net.tilts[i] * t + net.shifts[i]) * v]
            return [evaluate(net.functions[net.steps[i][2]], {"u": t * arb(use[3]) + arb(use[2])}, Branches()) * v]
        if kind == "largest":
            us = rows["argument"]
            if not self.stored:
                return [max(us, key=lambda u: u.mid())]
            return [attention([net.scales[i] * u for u in us], [[u] for u in us])[0]]
        q, keys, offsets, values = attended(rows)
        scores = [sum((a * b for a, b in zip(q, k, strict=True)), o) for k, o in zip(keys, offsets, strict=True)]
        return attention(scores, values)


class Prompt(Point):
    """The same for a prompt: a token's wires are lists, one number for each token."""

    def row(self, row: Line, line: Line) -> Any:
        bias, terms = row if self.stored else line
        lists = [len(self.wires[w]) for w in terms if isinstance(self.wires[w], list)]
        if not lists:
            return super().row(row, line)
        each = [{w: v[k] if isinstance(v := self.wires[w], list) else v for w in terms} for k in range(lists[0])]
        return [sum((c * wires[w] for w, c in terms.items()), bias) for wires in each]

    def step(self, net: Network, i: int, rows: dict[str, list[Any]]) -> list[Any]:
        lists = [len(v) for part in rows.values() for v in part if isinstance(v, list)]
        if net.steps[i][0] == "pool":
            [values] = rows["value"]
            pairs = list(zip(rows.get("query", []), rows.get("key", []), strict=True))
            scores = [sum((q * at(k, j) for q, k in pairs), at(rows["offset"][0], j)) for j in range(lists[0])]
            return [attention(scores, [[at(values, j)] for j in range(lists[0])])[0]]
        if not lists:
            return super().step(net, i, rows)
        each = [{part: [at(v, j) for v in got] for part, got in rows.items()} for j in range(lists[0])]
        columns = [super(Prompt, self).step(net, i, one) for one in each]
        return [list(column) for column in zip(*columns, strict=True)]


def at(value: Any, token: int) -> Any:
    return value[token] if isinstance(value, list) else value


def attended(rows: dict[str, list[Any]]) -> tuple[list[Any], list[list[Any]], list[Any], list[list[Any]]]:
    """Query, keys, offsets and values of an attend step from its rows; queries may have no entries."""

    def split(items: list[Any], count: int) -> list[list[Any]]:
        size = len(items) // count
        return [items[i * size : (i + 1) * size] for i in range(count)]

    query, keys, offsets, values = (rows.get(part, []) for part in ("query", "key", "offset", "value"))
    return query, split(keys, len(offsets)), offsets, split(values, len(offsets))


def attention(scores: list[arb], values: list[list[arb]]) -> list[arb]:
    top = max(scores, key=lambda s: s.mid())
    weights = [(score - top).exp() for score in scores]
    total = sum(weights, arb(0))
    return [
        sum((w * v for w, v in zip(weights, column, strict=True)), arb(0)) / total
        for column in zip(*values, strict=True)
    ]


class Cell:
    """Ranges of the exact wires over a cell, and bounds on the model's errors; a row is (range of its line, error)."""

    def __init__(self, inputs: list[Range], extents: Extents) -> None:
        self.wires, self.extents = {i: (r, arb(0)) for i, r in enumerate(inputs)}, extents

    def put(self, wire: int, value: Any) -> None:
        self.wires[wire] = value

    def row(self, row: Line, line: Line) -> tuple[Range, arb]:
        exact, off, error = Range(line[0], line[0]), Range(row[0] - line[0], row[0] - line[0]), arb(0)
        for wire in row[1].keys() | line[1].keys():
            stored, meant = row[1].get(wire, arb(0)), line[1].get(wire, arb(0))
            values, e = self.wires[wire]
            exact, error = exact + values * meant, (error + abs(stored) * e).upper()
            off = off + values * (stored - meant) if stored != meant else off
        return exact, (off.size() + error).upper()

    def step(self, net: Network, i: int, rows: dict[str, list[Any]], joint: bool = True) -> list[tuple[Range, arb]]:
        kind = net.steps[i][0]
        if kind in ("apply", "times"):
            value, error = self.function(net, i, *rows["query"][0])
            if kind == "apply":
                return [(value, error)]
            ((v, e),) = rows["partner"]
            plain = value * v, (error * (v.size() + e) + value.size() * e).upper()
            norm = Norm.of(net, i) if joint else None
            return [plain if norm is None else norm.better(self, net, plain)]
        if kind == "largest":
            us, sharpness = rows["argument"], net.scales[i]
            if not sharpness > 0 or math.frexp(float(sharpness))[0] != 0.5:
                raise Refused("the sharpness of a maximum is not a power of two")
            short = (((len(us) - 1) * arb(-1).exp()).lambertw() if len(us) > 1 else arb(0)) / sharpness
            best = Range(max(u.low for u, _ in us), max(u.high for u, _ in us))
            return [(best, (max(e for _, e in us) + short).upper())]
        if kind == "pool":
            [(value, e)], [(_, eta)] = rows["value"], rows["offset"]
            for (a, e_a), (b, e_b) in zip(rows.get("query", []), rows.get("key", []), strict=True):
                eta += a.size() * e_b + e_a * b.size() + e_a * e_b
            plain = value, (e + (value.high - value.low) * (eta / 2).tanh()).upper()
            covariance = Covariance.of(net, i) if joint else None
            return [plain if covariance is None else covariance.better(self, net, plain)]
        q, keys, offsets, values = attended(rows)
        eta = arb(0)
        for key, (_, e_offset) in zip(keys, offsets, strict=True):
            bad = e_offset
            for (a, e_a), (b, e_b) in zip(q, key, strict=True):
                bad += a.size() * e_b + e_a * b.size() + e_a * e_b
            eta = max(eta, bad.upper())
        results = []
        for column in zip(*values, strict=True):
            hull = Range(min(v.low for v, _ in column), max(v.high for v, _ in column))
            results.append((hull, (max(e for _, e in column) + eta * (hull.high - hull.low) / 2).upper()))
        return results

    def function(self, net: Network, i: int, t: Range, e: arb) -> tuple[Range, arb]:
        """The exact phi's range, and how far α h(t') + β t' + γ is from it."""
        kind, index, centre, radius = net.uses[i][0], net.uses[i][1], arb(net.uses[i][2]), arb(net.uses[i][3])
        described, phi = net.described[index], net.functions[net.steps[i][2]]
        near, alpha, beta, gamma = t.widened(e), net.scales[i], net.tilts[i], net.shifts[i]
        if not (index >= 0 and radius > 0 and near.low >= described["low"] and near.high <= described["high"]):
            raise TooCoarse(f"step {i} may look at a head outside the head's domain")
        own, relative = abs(alpha) * arb(described["approximation"]), is_relative(described)
        text = {"plain": None, "identity": "u", "square": "u**2"}[kind]
        if parse(described["function"], ["u"]) != phi or (text and parse(text, ["u"]) != phi):
            raise Refused(f"the head of step {i} is one for another function")
        if kind == "plain":
            if centre == 0 and radius == 1:
                value, slope = self.extents(phi, near)
                drift = slope * e
            else:  # phi at t in place of u = r t + c, which is where phi is defined
                domain, u = Range(arb(described["low"]), arb(described["high"])), t * radius + Range(centre, centre)
                reach = Range(u.low.max(domain.low).min(near.low), u.high.min(domain.high).max(near.high))
                shift = Range(u.low - t.low, u.low - t.low).size().max(Range(u.high - t.high, u.high - t.high).size())
                value, drift = self.extents.moves(phi, reach, (shift + e).upper())
                if not (u.low >= domain.low - 2.0**-99 and u.high <= domain.high + 2.0**-99):
                    raise Refused(f"the head of step {i} does not reach as far as what it is for")
            own = own * (value.size() if relative else 1)
            return value, (drift + abs(alpha - 1) * value.size() + abs(beta) * near.size() + abs(gamma) + own).upper()
        u = t * radius + Range(centre, centre)
        if kind == "identity":
            wrong = abs(alpha + beta - radius) * near.size() + abs(gamma - centre)
            return u, (radius * e + wrong + own * (near.size() if relative else 1)).upper()
        wrong = abs(alpha - radius * radius) * near.size() ** 2 + abs(beta - 2 * centre * radius) * near.size()
        wrong += abs(gamma - centre * centre)
        squares = [u.low * u.low, u.high * u.high]
        value = Range(
            arb(0) if u.low < 0 < u.high else min(s.lower() for s in squares), max(s.upper() for s in squares)
        )
        own = own * near.size() ** 2 if relative else own
        return value, ((2 * u.size() + radius * e) * radius * e + wrong + own).upper()


@dataclass
class Norm:
    """Step i is x_place / sqrt(bias + sum of c_j x_j²), the x_j what the steps `squares` square."""

    step: int
    squares: list[int]
    root: int | None
    total: Line
    place: int

    @classmethod
    def of(cls, net: Network, i: int) -> Norm | None:
        """Only multiples by one are looked for: a traced norm divides the very lines that it squares."""
        inverse = [parse(text, ["u"]) for text in ("rsqrt(u)", "1/sqrt(u)", "u**(-1/2)")]
        applied = {wire: k for k, wire in enumerate(net.first) if net.steps[k][0] == "apply"}
        _, _, phi, u, p = net.steps[i]
        if net.functions[phi] in inverse:
            return cls.quotient(net, i, applied, None, i, p)
        for one, other in ((u, p), (p, u)) if net.functions[phi] == parse("u", ["u"]) else ():
            root = applied.get(one[1]) if len(one) == 3 and one[0] == 0 and one[2] == 1 else None
            if root is not None and net.functions[net.steps[root][2]] in inverse:
                return cls.quotient(net, i, applied, root, root, other)
        return None

    @classmethod
    def quotient(cls, net: Network, i: int, applied: dict[int, int], root: int | None, by: int, p: Any) -> Norm | None:
        total = net.lines[by][0]
        squares = [applied.get(wire, -1) for wire in total[1]]
        if not squares or min(squares) < 0 or any(net.functions[net.steps[k][2]] != SQUARE for k in squares):
            return None
        entries = [net.steps[k][3] for k in squares]
        within = set(total[1]) | (set() if root is None else {net.first[root]})
        if p not in entries or any(within & set(line[1::2]) for line in entries):
            return None
        if not (total[0] >= 0 and all(c > 0 for c in total[1].values())):
            return None
        return cls(i, squares, root, total, entries.index(p))

    def entries(self, net: Network, wires: dict[int, Any]) -> list[Range]:
        lines = [net.lines[k][0] for k in self.squares]
        return [sum((wires[w][0] * c for w, c in terms.items()), Range(bias, bias)) for bias, terms in lines]

    def sums(self, entries: list[Range], without: int) -> tuple[arb, arb]:
        """The least and the largest bias + sum of c_j x_j², one of them left out."""
        least = most = self.total[0]
        for j, (c, x) in enumerate(zip(self.total[1].values(), entries, strict=True)):
            if j != without:
                nearest = arb(0) if x.low <= 0 and x.high >= 0 else min(abs(x.low).lower(), abs(x.high).lower())
                least, most = least + c * nearest * nearest, most + c * x.size() * x.size()
        return least.lower(), most.upper()

    def range(self, entries: list[Range], j: int) -> Range:
        c, x, (least, most) = list(self.total[1].values())[j], entries[j], self.sums(entries, j)
        low = x.low / (c * x.low * x.low + (most if x.low >= 0 else least)).sqrt()
        high = x.high / (c * x.high * x.high + (least if x.high >= 0 else most)).sqrt()
        if not (low.is_finite() and high.is_finite()):
            raise TooCoarse("the root of a norm may vanish")
        return Range(low.lower(), high.upper())

    def better(self, cell: Cell, net: Network, plain: tuple[Range, arb]) -> tuple[Range, arb]:
        """Range and error of the norm, or what was found without knowing that it is one, where that is less."""
        try:
            value = self.range(self.entries(net, cell.wires), self.place)
            value = Range(max(value.low, plain[0].low), min(value.high, plain[0].high))
            near = Cell([], cell.extents)
            near.wires = {w: (r.widened(e), arb(0)) for w, (r, e) in cell.wires.items()}
            entries = self.entries(net, near.wires)
            moves = [
                sum((abs(c) * cell.wires[w][1] for w, c in net.lines[k][0][1].items()), arb(0)) for k in self.squares
            ]
            return value, min(plain[1], (self.moved(entries, moves) + self.own(near, net, entries)).upper())
        except TooCoarse:
            return plain

    def moved(self, entries: list[Range], moves: list[arb]) -> arb:
        c, i = list(self.total[1].values()), self.place
        sizes, root = [self.range(entries, j).size() for j in range(len(c))], self.sums(entries, -1)[0].sqrt()
        others = [j for j in range(len(c)) if j != i]
        along = sum((c[j] * sizes[j] * moves[j] for j in others), arb(0)).upper()
        across = sum((c[j] * moves[j] * moves[j] for j in others), arb(0)).sqrt().upper()
        return (moves[i] + sizes[i] * min(along, across)) / root

    def own(self, near: Cell, net: Network, entries: list[Range]) -> arb:
        """What the squares, the root and the quotient add where the wires before them are the network's own."""

        def follow(k: int) -> tuple[Range, arb]:
            rows = {
                part: [near.row(*net.read_as[k, part])] for part in ("query", "partner") if (k, part) in net.read_as
            }
            return near.step(net, k, rows, joint=False)[0]

        squares = [follow(k) for k in self.squares]
        off = sum((c * e for c, (_, e) in zip(self.total[1].values(), squares, strict=True)), arb(0))
        share = off / self.sums(entries, -1)[0]
        if not share < 1:
            raise TooCoarse("the root of a norm may vanish")
        for k, (value, error) in zip(self.squares, squares, strict=True):
            near.put(net.first[k], (value.widened(error), arb(0)))
        if self.root is not None:
            near.put(net.first[self.root], follow(self.root))
        return follow(self.step)[1] + self.range(entries, self.place).size() * (1 / (1 - share).sqrt() - 1)


@dataclass
class Covariance:
    """Step i is the mean over all tokens of the product, step `product`, of two lines whose means are zero."""

    step: int
    product: int
    lines: list[Line]
    means: list[dict[int, int]]
    """For each line the wires in it that are means, and their steps."""

    @classmethod
    def of(cls, net: Network, i: int) -> Covariance | None:
        value = net.steps[i][5]
        if not cls.is_mean(net, i) or len(value) != 3 or value[0] != 0 or value[2] != 1 or value[1] not in net.first:
            return None
        product = net.first.index(value[1])
        kind, _, phi, *_ = net.steps[product]
        if kind == "apply" and net.functions[phi] == SQUARE:
            lines = [net.lines[product][0]] * 2
        elif kind == "times" and net.functions[phi] == parse("u", ["u"]):
            lines = net.lines[product]
        else:
            return None
        means = [
            {w: net.first.index(w) for w in terms if w in net.first and cls.is_mean(net, net.first.index(w))}
            for _, terms in lines
        ]
        found = cls(i, product, lines, means)
        return found if all(map(found.is_centred, [net] * 2, lines, means)) else None

    @staticmethod
    def is_mean(net: Network, i: int) -> bool:
        return net.steps[i][0] == "pool" and not net.lines[i][0] and not net.lines[i][2][1]

    @staticmethod
    def is_centred(net: Network, line: Line, means: dict[int, int]) -> bool:
        """Whether it cancels with what the means in it are of in their place."""
        bias, left = line[0], dict[int, arb]()
        for wire, c in line[1].items():
            inner = net.lines[means[wire]][3] if wire in means else (arb(0), {wire: arb(1)})
            bias = bias + c * inner[0]
            for w, d in inner[1].items():
                left[w] = left.get(w, arb(0)) + c * d
        return bias == 0 and all(c == 0 for c in left.values())

    def own(self, net: Network, wires: dict[int, Any], what: int) -> list[Any]:
        """Of the parts of the lines that differ from token to token: their width (0), or what errors add to (1)."""
        found = []
        for _, terms in self.lines:
            mine = [(w, c) for w, c in terms.items() if net.place[w] == "token"]
            part = sum((wires[w][0] * c for w, c in mine), Range(arb(0), arb(0)))
            found.append(sum((abs(c) * wires[w][1] for w, c in mine), arb(0)) if what else part.high - part.low)
        return found

    def better(self, cell: Cell, net: Network, plain: tuple[Range, arb]) -> tuple[Range, arb]:
        (a, b), (e_a, e_b) = self.own(net, cell.wires, 0), self.own(net, cell.wires, 1)
        most = (a * b / 4).upper()
        low = arb(0) if net.steps[self.product][0] == "apply" else -most
        value = Range(max(low, plain[0].low), min(most, plain[0].high))
        near = Cell([], cell.extents)
        near.wires = {w: (r.widened(e), arb(0)) for w, (r, e) in cell.wires.items()}

        def follow(k: int) -> tuple[Range, arb]:
            parts = ("query", "key", "offset", "value", "partner")
            rows = {part: [near.row(*net.read_as[k, part])] for part in parts if (k, part) in net.read_as}
            return near.step(net, k, rows, joint=False)[0]

        off: dict[int, arb] = {}
        for wire, k in sorted((self.means[0] | self.means[1]).items()):
            found, off[wire] = follow(k)
            near.put(wire, (found.widened(off[wire]), arb(0)))
        late = [sum((abs(line[1][w]) * off[w] for w in own), arb(0))
                for line, own in zip(self.lines, self.means, strict=True)]  # fmt: skip
        near.put(net.first[self.product], follow(self.product))
        moved = (e_a * b + e_b * a) / 2 + e_a * e_b + late[0] * late[1]
        return value, min(plain[1], (moved + follow(self.step)[1]).upper())


class TooCoarse(Exception):
    """Nothing follows on this cell; on smaller ones it may."""


Walk = Point | Cell


def check_network(record: dict[str, Any], tensors: Tensors, verdict: Verdict) -> None:
    domain, claim, rounding = claims(record)
    net = Network(record, tensors)
    allowed = [min(claim, arb(bound)) for bound in record["certificate"]["outputs"]]
    if len(domain) != net.inputs or len(allowed) != len(net.outputs):
        raise Refused("the domain or the bounds do not fit the circuit")
    count_boxes(record, net.heads)
    ctx.prec = 800
    compare_at_points(record, Network(record, tensors), domain, allowed, verdict)
    ctx.prec = BITS
    boxes = 0
    for i, (head, described) in enumerate(zip(net.heads, net.described, strict=True)):
        on, tree = [arb(described["low"]), arb(described["high"])], parse(described["function"], ["u"])
        claim, relative = arb(described["approximation"]), is_relative(described)
        if relative and on[0] <= 0 <= on[1]:
            boxes += check_odd(described["function"], head, on, claim, f"head {i}")
        else:
            boxes += check_head(tree, "u", head, on, claim, rounding, f"head {i}", relative)
    verdict.checked.append(f"the claim of each of {len(net.heads)} heads on its own domain, proved on {boxes} boxes")
    room = 1 + arb(PROMPT_ROOM) if net.tokens else arb(1)  # the sides of tokens cannot be cut
    cells = compose(net, domain, [bound * room for bound in allowed])
    verdict.checked.append(f"the composed error of each output, proved on {cells} cells")
    if net.tokens:
        verdict.left_out.append(f"the last {PROMPT_ROOM} of the composed error: slopes are enclosed that much too wide")


def compare_at_points(
    record: dict[str, Any], net: Network, domain: list[list[arb]], allowed: list[arb], verdict: Verdict
) -> None:
    """Formulas against circuit, and circuit against stored numbers, at random points of the box."""
    trees = [parse(text, record["variables"]) for text in record.get("expressions", [])]
    draw, points = random.Random(0), 30 if len(net.steps) < 300 else 2
    for turn in range(points):
        inputs: list[Any] = [draw_from(pair, draw) for pair in domain]
        own = range(net.tokens)
        tokens = [[draw_from(domain[k], draw) for k in own] for _ in range(1 + turn % 6)]
        if net.tokens:
            inputs = [[token[k] for token in tokens] for k in own] + inputs[net.tokens :]
        kind = Prompt if net.tokens else Point
        meant, found = net.walk(kind(inputs, stored=False)), net.walk(kind(inputs, stored=True))
        for i, (exact, got) in enumerate(zip(meant, found, strict=True)):
            if abs(exact - got) > allowed[i]:
                raise Refused(f"output {i} errs by {float(abs(exact - got).mid()):.3g} at {inputs}")
        names = dict(zip(record.get("variables", []), inputs, strict=bool(trees)))
        each = [dict(zip(list(names)[: net.tokens], token, strict=True)) for token in tokens] if trees else []
        for tree, exact in zip(trees, meant, strict=bool(trees)):
            query = {name: value for name, value in names.items() if not isinstance(value, list)}
            gap = abs(evaluate(pooled(tree, each, query) if net.tokens else tree, query, Branches()) - exact)
            if not gap <= abs(exact).upper() * arb(10) ** -200 + arb(10) ** -210:
                raise Refused(f"the circuit is not the formulas, at {inputs}")
    how = "the circuit is the formulas (a test at random points to 200 digits, not a proof)"
    verdict.checked.append(
        how if trees else "the target is the circuit in the file; what it was traced from is not in it"
    )


def draw_from(pair: list[arb], draw: random.Random) -> arb:
    low, high = pair
    return (low + (high - low) * arb(draw.random())).mid()


def compose(net: Network, domain: list[list[arb]], allowed: list[arb]) -> int:
    """Shows the outputs' bounds on the box or on cells of it; the number of cells."""
    waiting, count, extents = [[Range(low, high) for low, high in domain]], 0, Extents(256 if net.tokens else 8)
    while waiting:
        cell = waiting.pop()
        count += 1
        try:
            errors = [error for _, error in net.walk(Cell(cell, extents))]
            trouble = next((i for i, (e, a) in enumerate(zip(errors, allowed, strict=True)) if not e <= a), None)
            if trouble is None:
                continue
            reason = (
                f"output {trouble}: {float(errors[trouble]):.4g} was found, {float(allowed[trouble]):.4g} is claimed"
            )
        except TooCoarse as outside:
            reason = str(outside)
        if count > CELLS:
            raise Refused(f"the bounds could not be confirmed; {reason}")
        widths = [
            float(r.high - r.low) / float(high - low) if low < high else 0
            for r, (low, high) in zip(cell, domain, strict=True)
        ]
        widths[: net.tokens] = [0.0] * net.tokens
        axis = widths.index(max(widths))
        if not widths[axis] > 0:
            raise Refused(f"the bounds could not be confirmed; {reason}")
        middle = ((cell[axis].low + cell[axis].high) / 2).mid()
        for part in (Range(cell[axis].low, middle), Range(middle, cell[axis].high)):
            waiting.append([part if j == axis else r for j, r in enumerate(cell)])
    return count


# Grids.


def check_grid(record: dict[str, Any], tensors: Tensors, verdict: Verdict) -> None:
    domain, claim, _ = claims(record)
    trees = [parse(text, record["variables"]) for text in formulas(record)]
    axes = [
        [[arb(x) for x in tensors[f"axes.{i}.{name}"]] for name in ("slopes", "intercepts")] for i in range(len(domain))
    ]
    values, outputs = [arb(x) for x in tensors["values"]], record["outputs"]
    keys = [len(slopes) for slopes, _ in axes]
    bounds = record["certificate"]["outputs"]
    if len(values) != math.prod(keys) * outputs or not len(trees) == outputs == len(bounds):
        raise Refused("the tensors of the grid do not fit each other")
    boxes = 0
    for i, (tree, bound) in enumerate(zip(trees, bounds, strict=True)):
        target = (record["variables"], tree, axes, values[i::outputs])
        boxes += grid_keeps(target, domain, min(claim, arb(bound)), f"output {i}")
    verdict.checked.append(f"|formulas - grid| <= {float(claim):.3g} on the box, proved on {boxes} boxes")


def grid_jet(axes: list[Any], values: list[arb], at: list[arb], order: int) -> Jet:
    """The grid's Taylor polynomial: the weights of each axis as series, summed over the keys axis by axis."""
    table, _ = Jet.table(len(axes), order)
    sums: dict[tuple[int, ...], list[arb]] = {(): values}
    for (slopes, intercepts), x in zip(axes, at, strict=True):
        lead = max(range(len(slopes)), key=lambda k: (slopes[k] * x + intercepts[k]).mid())
        s = arb_series([x, 1], order + 1)
        raw = [((a - slopes[lead]) * s + (b - intercepts[lead])).exp() for a, b in zip(slopes, intercepts, strict=True)]
        total = 1 / sum(raw[1:], raw[0])
        weights = [w * total for w in raw]
        after: dict[tuple[int, ...], list[arb]] = {}
        for exponents, array in sums.items():
            stride = len(array) // len(weights)
            for degree in range(order + 1 - sum(exponents)):
                factors = [w[degree] for w in weights]
                after[*exponents, degree] = [
                    sum((f * array[k * stride + j] for k, f in enumerate(factors)), arb(0)) for j in range(stride)
                ]
        sums = after
    return Jet(len(axes), order, [sums[exponents][0] for exponents in table])


def grid_keeps(target: Any, domain: list[list[arb]], claim: arb, what: str) -> int:
    names, tree, axes, values = target
    n, waiting, count = len(names), [domain], 0
    exponents, _ = Jet.table(n, GRID_ORDER)

    def error(at: list[arb], order: int, choose: Branches) -> Jet:
        variables = {name: Jet.variable(n, order, i, x) for i, (name, x) in enumerate(zip(names, at, strict=True))}
        return evaluate(tree, variables, choose) - grid_jet(axes, values, at, order)

    while waiting:
        box = waiting.pop()
        count += 1
        middle = [((low + high) / 2).mid() for low, high in box]
        radii = [max((high - c).upper(), (c - low).upper()) for (low, high), c in zip(box, middle, strict=True)]
        whole = [interval(low, high) for low, high in box]
        share = [arb(0)] * n
        try:
            bound = arb(0)
            for over, taken in branches(partial(error, whole, GRID_ORDER)):
                at, total = error(middle, GRID_ORDER - 1, Branches(taken)).terms, arb(0)
                for place, powers in enumerate(exponents):
                    term = abs(at[place] if place < len(at) else over.terms[place]).upper()
                    term *= math.prod((r**p for r, p in zip(radii, powers, strict=True)), start=arb(1))
                    total += term
                    share = [s + term * p for s, p in zip(share, powers, strict=True)]
                bound = bound.max(total.upper()) if total.is_finite() else INFINITE
        except (ValueError, ZeroDivisionError):
            bound = INFINITE
        if bound <= claim:
            continue
        found = abs(error(middle, 0, Branches()).terms[0])
        if found > claim:
            raise Refused(f"{what} errs by {float(found.mid()):.3g} at {[float(c) for c in middle]}")
        if count > BOXES:
            raise Refused(f"{what} could not be shown to keep {float(claim):.3g}")
        worth = share if bound.is_finite() else radii
        axis = max(range(n), key=lambda i: worth[i].mid())
        for part in ([box[axis][0], middle[axis]], [middle[axis], box[axis][1]]):
            waiting.append([part if j == axis else pair for j, pair in enumerate(box)])
    return count


# Heads under other row maps than softmax. A map's head is, piece by piece, a function that series can follow.

Piece = tuple[Fraction, Fraction, Callable[[Any, Branches], Any]]
POINTS = 400


def check_row_map(record: dict[str, Any], tensors: Tensors, verdict: Verdict) -> None:
    ((low, high),), claim, _ = claims(record)
    (text,), (name,), described = formulas(record), record["variables"], dict(record["row_map"])
    head, tree, kind = Head.read(tensors, "", record), parse(text, [name]), described.pop("name")
    count_boxes(record, [head])
    if not (low.is_finite() and high.is_finite()) or [head.edges[0], head.edges[-1]] != [low, high]:
        raise Refused("the boxes of the head do not cover its domain, or that is not bounded")
    if any(not a < b for a, b in itertools.pairwise(head.edges)):
        raise Refused("the edges of the head do not increase")
    if kind == "fixed_point":
        quantised_at_points(tree, name, head, described, claim)
        verdict.left_out.append("the bound of a softmax in few bits is compared at points: a test, not a proof")
        verdict.checked.append(f"|{text} - head| <= {float(claim):.3g} at {POINTS} points")
        return
    if kind not in MAP_PIECES:
        raise Refused(f"nothing can be proved of heads under {kind}")
    boxes = 0
    for start, end, value in MAP_PIECES[kind](head, exactly(low), exactly(high), **described):
        error = lambda x, choose, value=value: evaluate(tree, {name: x}, choose) - value(x, choose)
        boxes += keeps(error, number(start), number(end), claim, f"the head under {kind}")
    verdict.checked.append(f"|{text} - head| <= {float(claim):.3g} on the domain, proved on {boxes} boxes")


def exactly(x: arb) -> Fraction:
    """A stored number, which is a ball without radius."""
    mantissa, exponent = x.mid().man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def lines(head: Head) -> list[tuple[Fraction, Fraction]]:
    """Slope and level of every score."""
    return [(exactly(s), exactly(c)) for s, c in zip(head.slopes, head.levels, strict=True)]


def weighed(head: Head, weight: Callable[[Any], Any], scale: arb | None, shift: tuple[arb, arb] | None = None) -> Any:
    """The sum of weight(score) times value, times a scale or over the sum of weights; scores less a line."""
    a, b = shift or (arb(0), arb(0))

    def value(x: Any, _: Branches) -> Any:
        over, under = arb(0) * x, arb(0) * x
        for slope, level, constant, gain in zip(head.slopes, head.levels, head.constants, head.gains, strict=True):
            w = weight((slope - a) * x + (level - b))
            over, under = over + w * (gain * x + constant), under + w
        return over * scale if scale is not None else over / under

    return value


def exponential(head: Head, low: Fraction, high: Fraction) -> list[Piece]:
    return [(low, high, lambda x, _: head(x))]


def logistic(head: Head, low: Fraction, high: Fraction) -> list[Piece]:
    return [(low, high, weighed(head, lambda s: primitive("sigmoid", s), arb(1)))]


def powers(head: Head, low: Fraction, high: Fraction, degree: int) -> list[Piece]:
    if type(degree) is not int or not 1 <= degree <= 64:
        raise Refused("the degree of the row map is none")
    scale = 1 / arb(len(head.slopes)).sqrt()
    return [(low, high, weighed(head, lambda s: math.prod([s] * (degree - 1), start=s), scale))]


def taylor(head: Head, low: Fraction, high: Fraction, degree: int) -> list[Piece]:
    if type(degree) is not int or degree % 2 or not 2 <= degree <= 64:
        raise Refused("the degree of the row map is none")

    def weight(s: Any) -> Any:
        term = total = arb(0) * s + 1
        for j in range(1, degree + 1):
            term = term * s / j
            total = total + term
        return total

    keys = len(head.slopes)
    means = tuple(sum(part, arb(0)) / keys for part in (head.slopes, head.levels))
    return [(low, high, weighed(head, weight, None, means))]


def affine_weights(head: Head, weights: list[tuple[Fraction, Fraction]]) -> Callable[[Any, Branches], Any]:
    """The sum of affine weights times affine values."""
    pairs = [(number(a), number(b)) for a, b in weights]
    return lambda x, _: sum(((a * x + b) * (gain * x + constant) for (a, b), constant, gain
                             in zip(pairs, head.constants, head.gains, strict=True)), arb(0) * x)  # fmt: skip


def ramps(head: Head, low: Fraction, high: Fraction) -> list[Piece]:
    """max(score, 0)/n: cut where a score is zero."""
    scores, keys = lines(head), len(head.slopes)
    cuts = sorted({low, high, *(-c / s for s, c in scores if s and low < -c / s < high)})
    pieces = []
    for a, b in itertools.pairwise(cuts):
        middle = (a + b) / 2
        on = [(s / keys, c / keys) if s * middle + c > 0 else (Fraction(0), Fraction(0)) for s, c in scores]
        pieces.append((a, b, affine_weights(head, on)))
    return pieces


def simplex(head: Head, low: Fraction, high: Fraction) -> list[Piece]:
    """The nearest point of the simplex: score - tau over a support, which is right where no sign of that changes."""
    scores, waiting, pieces = lines(head), [(low, high)], []
    while waiting:
        a, b = waiting.pop()
        if len(pieces) > 4 * BOXES:
            raise Refused("the head under sparsemax has too many pieces")
        middle = (a + b) / 2
        ranked, total, support = sorted(((s * middle + c, k) for k, (s, c) in enumerate(scores)), reverse=True), 0, []
        for count, (score, k) in enumerate(ranked, 1):
            total += score
            if 1 + count * score > total:
                support.append(k)
        slope = sum(scores[k][0] for k in support) / len(support)
        level = (sum(scores[k][1] for k in support) - 1) / len(support)
        start, end = a, b
        for k, (s, c) in enumerate(scores):
            sign = 1 if k in support else -1  # sign·((s - slope) x + c - level) >= 0 must hold
            rate, rest = sign * (s - slope), sign * (c - level)
            start, end = (
                (max(start, -rest / rate), end) if rate > 0 else (start, min(end, -rest / rate) if rate else end)
            )
        zero = (Fraction(0), Fraction(0))
        on = [(s - slope, c - level) if k in support else zero for k, (s, c) in enumerate(scores)]
        pieces.append((start, end, affine_weights(head, on)))
        waiting += [pair for pair in ((a, start), (end, b)) if pair[0] < pair[1]]
    return pieces


MAP_PIECES: dict[str, Callable[..., list[Piece]]] = {
    "softmax": exponential,
    "sigmoid": logistic,
    "polynomial": powers,
    "linear_attention": taylor,
    "relu": ramps,
    "sparsemax": simplex,
}


def quantised_at_points(tree: Tree, name: str, head: Head, described: dict[str, Any], claim: arb) -> None:
    """A softmax whose arguments have f bits behind the point and whose exponentials have w bits, at points of the
    domain: refused where the error is certainly above the claim. Ties are passed over."""
    f, w, r = described["argument_bits"], described["exp_bits"], described.get("reciprocal_bits")
    low, high, draw = exactly(head.edges[0]), exactly(head.edges[-1]), random.Random(0)
    scores, step, top = lines(head), Fraction(2) ** -f, 2**w - 1
    for _ in range(POINTS):
        x = low + (high - low) * Fraction(draw.random())
        at = [s * x + c for s, c in scores]
        parts = [(s - max(at)) / step for s in at]
        rounded = [math.floor(part + Fraction(1, 2)) for part in parts]
        raised = [(number(n * step).exp() * top + arb(0.5)).floor() for n in rounded]
        tie = any(abs(part - n) == Fraction(1, 2) for part, n in zip(parts, rounded, strict=True))
        if tie or any(not e.is_exact() for e in raised):
            continue
        exps = [e / top for e in raised]
        values = [g * number(x) + c for c, g in zip(head.constants, head.gains, strict=True)]
        over, under = sum((e * v for e, v in zip(exps, values, strict=True)), arb(0)), sum(exps, arb(0))
        if r is None:
            slack = arb(0)
        else:  # any table whose entries are right to half a step
            slack = abs(over / under) * arb(2) ** -(r - 1)
        found = abs(evaluate(tree, {name: number(x)}, Branches()) - over / under) - slack
        if found > claim:
            raise Refused(f"the head under fixed_point errs by {float(found.mid()):.3g} at {float(x):.6g}")


# Distances.


def curve_pieces(part: dict[str, Any], tensors: Tensors, prefix: str) -> tuple[Any, list[Any], Callable[..., Any]]:
    """A stored function: its breaks (None where it has none), its pieces, and a function of a far side."""
    kind = part["kind"]
    if kind == "formula":
        tree, name = parse(part["formula"], [part["variable"]]), part["variable"]
        value = lambda x, choose: evaluate(tree, {name: x}, choose)
        return None, [value], lambda start, side: value(Tail(start, [arb(0), arb(side)]), Branches())
    if kind == "head":
        tensors[prefix + "edges"] = []  # a head of a distance has none
        head = Head.read(tensors, prefix, part)
        return None, [lambda x, _: head(x)], head.tail
    if kind == "table":
        values = [Fraction(v) for v in tensors[prefix + "values"]]
        low, high = Fraction(part["low"]), Fraction(part["high"])
        step = (high - low) / (len(values) - 1)
        places = [low + i * step for i in range(len(values))]
        if part["interpolation"] == "nearest":
            cuts = [low, *((a + b) / 2 for a, b in itertools.pairwise(places)), high]
            return cuts, [polynomial([v]) for v in values], no_tail
        rows = [[v - (b - v) / step * x, (b - v) / step] for (v, b), x
                in zip(itertools.pairwise(values), places, strict=False)]  # fmt: skip
        return places, [polynomial(row) for row in rows], no_tail
    if kind != "piecewise":
        raise Refused(f"a function of the kind {kind} is not known")
    sides = [math.inf if side == "inf" else -math.inf for side in part["infinite"] if side]
    finite = [Fraction(b) for b in tensors[prefix + "breaks"]]
    breaks: list[Any] = sorted([*finite, *sides])
    numbers = iter([Fraction(c) for c in tensors[prefix + "coefficients"]])
    rows = [[next(numbers) for _ in range(length)] for length in part["lengths"]]
    if next(numbers, None) is not None or len(rows) != len(breaks) - 1:
        raise Refused("the pieces of a function do not fit its breaks")
    from_where = [b if part["local"] and b != -math.inf else Fraction(0) for b in breaks[:-1]]
    found = [polynomial(row, at) for row, at in zip(rows, from_where, strict=True)]
    end = lambda start, side: found[-1 if side > 0 else 0](Tail(start, [arb(0), arb(side)]), Branches())
    return breaks, found, end


def no_tail(start: arb, side: int) -> Any:
    raise Refused("a table has no far side")


def polynomial(row: list[Fraction], at: Fraction = Fraction(0)) -> Callable[[Any, Branches], Any]:
    def value(x: Any, _: Branches) -> Any:
        total = arb(0) * x
        for coefficient in reversed(row):
            total = total * (x - number(at)) + number(coefficient)
        return total

    return value


def addends(tree: Tree, share: Fraction, into: dict[Tree, Fraction]) -> None:
    """Adds the parts of which a formula is a sum, with their exact factors."""
    value = rational(tree)
    factors = [rational(part) for part in tree[1:]] if tree[0] in ("*", "/") else []
    if value is not None:
        into["number", Fraction(1)] = into.get(("number", Fraction(1)), Fraction(0)) + share * value
    elif tree[0] in ("+", "-"):
        addends(tree[1], share, into)
        addends(tree[2], share if tree[0] == "+" else -share, into)
    elif tree[0] == "*" and factors[0] is not None:
        addends(tree[2], share * factors[0], into)
    elif factors and factors[1]:
        addends(tree[1], share * factors[1] if tree[0] == "*" else share / factors[1], into)
    else:
        into[tree] = into.get(tree, Fraction(0)) + share


def uncancelled(curves: list[dict[str, Any]]) -> tuple[list[Any], list[Any]] | None:
    """Two formulas as what their difference leaves when shared addends have cancelled, and zero."""
    if any(part["kind"] != "formula" for part in curves) or curves[0]["variable"] != curves[1]["variable"]:
        return None
    name, left = curves[0]["variable"], dict[Tree, Fraction]()
    for part, share in zip(curves, (1, -1), strict=True):
        addends(parse(part["formula"], [name]), Fraction(share), left)
    kept = [(tree, number(share)) for tree, share in left.items() if share]

    def value(x: Any, choose: Branches) -> Any:
        return sum((evaluate(tree, {name: x}, choose) * share for tree, share in kept), arb(0) * x)

    return ([value], [lambda x, _: arb(0) * x]) if len(kept) < len(left) else None


def check_distance(record: dict[str, Any], tensors: Tensors, verdict: Verdict) -> None:
    claim, curves = record["claim"], record["curves"]
    lower, upper = arb(claim["lower"]), arb(claim["upper"])
    if not (0 <= lower <= upper) or type(claim["relative"]) is not bool:
        raise Refused("the distance that is claimed is no interval, or neither relative nor not")
    if record["apart"] != 0:
        raise NotChecked("a distance that rests on a certificate which the file does not hold")
    if curves[0]["kind"] == "formulas":
        raise NotChecked("a distance of functions of several variables")
    ((low, high),), relative = [[float(end) for end in pair] for pair in claim["domain"]], claim["relative"]
    (breaks_f, f, far_f), (breaks_g, g, far_g) = (
        curve_pieces(part, tensors, f"curves.{i}.") for i, part in enumerate(curves)
    )
    if not relative:
        f, g = uncancelled(curves) or (f, g)
    edges = [Fraction(e) for e in tensors["edges"]]
    for end, edge in ((low, edges[0]), (high, edges[-1])):
        if math.isfinite(end) and Fraction(end) != edge:
            raise Refused("the boxes do not cover the domain")
    cuts = sorted({edges[0], edges[-1], *(b for breaks in (breaks_f, breaks_g) for b in breaks or ()
                                          if edges[0] < b < edges[-1])})  # fmt: skip
    boxes, at, seen = 0, float(claim["at"]), arb(0)
    for a, b in itertools.pairwise(cuts):
        here = [pieces[place(breaks, (a + b) / 2)] for breaks, pieces in ((breaks_f, f), (breaks_g, g))]
        error = partial(apart, *here, relative)
        boxes += keeps(error, number(a), number(b), upper, "the difference")
        if math.isfinite(at) and a <= Fraction(at) <= b:
            seen = seen.max(abs(error(number(Fraction(at)), Branches())))
    for side, end in ((-1, low), (1, high)):
        if not math.isfinite(end):
            start = abs(number(edges[0 if side < 0 else -1]))
            rest = Tail(start, [arb(0)]) + far_f(start, side) - far_g(start, side)
            if relative or len(rest.terms) > 1 or not abs(rest.terms[0]) + rest.size <= upper:
                raise NotChecked("the difference could not be bounded on an unbounded side")
            seen = seen.max(abs(rest.terms[0])) if at == side * math.inf else seen
    if not seen >= lower:
        raise Refused(f"at {at:.6g} the difference is {float(seen.mid()):.6g}, and {float(lower):.6g} is claimed")
    verdict.checked.append(f"the distance is in [{float(lower):.6g}, {float(upper):.6g}], proved on {boxes} boxes")


def place(breaks: list[Any] | None, x: Fraction) -> int:
    """Which piece x is in."""
    if breaks is None:
        return 0
    found = next((i for i, (a, b) in enumerate(itertools.pairwise(breaks)) if a <= x <= b), None)
    if found is None:
        raise Refused("the domain goes beyond that of a function")
    return found


def apart(f: Any, g: Any, relative: bool, x: Any, choose: Branches) -> Any:
    difference = f(x, choose) - g(x, choose)
    return difference / g(x, choose) if relative else difference


# Files.


class Tensors(dict[str, list[Any]]):
    """The tensors of a file, which remember whether they were looked at."""

    def __init__(self) -> None:
        self.unread: set[str] = set()

    def __setitem__(self, name: str, numbers: list[Any]) -> None:
        self.unread.add(name)
        super().__setitem__(name, numbers)

    def __getitem__(self, name: str) -> list[Any]:
        self.unread.discard(name)
        return super().__getitem__(name)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise Refused("a name occurs twice in the JSON")
    return dict(pairs)


def constant(text: str) -> float:
    raise Refused(f"{text} is not a number that a file may hold")


def read(path: str | Path) -> tuple[dict[str, Any], Tensors]:
    """The record and the tensors of a file whose form and digest are right."""
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or 8 + length > len(data):
        raise Refused("the file is shorter than its header says")
    header = json.loads(data[8 : 8 + length].decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    metadata = header.pop("__metadata__")
    if set(metadata) != {"anchorhead"}:
        raise Refused("the metadata hold something beside the record")
    record = json.loads(metadata["anchorhead"].encode().decode(), object_pairs_hook=unique, parse_constant=constant)
    body, tensors, place = data[8 + length :], Tensors(), 0
    digest = hashlib.sha256(json.dumps({k: v for k, v in record.items() if k != "digest"}, sort_keys=True).encode())
    types = {"float64": "F64", "float32": "F32"}
    apart = [types[curve.get("dtype", "float64")] for curve in record.get("curves", ())]
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        (begin, end), kind, (count,) = entry["data_offsets"], entry["dtype"], entry["shape"]
        size, letter = {"F64": (8, "d"), "F32": (4, "f"), "I32": (4, "i")}[kind]
        whole = name.rsplit(".")[-1] in ("columns", "starts", "kept")
        own = types[record["dtype"]] if not apart else apart[int(name.split(".")[1])] if "." in name else ""
        wanted = "F64" if name.endswith("edges") else "I32" if whole or name == "cuts" else own
        if begin != place or end - begin != size * count or end > len(body) or kind != wanted:
            raise Refused(f"the tensor {name} has not its place, size or type")
        numbers, place = list(struct.unpack(f"<{count}{letter}", body[begin:end])), end
        tensors[name] = numbers
        if not all(map(math.isfinite, numbers)):
            raise Refused(f"{name} has a number that is not finite")
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        digest.update(name.encode() + b"\0" + body[begin:end])
    if (
        place != len(body)
        or type(record["format"]) is not int
        or record["format"] != 3
        or digest.hexdigest() != record["digest"]
    ):
        raise Refused("the file has bytes too many, another format, or another digest than it says")
    return record, tensors


def check(path: str | Path) -> Verdict:
    """What this checker can say of a file; never an error because of what a file holds."""
    verdict, precision = Verdict(), (ctx.prec, ctx.cap)
    ctx.prec, ctx.cap = BITS, ORDER + 2
    try:
        record, tensors = read(path)
        level = record["claim" if record["kind"] == "distance" else "certificate"]["level"]
        if level not in ("proved", "unproved") or record["kind"] not in CHECKS:
            raise NotChecked(f"a {record['kind']} whose claim is {level}: there is no proof to check")
        if record["kind"] not in ("head", "distance") and is_relative(record["certificate"]):
            raise Refused("only the claim of a head may be relative")
        CHECKS[record["kind"]](record, tensors, verdict)
        if tensors.unread:
            raise Refused(f"the file has tensors that no model reads: {', '.join(sorted(tensors.unread))}")
        verdict.left_out.append(
            "rounding: what evaluation in the dtype adds, to results and to queries, is not checked"
        )
    except Refused as reason:
        verdict.status, verdict.reason = "refused", str(reason)
    except NotChecked as reason:
        verdict.status, verdict.reason = "not checked", str(reason)
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        ArithmeticError,
        RecursionError,
        AttributeError,
        struct.error,
    ) as reason:
        verdict.status, verdict.reason = "refused", f"the file is malformed: {type(reason).__name__}: {reason}"
    finally:
        ctx.prec, ctx.cap = precision
    return verdict


def claims(record: dict[str, Any]) -> tuple[list[list[arb]], arb, arb]:
    """The domain, the claimed approximation and the claimed rounding."""
    ends = {"-inf": -INFINITE, "inf": INFINITE}
    domain = [[ends[x] if isinstance(x, str) else arb(x) for x in pair] for pair in record["domain"]]
    certificate = record["certificate"]
    bounds = [arb(certificate["approximation"]), arb(certificate["rounding"])]
    if any(len(pair) != 2 or not pair[0] <= pair[1] for pair in domain) or any(not bound >= 0 for bound in bounds):
        raise Refused("a domain is empty or a bound negative")
    return domain, bounds[0], bounds[1]


def is_relative(claim: dict[str, Any]) -> bool:
    """Whether a claim is one of multiples of the target."""
    if type(claim.get("relative", False)) is not bool:
        raise Refused("a claim is neither relative nor not")
    return claim.get("relative", False)


def formulas(record: dict[str, Any]) -> list[str]:
    if not record.get("expressions"):
        raise NotChecked("there are no formulas in the file")
    return record["expressions"]


def count_boxes(record: dict[str, Any], heads: list[Head]) -> None:
    if record["certificate"]["boxes"] != sum(len(head.edges) - 1 for head in heads):
        raise Refused("the certificate does not count the boxes that are stored")


def check_single(record: dict[str, Any], tensors: Tensors, verdict: Verdict) -> None:
    (domain,), claim, rounding = claims(record)
    (text,), (name,) = formulas(record), record["variables"]
    head = Head.read(tensors, "", record)
    count_boxes(record, [head])
    relative = is_relative(record["certificate"])
    odd = {name: "u", f"{name}**2": "u**2"}
    if relative and domain[0] <= 0 <= domain[1] and text in odd:
        boxes = check_odd(odd[text], head, domain, claim, "the head")
    else:
        boxes = check_head(parse(text, [name]), name, head, domain, claim, rounding, "the head", relative)
    said = f"|head/({text}) - 1|" if relative else f"|{text} - head|"
    verdict.checked.append(f"{said} <= {float(claim):.3g} on the domain, proved on {boxes} boxes")


CHECKS: dict[str, Callable[[dict[str, Any], Tensors, Verdict], None]] = {
    "head": check_single,
    "network": check_network,
    "grid": check_grid,
    "row_map": check_row_map,
    "distance": check_distance,
}

if __name__ == "__main__":
    verdicts = [(path, check(path)) for path in sys.argv[1:]]
    for path, verdict in verdicts:
        print(f"{path}: {verdict.status}{': ' if verdict.reason else ''}{verdict.reason}")
        for line in verdict.checked:
            print(f"  checked: {line}")
        for line in verdict.left_out:
            print(f"  left out: {line}")
    sys.exit(not all(verdict.ok for _, verdict in verdicts))
