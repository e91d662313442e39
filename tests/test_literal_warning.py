"""What the softmax written out keeps is said where it is less than what `model(x)` keeps, and bounds what it does."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah

MADE = {
    "sum": ("x*y + sin(z)", (-1, 1), 1e-4),
    "square": ("x**2 + 3*y*z", (-1, 1), 1e-3),
    "activation": ("hardswish(x)", None, 1e-5),
    "tree": ("sin(3*x*y) + exp(-x**2)", (-1, 1), 1e-6),
    "off centre": ("(x - 0.3)**2*y", {"x": (0, 3), "y": (-1, 2)}, 1e-4),
}


def made(name: str, dtype: torch.dtype, **options: str) -> ah.CompiledModel:
    formula, domain, tol = MADE[name]
    return ah.compile(formula, domain, tol=max(tol, 1e-5) if dtype == torch.float32 else tol, dtype=dtype, **options)


def warned(make: Callable[[ah.CompiledModel], object], model: ah.CompiledModel) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        make(model)
    return [str(warning.message) for warning in said if warning.category is ah.LiteralWarning]


@pytest.mark.heavy
@pytest.mark.parametrize("name", MADE)
def test_hook_points_warn_wherever_they_keep_less_than_the_certificate(name: str) -> None:
    pytest.importorskip("transformer_lens")
    for dtype in (torch.float32, torch.float64):
        model = made(name, dtype)
        fast, literal = model.certificate, model.literal_certificate()
        grown = [c.bound + (0 if c.bounded else 101 * c.rounding) for c in (fast, literal)]
        worse = literal.level == "unproved" or grown[1] > 1.01 * grown[0]
        for make in (ah.to_hooked, ah.to_bridge):
            said = warned(make, model)
            assert len(said) == worse
            assert all('evaluation="literal"' in text for text in said)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["sum", "square", "activation"])
def test_float32_loses_its_tolerance_with_a_warning_and_keeps_it_without(name: str) -> None:
    pytest.importorskip("transformer_lens")
    assert len(warned(ah.to_hooked, made(name, torch.float32))) == 1
    if name != "activation":
        formula, domain, _ = MADE[name]
        literal = ah.compile(formula, domain, tol=1e-2, dtype=torch.float32, evaluation="literal")
        assert not warned(ah.to_hooked, literal)


@pytest.mark.parametrize("name", ["sum", "square", "tree", "off centre"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_the_literal_form_keeps_its_bound_at_corners_and_between(name: str, dtype: torch.dtype, seed: int) -> None:
    """Against the target in float64 in torch's own functions."""
    model = MODELS.setdefault((name, dtype), made(name, dtype))
    low, high = torch.tensor(model.certificate.domain, dtype=torch.float64).T
    part = torch.rand(200, len(low), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    part[:70] = part[:70].round()
    part[70:100] = part[70:100] ** 8  # near one corner
    x = (low + part * (high - low)).to(dtype)
    a, b, c = (*x.double().T, x.double()[:, 0])[:3]
    exact = {
        "sum": lambda: a * b + c.sin(),
        "square": lambda: a**2 + 3 * b * c,
        "tree": lambda: (3 * a * b).sin() + (-(a**2)).exp(),
        "off centre": lambda: (a - 0.3) ** 2 * b,
    }[name]()
    error = (model.literal()(x)[:, 0].double() - exact).abs().max().item()
    assert error <= model.literal_certificate().bound + 1e-15


MODELS: dict[tuple[str, torch.dtype], ah.CompiledModel] = {}


PROMPTS = {
    "mean(x*y)": 1e-3,
    "q*cov(x, y)/(var(x) + 0.2)": 1e-2,
    "attend(-3*(x - q)**2, y) + mean(exp(-abs(x)))": 1e-3,
}


@pytest.mark.heavy
@pytest.mark.parametrize("formula", PROMPTS)
def test_a_prompt_for_the_literal_form_keeps_its_tolerance_there_over_many_tokens(formula: str) -> None:
    pytest.importorskip("transformer_lens")
    tol, asks = PROMPTS[formula], "q" in formula
    model = ah.in_context.compile(formula, {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)} if asks else None, tol=tol,
                                  dtype=torch.float32, evaluation="literal", progress=False)  # fmt: skip
    certificate = model.literal_certificate()
    assert certificate.level == "proved"
    assert certificate.bound <= tol
    assert not warned(ah.to_hooked, model)
    hooked = ah.to_hooked(model)
    for n, low in ((1, -1.0), (300, 0.98), (300, -1.0)):
        tokens = low + (1 - low) * torch.rand(1, n, 2)
        given = (tokens, torch.tensor([[[-0.9], [1.0]]])) if asks else (tokens,)
        for form in (model, model.literal(), hooked):
            assert (form(*given) - model.exact(*given)).abs().max() <= certificate.bound
    assert asks or ah.walk(model, *given).softmax


@pytest.mark.heavy
def test_what_sums_over_tokens_prevent_is_refused_and_no_advice_leads_back_to_itself() -> None:
    pytest.importorskip("transformer_lens")
    slope, tokens, query = "q*cov(x, y)/(var(x) + 0.2)", {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}
    with pytest.raises(ah.ToleranceError, match=r"sums over tokens \(65,536 where .* leave evaluation=\"literal\" out"):
        ah.in_context.compile(slope, tokens, query, tol=1e-10, evaluation="literal", progress=False)
    model = ah.in_context.compile(slope, tokens, query, tol=1e-8, evaluation="literal", progress=False)
    assert model.certificate.bound < model.literal_certificate().bound <= 1e-8
    [said] = warned(ah.to_hooked, model)
    assert "sums over up to 65,536 tokens" in said
    assert "evaluation" not in said
