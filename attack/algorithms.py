"""Chains of what is not compiled from a formula: learning in context, and the paper's theorems."""

from __future__ import annotations

import random
from typing import Any

import mpmath
import numpy as np
import torch
from torch import nn

import anchorhead as ah
from anchorhead.digits import Up
from attack import grammar
from attack.measuring import COMPILE, Measured, Result, compare, limit, over
from attack.oracle import Formula, Module

mp = mpmath.mp
FLOATS = {torch.float64: np.float64, torch.float32: np.float32}


def in_context(seed: int, result: Result) -> None:
    """Gradient descent on prompts, against the algorithm iterated in mpmath."""
    rng, draw = random.Random(f"in_context:{seed}"), np.random.default_rng(seed)
    kind, text, slope = grammar.loss(rng)
    options = grammar.descent(rng)
    result.call = f"ah.in_context.gradient_descent({kind} {text!r}, {options})"
    with limit(COMPILE):
        made = ah.in_context.Loss(gradient=text) if kind == "gradient" else text
        model = ah.in_context.gradient_descent(made, **options)
    bounds = [*model.deviation_bounds[:-1], min(model.deviation_bounds[-1], model.certificate.bound)]
    for attempt in range(6):
        X, y, w0 = _prompt(rng, draw, text, options)
        try:
            found = model.trajectory(*map(torch.from_numpy, (X, y, w0))).double().numpy()
        except ah.AnchorheadError as error:
            result.reason = str(error)[:200]
            continue
        exact = _descent(Formula(slope, ("s", "y")), X, y, w0, options)
        for step, (mine, theirs, bound) in enumerate(zip(found, exact, bounds, strict=True)):
            with mp.workdps(50):
                distance = mpmath.norm([mp.mpf(float(a)) - b for a, b in zip(mine, theirs, strict=True)])
                ratio = over(distance, mp.mpf(bound)) if np.isfinite(mine).all() else float("inf")
            at = f"prompt {attempt}, step {step}: {float(distance):.3g}, proved {Up(bound):.3g}"
            result.measured(Measured(len(mine), ratio, at), "in context")
    if not result.points:
        result.status = "refused"


def _prompt(rng: random.Random, draw: Any, loss: str, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Examples, labels and a start within the bounds, some of them at the very ends."""
    bounds, kind = options["bounds"], FLOATS[options["dtype"]]
    shape, size = (options["examples"], options["features"]), rng.choice((1.0, 1.0, 0.5, 0.1))
    X = draw.choice([-1.0, 1.0, 0.0], shape) if rng.random() < 0.4 else draw.uniform(-1, 1, shape)
    y = bounds["y"] * size * draw.uniform(-1, 1, shape[0])
    y = {"logistic": (y > 0) * 1.0, "poisson": abs(y)}.get(loss, y)
    w0 = rng.choice((0.0, 0.0, 0.5)) * draw.uniform(-1, 1, shape[1])
    return (size * bounds["x"] * X).astype(kind), y.astype(kind), w0.astype(kind)


def _descent(slope: Formula, X: Any, y: Any, w0: Any, options: dict[str, Any]) -> list[list[Any]]:
    """The iterates of w' = prox(w - rate (mean of l'(w·x, y) x + l2 w) + momentum (w - before))."""
    rate, l2, l1, momentum = (mp.mpf(options.get(k, 0.0)) for k in ("learning_rate", "l2", "l1", "momentum"))
    with mp.workdps(50):
        rows = [([mp.mpf(float(v)) for v in row], mp.mpf(float(label))) for row, label in zip(X, y, strict=True)]
        before = w = [mp.mpf(float(v)) for v in w0]
        kept = [w]
        for _ in range(options["steps"]):
            at = [slope.at([mpmath.fdot(w, row), label])[0] for row, label in rows]
            mean = [sum(g * row[j] for g, (row, _) in zip(at, rows, strict=True)) / len(rows) for j in range(len(w))]
            v = [a - rate * (g + l2 * a) + momentum * (a - b) for a, g, b in zip(w, mean, before, strict=True)]
            before, w = w, [a - max(-rate * l1, min(rate * l1, a)) for a in v]
            kept.append(w)
    return kept


def theorems(seed: int, result: Result) -> None:
    """The paper's theorems."""
    rng, draw = random.Random(f"theorems:{seed}"), np.random.default_rng(seed)
    (_two_layer if rng.random() < 0.3 else _ramps)(rng, draw, rng.choice((torch.float64, torch.float32)), result)


def _ramps(rng: random.Random, draw: Any, dtype: torch.dtype, result: Result) -> None:
    """clip(w·x + t, low, high) by one head or several, at inputs up to the stated size of the sum's terms."""
    n, d, kind = rng.randint(3, 6), rng.randint(1, 4), FLOATS[dtype]
    weights, bias = draw.normal(size=(n, d)).astype(kind), (rng.choice((0, 1, 10)) * draw.normal(size=n)).astype(kind)
    low, name = rng.choice((-1.0, 0.0, -25.0, 2.0, -0.3)), rng.choice(("single_head", "multi_head"))
    high, beta = low + rng.choice((1.0, 5.0, 50.0)), rng.choice((None, None, 0.1, 3.0, 100.0, 1e4))
    size = {"anchors": rng.choice((n + 1, 16, 64))} if name == "single_head" else {"heads": rng.randint(1, 6)}
    result.call = f"ah.theorems.{name}(w, t, {low}, {high}, beta={beta}, {size})"
    with limit(COMPILE):
        build = getattr(ah.theorems, name)
        model = build(torch.from_numpy(weights), torch.from_numpy(bias), low, high, beta=beta, **size)
        bound = model.bound
    x = (10.0 ** draw.uniform(-3, 2, (120, 1, 1)) * draw.normal(size=(120, n, d))).astype(kind)
    wanted = low + draw.random((60, n, 1)) * (high - low) - bias[:, None]
    x[:60] *= (wanted / (x[:60] * weights).sum(-1, keepdims=True)).astype(kind)  # half of them in the range
    terms = np.abs(x * weights).sum(-1) + np.abs(bias - (low + high) / 2)
    x = x[(terms <= model.summand_limit).all(-1)]
    with torch.no_grad():
        out = model(torch.from_numpy(x)).double().numpy()[..., 0]
    for i in range(n):
        ramp = nn.Sequential(nn.Linear(d, 1), nn.Hardtanh(low, high)).to(dtype)
        ramp.load_state_dict({"0.weight": torch.from_numpy(weights[i : i + 1]), "0.bias": torch.from_numpy(bias[[i]])})
        found = compare(Module(ramp), out[:, i : i + 1], x[:, i], np.full((len(x), 1), bound))
        result.measured(found, f"{bound:.6g} for token {i}")


def _two_layer(rng: random.Random, draw: Any, dtype: torch.dtype, result: Result) -> None:
    """A wave with its Lipschitz constant, by the paper's two layers."""
    names = ("x0", "x1")[: rng.randint(1, 2)]
    waves, c = [round(rng.uniform(-2, 2), 3) for _ in names], round(rng.uniform(-2, 2), 3)
    options: dict[str, Any] = {
        "levels": rng.choice((4, 8, 16)),
        "selection_error": rng.choice((1e-6, 1e-3)),
        "dtype": dtype,
    }
    options |= {"beta": rng.choice((None, None, 50.0))}
    result.call = f"ah.theorems.two_layer({c}*sin({waves}·x), {options})"
    vector = torch.tensor(waves, dtype=torch.float64)
    with limit(COMPILE):
        f = lambda X: (c * torch.sin(X.double() @ vector)).to(X.dtype).unsqueeze(-1)
        model = ah.theorems.two_layer(f, 1, len(names), **options)
        bound = model.bound_for(lipschitz=abs(c) * sum(map(abs, waves)) * 1.000001 + 1e-12, metric="sup")
    x = draw.random((200, 1, len(names))).astype(FLOATS[dtype])
    with torch.no_grad():
        out = model(torch.from_numpy(x)).double().numpy()[:, 0]
    text = f"({c})*sin({' + '.join(f'({v})*{n}' for v, n in zip(waves, names, strict=True))})"
    found = compare(Formula(text, names), out, x[:, 0], np.full((len(x), 1), bound))
    result.measured(found, f"{bound:.6g}")
