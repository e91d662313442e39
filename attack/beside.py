"""Chains beside softmax: heads under other row maps, and distances of what people write from each other.

A row map: a formula, compiled for the map or for softmax and put under it, saved, verified, loaded, run, and compared
with the oracle where its certificate is proved. A distance: enclosed, saved, verified; the oracle must find no larger
difference than its upper end, at points of every kind and uphill, and at the place that is named no smaller one than
its lower end. Of both some files with an entry of another kind are opened.
"""

from __future__ import annotations

import math
import random
import tempfile
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch

import anchorhead as ah
from attack import files, grammar, points
from attack.compiling import through_a_file
from attack.measuring import CHECK, COMPILE, Result, limit, measure
from attack.opening import open_bent
from attack.oracle import Formula, Undefined

mp = mpmath.mp
BENT = 20
"""How many files with an entry of another kind a chain opens."""


def row_maps(seed: int, result: Result, count: int = 450) -> tuple[Any, Any, bytes]:
    """One chain of a head under another map than softmax; its loaded model, its oracle and its file."""
    rng = random.Random(f"row_maps:{seed}")
    maps = ah.row_maps
    text, (low, high) = grammar.expression(rng, ("x",), rng.choice((1, 1, 2)), 0.2), grammar.interval(rng)
    dtype = rng.choice(("float64", "float64", "float32"))
    options = {"tol": rng.choice((0.1, 1e-2, 1e-3)), "dtype": getattr(torch, dtype)}
    solved = rng.choice((maps.Sigmoid(), maps.ReLU(), maps.Sparsemax(), maps.Polynomial(rng.randint(1, 12))))
    under = rng.choice((maps.FixedPoint(rng.randint(3, 16), rng.randint(3, 16), rng.choice((None, 4, 9))),
                        maps.LinearAttention(2 * rng.randint(1, 8)), maps.Softmax(), solved))  # fmt: skip
    result.call = f"ah.compile({text!r}, {(low, high)}, row_map={solved}) or .with_row_map({under}), {dtype}"
    with limit(COMPILE):
        if rng.random() < 0.5:
            model = ah.compile(text, (low, high), row_map=solved, **options)
        else:
            model = ah.compile(text, (low, high), method="smooth", **options).with_row_map(under)
    back, data = through_a_file(model, result)
    open_bent(rng, data, result, BENT)
    truth = Formula(text, model.certificate.variables or ("x",))
    if model.certificate.level == "proved":
        edges = files.read(data).edges()
        some = rng.sample(edges, min(len(edges), 40))
        result.measured(measure(truth, back, model.certificate, seed, count, some), str(model.certificate))
    return back, truth, data


def distances(seed: int, result: Result) -> None:
    """One distance of two formulas, of a formula and a table, or of a formula and polynomials in pieces."""
    rng = random.Random(f"distances:{seed}")
    text, (low, high) = grammar.expression(rng, ("x",), rng.choice((1, 2)), 0.3), grammar.interval(rng)
    f, relative = Formula(text, ("x",)), rng.random() < 0.2
    with mp.workdps(60):
        other, g = _other(rng, text, f, low, high)
    result.call = f"ah.distance({other!r:.300}, {text!r}, {(low, high)}, {relative})"
    with limit(COMPILE):
        found = ah.distance(other, text, (low, high), relative)
    with tempfile.TemporaryDirectory() as folder, limit(CHECK):
        path = Path(folder) / "a.distance"
        found.save(path)
        checked = ah.verify(path)
        data = path.read_bytes()
    open_bent(rng, data, result, BENT)
    if (checked.lower, checked.upper, checked.at) != (found.lower, found.upper, found.at):
        result.violated(f"verified another distance: {checked} for {found}")
    box = points.Box(((low, high),), "float64")
    places = points.chosen(box, f, seed, 300, ())

    def difference(x: float) -> Any:
        try:
            here = f.at([x])[0]
            apart = [abs(value - here) for value in g(x)]
            return [a / abs(here) for a in apart if here or a] if relative else apart
        except ZeroDivisionError:
            return [mp.inf]
        except Undefined:
            return []

    with mp.workdps(60):
        here = difference(float(found.at)) if math.isfinite(float(found.at)) else []
        if here and not max(here) >= mp.mpf(found.lower) * (1 - mp.mpf(10) ** -25):
            result.violated(f"at {found.at!r} it is {float(max(here))!r}, below the lower end of {found}")
        for x in (float(p[0]) for p in places):
            apart = min(difference(x), default=mp.mpf(0))  # of two values at a break the function has one
            worst = max(mp.mpf(0), apart - mp.mpf(10) ** -40)  # the oracle's own rounding
            result.points += 1
            ratio = float(worst / mp.mpf(found.upper)) if found.upper else (math.inf if worst else 0.0)
            if ratio > result.ratio or not result.at:
                result.ratio, result.at = ratio, f"x={x!r}: {float(apart)!r}"
    if result.ratio > 1 + 1e-15:
        result.violated(f"at {result.at}, above the upper end of {found}")


def _other(rng: random.Random, written: str, f: Formula, low: float, high: float) -> tuple[Any, Any]:
    """What f is compared with, and its values at x, two of them at a break."""
    kind = rng.choice(("formula", "linear", "nearest", "pieces"))
    if kind == "formula":
        text = rng.choice((grammar.expression(rng, ("x",), 1, 0.3), f"({written}) + {grammar.closed(rng)}*sin(x)"))
        formula = Formula(text, ("x",))
        return text, lambda x: [formula.at([x])[0]]
    count = rng.choice((2, 3, 8, 33))
    if kind == "pieces":
        breaks = sorted({low, high, *(rng.uniform(low, high) for _ in range(count))})
        rows = [[rng.gauss(0, 1) for _ in range(rng.randint(1, 4))] for _ in breaks[1:]]
        value = lambda row, x: mp.polyval([mp.mpf(c) for c in reversed(row)], mp.mpf(x))
        return ah.Piecewise(breaks, rows), lambda x: [
            value(row, x) for row, a, b in zip(rows, breaks, breaks[1:], strict=False) if a <= x <= b]  # fmt: skip
    places = np.linspace(low, high, count)
    try:
        values = [float(f.at([float(p)])[0]) for p in places]
    except Undefined:
        values = [rng.gauss(0, 1) for _ in places]
    table = ah.Table(low, high, values, kind)

    def read(x: float) -> list[Any]:
        step = (mp.mpf(high) - mp.mpf(low)) / (count - 1)
        t = (mp.mpf(x) - mp.mpf(low)) / step
        if kind == "nearest":
            return [mp.mpf(values[k]) for k in range(count) if abs(t - k) <= mp.mpf(0.5)]
        k = min(int(mp.floor(t)), count - 2)
        return [mp.mpf(values[k]) + (t - k) * (mp.mpf(values[k + 1]) - mp.mpf(values[k]))]

    return table, read
