"""The paper's head for a function of one variable: pick the nearest anchor, return f there (docs/mathematics.md 1.2).

Anchors L_k uniform on [low, high] with spacing h, scores -β(u - L_k)² with β = ln((p - 1)/ε)/h², values
f(L_k). The two nearest anchors share all but ε of the weight, so the error is at most ω(h/2) + ε·spread for a concave
modulus of continuity ω, ω(h) + ε·spread in any case: first order, like 1/p for a Lipschitz function. It reaches every
continuous function on an interval, and is here to be compared with.
"""

from __future__ import annotations

import numpy as np

from anchorhead.arithmetic import log_of
from anchorhead.head.head import Head
from anchorhead.head.near_keys import MANY
from anchorhead.head.solve import Function

SELECTION_ERROR = 1e-6


def sharpness(width: float, keys: int, selection_error: float) -> float:
    """β, which leaves the selection error to all but the two nearest of so many anchors."""
    step = width / (keys - 1)
    return log_of((keys - 1) / selection_error) / (step * step)


def nearest(f: Function, low: float, high: float, keys: int, *, selection_error: float = SELECTION_ERROR) -> Head:
    """The paper's head with that many keys."""
    anchors = np.linspace(low, high, keys)
    beta = sharpness(high - low, keys, selection_error)
    centre = (low + high) / 2
    centred = anchors - centre
    # -β(u - L)² = 2β(L - m)u - β(L - m)² - 2β(L - m)m, but for what all keys share
    slopes = 2 * beta * centred
    intercepts = -beta * (centred * centred) - slopes * centre
    return Head.of(slopes=slopes, intercepts=intercepts, constants=f(anchors), horner=False)


def steps(head: Head) -> list[float]:
    """Of many keys the anchors between the ends, and the places where one takes over from the next, about.

    A proof cuts its boxes there. Of few keys it finds its own.
    """
    slopes, intercepts = head.arrays["slopes"], head.arrays["intercepts"]
    rises = np.diff(slopes)
    if head.keys <= MANY or not (rises > 0).all():
        return []
    places = -np.diff(intercepts) / rises
    return np.concatenate([places, (places[:-1] + places[1:]) / 2]).tolist()
