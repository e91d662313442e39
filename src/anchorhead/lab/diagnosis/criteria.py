"""The five ways to fail, and what tells them apart.

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

**β.** A cause is a cause if it was changed and removing it helps. Scores of a blending head that fails, and are not
those that were proved, are multiplied by what undoes `score_factor`, by powers of two, and between the best of those by
golden section; if with a factor, as it is printed, no query errs beyond the bound, scores were too small (a factor
above 1: uniform attention) or too large (below 1: one key takes over from the next in steps, drift). A factor that only
lessens the error explains nothing: other numbers were changed (edited numbers). Of a head that selects β is a formula:
what is tried is Λ*/Λ, and what undoes `score_factor`, and as a last resort others if all stored numbers are those
built. A factor is found in float64; where the dtype that was run does not keep the bound at these scores, a wider one
that does is named, too.

**Precision.** The same numbers are run in float64. Where an output is not finite, or errs beyond the bound that the run
in float64 keeps, the dtype is the cause. Logits of size S are rounded by ρS, ρ the unit roundoff; against the gap
between the two leading scores that says how many keys can no longer be told apart (`theorems/precision.py`).

Causes are not reported twice. Of a run in float64 at most one thing is said: uniform attention, else a boundary
artefact, else drift or edited numbers; the order is that of what implies what, since a uniform head errs at its ends
too. Where ends or seams fail because scores are too small, the advice says so. Precision is apart, and can be said as
well.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from anchorhead.digits import Up
from anchorhead.lab.diagnosis.examined import Examined, Run, Snap
from anchorhead.lab.diagnosis.findings import Finding, Kind
from anchorhead.theorems.precision import DTYPES

SNAPPED = 0.99
"""The weight from which on one key is said to have it all."""
HALF = 0.5
CONCENTRATED = 5.0
SHARE = 0.9
SEARCH = 400_000
"""Weights computed for one factor of the search, about."""
DIGITS = (3, 6, 9, 12)
"""Of a factor, the fewest that mend; advice prints up to the most."""


def examine(head: Examined) -> list[Finding]:
    """The causes found in one head: at most one of precision, and one of all others."""
    run = head.plain
    found = [precision(head)]
    if run.finite.all():
        found.append(selecting(head, head.snap, run) if head.snap else blending(head, run))
    return [finding for finding in found if finding is not None]


def selecting(head: Examined, snap: Snap, run: Run) -> Finding | None:
    """A head of the paper's kind: uniform, failing at ends or seams, gliding, or off for no such reason."""
    failing = bool((run.error > head.bound).any())
    should = snap.among & (snap.gap * snap.z >= math.log(SNAPPED / (1 - SNAPPED)))
    glides = share(run.top[should] < SNAPPED)
    if not failing and glides <= HALF:
        return None
    if not should.any():  # every query is beyond the anchors, or between two: nothing there should snap
        return blending(head, run)
    # Λ as the run has it, at least that where a weight underflows
    gap = float(((run.top / run.second.clamp_min(1e-300)).log() / snap.z)[should].median())
    factor = derived_factor(head, snap, gap, should)
    advice = "" if factor is None else rescaled(head, factor)
    keys = float(run.effective[should].median())
    blurred = f"the gap of scores between neighbouring keys is {gap:.3g} where {snap.gap:.3g} is derived"
    if factor is not None and (keys - 1) / max(head.keys - 1, 1) > HALF:
        evidence = f"The weight is spread over {keys:.3g} of {head.keys} keys at the median query: {blurred}."
        return _found("uniform attention", head, run, evidence, advice)
    concentrated = at_boundary(head, run, advice) if failing else None
    if concentrated is not None:
        return concentrated
    glided = (
        f"The output glides where it should snap: {glides:.0%} of the queries that one key should hold have no "
        f"key with {SNAPPED:.0%} of the weight, and {keys:.2g} keys share it at the median"
    )
    if factor is None:
        return unexplained(head, run, _error(head, run) if failing else glided)
    if glides > HALF:
        evidence = f"{glided}; {blurred}."
        if not failing:
            advice += f" The error keeps the {head.standard} all the same: keep β if a blend is what you want."
    elif gap < snap.gap:
        evidence = f"{_error(head, run)}, from weight that further keys keep: {blurred}."
    else:
        evidence = f"{_error(head, run)}: the output jumps halfway between two keys, since {blurred}."
    return _found("interpolation drift", head, run, evidence, advice)


def derived_factor(head: Examined, snap: Snap, gap: float, should: Tensor) -> float | None:
    """The factor that makes a measured gap the derived one, or undoes `score_factor`, or of numbers that are those
    built any other, with which every query keeps its bound and those that should snap do; None if none has."""
    tried = ([float(f"{snap.gap / gap:.6g}")] if gap > 0 else []) + [1 / head.score_factor] * (head.score_factor != 1)
    for factor in tried:
        mended = head.run(torch.float64, head.score_factor * factor)
        if (mended.error <= head.bound).all() and share(mended.top[should] < SNAPPED) <= HALF:
            return factor
    return restoring_factor(head) if head.intact else None


def rescaled(head: Examined, factor: float) -> str:
    """Advice on a factor for the scores that restores the bound in float64, and on the dtype where the one that was run
    does not keep it at these scores."""
    scale, advice = head.score_factor * factor, head.rescale(factor)

    def kept(dtype: torch.dtype) -> bool:
        return dtype == torch.float64 or bool((head.run(dtype, scale).error <= head.bound).all())

    if kept(head.dtype):
        return advice
    wider = next(dtype for dtype in _wider_than(head.dtype)
                 if dtype == torch.float64 or (head.allows(dtype, factor) and kept(dtype)))  # fmt: skip
    name = _name(head.dtype)
    unheld = f"{name} does not keep the bound at these scores; use {_name(wider)}, which does."
    return f"{advice} But {unheld} {head.smaller(head.dtype)}".rstrip()


def blending(head: Examined, run: Run) -> Finding | None:
    """A head that is meant to blend: failing at ends or seams, at a wrong β, or for no such reason."""
    if not (run.error > head.bound).any():
        return None
    factor = restoring_factor(head)
    advice = "" if factor is None else rescaled(head, factor)
    found = at_boundary(head, run, advice)
    if found is not None or factor is None:
        return found or unexplained(head, run, _error(head, run))
    mended = head.run(torch.float64, head.score_factor * factor)
    now, meant = float(run.effective.median()), float(mended.effective.median())
    if factor > 1:
        evidence = (
            f"{_error(head, run)}; scores are {1 / factor:.6g} of what the values need, and {now:.3g} of {head.keys} "
            f"keys share the weight at the median query instead of {meant:.3g}."
        )
        return _found("uniform attention", head, run, evidence, advice)
    stairs, before = share(run.top >= SNAPPED), share(mended.top >= SNAPPED)
    snaps = "the output snaps where it should glide" if stairs > before else "the output bends at every key"
    evidence = (
        f"{_error(head, run)}; {snaps}: scores are {1 / factor:.6g} times what the values need, "
        f"{now:.3g} of {head.keys} keys share the weight at the median query instead of {meant:.3g}, and one has "
        f"{SNAPPED:.0%} of it at {stairs:.0%} of the queries instead of {before:.0%}."
    )
    return _found("interpolation drift", head, run, evidence, advice)


def at_boundary(head: Examined, run: Run, advice: str) -> Finding | None:
    """Whether the error is concentrated at seams, at ends or at both."""
    for name, band in (("seams", head.seams), ("ends", head.ends), ("ends and seams", head.ends | head.seams)):
        if concentrated(run.error, head.bound, band):
            there, elsewhere = run.error[band].mean(), run.error[~band].mean()
            evidence = (
                f"{_error(head, run)}; next to the {name} the mean error is "
                f"{float(there / elsewhere.clamp_min(1e-300)):.3g} times that elsewhere, where it is "
                f"{float(elsewhere):.3g}."
            )
            undo = (
                "The keys there or their values are not those that were built: build or load the model again, or keep "
                "away from there."
            )
            return _found("boundary artefacts", head, run, evidence, advice or undo)
    return None


def concentrated(error: Tensor, bound: Tensor, band: Tensor) -> bool:
    """Whether what exceeds the bound lies in the band; see the top."""
    if not 0 < share(band) <= HALF:
        return False
    excess = (error - bound).clamp(min=0)
    held = excess[band].sum() >= SHARE * excess.sum()
    return bool(held) and bool(error[band].mean() > CONCENTRATED * error[~band].mean())


def unexplained(head: Examined, run: Run, seen: str) -> Finding:
    """What is seen is there, and neither β nor the ends explain it: other numbers were changed, or where all are those
    built, float64 has too few digits."""
    why, advice = head.otherwise()
    return _found("underflow or saturation" if head.intact else "edited numbers", head, run, f"{seen}, {why}.", advice)


def restoring_factor(head: Examined) -> float | None:
    """The factor for the scores, nearest to 1, with which every query keeps its bound; None if none was found."""
    stride = max(1, len(head.plain.error) * head.keys // SEARCH)

    def ratio(scale: float, stride: int = 1) -> float:
        error = head.run(torch.float64, scale, stride).error
        return float((error / head.thinned(head.bound, stride)).nan_to_num(nan=math.inf).max())

    if head.scores_kept:
        return None
    if head.score_factor != 1 and ratio(1.0) <= 1:
        return 1 / head.score_factor
    found: dict[float, float] = {}
    for power in sorted((p / 2 for p in range(-40, 41) if p), key=abs):
        found[power] = ratio(head.score_factor * 2**power, stride)
        if found[power] <= 1:
            break
    power = min(found, key=lambda power: found[power])
    if found[power] > 1:
        power = _refined(lambda p: ratio(head.score_factor * 2**p, stride), power - 0.5, power + 0.5)
    printed = (float(f"{2**power:.{digits}g}") for digits in DIGITS)
    return next((factor for factor in printed if ratio(head.score_factor * factor) <= 1), None)


def _refined(f: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one valley is 1 or less on [low, high], or else least, by golden section."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(57):
        left, right = high - golden * (high - low), low + golden * (high - low)
        at_left, at_right = f(left), f(right)
        if min(at_left, at_right) <= 1:
            return left if at_left < at_right else right
        low, high = (low, right) if at_left < at_right else (left, high)
    return (low + high) / 2


def precision(head: Examined) -> Finding | None:
    """A finding where outputs are no numbers, or err beyond the bound that the same numbers keep in float64."""
    run, plain = head.as_run, head.plain
    lost = _lost(head, run)
    if not lost.any():
        return None
    worst = int(torch.where(lost, run.error.nan_to_num(nan=math.inf), -1.0).argmax())
    evidence = _digits(head, run, plain, worst) if run.finite.all() else _broken(head, ~run.finite, worst)
    return Finding("underflow or saturation", head.where(worst), evidence, _wider(head))


def _lost(head: Examined, run: Run) -> Tensor:
    return ~run.finite | ((run.error > head.bound) & (head.plain.error <= head.bound))


def _broken(head: Examined, broken: Tensor, worst: int) -> str:
    top, name = torch.finfo(head.dtype).max, _name(head.dtype)
    found = f"{int(broken.sum()):,} of {len(broken):,} outputs are NaN or infinite, such as at {head.place(worst)}"
    if not head.logits * head.score_factor > top:
        return f"{found}: a number on the way there is not finite in {name}."
    scores = f"scores reach {head.logits:.3g}" + (f" times {head.score_factor:.3g}" if head.score_factor != 1 else "")
    return f"{found}: {scores} for queries in range, and {name} ends at {top:.3g}."


def _digits(head: Examined, run: Run, plain: Run, worst: int) -> str:
    unit, logits = torch.finfo(head.dtype).eps / 2, head.logits * head.score_factor
    lead = float((plain.top[worst] / plain.second[worst].clamp_min(1e-300)).log())
    kept, before = len(run.leader.unique()), len(plain.leader.unique())
    stuck = f" {kept} keys ever lead where in float64 {before} do." if kept < before else ""
    return (
        f"{_error(head, run, worst)}, and {float(plain.error[worst]):.3g} in float64: {_name(head.dtype)} rounds "
        f"scores of {logits:.3g} by {logits * unit:.2g}, where the leading key is ahead by {lead:.2g}, and values by "
        f"{unit:.2g} of their size.{stuck}"
    )


def _wider(head: Examined) -> str:
    """The narrowest wider dtype that was tried and keeps what float64 keeps, and what else helps."""
    if not head.plain.finite.all():
        if not head.run(torch.float64, head.score_factor * 1e-12).finite.all():
            return "Build, compile or load the model again: not all of its stored numbers are finite."
        limit = torch.finfo(torch.float64).max / max(head.logits, 1.0)
        return f"Float64 does not hold it either: lower β, to below {limit:.2g} times the built one."
    for dtype in _wider_than(head.dtype):
        run = head.plain if dtype == torch.float64 else head.run(dtype, head.score_factor)
        if head.allows(dtype) and not _lost(head, run).any():
            return f"Use {_name(dtype)}, which holds it. {head.smaller(head.dtype)}".rstrip()
    return "Build it again: no dtype holds these numbers."


def _wider_than(dtype: torch.dtype) -> list[torch.dtype]:
    """Those with more digits, the narrowest first."""
    return [wider for wider in reversed(DTYPES) if torch.finfo(wider).eps < torch.finfo(dtype).eps]


def share(mask: Tensor) -> float:
    """Which part of the entries is true; 0 of none."""
    return float(mask.double().mean()) if mask.numel() else 0.0


def _found(kind: Kind, head: Examined, run: Run, evidence: str, advice: str) -> Finding:
    return Finding(kind, head.where(run.worst), evidence, advice)


def _error(head: Examined, run: Run, at: int | None = None) -> str:
    i = run.worst if at is None else at
    return f"The error is {float(run.error[i]):.3g} at {head.place(i)}, {head.standard} {Up(float(head.bound[i])):.3g}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
