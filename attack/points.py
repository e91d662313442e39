"""Where to look: random points, ends, corners, floats beside kinks and box edges, subnormals, the largest values, and a
search uphill. Points are floats of the model's dtype inside the domain, and the oracle gets exactly those."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LARGEST = {"float64": 1e300, "float32": 1e38}


class Box:
    """A domain as floats of a dtype: the outermost that lie inside; unbounded sides end at the largest values tried."""

    def __init__(self, domain: Sequence[tuple[float, float]], dtype: str) -> None:
        self.type = np.dtype(dtype).type
        self.unbounded = [math.isinf(a) or math.isinf(b) for a, b in domain]
        reach = LARGEST[dtype]
        self.low = np.array([self._inside(max(a, -reach), a, 1) for a, _ in domain], self.type)
        self.high = np.array([self._inside(min(b, reach), b, -1) for _, b in domain], self.type)
        self.empty = bool((self.low > self.high).any())

    def _inside(self, end: float, limit: float, sign: int) -> Any:
        value = self.type(end)
        outside = float(value) < limit if sign > 0 else float(value) > limit
        return np.nextafter(value, self.type(sign * np.inf)) if outside else value

    def keep(self, points: np.ndarray) -> np.ndarray:
        """The points, moved into the box where they are outside."""
        with np.errstate(over="ignore"):
            return np.clip(points.astype(self.type), self.low, self.high)

    def uniform(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Evenly in bounded sides; in unbounded ones mostly near zero, and at every size."""
        share = rng.random((count, len(self.low)))
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            even = low + share * (high - low)
        sizes = 10.0 ** np.where(
            rng.random(share.shape) < 0.7,
            rng.uniform(-3, 2, share.shape),
            rng.uniform(-30, np.log10(LARGEST[np.dtype(self.type).name]), share.shape),
        )
        wide = np.where(share < 0.5, -sizes, sizes)
        return self.keep(np.where(self.unbounded, wide, even))


def special(box: Box, target: Any, edges: Sequence[float]) -> list[np.ndarray]:
    """For each variable: ends, zero, one, literals of the formula, box edges, and the floats beside each of them."""
    tiny = np.finfo(box.type).smallest_subnormal
    shared = [0.0, float(tiny), float(np.finfo(box.type).tiny), 1.0, *edges]
    shared += [float(f) for f in target.literals[:12] if abs(f) < LARGEST[np.dtype(box.type).name]]
    found = []
    for low, high in zip(box.low, box.high, strict=True):
        with np.errstate(over="ignore"):
            at = np.array([low, high, (low / 2 + high / 2), *shared, *(-v for v in shared)], box.type)
            beside = np.concatenate([at, np.nextafter(at, box.type(np.inf)), np.nextafter(at, box.type(-np.inf))])
        found.append(np.unique(np.clip(beside, low, high)))
    return found


def kinks(box: Box, target: Any, rng: np.random.Generator) -> np.ndarray:
    """Floats on both sides of where a kink's argument changes sign along random lines through the box."""
    found = [np.empty((0, len(box.low)), box.type)]
    for code in target.kinks[:6]:
        a, b = box.uniform(rng, 2).astype(np.longdouble)
        line = lambda s, a=a, b=b: a + np.atleast_1d(s)[:, None] * (b - a)
        sign = lambda s, code=code, line=line: np.sign(target.fast(line(s), [code])[:, 0])
        places = np.linspace(0, 1, 33, dtype=np.longdouble)
        values = sign(places)
        for i in np.flatnonzero(values[1:] * values[:-1] < 0)[:2]:
            left, right = places[i], places[i + 1]
            for _ in range(40):
                middle = (left + right) / 2
                left, right = (middle, right) if sign(middle)[0] == values[i] else (left, middle)
            found += [box.keep(line(left)), box.keep(line(right))]
    return np.concatenate(found)


def chosen(box: Box, target: Any, seed: int, count: int, edges: Sequence[float] = ()) -> np.ndarray:
    """`count` or so points by all of these ways but the search."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    pools = special(box, target, edges)
    corners = list(itertools.islice(itertools.product(*zip(box.low, box.high, strict=True)), 16))
    some = [[draw.choice(list(pool)) for pool in pools] for _ in range(count // 3)]
    if len(pools) == 1:
        some += [[v] for v in draw.sample(list(pools[0]), min(len(pools[0]), 60))]
    points = [
        np.array(corners, box.type),
        np.array(some, box.type),
        kinks(box, target, rng),
        box.uniform(rng, count // 2),
    ]
    mixed = box.uniform(rng, count // 6)
    for row in mixed:
        place = draw.randrange(len(pools))
        row[place] = draw.choice(list(pools[place]))
    return np.concatenate([*points, mixed])


def uphill(box: Box, error: Callable[[np.ndarray], np.ndarray], seed: int, rounds: int = 5) -> np.ndarray:
    """Points where a fast estimate of error over bound is largest, by sampling ever closer around the best."""
    rng = np.random.default_rng(seed)
    best = box.uniform(rng, 800)
    width = np.where(box.unbounded, 4.0, box.high.astype(np.float64) / 2 - box.low.astype(np.float64) / 2)
    for _ in range(rounds):
        width = width / 6
        near = best[:12].repeat(24, 0) + width * rng.standard_normal((len(best[:12]) * 24, len(width)))
        best = np.concatenate([best[:64], box.keep(near)])
        best = best[np.argsort(-np.nan_to_num(error(best), nan=np.inf))]
    return best[:40]
