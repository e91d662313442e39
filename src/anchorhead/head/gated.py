"""Gated heads: values affine in the token's own u, so that all of R is within reach (docs/mathematics.md 2.3).

Where f settles on asymptotes, the outermost keys are pinned to them: far out one key has all the weight, and the head
is that asymptote. The inner keys' constants and gains are solved for. A bounded side is pinned where f has settled long
before its end. SiLU, tanh and sigmoid are two pinned keys exactly; that SiLU is one masked head per neuron was seen by
R. Huben and V. Morris, *Attention-Only Transformers and Implementing MLPs with Attention Heads*, arXiv 2309.08593.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.head.head import Head
from anchorhead.head.solve import Affine, Function, Problem, samples
from anchorhead.head.uniform_keys import best_uniform
from anchorhead.head.warped_keys import best_warped


def gated(f: Function, low: float, high: float, keys: int, *, left: Affine | None = None,
          right: Affine | None = None, rates: Iterable[float] = (), side: int = 0, centre: float = 0.0,
          goal: float = 0.0, limit: float = 1e3, extra: Array | None = None) -> tuple[float, Head]:  # fmt: skip
    """The best head with that many keys and affine values, and its error on the samples.

    low, high: where to fit; on a side with an asymptote (`left`, `right`), far enough out that f has reached it.
    rates: the exponential rates at which f approaches them. side: 0 for evenly spaced keys, 1 or -1 for keys that
    crowd at the left or the right end of a bounded domain (`warped_keys.py`). centre: where the middle key belongs.
    """
    flat = left is not None or right is not None
    u = samples(
        low, high, 16 * keys + 60, np.zeros(0) if extra is None else extra, flat_ends=flat, side=side, centre=centre
    )
    target = f(u)
    goal = max(goal, 1e-15 * float(np.abs(target).max()), 1e-300)
    problem = Problem(u, target, left, right, True, goal, limit, centre)
    return best_warped(keys, problem, side) if side and keys > 1 else best_uniform(keys, problem, rates)
