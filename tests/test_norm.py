"""What is said of a norm as one function of its entries holds at every point that is tried, and only of norms."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorhead as ah
from anchorhead.circuit.norm import Norm, norms
from anchorhead.circuit.rows import Row
from anchorhead.circuit.step import OutsideDomain
from anchorhead.compiler.circuit_target import of_module
from anchorhead.enclosure.precision import precision
from anchorhead.model.layered_core import LayeredCore
from anchorhead.proof.flow import Tracker
from anchorhead.proof.network_claim import PlacedNetwork, flows, output_errors

NEAR = st.floats(-3, 3)
ROOM = 1 + 1e-9
"""For the rounding of what is computed here in floats."""


@st.composite
def boxes(draw):
    """A norm, intervals for its entries, and two points in them."""
    count = draw(st.integers(1, 5))
    ends = [sorted((draw(NEAR), draw(NEAR))) for _ in range(count)]
    coefficients = tuple(draw(st.floats(0.01, 2)) for _ in range(count))
    bias = draw(st.sampled_from((0.0, 1e-5, 0.5)))
    norm = Norm(tuple(range(count)), coefficients, bias, draw(st.integers(0, count - 1)), draw(st.floats(-2, 2)))
    points = [[low + (high - low) * draw(st.floats(0, 1)) for low, high in ends] for _ in range(2)]
    return norm, [(low, high) for low, high in ends], *points


def total(norm, x):
    return norm.bias + sum(c * v**2 for c, v in zip(norm.coefficients, x, strict=True))


def value(norm, x, off=0.0):
    return norm.factor * x[norm.place] / math.sqrt(total(norm, x) + off)


@given(boxes())
def test_values_lie_in_the_range(case):
    norm, box, *points = case
    with precision():
        low, high = norm.range(box)
    for x in points:
        if total(norm, x) > 1e-200:
            assert low - 1e-9 <= value(norm, x) <= high + 1e-9
    assert max(abs(low), abs(high)) <= abs(norm.factor) / math.sqrt(norm.coefficients[norm.place]) * ROOM


@given(boxes())
def test_what_moves_the_entries_moves_the_norm_no_further_than_said(case):
    norm, box, x, y = case
    if min(total(norm, x), total(norm, y)) < 1e-200:
        return
    with precision():
        said = norm.moved(box, [abs(a - b) for a, b in zip(x, y, strict=True)])
    assert abs(value(norm, x) - value(norm, y)) <= said * ROOM + 1e-9


@given(boxes(), st.lists(st.floats(-1, 1), min_size=5, max_size=5), st.floats(0, 1))
def test_squares_that_are_off_move_the_norm_no_further_than_said(case, signs, size):
    norm, box, x, _ = case
    errors = [size * abs(s) for s in signs[: len(x)]]
    off = sum(c * size * s for c, s in zip(norm.coefficients, signs, strict=False))
    with precision():
        said = norm.shifted(box, errors)
    if math.isfinite(said) and total(norm, x) > 1e-200:
        assert abs(value(norm, x, off) - value(norm, x)) <= said * ROOM + 1e-9


def circuit_of(function, fuse=True):
    return of_module(function, (1.0, 2.0), (3,)).circuit(fuse)


def written_out(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def divided(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True))


NORMS = [nn.LayerNorm(3).double(), nn.RMSNorm(3).double(), written_out]


@pytest.mark.parametrize(
    ("function", "fuse"), [(norm, fuse) for norm in NORMS for fuse in (True, False)] + [(divided, True)]
)
def test_norms_are_seen_however_they_are_written(function, fuse):
    circuit = circuit_of(function, fuse)
    assert len(norms(circuit)) == 3
    [flow] = flows(Tracker(circuit, "float64"), [(-50.0, 60.0), (1.0, 70.0), (-80.0, -1.0)], whole=True)
    assert all(-3 <= low <= high <= 3 for low, high in flow.outputs)


def test_other_quotients_are_not_taken_for_norms():
    others = [
        lambda x: x[..., :1] * torch.rsqrt(x[..., 1] ** 2 + x[..., 2] ** 2 + 1).unsqueeze(-1),
        lambda x: x * torch.rsqrt(9 + x[..., :1] ** 2 - x[..., 1:2] ** 2),
        lambda x: x * torch.rsqrt((x**2).sum(-1, keepdim=True) + torch.exp(x[..., :1] - x[..., 1:2])),
        lambda x: (x + 1) * torch.rsqrt((x**2).sum(-1, keepdim=True)),
    ]
    for function in others:
        assert not norms(circuit_of(function))


@pytest.mark.heavy
@pytest.mark.parametrize(("domain", "dtype"), [((-1, 1), torch.float64), ((0.2, 0.6), torch.float32)])
def test_errors_before_a_norm_are_within_what_is_proved(domain, dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    model = ah.compile(module, domain, tol=0.05, dtype=dtype, method="graph")
    assert norms(model.circuit)
    part = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    x = (domain[0] + (domain[1] - domain[0]) * part).clamp(*domain)
    with torch.no_grad():
        error = (model(x).double() - module(x.double())).abs().amax(0)
        assert (error <= torch.tensor(model.certificate.outputs, dtype=torch.float64)).all()
        assert model.probe(x).first is None


@pytest.mark.heavy
@pytest.mark.parametrize("module", [nn.LayerNorm(3), nn.RMSNorm(3)], ids=["layer norm", "rms norm"])
def test_rows_that_are_wrong_are_within_what_then_follows(module):
    """Stored rows may be off by anything: what follows from them is still a bound, squares and quotients apart."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), module, nn.Linear(3, 2)).double()
    model = ah.compile(module, (0.2, 0.6), tol=1e-4, method="graph")
    claim, draw = model.network.placed.claim, random.Random(0)
    x = torch.rand(500, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.4 + 0.2
    assert norms(claim.circuit)
    bounds = []
    for size in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4):
        wrong = {row: _off(row, size, draw) for rows in claim.wiring.rows for row in map(_frozen, rows)}
        rows = tuple(tuple(wrong[_frozen(row)] for row in rows) for rows in claim.wiring.rows)
        other = replace(claim, wiring=replace(claim.wiring, rows=rows))
        try:
            bound = output_errors(other, rounding=True)
        except OutsideDomain:
            break
        with torch.no_grad():
            error = (LayeredCore(PlacedNetwork.of(other), {})(x) - module(x)).abs().amax(0).tolist()
        assert all(e <= b for e, b in zip(error, bound, strict=True))
        bounds.append(max(bound))
    assert len(bounds) >= 2
    assert bounds == sorted(bounds)


def _frozen(row):
    return tuple(row.terms.items()), row.bias


def _off(row, size, draw):
    terms, bias = row
    return Row({w: c * (1 + draw.choice((-size, size))) for w, c in terms}, bias * (1 + draw.choice((-size, size))))


def test_a_domain_too_wide_for_a_norm_is_refused_before_heads_are_searched_for(monkeypatch):
    searched = lambda *given, **named: pytest.fail("a head was searched for")
    monkeypatch.setattr("anchorhead.compiler.compose.choose", searched)
    for tol, dtype in ((0.5, torch.float64), (1e-3, torch.float64), (0.5, torch.float32)):
        with pytest.raises(ah.ToleranceError, match=r"a smaller domain.*larger eps, such as 1e-2") as refusal:
            ah.compile(nn.LayerNorm(4).double(), (-100, 100), tol=tol, dtype=dtype)
        advice, wide = str(refusal.value), dtype == torch.float64
        assert ("or dtype=torch.float64" in advice) != wide
        assert not (wide and ("larger tol" in advice or "smaller tol" in advice or "wider" in advice))


def test_the_larger_eps_that_is_advised_is_enough():
    assert ah.compile(nn.LayerNorm(2, eps=1e-2).double(), (-100, 100), tol=0.5).certificate.bound <= 0.5
