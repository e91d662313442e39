"""No bound says less than nothing: never more than what weights that sum to one imply, and never broken by that."""

import pytest
import torch

import anchorhead as ah
from anchorhead.in_context.paper import with_paper_heads

D = torch.float64
RANGES = [(0.0, 5.0), (-2.0, 3.0), (100.0, 105.0), (-9.0, -4.0)]
BETAS = [1e-9, 1e-3, 0.1, 1.0, 10.0]


def errors(model, low, high):
    n = model.tokens
    x = torch.linspace(low - 20, high + 20, 4001, dtype=D).reshape(-1, 1, 1).expand(-1, n, 1).contiguous()
    return (model(x) - model.exact(x)).abs().max().item()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_a_head_at_any_beta_keeps_a_bound_within_its_range(low, high, beta):
    weights, bias = torch.ones(3, 1, dtype=D), torch.zeros(3, dtype=D)
    one = ah.theorems.single_head(weights, bias, low, high, 64, beta=beta)
    assert errors(one, low, high) <= one.bound <= (high - low) / 2 * (1 + 1e-9)
    assert one.selection_error <= 1
    rows = ah.theorems.single_head(weights, bias, low, high, 16, beta=beta, output_features=2,
                                   output_row=lambda k: k % 2)  # fmt: skip
    assert errors(rows, low, high) <= rows.bound <= (max(high, 0) - min(low, 0)) * (1 + 1e-9)
    many = ah.theorems.multi_head(weights, bias, low, high, 4, beta=beta)
    assert errors(many, low, high) <= many.bound <= 4 * max(abs(low), abs(high)) + max(abs(low), abs(high))
    assert many.selection_error <= 1


@pytest.mark.parametrize("build", [ah.theorems.two_layer, ah.theorems.attention_then_softmax])
@pytest.mark.parametrize("beta", [0.01, 1.0, 5.0, 40.0])
def test_a_look_up_at_any_beta_keeps_a_bound_within_its_values(build, beta):
    model = build(torch.sin, 1, 2, 5, beta=beta)
    x = torch.rand(2000, 1, 2, generator=torch.Generator().manual_seed(0), dtype=D)
    bound = model.bound_for(lipschitz=1.0, metric="sup")
    spread = model.lookup.values.max() - model.lookup.values.min()
    assert (model(x) - torch.sin(x)).abs().max() <= bound <= spread + 0.12
    assert model.selection_error <= 1


def test_a_plan_promises_no_more_than_the_range():
    for theorem in ("single_head", "multi_head"):
        plan = ah.theorems.plan(theorem, low=0, high=5, tol=100, tokens=4, features=1, selection_error=0.9)
        assert plan.bound <= 5


def test_a_deviation_that_says_nothing_is_said_to():
    model = ah.in_context.gradient_descent("logistic", features=2, examples=5, steps=300, learning_rate=0.1,
                                           momentum=0.9)  # fmt: skip
    assert model.certificate.level == "trivial"
    assert model.certificate.bound == pytest.approx(2 * 20 * 2**0.5, rel=1e-6)
    assert str(model.certificate).startswith("nothing useful is known of |w after 300 steps")
    assert max(model.deviation_bounds) <= model.certificate.bound
    assert model.deviation_bounds[1] < 1e-9, "the first steps are proved"


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_the_papers_heads_have_a_certificate_that_holds_for_them(loss):
    draw = torch.Generator().manual_seed(1)
    model = ah.in_context.gradient_descent(loss, features=2, examples=8, steps=3, learning_rate=1e-3)
    paper = with_paper_heads(model)
    X = torch.randn(200, 8, 2, generator=draw, dtype=D).clamp(-6, 6)
    y = (torch.rand(200, 8, generator=draw, dtype=D) > 0.5).to(D)
    apart = (paper.trajectory(X, y) - model.exact(X, y)).norm(dim=-1).amax(0)
    assert (apart <= torch.tensor(paper.deviation_bounds, dtype=D)).all()
    assert apart[-1] > model.certificate.bound, "the other network's certificate would not hold"
