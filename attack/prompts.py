"""Chains of functions of a prompt: means, covariances and attention over tokens, on prompts of several lengths."""

from __future__ import annotations

import random
from typing import Any

import mpmath
import numpy as np
import torch

import anchorhead as ah
from attack import grammar
from attack.compiling import through_a_file
from attack.measuring import COMPILE, Measured, Result, limit, over
from attack.oracle import Formula, Undefined

mp = mpmath.mp
TOKEN, QUERY = ("x", "y"), ("q",)
OUTER = ("p0 + q*p1", "p0*p1", "p0/(p1**2 + 0.5)", "tanh(p0 - p1)", "max(p0, p1)*q", "exp(p0/8) - q", "abs(p1) + p0")
SCORES = ("2*q*a", "a - b", "-3*(a - q)**2", "(a + q)*(b - q)", "q*a/2 + tanh(b)")
EXACT = mp.mpf(10) ** -45
"""What sixty digits do not tell from nothing."""
Pool = tuple[str, str, str, str]


def prompts(seed: int, result: Result) -> None:
    """One formula, compiled, saved, verified, loaded, and run on prompts of several lengths against mpmath."""
    rng, draw = random.Random(f"prompts:{seed}"), np.random.default_rng(seed)
    box = {name: grammar.interval(rng) for name in TOKEN + QUERY}
    pools = [_pool(rng) for _ in range(2)]
    outer, options = rng.choice(OUTER), grammar.accuracy(rng, 7.0)
    text = outer.replace("p0", f"({_text(pools[0])})").replace("p1", f"({_text(pools[1])})")
    tokens, query = ({name: box[name] for name in names} for names in (TOKEN, QUERY))
    result.call = f"ah.in_context.compile({text!r}, {tokens}, {query}, **{options})"
    with limit(COMPILE):
        model = ah.in_context.compile(text, tokens, query, **options)
    back, _ = through_a_file(model, result)
    back.outside = "ignore"
    for n in (1, 2, rng.randint(3, 12), rng.randint(3, 12)):
        rows, q = (_drawn(rng, draw, [box[name] for name in names], count, options["dtype"])
                   for names, count in ((TOKEN, n), (QUERY, 3)))  # fmt: skip
        found = back(*map(torch.from_numpy, (rows, q))).double().numpy()
        literal = back.literal()(*map(torch.from_numpy, (rows, q))).double().numpy()
        for k, asked in enumerate(q[:, 0]):
            try:
                meant = _value(outer, pools, rows, float(asked))
            except Undefined:
                continue
            for output, certificate in ((found[k, 0], back.certificate), (literal[k, 0], back.literal_certificate())):
                if certificate.level == "proved":
                    error = abs(mp.mpf(float(output)) - meant) if np.isfinite(output) else mp.inf
                    error = error if error > EXACT * (1 + abs(meant)) else mp.mpf(0)
                    at = f"tokens={rows.tolist()!r}, q={float(asked)!r} give {float(output)!r}"
                    result.measured(Measured(1, over(error, mp.mpf(certificate.bound)), at), str(certificate))


def _pool(rng: random.Random) -> Pool:
    a, b = (grammar.expression(rng, TOKEN, rng.randint(0, 1), 0.2) for _ in range(2))
    return rng.choice(("mean", "var", "cov", "attend")), a, b, rng.choice(SCORES)


def _text(pool: Pool) -> str:
    kind, a, b, score = pool
    if kind == "attend":
        return f"attend({score.replace('tanh', 'T').replace('a', 'x').replace('b', 'y').replace('T', 'tanh')}, {a})"
    return f"{kind}({a}, {b})" if kind == "cov" else f"{kind}({a})"


def _value(outer: str, pools: list[Pool], rows: np.ndarray, q: float) -> Any:
    numbers = [_pooled(pool, rows, q) for pool in pools]
    with mp.workdps(60):
        names = {"p0": numbers[0], "p1": numbers[1], "q": mp.mpf(q)}
        functions = {name: getattr(mpmath, name) for name in ("tanh", "exp")} | {"max": max, "abs": abs}
        return eval(outer.replace("0.5", "mpf('0.5')"), functions | names | {"mpf": mp.mpf})


def _pooled(pool: Pool, rows: np.ndarray, q: float) -> Any:
    kind, a, b, score = pool
    with mp.workdps(60):
        left, right = ([Formula(text, TOKEN).at(map(float, row))[0] for row in rows] for text in (a, b))
        if kind == "attend":
            names = [{"a": mp.mpf(float(x)), "b": mp.mpf(float(y)), "q": mp.mpf(q)} for x, y in rows]
            scores = [eval(score, {"tanh": mpmath.tanh} | row) for row in names]
            weights = [mpmath.exp(s - max(scores)) for s in scores]
            return mpmath.fdot(weights, left) / sum(weights)
        if kind == "mean":
            return sum(left) / len(left)
        other = right if kind == "cov" else left
        means = sum(left) / len(left), sum(other) / len(other)
        return sum((u - means[0]) * (v - means[1]) for u, v in zip(left, other, strict=True)) / len(left)


def _drawn(rng: random.Random, draw: Any, box: list[tuple[float, float]], count: int, dtype: Any) -> np.ndarray:
    """Rows in the box, some at its ends and some alike."""
    low, high = (np.array(ends) for ends in zip(*box, strict=True))
    part = draw.choice([0.0, 1.0, 0.5], (count, len(box))) if rng.random() < 0.4 else draw.random((count, len(box)))
    part = np.broadcast_to(part[:1], part.shape) if rng.random() < 0.15 else part
    kind = np.float32 if dtype == torch.float32 else np.float64
    inside = np.clip((low + (high - low) * part).astype(kind), _up(low, kind), -_up(-high, kind))
    return np.ascontiguousarray(inside)


def _up(ends: np.ndarray, kind: Any) -> np.ndarray:
    """The least numbers of the kind that are not below."""
    found = ends.astype(kind)
    return np.where(found < ends, np.nextafter(found, kind(np.inf)), found)
