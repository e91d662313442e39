"""What is proved of the literal softmax of heads in joined pieces, where steep gates cost the keys' scores digits."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.head.head import Head
from anchorhead.head.module import LiteralHead
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.literal_pieces import LiteralPieces

F32, F64 = torch.float32, torch.float64
KINKED = [
    ("exp(-abs(x))", (-4, 4), 1e-5, F32),
    ("exp(-abs(x))", (-4, 4), 3e-14, F64),
    ("max(x, 0.3-x**2, sin(4*x))", (-2, 2), 1e-4, F32),
    ("abs(x)**3", (-1, 1), 1e-4, F32),
    ("elu(x)", None, 1e-4, F32),
    ("relu(x)", None, 1e-5, F64),
]


@pytest.mark.parametrize(("formula", "domain", "tol", "dtype"), KINKED)
def test_the_literal_form_keeps_its_own_certificate(formula: str, domain: tuple | None, tol: float, dtype) -> None:
    model = ah.compile(formula, domain, tol=tol, dtype=dtype)
    kept = model.literal_certificate()
    x = torch.linspace(*(domain or (-60, 60)), 20_001, dtype=dtype)
    for form in (model.literal(), lambda x: model.to_stock_attention()(x[:, None, None]).flatten()):
        error = (form(x).double() - model.exact(x.double())).abs()
        allowed = kept.approximation + kept.rounding * (1 if domain else 1 + x.double().abs())
        assert bool((error <= allowed).all())
    assert model.certificate.evaluation == ("" if formula == "relu(x)" else "fast")


def test_a_network_with_kinks_keeps_it_too() -> None:
    model = ah.compile("exp(-abs(x + y))", (-2, 2), tol=1e-5, dtype=F32)
    x = 4 * torch.rand(4000, 2, generator=torch.Generator().manual_seed(0)) - 2
    error = (model.literal()(x).double().flatten() - torch.exp(-x.double().sum(-1).abs())).abs().max().item()
    assert error > model.certificate.bound
    assert not error > model.literal_certificate().bound


def test_what_the_literal_form_does_not_keep_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(ah.ToleranceError, match="literal softmax"):
        ah.compile("exp(-abs(x))", (-4, 4), tol=1e-5, dtype=F32, evaluation="literal")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_bound_holds_for_any_head_in_pieces(seed: int) -> None:
    """Against the head in mpmath, at points of a small box, in float32."""
    rng = np.random.default_rng(seed)
    sizes = tuple(int(n) for n in rng.integers(1, 5, size=rng.integers(2, 4)))
    keys, scale = sum(sizes), 10 ** rng.uniform(-1, 6)
    numbers = {"slopes": rng.normal(size=keys) * 5, "intercepts": rng.normal(size=keys),
               "constants": rng.normal(size=keys) * 10 ** rng.uniform(-1, 3), "gains": rng.normal(size=keys),
               "gate_slopes": rng.normal(size=len(sizes)) * scale,
               "gate_levels": rng.normal(size=len(sizes)) * scale / 3}  # fmt: skip
    head = Head.of(**{name: part.astype(np.float32) for name, part in numbers.items()}, horner=False, sizes=sizes,
                   dtype="float32")  # fmt: skip
    low = float(np.float32(rng.uniform(-2, 2)))
    high = float(np.float32(low + 10 ** rng.uniform(-5, -1)))
    bound = LiteralPieces(HeadClaim(ah.compile("tanh(x)").claim.function, "x", low, high, head)).on_box(low, high)
    x = torch.from_numpy(rng.uniform(low, high, 20).astype(np.float32)).clamp(low, high)
    with mpmath.mp.workdps(60):
        for place, found in zip(x.tolist(), LiteralHead(head)(x).tolist(), strict=True):
            lines = zip(head.slopes, head.intercepts, head.gates, strict=True)
            scores = [(mpmath.mpf(s) + g) * place + c + b for s, c, (g, b) in lines]
            weights = [mpmath.exp(s - max(scores)) for s in scores]
            values = [c + mpmath.mpf(g) * place for c, g in zip(head.constants, head.gains, strict=True)]
            assert abs(mpmath.fdot(weights, values) / sum(weights) - found) <= bound
