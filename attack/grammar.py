"""What people write, drawn at random: formulas, domains, tolerances, modules, losses, ramps; the same for a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attack.oracle import ACTIVATIONS, Formula, Pair, Residual, Undefined

R = (-math.inf, math.inf)
CLOSED = (
    "cosh({n})-sinh({n})", "1-cos(1/{ten})", "sin(1)**2+cos(1)**2-1.{zeros}1", "sqrt(2)/pi", "exp(-{n})*1e{k}", "pi**2/6",
    "e-2.718281828459045", "sqrt({ten}**2+1)-{ten}", "log(2)*3", "1-tanh({n})", "4*atan(1)-pi", "exp(1)-e",
    "1/3-0.333333333333333", "2**0.5", "expm1(1e-{k})", "log1p(1e-{k})", "gelu(1)", "sigmoid(-{n})", "cos(pi/3)-1/2",
    "erfc({k})", "1e{k}+0.5-1e{k}", "asin(1)-pi/2", "2/3", "10**-{k}", "(1+1e-{k})**2-1", "max(1/3, 0.3333)", "tan(pi/4)",
    "sinh({k})/cosh({k})", "log10(1e-{k})", "0.1+0.2-0.3", "e**pi-pi**e", "acosh(2)*1e-3",
)  # fmt: skip
SMOOTH = "sin cos tanh sigmoid gelu silu softplus mish atan erf softsign asinh exp square tanhshrink gelu_tanh".split()
KINKED = "abs relu leaky_relu elu selu celu hardtanh relu6 hardswish hardsigmoid softshrink".split()
WRAPPED = ("log(2 + ({0})**2)", "sqrt(1 + ({0})**2)", "1/(2 + sin({0}))", "exp(-({0})**2)", "cos(sin({0}))", "log1p(exp({0}))",
           "1/(1+25*({0})**2)", "log(cosh({0}))", "({0})**3", "rsqrt(1.5+({0})*({0}))", "exp2(-abs({0}))", "acos(tanh({0}))",
           "sqrt({0})", "log({0})", "1/({0})", "softplus({0}, 2.5)", "celu({0}, 0.3)", "prelu({0}, -0.2)", "rrelu({0})",
           "elu({0}, alpha=1.7)", "hardtanh({0}, -0.3, 0.7)", "gelu({0}, approximate='tanh')", "clip({0}, min=-0.4)")  # fmt: skip
NAMES = ("x", "y", "z", "t", "alpha", "x1")


@dataclass(frozen=True)
class Target:
    """A call of ah.compile: a target, its domain, and options; `call` is the call as text."""

    text: Any
    domain: Any
    options: dict[str, Any]
    variables: tuple[str, ...] = ()
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def call(self) -> str:
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"ah.compile({self.text!r}, {self.domain!r}{options})".replace("inf", 'float("inf")')


def closed(rng: random.Random) -> str:
    """A constant in closed form, often scaled to a size of about one, though it cancelled."""
    k = rng.choice((2, 4, 6, 9, 12, 15, 20, 30))
    text = rng.choice(CLOSED).format(n=rng.randint(2, 40), ten=10 ** rng.randint(2, 9), zeros="0" * k, k=k)
    try:
        size = abs(float(Formula(text, ()).at([])[0]))
    except Undefined:
        return text
    if size < 1e-45:  # zero, but for an evaluation that does not see it
        return f"({text})*1e{rng.choice((0, 12, 20, 33))}"
    if rng.random() < 0.8:
        return f"({text})*1e{round(-math.log10(size)) + rng.randint(-1, 1)}"
    return f"({text})"


def literal(rng: random.Random, wild: float = 0.08) -> str:
    """A number as written: a whole number, a decimal, an exponent, a quotient; now and then of any size."""
    if rng.random() < wild:
        return f"{rng.choice(('', '-'))}{rng.uniform(1, 10):.{rng.randint(0, 20)}f}e{rng.randint(-40, 25)}"
    return rng.choice(
        (str(rng.randint(-5, 9)), f"{rng.uniform(-3, 3):.{rng.randint(1, 12)}f}", f"{rng.randint(1, 99)}e-{rng.randint(1, 4)}",
         f"{rng.randint(1, 9)}/{rng.randint(2, 11)}", "0.1", "1.5", "0.333", f"{rng.uniform(0, 1):.17g}")
    )  # fmt: skip


def expression(rng: random.Random, variables: tuple[str, ...], depth: int, kinks: float = 0.25) -> str:
    """A formula; deeper ones are built from shallower ones, and what was built is sometimes used again."""
    if depth == 0:
        variable = rng.choice(variables)
        shapes = [variable] * 4 + [
            f"{literal(rng)}*{variable}",
            f"{variable} + {literal(rng)}",
            f"{variable}/{rng.randint(2, 9)}",
        ]
        return rng.choice([*shapes, f"{closed(rng)}*{variable}", literal(rng), closed(rng)])
    part = lambda less=1: expression(rng, variables, max(0, depth - less), kinks)
    a = part()
    choice = rng.random()
    if choice < kinks:
        one = f"{rng.choice(KINKED)}({a})"
        return rng.choice((one, f"max({a}, {part()})", f"min({a}, {part()}, {literal(rng)})", f"clip({a}, -0.5, {rng.uniform(0, 2):.2f})",
                           f"abs({a} - {closed(rng)})", f"max({a}, {closed(rng)}*{rng.choice(variables)})"))  # fmt: skip
    if choice < kinks + 0.2:
        return f"{rng.choice(SMOOTH)}({a})"
    if choice < kinks + 0.3:
        return rng.choice(WRAPPED).format(a)
    if choice < kinks + 0.5:
        return rng.choice(
            (f"{a} + {part()}", f"{a} - ({part()})", f"{a} + {closed(rng)}*({part(2)})", f"{literal(rng)}*({a})")
        )
    if choice < kinks + 0.6:
        return rng.choice(
            (f"({a})*({part()})", f"({a})**2", f"({a})*({a})", f"({a})**{rng.randint(2, 4)}", f"({a})/({part(2)})")
        )
    size = 10 ** rng.randint(1, 12)
    return rng.choice(  # what cancels, and what is used twice
        (f"(({a}) + {size}) - {size}", f"({a}) - 0.9999999*({a})", f"{closed(rng)}*({a}) + sin({a})", f"(({a})*{size})/{size}",
         f"({a}) + ({part()}) - ({a})")
    )  # fmt: skip


def interval(rng: random.Random, unbounded: float = 0.0) -> tuple[float, float]:
    """A domain of one variable: small, usual, large, shifted, or unbounded."""
    if rng.random() < unbounded:
        return rng.choice((R, R, R, (0.0, math.inf), (-math.inf, 2.0), (-1.5, math.inf)))
    pick = rng.random()
    if pick < 0.55:
        return rng.choice(((-1.0, 1.0), (0.0, 1.0), (-2.0, 3.0), (0.5, 1.5), (-0.1, 0.1), (-4.0, 4.0)))
    if pick < 0.75:
        return tuple(sorted((round(rng.uniform(-3, 3), 2), round(rng.uniform(-3, 3), 2) + 0.005)))  # type: ignore[return-value]
    if pick < 0.9:
        size = 10.0 ** rng.randint(-6, 3)
        return (-size, 2 * size) if rng.random() < 0.5 else (0.0, size)
    middle = rng.choice((1.0, 10.0, 1000.0))
    return (middle, middle * (1 + 10.0 ** -rng.randint(1, 6)))


def accuracy(rng: random.Random, tightest: float = 12.0) -> dict[str, Any]:
    """A dtype, and a tolerance that it may hold."""
    if rng.random() < 0.3:
        return {"tol": float(f"{10 ** -rng.uniform(1, 4.5):.1e}"), "dtype": torch.float32}
    return {"tol": float(f"{10 ** -rng.uniform(1.5, tightest):.1e}"), "dtype": torch.float64}


def head(rng: random.Random) -> Target:
    """One formula in one variable."""
    name = (rng.choice(NAMES),)
    domain = interval(rng, 0.3)
    if math.isinf(domain[1] - domain[0]) and rng.random() < 0.8:  # what has asymptotes
        activation = lambda: f"{rng.choice(SMOOTH[2:8] + KINKED)}({literal(rng, 0)}*{name[0]} + {literal(rng, 0)})"
        terms = [rng.choice((activation, activation, lambda: f"{closed(rng)}*{name[0]}", lambda: f"max({name[0]}, {closed(rng)})",
                             lambda: f"min(2-3.98*{name[0]}, {literal(rng, 0)}-4.36*{name[0]})"))() for _ in range(rng.randint(1, 3))]  # fmt: skip
        text = " + ".join(f"{literal(rng, 0.02)}*{t}" for t in terms)
    else:
        text = expression(rng, name, rng.randint(1, 3), rng.choice((0.0, 0.2, 0.5)))
    options = accuracy(rng)
    method = rng.choice(("auto",) * 7 + ("gated", "smooth", "kinked", "nearest"))
    if method != "auto":
        options |= {"method": method, "tol": max(options["tol"], 1e-2) if method == "nearest" else options["tol"]}
    if rng.random() < 0.04:
        options = {"dtype": options["dtype"], "keys": rng.randint(1, 12)}
    return Target(text, {name[0]: domain}, options, name)


def network(rng: random.Random) -> Target:
    """Formulas in several variables, some of which may be unused; domains in any order."""
    names = tuple(rng.sample(NAMES, rng.randint(1, 3)))
    used = tuple(rng.sample(names, rng.randint(1, len(names))))
    texts = [
        expression(rng, used, rng.choice((1, 1, 2, 2, 3)), rng.choice((0.0, 0.2, 0.5)))
        for _ in range(rng.choice((1, 1, 1, 2, 3)))
    ]
    if len(texts) > 1 and rng.random() < 0.3:
        texts[1] = f"({texts[0]})*{closed(rng)} + {texts[1]}"
    domain: Any = {n: interval(rng, 0.03) for n in rng.sample(names, len(names))}
    text: Any = texts[0] if len(texts) == 1 and len(names) > 1 else texts
    options = accuracy(rng, 10)
    return Target(text, domain, options | ({"method": "graph"} if rng.random() < 0.4 else {}), tuple(domain))


def grid(rng: random.Random) -> Target:
    """Formulas for one layer over a grid, loosely."""
    names = tuple(rng.sample(NAMES, rng.choice((1, 2, 2, 2))))
    bump = lambda: (
        f"{rng.choice(('sin', 'cos', 'tanh', 'exp', 'sigmoid'))}({rng.uniform(-1.5, 1.5):.3g}*{rng.choice(names)} + {literal(rng, 0)})"
    )
    text = rng.choice(
        (lambda: f"{bump()}*{bump()}", lambda: f"{bump()} + {closed(rng)}*{bump()}", lambda: f"{bump()}*{names[-1]}")
    )()
    domain = {n: rng.choice(((-1.0, 1.0), (0.0, 1.0), (0.2, 0.9), (-0.5, 1.25))) for n in names}
    dtype = rng.choice((torch.float64, torch.float64, torch.float32))
    options = {"tol": float(f"{10 ** -rng.uniform(0.7, 2.5):.1e}"), "dtype": dtype, "method": "grid"}
    return Target([text] if len(names) == 1 else text, domain, options, names)


def opaque(rng: random.Random) -> Target:
    """A sum of waves with its Lipschitz constant, to be compiled as a function that cannot be looked into."""
    names = tuple(rng.sample(NAMES, rng.choice((1, 2))))
    waves = [(round(rng.uniform(-1, 1), 3), [round(rng.uniform(-2, 2), 3) for _ in names], round(rng.uniform(-3, 3), 3))
             for _ in range(rng.randint(1, 3))]  # fmt: skip
    inner = lambda a: " + ".join(f"{v}*{n}" for v, n in zip(a, names, strict=True))
    text = " + ".join(f"{c}*sin({inner(a)} + {b})" for c, a, b in waves)
    constant = sum(abs(c) * math.hypot(*a) for c, a, _ in waves) * 1.000001 + 1e-9
    options = {"tol": rng.choice((0.3, 0.1, 0.05)), "lipschitz": constant, "method": rng.choice(("grid", "two_layer"))}
    return Target(text, [rng.choice(((0.0, 1.0), (-1.0, 1.0)))] * len(names), options, names)


def activation(rng: random.Random) -> nn.Module:
    kind = rng.choice(list(ACTIVATIONS))
    made = {nn.ELU: lambda: nn.ELU(rng.uniform(0.1, 2)), nn.LeakyReLU: lambda: nn.LeakyReLU(rng.uniform(-0.3, 0.5)),
            nn.CELU: lambda: nn.CELU(rng.uniform(0.2, 2)), nn.Softplus: lambda: nn.Softplus(rng.uniform(0.5, 3)),
            nn.GELU: lambda: nn.GELU(rng.choice(("none", "tanh"))), nn.Hardtanh: lambda: nn.Hardtanh(-0.5, rng.uniform(0, 1)),
            nn.Softshrink: lambda: nn.Softshrink(rng.uniform(0.1, 0.6))}  # fmt: skip
    return made.get(kind, kind)()


def module(rng: random.Random) -> Target:
    """A small torch module with random weights, some of them scaled."""
    torch.manual_seed(rng.randrange(2**31))
    sizes = [rng.randint(1, 4)] + [rng.randint(2, 6) for _ in range(rng.randint(1, 2))] + [rng.randint(1, 3)]
    parts: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layer = nn.Linear(a, b, bias=rng.random() < 0.8)
        with torch.no_grad():
            layer.weight.mul_(rng.choice((1, 1, 1, 0.1, 5, 1e-6)))
        parts.append(layer)
        pick = rng.random()
        if pick < 0.1 and b > 2:
            parts.append(nn.LayerNorm(b, eps=rng.choice((1e-5, 0.1, 1.0))))
        elif pick < 0.25:
            parts.append(Residual(nn.Sequential(activation(rng), nn.Linear(b, b))))
        elif pick < 0.4:
            parts.append(
                Pair(rng.choice(("times", "max")), nn.Linear(b, b), nn.Sequential(nn.Linear(b, b), activation(rng)))
            )
        else:
            parts.append(activation(rng))
    if rng.random() < 0.7:
        parts.append(nn.Linear(sizes[-1], sizes[-1]))
    whole = nn.Sequential(*parts).to(rng.choice((torch.float32, torch.float64)))
    domain = rng.choice(((-1.0, 1.0), (0.0, 1.0), (-3.0, 3.0), (-0.01, 0.02)))
    box = [domain] * sizes[0] if rng.random() < 0.5 else [interval(rng) for _ in range(sizes[0])]
    return Target(whole, box, accuracy(rng, 9))


def loss(rng: random.Random) -> tuple[str, str, str]:
    """What is descended: the argument's kind (name, formula or gradient), its text, and dl/ds as text."""
    built = {"squared": "s - y", "logistic": "sigmoid(s) - y", "poisson": "exp(s) - y"}
    c = closed(rng)
    formulas = {"log(cosh(s - y))": "tanh(s - y)", "softplus(s) - y*s": "sigmoid(s) - y", "(s - y)**2/2 + s*sqrt(2)/pi": "s - y + sqrt(2)/pi",
                "sqrt(1 + (s - y)**2)": "(s - y)/sqrt(1 + (s - y)**2)"}  # fmt: skip
    gradients = (f"sigmoid(s - y) - {c}*y", f"s - y + {c}", f"tanh({c}*s - y)", f"clip(s - y, -1, 1) + {c}*y", f"sigmoid(s)*2 - {c}",
                 f"atan(s - y)*{literal(rng, 0.1)}", f"silu(s - {c}) - y", f"s*{c} - y", f"{c}*s + tanh(s - 0.5*y)")  # fmt: skip
    kind = rng.choice(("name", "formula", "gradient", "gradient"))
    table = built if kind == "name" else formulas
    if kind == "gradient":
        text = rng.choice(gradients)
        return kind, text, text
    text = rng.choice(list(table))
    return kind, text, table[text]
