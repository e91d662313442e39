"""What users do with modules works for every kind of model, or is refused with a sentence."""

import copy
import io
import math
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


SMALL = {"features": 2, "examples": 3}
LIMITS = {"x": 1, "y": 1, "curvature": 1.5}
EXAMPLES = [(3, 2), (3,)]


class Prompted(nn.Module):
    """An in-context network on prompts that are one vector each; labels of a classifier are what lies above a half."""

    def __init__(self, network: nn.Module, shapes: list[tuple[int, ...]], labels: bool = False) -> None:
        super().__init__()
        self.network, self.shapes, self.labels = network, shapes, labels

    def prompt(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = x.split([math.prod(shape) for shape in self.shapes], -1)
        parts = [part.reshape((*x.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True)]
        return [parts[0], (parts[1] > 0.5).to(x.dtype)] if self.labels else parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.network(*self.prompt(x))
        return found if isinstance(found, torch.Tensor) else self.network.joined(found)

    def literal(self) -> nn.Module:
        return Prompted(self.network.literal(), self.shapes, self.labels)


def descent(loss: str, **options) -> nn.Module:
    return ah.in_context.gradient_descent(
        loss, **SMALL, steps=3, learning_rate=0.5, bounds=LIMITS | {"w": 4}, **options
    )


def network_step() -> nn.Module:
    step = ah.in_context.network_step(**SMALL, width=2, learning_rate=0.1, bounds={"x": 1, "y": 1, "w": 1, "a": 1})
    return Prompted(step, [*EXAMPLES, (2, 2), (2,)])


def prompt() -> nn.Module:
    formula = "mean(x) + cov(x, y)/2 + attend(2*p*x, y)"
    square = {"x": (-1, 1), "y": (-1, 1)}
    return Prompted(ah.in_context.compile(formula, square, {"p": (-1, 1)}, tol=1e-3), [(3, 2), (2, 1)])


KINDS = {
    "head": (lambda: ah.compile("sin(3*x)", (-1, 1), tol=1e-4), (5,)),
    "kinked": (lambda: ah.compile("relu(x) + sin(x)", (-1, 1), tol=1e-3), (5,)),
    "network": (lambda: ah.compile("x*y + max(x, y)", (-1, 1), tol=1e-2, method="graph"), (5, 2)),
    "in a row": (lambda: ah.compile("sin(100*x)", (-1, 1), tol=1e-2), (5,)),
    "grid": (lambda: ah.compile("x*y", (-1, 1), tol=1e-2, method="grid"), (5, 2)),
    "sampled": (lambda: ah.compile(lambda x: torch.sin(x), (-1, 1), tol=0.1, lipschitz=1.0), (5, 1)),
    "two layers": (lambda: ah.compile(lambda x: x / 2, (-1, 1), tol=0.2, lipschitz=0.5, method="two_layer"), (5, 1)),
    "ramps": (ramps, (5, 2, 2)),
    "many ramps": (many_ramps, (5, 3, 2)),
    "look-up": (lambda: ah.theorems.two_layer(torch.sin, tokens=1, features=1, levels=4, **DOUBLE), (5, 1, 1)),
    "converted": (converted, (5, 2)),
    "prompt": (prompt, (5, 8)),
    "gradient descent": (lambda: Prompted(descent("huber", l1=[0.1, 0.0], l2=0.1, momentum=0.5), EXAMPLES), (5, 9)),
    "logistic descent": (lambda: Prompted(descent("logistic"), EXAMPLES, labels=True), (5, 9)),
    "newton": (lambda: Prompted(ah.in_context.newton(**SMALL, steps=3, l2=0.5, bounds=LIMITS), EXAMPLES), (5, 9)),
    "network step": (network_step, (5, 15)),
    "truncated": (lambda: Prompted(ah.in_context.truncated_linear(features=2, low=-1, high=1), [(3, 2), (2,), ()]),
                  (5, 9)),
}  # fmt: skip


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
        found = other.to(torch.float32)(x.float())
    except ah.AnchorheadError as refusal:
        assert "dtype" in str(refusal) or "float32" in str(refusal)  # noqa: PT017
        return
    torch.testing.assert_close(found.double(), model(x), rtol=0, atol=1e-4)


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
