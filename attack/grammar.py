"""What people write, drawn at random: formulas, domains, tolerances, modules, losses; the same for the same seed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attack.oracle import ACTIVATIONS, Formula, Pair, Residual, Undefined

R = (-math.inf, math.inf)
NAMES = ("x", "y", "z", "t", "alpha", "x1")
SMOOTH = "sin cos tanh sigmoid gelu silu softplus mish atan erf softsign asinh exp square tanhshrink gelu_tanh".split()
KINKED = "abs relu leaky_relu elu selu celu hardtanh relu6 hardswish hardsigmoid softshrink".split()


def _list(text: str) -> list[str]:
    return text.replace("\n", "; ").split("; ")


CLOSED = _list("""cosh({n})-sinh({n}); 1-cos(1/{ten}); sin(1)**2+cos(1)**2-1.{zeros}1; sqrt(2)/pi; exp(-{n})*1e{k}; 2/3
e-2.718281828459045; sqrt({ten}**2+1)-{ten}; log(2)*3; 1-tanh({n}); 4*atan(1)-pi; exp(1)-e; 1/3-0.333333333333; 2**0.5
expm1(1e-{k}); log1p(1e-{k}); gelu(1); sigmoid(-{n}); cos(pi/3)-1/2; erfc({k}); 1e{k}+0.5-1e{k}; asin(1)-pi/2; pi**2/6
10**-{k}; (1+1e-{k})**2-1; max(1/3, 0.3333); tan(pi/4); sinh({k})/cosh({k}); log10(1e-{k}); 0.1+0.2-0.3; e**pi-pi**e
acosh(2)*1e-3""")
LITERALS = _list("{i}; {f}; {p}e-{i}; {p}/1{i}; 0.1; 1.5; 0.333; 0.58725862529443462; -2.917267878151; {f}; {i}")
LEAVES = _list("{v}; {v}; {v}; {v}; {l}*{v}; {v} + {l}; {v}/{p}; {c}*{v}; {l}; {c}")
# {a} a part, the same each time; {b} another; {v} a variable; {l} a literal; {c} a constant in closed form
CORNERS = _list("""{kinked}({a}); max({a}, {b}); min({a}, {b}, {l}); clip({a}, -0.5, 1.{p}); abs({a} - {c})
max({a}, {c}*{v}); relu({a}) - relu({b}); {kinked}({a})""")
CALLS = _list("""{smooth}({a}); {smooth}({a}); {smooth}({a}); {smooth}({a}); log(2 + ({a})**2); sqrt(1 + ({a})**2)
1/(2 + sin({a})); exp(-({a})**2); cos(sin({a})); log1p(exp({a})); 1/(1+25*({a})**2); log(cosh({a})); ({a})**3
rsqrt(1.5+({a})*({a})); exp2(-abs({a})); acos(tanh({a})); sqrt({a}); log({a}); 1/({a}); celu({a}, 0.3); prelu({a}, -0.2)
softplus({a}, 2.5); rrelu({a}); elu({a}, alpha=1.7); hardtanh({a}, -0.3, 0.7)
gelu({a}, approximate='tanh'); clip({a}, min=-0.4)""")
SUMS = _list("""{a} + {b}; {a} - ({b}); {a} + {c}*({b}); {l}*({a}); ({a})*({b}); ({a})**2; ({a})*({a}); ({a})**4
({a})/({b}); (({a}) + 1e{p}) - 1e{p}; ({a}) - 0.9999999*({a}); {c}*({a}) + sin({a}); (({a})*1e{p})/1e{p}
({a}) + ({b}) - ({a})""")
FAR = _list("""{bent}({l}*{v} + {l}); {bent}({l}*{v} + {l}); {bent}({v}); {c}*{v}; max({v}, {c})
min(2-3.98*{v}, {l}-4.36*{v}); max(-{v}, {l}, {v})""")


@dataclass(frozen=True)
class Target:
    """A call of ah.compile: a target, its domain, and options; `call` is the call as text."""

    text: Any
    domain: Any
    options: dict[str, Any]
    variables: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        target = repr(self.text) if self.variables else "module"
        return f"ah.compile({target}, {self.domain!r}{options})".replace("inf", 'float("inf")')


class _Makers(dict[str, Any]):
    """What a template's names stand for: texts as they are, makers called anew at each place."""

    def __getitem__(self, name: str) -> str:
        value = super().__getitem__(name)
        return str(value() if callable(value) else value)


def _fill(rng: random.Random, templates: list[str], **makers: Any) -> str:
    return rng.choice(templates).format_map(_Makers(makers))


def closed(rng: random.Random) -> str:
    """A constant in closed form, often scaled to a size of about one, though it cancelled."""
    k = rng.choice((2, 4, 6, 9, 12, 15, 20, 30))
    text = _fill(rng, CLOSED, n=rng.randint(2, 40), ten=10 ** rng.randint(2, 9), zeros="0" * k, k=k)
    try:
        size = abs(float(Formula(text, ()).at([])[0]))
    except Undefined:
        return text
    if size < 1e-45:  # zero, but for an evaluation that does not see it
        return f"({text})*1e{rng.choice((0, 12, 20, 33))}"
    return f"({text})*1e{round(-math.log10(size)) + rng.randint(-1, 1)}" if rng.random() < 0.8 else f"({text})"


def literal(rng: random.Random, wild: float = 0.08) -> str:
    """A number as written: a whole number, a decimal, an exponent, a quotient; now and then of any size."""
    if rng.random() < wild:
        return f"{rng.choice(('', '-'))}{rng.uniform(1, 10):.{rng.randint(0, 20)}f}e{rng.randint(-40, 25)}"
    decimal = f"{rng.uniform(-3, 3):.{rng.randint(1, 12)}f}"
    return _fill(rng, LITERALS, i=lambda: rng.randint(0, 9), p=lambda: rng.randint(1, 99), f=decimal)


def expression(rng: random.Random, variables: tuple[str, ...], depth: int, corners: float) -> str:
    """A formula; deeper ones are built from shallower ones, and what was built is sometimes used again."""
    makers: dict[str, Any] = {"v": lambda: rng.choice(variables), "l": lambda: literal(rng), "c": lambda: closed(rng)}
    makers |= {"p": rng.randint(2, 9), "kinked": lambda: rng.choice(KINKED), "smooth": lambda: rng.choice(SMOOTH)}
    if depth == 0:
        return _fill(rng, LEAVES, **makers)
    makers |= {"b": lambda: expression(rng, variables, rng.randrange(depth), corners)}
    shapes = CORNERS if rng.random() < corners else rng.choice((CALLS, SUMS))
    return _fill(rng, shapes, a=expression(rng, variables, depth - 1, corners), **makers)


def interval(rng: random.Random, unbounded: float = 0.0) -> tuple[float, float]:
    """A domain of one variable: small, usual, large, shifted, or unbounded."""
    if rng.random() < unbounded:
        return rng.choice((R, R, R, (0.0, math.inf), (-math.inf, 2.0), (-1.5, math.inf)))
    pick, size = rng.random(), 10.0 ** rng.randint(-6, 3)
    if pick < 0.55:
        return rng.choice(((-1.0, 1.0), (0.0, 1.0), (-2.0, 3.0), (0.5, 1.5), (-0.1, 0.1), (-4.0, 4.0)))
    if pick < 0.75:
        low = round(rng.uniform(-3, 3), 2)
        return low, low + round(rng.uniform(0.01, 4), 2)
    if pick < 0.9:
        return rng.choice(((-size, 2 * size), (0.0, size)))
    middle = rng.choice((1.0, 10.0, 1000.0))
    return middle, middle * (1 + 10.0 ** -rng.randint(1, 6))


def accuracy(rng: random.Random, tightest: float = 12.0) -> dict[str, Any]:
    """A dtype, and a tolerance that it may hold."""
    if rng.random() < 0.3:
        return {"tol": float(f"{10 ** -rng.uniform(1, 4.5):.1e}"), "dtype": torch.float32}
    return {"tol": float(f"{10 ** -rng.uniform(1.5, tightest):.1e}"), "dtype": torch.float64}


def head(rng: random.Random) -> Target:
    """One formula in one variable."""
    name, domain, options = rng.choice(NAMES), interval(rng, 0.3), accuracy(rng)
    text = expression(rng, (name,), rng.randint(1, 3), rng.choice((0.0, 0.2, 0.5)))
    if math.isinf(domain[1] - domain[0]) and rng.random() < 0.8:  # what has asymptotes
        bent, number = lambda: rng.choice(SMOOTH[2:8] + KINKED), lambda: literal(rng, 0)
        term = lambda: _fill(rng, FAR, v=name, l=number, c=lambda: closed(rng), bent=bent)
        text = " + ".join(f"{literal(rng, 0.02)}*{term()}" for _ in range(rng.randint(1, 3)))
    if not Formula(text).variables:
        text += f" + {name}"
    method = rng.choice(("auto",) * 7 + ("gated", "smooth", "kinked", "nearest"))
    if method != "auto":
        options |= {"method": method, "tol": max(options["tol"], 2e-3) if method == "nearest" else options["tol"]}
    if rng.random() < 0.04:
        options = {"dtype": options["dtype"], "keys": rng.randint(1, 12)}
    return Target(text, {name: domain}, options, (name,))


def network(rng: random.Random) -> Target:
    """Formulas in several variables, some of which may be unused; domains in any order."""
    names = tuple(rng.sample(NAMES, rng.randint(1, 3)))
    used = tuple(rng.sample(names, rng.randint(1, len(names))))
    corners = rng.choice((0.0, 0.2, 0.5))
    texts = [expression(rng, used, rng.choice((1, 1, 2, 2, 3)), corners) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if len(texts) > 1 and rng.random() < 0.3:
        texts[1] = f"({texts[0]})*{closed(rng)} + {texts[1]}"
    domain = {n: interval(rng, 0.03) for n in rng.sample(names, len(names))}
    options = accuracy(rng, 10) | ({"method": "graph"} if rng.random() < 0.4 else {})
    return Target(texts[0] if len(texts) == 1 < len(names) else texts, domain, options, tuple(domain))


def grid(rng: random.Random) -> Target:
    """Formulas for one layer over a grid, loosely."""
    names = tuple(rng.sample(NAMES, rng.choice((1, 2, 2, 2))))
    wave = lambda: f"{rng.choice(SMOOTH[:4])}({rng.uniform(-1.5, 1.5):.3g}*{rng.choice(names)} + {literal(rng, 0)})"
    shapes = ["{w}*{w}", "{w} + {c}*{w}", "{w}*{v}"]
    text = _fill(rng, shapes, w=wave, v=names[-1], c=lambda: closed(rng))
    domain = {n: rng.choice(((-1.0, 1.0), (0.0, 1.0), (0.2, 0.9), (-0.5, 1.25))) for n in names}
    dtype = rng.choice((torch.float64, torch.float64, torch.float32))
    options = {"tol": float(f"{10 ** -rng.uniform(0.7, 2.5):.1e}"), "dtype": dtype, "method": "grid"}
    return Target([text] if len(names) == 1 else text, domain, options, names)


def opaque(rng: random.Random) -> Target:
    """A sum of waves with its Lipschitz constant, to be compiled as a function that cannot be looked into."""
    names, number = tuple(rng.sample(NAMES, rng.choice((1, 2)))), lambda size: round(rng.uniform(-size, size), 3)
    waves = [(number(1), [number(2) for _ in names], number(3)) for _ in range(rng.randint(1, 3))]
    inner = lambda a: " + ".join(f"{v}*{n}" for v, n in zip(a, names, strict=True))
    text = " + ".join(f"{c}*sin({inner(a)} + {b})" for c, a, b in waves)
    constant = sum(abs(c) * math.hypot(*a) for c, a, _ in waves) * 1.000001 + 1e-9
    options = {"tol": rng.choice((0.3, 0.1, 0.05)), "lipschitz": constant, "method": rng.choice(("grid", "two_layer"))}
    return Target(text, [rng.choice(((0.0, 1.0), (-1.0, 1.0)))] * len(names), options, names)


def activation(rng: random.Random) -> nn.Module:
    """An activation of torch, with parameters where it takes some."""
    kind, number = rng.choice(list(ACTIVATIONS)), rng.uniform(0.1, 1)
    given: dict[type[nn.Module], Callable[[], nn.Module]] = {
        nn.ELU: lambda: nn.ELU(2 * number), nn.LeakyReLU: lambda: nn.LeakyReLU(number - 0.5),
        nn.CELU: lambda: nn.CELU(number), nn.Softplus: lambda: nn.Softplus(3 * number),
        nn.GELU: lambda: nn.GELU("tanh" if number > 0.5 else "none"), nn.Hardtanh: lambda: nn.Hardtanh(-0.5, number),
        nn.Softshrink: lambda: nn.Softshrink(number / 2),
    }  # fmt: skip
    return given.get(kind, kind)()


def module(rng: random.Random) -> Target:
    """A small torch module with random weights, some of them scaled."""
    torch.manual_seed(rng.randrange(2**31))
    sizes = [rng.randint(1, 4)] + [rng.randint(2, 6) for _ in range(rng.randint(1, 2))] + [rng.randint(1, 3)]
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b, bias=rng.random() < 0.8)
        with torch.no_grad():
            layer.weight.mul_(rng.choice((1, 1, 1, 0.1, 5, 1e-6)))
        bent = nn.Sequential(nn.Linear(b, b), activation(rng))
        makers: list[Callable[[], nn.Module]] = [lambda: activation(rng)] * 6
        makers += [lambda n=b: nn.LayerNorm(n, eps=rng.choice((1e-5, 0.1, 1.0)))] * (b > 2)
        makers += [
            lambda m=bent: Residual(m),
            lambda n=b, m=bent: Pair(rng.choice(("times", "max")), nn.Linear(n, n), m),
        ]
        parts += [layer, rng.choice(makers)()]
    if rng.random() < 0.7:
        parts.append(nn.Linear(sizes[-1], sizes[-1]))
    whole = nn.Sequential(*parts).to(rng.choice((torch.float32, torch.float64)))
    domain = rng.choice(((-1.0, 1.0), (0.0, 1.0), (-3.0, 3.0), (-0.01, 0.02)))
    box = [domain] * sizes[0] if rng.random() < 0.5 else [interval(rng) for _ in range(sizes[0])]
    return Target(whole, box, accuracy(rng, 9))


LOSSES = {"squared": "s - y", "logistic": "sigmoid(s) - y", "poisson": "exp(s) - y", "log(cosh(s - y))": "tanh(s - y)",
          "softplus(s) - y*s": "sigmoid(s) - y", "(s - y)**2/2 + s*sqrt(2)/pi": "s - y + sqrt(2)/pi",
          "sqrt(1 + (s - y)**2)": "(s - y)/sqrt(1 + (s - y)**2)"}  # fmt: skip
GRADIENTS = _list("""sigmoid(s - y) - {c}*y; s - y + {c}; tanh({c}*s - y); clip(s - y, -1, 1) + {c}*y
sigmoid(s)*2 - {c}
atan(s - y)*{l}; silu(s - {c}) - y; s*{c} - y; {c}*s + tanh(s - 0.5*y)""")


def loss(rng: random.Random) -> tuple[str, str, str]:
    """What is descended: whether by a name, a formula or its gradient, the text of that, and dl/ds as text."""
    if rng.random() < 0.5:
        text = _fill(rng, GRADIENTS, c=lambda: closed(rng), l=lambda: literal(rng))
        return "gradient", text, text
    text = rng.choice(list(LOSSES))
    return "loss", text, LOSSES[text]


def descent(rng: random.Random) -> dict[str, Any]:
    """Sizes, bounds and options of gradient descent in context."""
    bounds = {"x": rng.choice((1.0, 2.0, 3.0)), "y": rng.choice((1.0, 2.0, 5.0)), "w": rng.choice((2.0, 5.0, 10.0))}
    options: dict[str, Any] = {"features": rng.randint(1, 4), "examples": rng.randint(1, 8), "bounds": bounds}
    options |= {"steps": rng.randint(1, 12), "learning_rate": rng.choice((0.01, 0.05, 0.1, 0.25, 1 / 3))}
    options |= {name: rng.choice((0.01, 0.1, 0.5)) for name in ("l2", "l1", "momentum") if rng.random() < 0.25}
    return options | {"dtype": rng.choice((torch.float64, torch.float64, torch.float32))}
