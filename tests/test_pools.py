"""What is said of means, of attention over tokens and of covariances holds at everything that is tried."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.circuit.line import Line
from anchorhead.circuit.pool import Pool
from anchorhead.circuit.prompt import lower_prompt
from anchorhead.circuit.rows import Row
from anchorhead.circuit.spread import spreads
from anchorhead.circuit.step import PLAIN, Computed, OutsideDomain, Use
from anchorhead.expression.parse import parse
from anchorhead.model.pool import paired_mean, paired_sum
from anchorhead.model.prompt_core import PromptCore
from anchorhead.proof.flow import Tracker
from anchorhead.proof.network_claim import PlacedNetwork, flows, output_errors

NUMBER = st.floats(-3, 3)
SMALL = st.floats(0, 0.5)
EXACT = Computed(Use("pool"), PLAIN, None, "float64", 0.0)
ROOM = 1e-12


def blend(scores, values):
    weights = np.exp(np.array(scores) - max(scores))
    return float(weights @ np.array(values) / weights.sum())


@given(st.lists(st.tuples(NUMBER, NUMBER, st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8), SMALL, SMALL)
def test_perturbed_scores_and_values_move_a_pool_no_further(tokens, slip, error):
    scores, values, moves, errors = map(np.array, zip(*tokens, strict=True))
    pool = Pool((), (), Line({0: 1}), Line({1: 1}))
    lines = [((-3.0, 3.0), slip), ((float(values.min()), float(values.max())), error)]
    [(found, bound)] = pool.follow(lines, lines[0][0], EXACT)
    moved = blend(scores + slip * moves, values + error * errors)
    assert abs(moved - blend(scores, values)) <= bound + ROOM
    assert found[0] - ROOM <= blend(scores, values) <= found[1] + ROOM


@given(SMALL)
def test_the_bound_on_perturbed_scores_is_met(slip):
    """Two tokens, the one raised and the other lowered, at the odds that make the most of it."""
    pool = Pool((), (), Line({0: 1}), Line({1: 1}))
    [(_, bound)] = pool.follow([((-3.0, 3.0), slip), ((0.0, 1.0), 0.0)], (-3.0, 3.0), EXACT)
    moved = blend([slip, 0], [1, 0]) - blend([0, slip], [1, 0])
    assert moved == pytest.approx(bound, abs=ROOM)


@given(st.lists(st.tuples(NUMBER, NUMBER, st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=9), SMALL, SMALL)
def test_covariances_stay_in_range_and_move_no_further(tokens, left, right):
    circuit = lower_prompt(parse(["cov(x, y)", "var(x)"], ("x", "y"), pools=True), 2)
    found = spreads(circuit)
    a, b, da, db = map(np.array, zip(*tokens, strict=True))
    for spread in found.values():
        same = spread.left == spread.right
        other, moves, size = (a, da, left) if same else (b, db, right)
        ranges = tuple((float(part.min()), float(part.max())) for part in (a, other))
        meant = float(((a - a.mean()) * (other - other.mean())).mean())
        low, high = spread.range(*ranges)
        assert low - ROOM <= meant <= high + ROOM
        p, r = a + left * da, other + size * moves
        moved = float(((p - p.mean()) * (r - r.mean())).mean())
        assert abs(moved - meant) <= spread.moved(ranges, (left, size)) + ROOM
        off_a, off_b = left * 0.7, size * 0.9
        mean = float((np.abs(a - a.mean() - off_a) * np.abs(other - other.mean() - off_b)).mean())
        assert mean <= spread.size(ranges, (off_a, off_b)) + ROOM


def test_variances_and_covariances_are_seen_and_others_are_not():
    def count(formula):
        return len(spreads(lower_prompt(parse(formula, ("x", "y", "q"), pools=True), 2)))

    assert count("q*cov(x, y)/(var(x) + 0.2)") == 2
    assert count("std(3*x + y) + mean((x - mean(x))**2)") == 2
    assert count("cov(sin(x), x*y)") == 1
    assert count("mean(x**2) + mean(x*y) + mean((x - mean(y))**2)") == 0
    assert count("mean((x - mean(x))*(x + mean(x)))") == 0


def test_a_variance_has_the_range_of_a_variance():
    circuit = lower_prompt(parse(["var(x)", "cov(x, y)"], ("x", "y"), pools=True), 2)
    [flow] = flows(Tracker(circuit, "float64"), [(99.0, 101.0), (-2.0, 2.0)])
    assert flow.outputs[0] == pytest.approx((0, 1))
    assert flow.outputs[1] == pytest.approx((-2, 2))


def test_the_middle_of_an_interval_costs_no_digits():
    near, far = (ah.in_context.compile("var(x)", {"x": pair}) for pair in ((-1, 1), (99, 101)))
    assert far.certificate.rounding < 300 * near.certificate.rounding < 1e-11
    x = 100 + torch.linspace(-1, 1, 9, dtype=torch.float64).unsqueeze(-1)
    assert abs(far(x).item() - x.var(correction=0).item()) <= far.certificate.bound


@given(st.integers(1, 3_000), st.integers(0, 2**31), st.sampled_from((torch.float32, torch.float64)))
def test_sums_in_pairs_round_as_often_as_pairs_are_formed(n, seed, dtype):
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=dtype) ** 3
    exact, size = math.fsum(x.tolist()), math.fsum(x.abs().tolist())
    unit = torch.finfo(dtype).eps / 2
    assert abs(paired_sum(x).item() - exact) <= 1.01 * unit * math.ceil(math.log2(max(n, 2))) * size
    mask = torch.arange(n) % 2 == 0
    mean = paired_mean(torch.where(mask, x, torch.inf).unsqueeze(-1), mask).item()
    kept = x[mask].tolist()
    assert abs(mean - math.fsum(kept) / len(kept)) <= 1.01 * unit * 14 * size / len(kept)


@pytest.mark.heavy
def test_rows_that_are_wrong_are_within_what_then_follows():
    """Stored rows may be off by anything: what follows from them is still a bound, in covariances too."""
    formula = ["cov(tanh(x), x*y)", "var(sin(2*x) + y)", "attend(q*x, tanh(x))"]
    model = ah.in_context.compile(formula, {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}, tol=1e-3)
    claim, draw = model.network.placed.claim, random.Random(0)
    assert len(spreads(claim.circuit)) == 2
    torch.manual_seed(0)
    tokens, q = torch.rand(40, 12, 2, dtype=torch.float64) * 2 - 1, torch.rand(40, 3, 1, dtype=torch.float64) * 2 - 1
    meant, bounds = model.exact(tokens, q), []
    for size in (1e-8, 1e-6, 1e-5, 1e-4, 1e-3):
        rows = tuple(tuple(_off(row, size, draw) for row in part) for part in claim.wiring.rows)
        other = replace(claim, wiring=replace(claim.wiring, rows=rows))
        try:
            bound = output_errors(other, rounding=True)
        except OutsideDomain:
            break
        error = (PromptCore(PlacedNetwork.of(other), {})(tokens, q) - meant).abs().amax((0, 1)).tolist()
        assert all(e <= b for e, b in zip(error, bound, strict=True))
        bounds.append(max(bound))
    assert len(bounds) >= 2
    assert bounds == sorted(bounds)


def _off(row, size, draw):
    if len(row.terms) < 2:  # what leaves the domain of a head is another matter
        return row
    return Row({wire: c + size * draw.uniform(-1, 1) for wire, c in row.terms.items()}, row.bias)
