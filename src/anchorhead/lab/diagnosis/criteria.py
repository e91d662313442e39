"""The four ways to fail, and what tells them apart.

A head that *blends* (smooth, gated, kinked) fails where its error exceeds what was proved, and only there: how its
weights look is no evidence, since two to four keys blend nearly uniformly by design. A head that *selects* (the
paper's) promises more than an error: all weight on the one or two nearest anchors. It is therefore also held to that,
since its error alone says little: at gap 1 it follows a ramp more closely than at the derived β.

**Gap.** Scores -β(u - L_k)² at spacing h give weights like a discrete Gaussian of standard deviation 1/sqrt(2β), and
Λ = βh² =: gap decides. With z = 1 - 2e/h, e the distance from the nearest anchor, the two largest weights are like
exp(Λz) : 1, so Λ can be read off a run: ln(top/second)/z. The theory derives Λ* = ln((p - 1)/ε), 14 and more.

**Gliding.** The nearest anchor has 99% of the weight where Λz >= ln 99 = 4.6. Queries with Λ*z >= 4.6 should snap; a
head *glides* if more than half of those do not. That is distribution-free in the queries, and for even ones means
Λ < 7 at Λ* = 16: far from what is derived, where none of them glides.

**Uniform.** exp(entropy) is how many keys share the weight; for the Gaussian sqrt(πe/Λ), 2.9 keys at gap 1. On the
scale where one key is 0 and all p are 1, a head above 1/2 no longer tells one half of its range from the other, which
is at Λ(p-1)² of about 34, a standard deviation of an eighth of the range. Above it gliding is called uniform attention.
A blending head is called so if its error is mended by larger scores.

**Concentrated.** Of all error beyond the bound at least nine tenths lie in the bands next to ends or seams, those bands
hold at most half of the queries, and the mean error there is over 5 times that elsewhere. In the theorem with H heads
two neighbours hand u over at a seam: what the keys beyond it would weigh, t = exp(-Λ), each lacks on one side. To first
order the shares cancel, and max(|low|, |high|)·t² is left, against h·t inside a head: seams fail first, and more so far
from zero and with many anchors.

**β.** A cause is a cause if removing it helps. Scores of a blending head that fails are multiplied by powers
of two, and by what undoes `beta`; if at some factor the worst ratio of error to bound is 1 or less, or a tenth
of what it was, scores were too small (a factor above 1: uniform attention) or too large (below 1: one key takes over
from the next in steps, drift).

**Precision.** The same numbers are run in float64. Where an output is not finite, or errs beyond the bound that the run
in float64 keeps, the dtype is the cause. Logits of size S are rounded by ρS, ρ the unit roundoff; against the gap
between the two leading scores that says how many keys can no longer be told apart (`theorems/precision.py`).

Causes are not reported twice. Of a run in float64 at most one thing is said: uniform attention, else a boundary
artefact, else drift; the order is that of what implies what, since a uniform head errs at its ends too. Where ends or
seams fail because scores are too small, the advice says so. Precision is apart, and can be said as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from anchorhead.lab.diagnosis.diagnosis import Finding
from anchorhead.lab.diagnosis.precision import precision
from anchorhead.lab.diagnosis.sight import Run, Sight, Snap

SNAPPED = 0.99
"""The weight from which on one key is said to have it all."""
HALF = 0.5
CONCENTRATED = 5.0
SHARE = 0.9
SEARCH = 400_000
"""Weights computed for one factor of the search, about."""


def examine(sight: Sight) -> list[Finding]:
    """The causes found in one head: at most one of precision, and one of all others."""
    as_run = sight.run(sight.dtype, sight.beta, 1)
    plain = as_run if sight.dtype == torch.float64 else sight.run(torch.float64, sight.beta, 1)
    found = [precision(sight, as_run, plain)]
    if plain.finite.all():
        found.append(selecting(sight, sight.snap, plain) if sight.snap else blending(sight, plain))
    return [finding for finding in found if finding is not None]


def selecting(sight: Sight, snap: Snap, run: Run) -> Finding | None:
    """A head of the paper's kind: uniform, failing at ends or seams, gliding, or off for no such reason."""
    failing = run.error > sight.bound
    should = snap.among & (snap.gap * snap.z >= math.log(SNAPPED / (1 - SNAPPED)))
    glides = share(run.top[should] < SNAPPED)
    if not failing.any() and glides <= HALF:
        return None
    if not should.any():  # every query is beyond the anchors, or between two: nothing there should snap
        return blending(sight, run)
    gap = measured_gap(run, snap, should)
    worst = run.worst
    advice = sight.rescale(snap.gap / gap) if gap > 0 else sight.rescale(math.inf)
    keys = float(run.effective[should].median()) if should.any() else float("nan")
    blurred = f"the gap of scores between neighbouring keys is {gap:.3g} where {snap.gap:.3g} is derived"
    if (keys - 1) / max(sight.keys - 1, 1) > HALF:
        evidence = f"The weight is spread over {keys:.3g} of {sight.keys} keys at the median query: {blurred}."
        return Finding("uniform attention", sight.where(worst), evidence, advice)
    if failing.any():
        concentrated = at_boundary(sight, run, advice)
        if concentrated is not None:
            return concentrated
    if glides > HALF:
        evidence = (
            f"The output glides where it should snap: {glides:.0%} of the queries that one key should hold have no "
            f"key with {SNAPPED:.0%} of the weight, and {keys:.2g} keys share it at the median; {blurred}."
        )
        if not failing.any():
            advice += " The error keeps the bound all the same: keep β if a blend is what you want."
        return Finding("interpolation drift", sight.where(worst), evidence, advice)
    if gap < SHARE * snap.gap:
        evidence = f"{_error(sight, run, worst)}, from weight that further keys keep: {blurred}."
        return Finding("interpolation drift", sight.where(worst), evidence, advice)
    if gap > snap.gap / SHARE:
        evidence = f"{_error(sight, run, worst)}: the output jumps halfway between two keys, since {blurred}."
        return Finding("interpolation drift", sight.where(worst), evidence, advice)
    return unexplained(sight, run)


def blending(sight: Sight, run: Run) -> Finding | None:
    """A head that is meant to blend: failing at ends or seams, at a wrong β, or for no such reason."""
    if not (run.error > sight.bound).any():
        return None
    factor = restoring_factor(sight, run)
    advice = "" if factor is None else sight.rescale(factor)
    found = at_boundary(sight, run, advice)
    if found is not None or factor is None:
        return found or unexplained(sight, run)
    worst = run.worst
    mended = sight.run(torch.float64, sight.beta * factor, 1)
    now, meant = float(run.effective.median()), float(mended.effective.median())
    error = _error(sight, run, worst)
    if factor > 1:
        evidence = (
            f"{error}; scores are {1 / factor:.6g} of what the values need, and {now:.3g} of {sight.keys} keys share "
            f"the weight at the median query instead of {meant:.3g}."
        )
        return Finding("uniform attention", sight.where(worst), evidence, advice)
    stairs, before = share(run.top >= SNAPPED), share(mended.top >= SNAPPED)
    snaps = "the output snaps where it should glide" if stairs > before else "the output bends at every key"
    evidence = (
        f"{error}; {snaps}: scores are {1 / factor:.6g} times what the values need, "
        f"{now:.3g} of {sight.keys} keys share the weight at the median query instead of {meant:.3g}, and one has "
        f"{SNAPPED:.0%} of it at {stairs:.0%} of the queries instead of {before:.0%}."
    )
    return Finding("interpolation drift", sight.where(worst), evidence, advice)


def at_boundary(sight: Sight, run: Run, advice: str) -> Finding | None:
    """Whether the error is concentrated at seams, at ends or at both."""
    for name, band in (("seams", sight.seams), ("ends", sight.ends), ("ends and seams", sight.ends | sight.seams)):
        if not concentrated(run.error, sight.bound, band):
            continue
        worst = run.worst
        ratio = float(run.error[band].mean() / run.error[~band].mean().clamp_min(1e-300))
        evidence = (
            f"{_error(sight, run, worst)}; next to the {name} the mean error is {ratio:.3g} times that elsewhere, "
            f"where it is {float(run.error[~band].mean()):.3g}."
        )
        undo = "The keys there are not those that were built: build or load the model again, or keep away from there."
        return Finding("boundary artefacts", sight.where(worst), evidence, advice or undo)
    return None


def concentrated(error: Tensor, bound: Tensor, band: Tensor) -> bool:
    """Whether what exceeds the bound lies in the band; see the top."""
    if not 0 < share(band) <= HALF:
        return False
    excess = (error - bound).clamp(min=0)
    held = excess[band].sum() >= SHARE * excess.sum()
    return bool(held) and bool(error[band].mean() > CONCENTRATED * error[~band].mean())


def unexplained(sight: Sight, run: Run) -> Finding:
    """The error is there, and neither the dtype nor β nor the ends explain it: values were changed."""
    worst = run.worst
    evidence = f"{_error(sight, run, worst)}, and no β mends it: the stored numbers are not those built."
    return Finding("interpolation drift", sight.where(worst), evidence, "Build, compile or load the model again.")


def restoring_factor(sight: Sight, run: Run) -> float | None:
    """The factor for the scores, nearest to 1, at which the error is mended; None if there is none."""
    stride = max(1, len(run.error) * sight.keys // SEARCH)
    bound = sight.thinned(sight.bound, stride)

    def ratio(factor: float) -> float:
        error = sight.run(torch.float64, sight.beta * factor, stride).error
        return float((error / bound).nan_to_num(nan=math.inf).max())

    before = float((run.error / sight.bound).max())
    undo = 1 / sight.beta
    if undo != 1 and ratio(undo) <= 1:
        return undo
    found = {}
    for power in sorted((p / 2 for p in range(-40, 41) if p), key=abs):
        found[power] = ratio(2**power)
        if found[power] <= 1:
            return float(2**power)
    best = min(found, key=lambda power: found[power])
    power, least = _refined(lambda p: ratio(2**p), best - 0.5, best + 0.5)
    return float(2**power) if least <= before / 10 else None


def _refined(f: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The least value of a function of one valley on [low, high], by golden section: where and how much."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(24):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if f(left) < f(right) else (left, high)
    return (low + high) / 2, f((low + high) / 2)


def measured_gap(run: Run, snap: Snap, should: Tensor) -> float:
    """Λ as the run has it, the median over the queries that should snap; at least that where a weight underflows."""
    if not should.any():
        return snap.gap
    return float(((run.top / run.second.clamp_min(1e-300)).log() / snap.z)[should].median())


def share(mask: Tensor) -> float:
    """Which part of the entries is true; 0 of none."""
    return float(mask.double().mean()) if mask.numel() else 0.0


def _error(sight: Sight, run: Run, worst: int) -> str:
    return f"The error is {float(run.error[worst]):.3g} at {sight.place(worst)}, bound {float(sight.bound[worst]):.3g}"
