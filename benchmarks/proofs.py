"""Proofs: boxes and time of the Taylor form against plain interval evaluation of the same head, and verification."""

import tempfile
import time
from pathlib import Path

import anchorhead as ah
from anchorhead.compiler.target import read_target
from anchorhead.enclosure.balls import enclose
from anchorhead.enclosure.precision import ball, precision, upper
from anchorhead.proof.approximation import Proof, prove
from anchorhead.proof.head_claim import HeadClaim


def plain(claim: HeadClaim, low: float, high: float, goal: float, most: int) -> tuple[int, float]:
    """Interval evaluation of |target - head|, bisected: boxes looked at, and the share of the domain proved."""
    stack, boxes, proved = [(low, high)], 0, 0.0
    with precision():
        while stack and boxes < most:
            a, b = stack.pop()
            boxes += 1
            x = ball(a, b)
            head, keys = claim.head.balls, claim.head.balls.near(a, b)
            denominator, numerator = head.taylor(x, head.leader((a + b) / 2, keys), 0, 106, keys)
            if upper(abs(enclose(claim.function, {claim.variable: x}) - numerator[0] / denominator[0])) <= goal:
                proved += b - a
            else:
                stack += [((a + b) / 2, b), (a, (a + b) / 2)]
    return boxes, proved / (high - low)


def main(tiny: bool = False) -> None:
    cases = [("sin(3*x)", 1e-3), ("sin(3*x)", 1e-6), ("1/(1+25*x**2)", 1e-6)]
    for expression, tol in cases[:1] if tiny else cases:
        model = ah.compile(expression, (-1, 1), tol=tol)
        read = read_target(expression, (-1, 1))
        claim = HeadClaim(read.node, read.variable, -1.0, 1.0, model.head.numbers)
        start = time.perf_counter()
        found = prove(claim, -1.0, 1.0, tol)
        taylor = time.perf_counter() - start
        if not isinstance(found, Proof):
            raise RuntimeError(f"{expression} to {tol:g} was compiled, and is not proved here: {found}")
        start = time.perf_counter()
        boxes, share = plain(claim, -1.0, 1.0, tol, 500 if tiny else 100_000)
        intervals = time.perf_counter() - start
        done = "done" if share > 1 - 1e-9 else f"given up with {share:.2%} of the domain proved"
        print(f"{expression} to {tol:g}: {len(found.edges) - 1} boxes in {taylor:.3f} s")
        print(f"  plain intervals: {boxes:,} boxes, {intervals / taylor:,.0f} times the time, {done}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gelu.safetensors"
        tol = 1e-4 if tiny else 1e-9
        ah.compile("gelu(x)", tol=tol).save(path)
        start = time.perf_counter()
        ah.verify(path)
        print(f"verify a saved gelu at {tol:g}: {time.perf_counter() - start:.2f} s (at most 1)")
