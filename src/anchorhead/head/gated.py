"""Gated heads: values affine in the token's own u, so that all of R is within reach (docs/mathematics.md 2.3).

Where f settles on asymptotes, the outermost keys are pinned to them: far out one key has all the weight, and the head
is that asymptote. The inner keys' constants and gains are solved for. A bounded side is pinned where f has settled long
before its end. SiLU, tanh and sigmoid are two pinned keys exactly; that SiLU is one masked head per neuron was seen by
R. Huben and V. Morris, *Attention-Only Transformers and Implementing MLPs with Attention Heads*, arXiv 2309.08593.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.head.solve import Affine, Crowd, Function, Problem, sample_count, samples
from anchorhead.head.uniform_keys import Uniform
from anchorhead.head.warped_keys import Warped


def gated(f: Function, low: float, high: float, keys: int, *, left: Affine | None = None,
          right: Affine | None = None, rates: Iterable[float] = (), crowds: Sequence[Crowd] = (), centre: float = 0.0,
          goal: float = 0.0, limit: float = 1e3, extra: Array | None = None,
          relative: bool = False, affine: bool = True) -> Uniform | Warped:  # fmt: skip
    """Heads with that many keys and affine values: `best()` is the best of them, and its error on the samples.

    low, high: where to fit; on a side with an asymptote (`left`, `right`), far enough out that f has reached it.
    rates: the exponential rates at which f approaches them. crowds: where keys crowd, in a bounded domain
    (`warped_keys.py`); none for evenly spaced keys. centre: where the middle key belongs. relative: errors in
    units of |f|. affine: whether inner values may have gains.
    """
    flat = left is not None or right is not None
    more = np.zeros(0) if extra is None else extra
    u = samples(low, high, sample_count(keys), more, flat_ends=flat, crowds=crowds, centre=centre)
    target = f(u)
    goal = max(goal, 1e-15 * (1.0 if relative else float(np.abs(target).max())), 1e-300)
    problem = Problem(u, target, left, right, affine, goal, limit, centre, relative)
    return Uniform(keys, problem, rates) if not crowds or keys == 1 else Warped(keys, problem, crowds)
