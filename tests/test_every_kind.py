"""What users do with modules works for every kind of model, or is refused with a sentence."""

import copy
import io
import pickle

import pytest
import torch
import torch._dynamo
from torch import nn

import anchorhead as ah

DOUBLE = {"dtype": torch.float64}


def ramps() -> nn.Module:
    return ah.theorems.single_head([[1.0, 0.5], [-0.5, 1.0]], [0.0, 0.1], -1, 1, anchors=16, **DOUBLE)


def many_ramps() -> nn.Module:
    weights, bias = [[1.0, 0.5], [-0.5, 1.0], [0.5, 0.5]], [0.0, 0.1, 0.2]
    return ah.theorems.multi_head(weights, bias, -1, 1, heads=2, **DOUBLE)


def converted() -> nn.Module:
    return ah.convert(nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)).double())


KINDS = {
    "head": (lambda: ah.compile("sin(3*x)", (-1, 1), tol=1e-4), (5,)),
    "kinked": (lambda: ah.compile("relu(x) + sin(x)", (-1, 1), tol=1e-3), (5,)),
    "network": (lambda: ah.compile("x*y + max(x, y)", (-1, 1), tol=1e-2, method="graph"), (5, 2)),
    "grid": (lambda: ah.compile("x*y", (-1, 1), tol=1e-2, method="grid"), (5, 2)),
    "sampled": (lambda: ah.compile(lambda x: torch.sin(x), (-1, 1), tol=0.1, lipschitz=1.0), (5, 1)),
    "two layers": (lambda: ah.compile(lambda x: x / 2, (-1, 1), tol=0.2, lipschitz=0.5, method="two_layer"), (5, 1)),
    "ramps": (ramps, (5, 2, 2)),
    "many ramps": (many_ramps, (5, 3, 2)),
    "look-up": (lambda: ah.theorems.two_layer(torch.sin, tokens=1, features=1, levels=4, **DOUBLE), (5, 1, 1)),
    "converted": (converted, (5, 2)),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    torch.manual_seed(0)
    make, shape = KINDS[request.param]
    x = torch.rand(*shape, generator=torch.Generator().manual_seed(1), **DOUBLE)
    return make(), x * 0.9


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_copies_compute_the_same(kind):
    model, x = kind
    close(copy.deepcopy(model)(x), model(x))


def test_pickles_compute_the_same_or_are_refused(kind):
    model, x = kind
    try:
        data = pickle.dumps(model)
    except (AttributeError, pickle.PicklingError) as refusal:  # a function of the caller's own is part of the network
        assert "lambda" in str(refusal) or "local" in str(refusal)  # noqa: PT017
        return
    close(pickle.loads(data)(x), model(x))


def test_a_state_comes_back(kind):
    model, x = kind
    held = io.BytesIO()
    torch.save(model.state_dict(), held)
    held.seek(0)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(torch.load(held, weights_only=True))
    close(other(x), model(x))


def test_moving_to_where_it_is_changes_nothing(kind):
    model, x = kind
    before = model(x)
    assert model.to("cpu") is model
    close(model(x), before)


def test_another_dtype_computes_in_it_or_is_refused(kind):
    model, x = kind
    other = copy.deepcopy(model)
    try:
        other = other.to(torch.float32)
    except ah.AnchorheadError as refusal:
        assert "dtype" in str(refusal) or "float32" in str(refusal)  # noqa: PT017
        return
    torch.testing.assert_close(other(x.float()).double(), model(x), rtol=0, atol=1e-4)


def test_batches_of_torch_func(kind):
    model, x = kind
    close(torch.func.vmap(model)(x), model(x))


def test_gradients_of_torch_func_are_those_of_autograd(kind):
    model, x = kind
    found = torch.func.grad(lambda v: model(v).square().sum())(x)
    watched = x.clone().requires_grad_()
    model(watched).square().sum().backward()
    close(found, watched.grad)


def test_literal_forms_agree(kind):
    model, x = kind
    if not hasattr(model, "literal"):
        pytest.skip("a converted model is literal head by head")
    torch.testing.assert_close(model.literal()(x), model(x), rtol=0, atol=1e-8)


@pytest.mark.heavy
def test_compiled_by_torch(kind):
    model, x = kind
    torch._dynamo.reset()  # forwards are counted, whatever the model
    close(torch.compile(model, backend="aot_eager")(x), model(x))
