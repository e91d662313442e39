"""A model against the oracle: run at points of every kind, compared with mpmath, over what its certificate claims."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mpmath
import numpy as np
import torch

from attack import points
from attack.oracle import Undefined

mp = mpmath.mp
COMPILE, CHECK = 10, 10
"""Seconds for compiling, and for verifying or loading."""


@dataclass(frozen=True)
class Measured:
    """How many points were compared, the largest error over its bound, and where that is."""

    points: int = 0
    ratio: float = 0.0
    at: str = ""


@dataclass
class Result:
    """What became of a chain: held, refused with a reason, slow, or violated with its findings."""

    chain: str
    status: str = "held"
    call: str = ""
    reason: str = ""
    points: int = 0
    ratio: float = 0.0
    at: str = ""
    refused: int = 0
    true: int = 0
    lies: int = 0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def violated(self, finding: str) -> None:
        """Something that must not be."""
        self.status = "violated"
        self.findings.append(finding)

    def measured(self, found: Measured, claim: str = "") -> None:
        """Counts the points; an error above its bound is a violation of the claim, if there is one."""
        self.points += found.points
        if found.ratio > self.ratio or not self.at:
            self.ratio, self.at = found.ratio, found.at
        if claim and found.ratio > 1:
            self.violated(f"error {found.ratio:.6g} times the bound: {claim}: {found.at}")


class TimeLimit(BaseException):
    """A step took too long; nothing in the library catches it."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Ends what computes longer, by a signal, where one can be had; time in which others compute does not count."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def compare(target: Any, outputs: np.ndarray, places: np.ndarray, limits: np.ndarray) -> Measured:
    """The largest |target - output| over its limit; with more digits until what is found does not depend on them."""
    for more in (1, 2, 4, 8):
        found = [_ratio(target, *row, more) for row in zip(places, outputs, limits, strict=True)]
        ratios = {i: ratio for i, ratio in enumerate(found) if ratio is not None}
        if not ratios:
            break
        worst = sorted(ratios, key=lambda i: -ratios[i])[:4]
        again = [*worst, *list(ratios)[:: max(1, len(ratios) // 4)]]
        checked = {i: _ratio(target, places[i], outputs[i], limits[i], 2 * more) for i in again}
        if all(v is not None and _same(v, ratios[i]) for i, v in checked.items()):
            top = worst[0]
            at = f"x={[float(v) for v in places[top]]!r} gives {[float(v) for v in outputs[top]]!r}"
            return Measured(len(ratios), checked[top] or 0.0, at)
    return Measured()


def _same(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 1e-3 * max(1, a)


def _ratio(target: Any, place: np.ndarray, output: np.ndarray, limits: np.ndarray, more: int) -> float | None:
    """The error over its limit; None where the target has no value."""
    try:
        exact = target.at(map(float, place), more)
    except Undefined:
        return None
    if len(exact) != len(output):
        return math.inf
    with mp.workdps(400 if np.abs(place).max(initial=0) > 1e20 else 60):
        errors = [_distance(float(o), e, float(np.finfo(place.dtype).max)) for o, e in zip(output, exact, strict=True)]
        if any(error and not bound for error, bound in zip(errors, limits, strict=True)):
            again = target.at(map(float, place), 2 * more)  # is it the oracle that is not exact?
            finer = [abs(mp.mpf(float(o)) - e) for o, e in zip(output, again, strict=True)]
            errors = [0 if f < 1e-10 * error else error for f, error in zip(finer, errors, strict=True)]
        return max(over(error, mp.mpf(float(b))) for error, b in zip(errors, limits, strict=True))


def _distance(output: float, exact: Any, largest: float) -> Any:
    """|target - output|; an infinity is right where the target is larger than any number of the dtype."""
    if math.isinf(output) and abs(exact) > largest:
        return mp.mpf(0 if (output > 0) == (exact > 0) else math.inf)
    return abs(mp.mpf(output) - exact) if math.isfinite(output) else mp.inf


def over(error: Any, bound: Any) -> float:
    """error / bound, where a bound of zero allows no error."""
    return float(error / bound) if bound else (math.inf if error else 0.0)


def run(model: Any, places: np.ndarray) -> np.ndarray:
    """A model of m numbers on rows (n, m), as (n, outputs)."""
    x = torch.from_numpy(np.ascontiguousarray(places))
    shape = getattr(model, "input_shape", None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(x.reshape(len(x), *shape) if shape else x[:, 0])
    return out.reshape(len(x), -1).double().numpy()


def allowed(certificate: Any, places: np.ndarray, outputs: int) -> np.ndarray:
    """What is claimed at each point for each output, (n, outputs)."""
    if certificate.bounded:
        claimed = np.array([certificate.bound] * outputs)
        each = np.array(certificate.outputs) if len(certificate.outputs) == outputs else claimed
        return np.broadcast_to(np.minimum(claimed, each), (len(places), outputs))
    size = np.abs(places.astype(np.longdouble)).max(-1, keepdims=True)
    total = (certificate.approximation + certificate.rounding * (1 + size)).astype(np.float64)
    return np.broadcast_to(np.nextafter(total, np.inf), (len(places), outputs))


def measure(
    target: Any, model: Any, certificate: Any, seed: int, count: int, edges: Sequence[float] = (), search: bool = True
) -> Measured:
    """A model against its certificate at points of every kind."""
    box = points.Box(certificate.domain, certificate.dtype)
    if box.empty:
        return Measured()
    places = points.chosen(box, target, seed, count, edges)

    def estimate(rows: np.ndarray) -> np.ndarray:
        out = run(model, rows)
        return (np.abs(out - target.fast(rows)) / np.maximum(allowed(certificate, rows, out.shape[1]), 1e-300)).max(-1)

    if search:
        places = np.concatenate([places, points.uphill(box, estimate, seed)])
    outputs = run(model, places)
    return compare(target, outputs, places, allowed(certificate, places, outputs.shape[1]))
