"""The targets of the tests in mpmath, written from their definitions: the independent reference."""

import mpmath as mp


def half_erf(x):
    return x * mp.ncdf(x)


def softplus(x):
    return mp.log1p(mp.exp(x)) if x < 0 else x + mp.log1p(mp.exp(-x))


def sigmoid(x):
    return 1 / (1 + mp.exp(-x)) if x > 0 else mp.exp(x) / (1 + mp.exp(x))


ALPHA, SCALE = mp.mpf("1.6732632423543772848170429916717"), mp.mpf("1.0507009873554804934193349852946")

REFERENCE = {
    "gelu(x)": half_erf,
    "gelu_tanh(x)": lambda x: x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3))),
    "silu(x)": lambda x: x * sigmoid(x),
    "tanh(x)": mp.tanh,
    "sigmoid(x)": sigmoid,
    "softplus(x)": softplus,
    "logsigmoid(x)": lambda x: -softplus(-x),
    "mish(x)": lambda x: x * mp.tanh(softplus(x)),
    "relu(x)": lambda x: max(x, mp.mpf(0)),
    "relu6(x)": lambda x: min(max(x, mp.mpf(0)), mp.mpf(6)),
    "abs(x)": abs,
    "clip(x, -1, 1)": lambda x: min(max(x, mp.mpf(-1)), mp.mpf(1)),
    "hardtanh(x)": lambda x: min(max(x, mp.mpf(-1)), mp.mpf(1)),
    "leaky_relu(x)": lambda x: x if x > 0 else x * mp.mpf("0.01"),
    "elu(x)": lambda x: x if x > 0 else mp.expm1(x),
    "celu(x)": lambda x: x if x > 0 else mp.expm1(x),
    "selu(x)": lambda x: SCALE * (x if x > 0 else ALPHA * mp.expm1(x)),
    "hardswish(x)": lambda x: x * min(max(x + 3, mp.mpf(0)), mp.mpf(6)) / 6,
    "hardsigmoid(x)": lambda x: min(max(x + 3, mp.mpf(0)), mp.mpf(6)) / 6,
    "softsign(x)": lambda x: x / (1 + abs(x)),
    "tanhshrink(x)": lambda x: x - mp.tanh(x),
    "softshrink(x)": lambda x: mp.sign(x) * max(abs(x) - mp.mpf("0.5"), mp.mpf(0)),
    "sin(3*x)": lambda x: mp.sin(3 * x),
    "exp(x)": mp.exp,
    "1/(1+25*x**2)": lambda x: 1 / (1 + 25 * x**2),
}


def head_at(model, x):
    """The model's head at x from its stored numbers, in mpmath's current precision."""
    head = model.head
    pieces = [i for i, size in enumerate(head.sizes) for _ in range(size)]
    rows = zip(*(v.tolist() for v in (head.slopes, head.intercepts, head.constants, head.gains)), pieces, strict=True)
    gates = list(zip(head.gate_slopes.tolist(), head.gate_levels.tolist(), strict=True))
    scored = [((mp.mpf(s) + mp.mpf(gates[p][0])) * x + mp.mpf(c) + mp.mpf(gates[p][1]), mp.mpf(a) + mp.mpf(g) * x)
              for s, c, a, g, p in rows]  # fmt: skip
    top = max(score for score, _ in scored)
    weights = [(mp.exp(score - top), value) for score, value in scored]
    return sum(w * v for w, v in weights) / sum(w for w, _ in weights)


NAMES = {name.partition("(")[0]: f for name, f in REFERENCE.items() if name.endswith("(x)")} | {
    "sin": mp.sin,
    "cos": mp.cos,
    "exp": mp.exp,
    "log": mp.log,
    "sqrt": mp.sqrt,
    "atan": mp.atan,
    "erf": mp.erf,
    "max": max,
    "min": min,
    "clip": lambda x, low, high: min(max(x, low), high),
    "pi": mp.pi,
}


def formula_at(text, values):
    """A formula at numbers, read by Python itself and evaluated by mpmath; its constants must be whole numbers."""
    return eval(text, {"__builtins__": {}} | NAMES, {name: mp.mpf(v) for name, v in values.items()})
