"""What a target means, by an own small parser and mpmath: nothing here comes from anchorhead.

A text is read by Python's `ast` over the documented grammar, its literals as the exact decimals that they are, and
evaluated with as many digits as it takes for twice as many to agree. Functions are written from torch's documentation.
A torch module is walked layer by layer with its stored weights, exactly. Both also evaluate fast, in long double or in
float64, which serves to find candidates and never to judge them.
"""

from __future__ import annotations

import ast
import copy
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import torch
from scipy import special
from torch import nn

mp = mpmath.mp
DIGITS = 50
ALIASES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh",
           "arctanh": "atanh", "ln": "log", "absolute": "abs", "minimum": "min", "maximum": "max", "clamp": "clip",
           "power": "pow", "swish": "silu", "expit": "sigmoid"}  # fmt: skip


class Undefined(Exception):
    """The target has no real value there."""


def _real(value: Any) -> Any:
    if isinstance(value, mpmath.mpc) or not mpmath.isfinite(value):
        raise Undefined(f"{value} is not a real number")
    return value


def _power(x: Any, y: Any) -> Any:
    return _real(mp.mpf(1) if y == 0 else mpmath.power(x, y))


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: _real(function(*args))


def _erfc(x: Any) -> Any:
    return mpmath.erfc(x) if abs(x) < 10**6 else mp.mpf(0 if x > 0 else 2)  # what is left is below exp(-10**12)


def _erf(x: Any) -> Any:
    return mpmath.erf(x) if abs(x) < 1 else 1 - _erfc(x)


def _exp(x: Any) -> Any:
    return mpmath.exp(x) if x > -(10**7) else mp.mpf(0)


PLAIN = "exp expm1 log log1p sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc".split()
EXACT = SimpleNamespace(
    **{name: _kept(getattr(mpmath, name)) for name in PLAIN[1:-2]}, exp=_exp, erf=_erf, erfc=_erfc, abs=abs, max=max,
    min=min, power=_power, number=lambda f: mp.mpf(f.numerator) / f.denominator, pi=lambda: +mp.pi, e=lambda: +mp.e,
)  # fmt: skip
FAST = SimpleNamespace(
    **{name: getattr(np, name.replace("a", "arc", 1) if name[0] == "a" else name) for name in PLAIN[:-2]},
    erf=lambda x: special.erf(np.float64(x)), erfc=lambda x: special.erfc(np.float64(x)), abs=np.abs, power=np.power,
    max=lambda *a: functools.reduce(np.maximum, a), min=lambda *a: functools.reduce(np.minimum, a),
    number=lambda f: np.longdouble(mpmath.nstr(EXACT.number(f), 30)), pi=lambda: np.longdouble(math.pi),
    e=lambda: np.longdouble(math.e),
)  # fmt: skip


def functions(b: Any) -> dict[str, Callable[..., Any]]:
    """Every function of the grammar over the base `b`, each as torch documents it."""
    n = lambda text: b.number(Fraction(text))
    one, hundredth, eighth, third, half = (n(text) for text in ("1", "0.01", "1/8", "1/3", "1/2"))
    up, down = lambda x: b.max(x, n(0)), lambda x: b.min(x, n(0))
    clip = lambda x, low, high: b.min(b.max(x, low), high)
    sigmoid = lambda x: 1 / (1 + b.exp(-b.abs(x))) * b.exp(down(x))
    softplus = lambda x, beta=1: b.log1p(b.exp(-b.abs(beta * x))) / beta + up(x)
    six = lambda x: clip(x, n(0), n(6))
    leaky = lambda x, slope: up(x) + slope * down(x)

    def gelu(x: Any, approximate: str = "none") -> Any:
        if approximate == "tanh":
            return x / 2 * (1 + b.tanh(b.sqrt(2 / b.pi()) * (x + n("0.044715") * x * x * x)))
        return x * b.erfc(-x / b.sqrt(n(2))) / 2

    def clamp(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
        low, high = named.get("min", low), named.get("max", high)
        x = x if low is None else b.max(x, low)
        return x if high is None else b.min(x, high)

    found = {name: getattr(b, name) for name in (*PLAIN, "abs", "min", "max")} | {
        "exp2": lambda x: b.power(n(2), x), "log2": lambda x: b.log(x) / b.log(n(2)),
        "log10": lambda x: b.log(x) / b.log(n(10)), "rsqrt": lambda x: 1 / b.sqrt(x), "square": lambda x: x * x,
        "reciprocal": lambda x: 1 / x, "pow": b.power, "clip": clamp, "relu": up, "relu6": six,
        "selu": lambda x: n("1.0507009873554804934193349852946")
        * (up(x) + n("1.6732632423543772848170429916717") * b.expm1(down(x))),
        "gelu": gelu, "gelu_tanh": lambda x: gelu(x, "tanh"), "silu": lambda x: x * sigmoid(x),
        "mish": lambda x: x * b.tanh(softplus(x)), "softsign": lambda x: x / (1 + b.abs(x)),
        "logsigmoid": lambda x: -softplus(-x), "sigmoid": sigmoid, "hardsigmoid": lambda x: six(x + 3) / 6,
        "hardswish": lambda x: x * six(x + 3) / 6, "tanhshrink": lambda x: x - b.tanh(x),
        "leaky_relu": lambda x, negative_slope=hundredth: leaky(x, negative_slope),
        "prelu": lambda x, weight: leaky(x, weight),
        "rrelu": lambda x, lower=eighth, upper=third: leaky(x, (lower + upper) / 2),
        "elu": lambda x, alpha=1: up(x) + alpha * b.expm1(down(x)),
        "celu": lambda x, alpha=1: up(x) + alpha * b.expm1(down(x) / alpha), "softplus": softplus,
        "softshrink": lambda x, lambd=half: up(x - lambd) + down(x + lambd),
        "hardtanh": lambda x, min_val=-one, max_val=one: clip(x, min_val, max_val),
        "power_": b.power, "pi": b.pi(), "e": b.e(),
    }  # fmt: skip
    return found | {alias: found[name] for alias, name in ALIASES.items()}


class _Reader(ast.NodeTransformer):
    """Checks a tree against the grammar; literals become names of exact numbers, ** a call."""

    def __init__(self, text: str, literals: list[Fraction]) -> None:
        self.text, self.literals = text, literals

    def generic_visit(self, node: ast.AST) -> ast.AST:
        allowed = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub,
                   ast.UAdd, ast.keyword, ast.List)  # fmt: skip
        if not isinstance(node, allowed):
            raise ValueError(f"{type(node).__name__} is not in the grammar")
        return super().generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.Pow):
            call = ast.Call(ast.Name("power_", ast.Load()), [self.visit(node.left), self.visit(node.right)], [])
            return ast.copy_location(call, node)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value in ("none", "tanh"):
            return node
        if type(node.value) not in (int, float):
            raise ValueError(f"{node.value!r} is not a number")
        self.literals.append(Fraction((ast.get_source_segment(self.text, node) or "").replace("_", "")))
        return ast.copy_location(ast.Name(f"literal_{len(self.literals) - 1}", ast.Load()), node)


class Formula:
    """Formulas of named variables: exact values at floats, and fast ones at many."""

    def __init__(self, text: str | Sequence[str], variables: Sequence[str] | None = None) -> None:
        whole = text.strip() if isinstance(text, str) else "[" + ", ".join(text) + "]"
        self.literals: list[Fraction] = []
        tree = _Reader(whole, self.literals).visit(ast.parse(whole, mode="eval").body)
        outputs = tree.elts if isinstance(tree, ast.List) else [tree]
        self.kinks = [_code(k) for k in _kinks(outputs)]
        self.codes = [_code(out) for out in outputs]
        known = set(functions(FAST))
        used = dict.fromkeys(n for c in self.codes for n in c.co_names if n not in known and "literal_" not in n)
        self.variables = tuple(used) if variables is None else tuple(variables)
        if not set(used) <= set(self.variables):
            raise ValueError(f"{whole} uses {sorted(used)}, and the variables are {self.variables}")
        lengths = [(len(str(abs(f.numerator))), len(str(f.denominator))) for f in self.literals]
        self.digits = DIGITS + min(
            1000, sum(abs(a - b) for a, b in lengths if abs(a - b) > 3) + max(map(max, lengths), default=0)
        )

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def _names(self, digits: int) -> dict[str, Any]:
        found = functions(EXACT) | {f"literal_{i}": EXACT.number(f) for i, f in enumerate(self.literals)}
        return found | {"__builtins__": {}}

    def at(self, values: Iterable[float], more: int = 1) -> list[Any]:
        """The outputs at floats, with `more` times the usual digits; Undefined where there are none."""
        values = list(values)
        reach = max((abs(float(mp.log10(abs(v)))) for v in values if v), default=0.0)
        digits = more * (self.digits + (int(reach) if reach > 12 else 0))
        with mp.workdps(digits):
            named = dict(zip(self.variables, map(mp.mpf, values), strict=True))
            try:
                return [_real(eval(code, self._names(digits), named)) for code in self.codes]
            except (ZeroDivisionError, OverflowError, ValueError, MemoryError) as error:
                raise Undefined(str(error)) from None

    def fast(self, points: np.ndarray, codes: Sequence[Any] | None = None) -> np.ndarray:
        """(n, variables) to (n, outputs) in long double, as accurate as that happens to be."""
        wide = points.astype(np.longdouble)
        names = functions(FAST) | {f"literal_{i}": FAST.number(f) for i, f in enumerate(self.literals)}
        named = {name: wide[:, i] for i, name in enumerate(self.variables)}
        with np.errstate(all="ignore"):
            found = [eval(c, names | {"__builtins__": {}}, named) for c in (self.codes if codes is None else codes)]
            return np.stack([np.broadcast_to(np.asarray(v, np.longdouble), len(wide)) for v in found], -1)


def _code(tree: ast.AST) -> Any:
    return compile(ast.fix_missing_locations(ast.Expression(tree)), "<formula>", "eval")  # type: ignore[arg-type]


def _kinks(trees: Sequence[ast.AST]) -> list[ast.AST]:
    """Expressions that are zero where a kink is: arguments of abs and the like, differences of those of min and max."""
    found: list[ast.AST] = []
    for call in (n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in ("min", "max", "clip", "minimum", "maximum", "clamp") and len(call.args) > 1:
            found += [ast.BinOp(call.args[0], ast.Sub(), other) for other in call.args[1:]]
        elif name in ("abs", "relu", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "power_"):
            found.append(call.args[0])
    return found


class Residual(nn.Module):
    """inner(x) + x."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Pair(nn.Module):
    """Two branches, multiplied or the larger of the two."""

    def __init__(self, how: str, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.how, self.left, self.right = how, left, right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.left(x), self.right(x)
        return a * b if self.how == "times" else torch.maximum(a, b)


class Module:
    """A torch module of the grammar: exact values by walking its layers, fast ones by running it in float64."""

    kinks: tuple[Any, ...] = ()
    literals: tuple[Fraction, ...] = ()

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def at(self, values: Iterable[float], more: int = 1) -> list[Any]:
        """The outputs at floats."""
        with mp.workdps(more * DIGITS):
            return _walk(self.module, [mp.mpf(v) for v in values], functions(EXACT))

    def fast(self, points: np.ndarray) -> np.ndarray:
        """(n, inputs) to (n, outputs)."""
        with torch.no_grad():
            return copy.deepcopy(self.module).double()(torch.from_numpy(points.astype(np.float64))).numpy()


def _walk(module: nn.Module, x: list[Any], known: dict[str, Any]) -> list[Any]:
    if isinstance(module, nn.Sequential):
        return functools.reduce(lambda value, part: _walk(part, value, known), module, x)
    if isinstance(module, nn.Linear):
        bias = [0.0] * module.out_features if module.bias is None else module.bias.tolist()
        rows = zip(module.weight.tolist(), bias, strict=True)
        return [mpmath.fdot(zip(map(mp.mpf, row), x, strict=True)) + mp.mpf(b) for row, b in rows]
    if isinstance(module, nn.LayerNorm):
        mean = sum(x) / len(x)
        scale = mpmath.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + mp.mpf(module.eps))
        terms = zip(x, module.weight.tolist(), module.bias.tolist(), strict=True)
        return [(v - mean) / scale * mp.mpf(w) + mp.mpf(b) for v, w, b in terms]
    if isinstance(module, Residual):
        return [a + b for a, b in zip(x, _walk(module.inner, x, known), strict=True)]
    if isinstance(module, Pair):
        pairs = zip(_walk(module.left, x, known), _walk(module.right, x, known), strict=True)
        return [a * b if module.how == "times" else max(a, b) for a, b in pairs]
    name, parameters = ACTIVATIONS[type(module)]
    given = [getattr(module, p) for p in parameters]
    given = [mp.mpf(v) if isinstance(v, float | int) else v for v in given]
    return [known[name](v, *given) for v in x]


class Program:
    """A traced module's circuit as its file states it: lines of wires, functions of lines, products, maxima."""

    kinks: tuple[Any, ...] = ()
    literals: tuple[Fraction, ...] = ()

    def __init__(self, program: dict[str, Any]) -> None:
        self.program, self.variables = program, tuple(program["inputs"])
        self.functions = [Formula(text, ("u",)) for text in program["functions"]]

    def at(self, values: Iterable[float], more: int = 1) -> list[Any]:
        """The outputs at floats."""
        with mp.workdps(more * DIGITS):
            wires = [mp.mpf(v) for v in values]
            for kind, _, *rest in self.program["steps"]:
                wires += self._step(kind, rest, lambda line, known=tuple(wires): _line(line, known), more)
            return [_line(line, wires) for line in self.program["outputs"]]

    def _step(self, kind: str, rest: list[Any], line: Callable[[list[Any]], Any], more: int) -> list[Any]:
        if kind == "largest":
            return [max(map(line, rest[0]))]
        if kind == "attend":
            query, keys, offsets, values = rest
            asked = [line(part) for part in query]
            pairs = zip(keys, offsets, strict=True)
            scores = [mpmath.fdot(asked, [line(part) for part in key]) + line(offset) for key, offset in pairs]
            weights = [mpmath.exp(score - max(scores)) for score in scores]
            columns = zip(*values, strict=True)
            return [mpmath.fdot(weights, [line(part) for part in column]) / sum(weights) for column in columns]
        value = self.functions[rest[0]].at([line(rest[1])], more)[0]
        return [value if kind == "apply" else value * line(rest[2])]


def _line(data: list[Any], wires: Sequence[Any]) -> Any:
    return _number(data[0]) + sum(wires[w] * _number(c) for w, c in zip(data[1::2], data[2::2], strict=True))


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return Formula(value[1:], ()).at([])[0] if value.startswith("=") else EXACT.number(Fraction(value))
    return mp.mpf(value)


ACTIVATIONS: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.GELU: ("gelu", ("approximate",)), nn.ReLU: ("relu", ()), nn.SiLU: ("silu", ()), nn.Tanh: ("tanh", ()),
    nn.Sigmoid: ("sigmoid", ()), nn.Softplus: ("softplus", ("beta",)), nn.ELU: ("elu", ("alpha",)),
    nn.LeakyReLU: ("leaky_relu", ("negative_slope",)), nn.Mish: ("mish", ()), nn.Hardswish: ("hardswish", ()),
    nn.Hardtanh: ("hardtanh", ("min_val", "max_val")), nn.Softsign: ("softsign", ()), nn.CELU: ("celu", ("alpha",)),
    nn.LogSigmoid: ("logsigmoid", ()), nn.SELU: ("selu", ()), nn.ReLU6: ("relu6", ()),
    nn.Hardsigmoid: ("hardsigmoid", ()), nn.Tanhshrink: ("tanhshrink", ()), nn.Softshrink: ("softshrink", ("lambd",)),
}  # fmt: skip
