"""One set of numbers, two evaluations: fast equals literal, everywhere, with gradients, for any finite float."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.module import HeadModule

pytestmark = pytest.mark.processor


@st.composite
def heads(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    keys = draw(st.integers(1, 14))

    def normal(n):
        return torch.randn(n, generator=generator, dtype=torch.float64)

    k = torch.arange(keys, dtype=torch.float64) - (keys - 1) / 2
    uniform = draw(st.booleans())
    step = draw(st.sampled_from([0.25, 0.875, 2.0]))
    slopes = step * k if uniform else 3 * normal(keys)
    intercepts = -0.3 * k**2 + (draw(st.sampled_from([0.0, 0.7])) * k if uniform else 0)
    sizes = [keys] if uniform or keys < 3 else [1, keys - 1]
    gates = (
        [torch.zeros(1), torch.zeros(1)]
        if len(sizes) == 1
        else [torch.tensor([-50.0, 50.0]), torch.tensor([1.0, -1.0])]
    )
    gains = normal(keys) * draw(st.sampled_from([0.0, 1.0]))
    numbers = (v.to(dtype) for v in (slopes, intercepts, normal(keys), gains, *gates))
    name = str(dtype).removeprefix("torch.")
    return HeadModule(Head.of(**dict(zip(NUMBERS, numbers, strict=True)), horner=uniform, sizes=sizes, dtype=name))


@given(heads(), st.integers(0, 2**31))
def test_fast_equals_literal(head, seed):
    generator = torch.Generator().manual_seed(seed)
    x = (8 * torch.randn(200, generator=generator, dtype=torch.float64)).to(head.dtype)
    eps = torch.finfo(head.dtype).eps
    scale = 1 + head.constants.abs().max() + head.gains.abs().max() * x.abs()
    slack = 30 + 6 * (head.slopes.abs().max() + head.gate_slopes.abs().max()) * x.abs() + 6 * head.keys
    assert ((head(x) - head.literal()(x)).abs() <= eps * scale * slack).all()


@given(heads())
def test_gradients_are_right_also_at_zero(head):
    head = copy.deepcopy(head)
    if head.dtype != torch.float64:
        return
    x = torch.tensor([0.0, 1e-9, -0.3, 0.7, 2.5], dtype=torch.float64, requires_grad=True)
    fast = torch.autograd.grad(head(x).sum(), x)[0]
    literal = torch.autograd.grad(head.literal()(x).sum(), x)[0]
    torch.testing.assert_close(fast, literal, rtol=1e-7, atol=1e-7)


MODELS = ["gelu(x)", "softplus(x)", "mish(x)", "relu(x)", "elu(x)", "clip(x, -1, 1)", "tanh(x)"]


@pytest.mark.parametrize("expression", MODELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_finite_float_has_a_finite_answer(expression, dtype):
    model = ah.compile(expression, tol=1e-5, dtype=dtype)
    largest = torch.finfo(dtype).max
    x = torch.tensor([0.0, -0.0, 1e-30, largest, -largest, largest / 3, -1e30, 1e30, 88.8, -104.0], dtype=dtype)
    out = model(x)
    assert out.isfinite().all()
    assert model(torch.tensor([math.nan, 1.0], dtype=dtype)).isnan().tolist() == [True, False]


@pytest.mark.parametrize("expression", MODELS)
def test_shapes_batches_and_chunks(expression):
    model = ah.compile(expression, tol=1e-4)
    x = torch.randn(3, 50_000, 1, dtype=torch.float64)
    out = model(x)
    assert out.shape == x.shape
    torch.testing.assert_close(out[1, 17], model(x[1, 17]), rtol=0, atol=1e-14)
    assert model(x[:0]).shape == x[:0].shape


@pytest.mark.parametrize("expression", MODELS)
def test_attention_is_what_the_output_is_made_of(expression):
    model = ah.compile(expression, tol=1e-6)
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    (weights,) = model.attention(x)
    assert weights.shape == (101, 1, model.head.keys)
    torch.testing.assert_close(weights.sum(-1), torch.ones(101, 1, dtype=torch.float64))
    values = model.head.constants + x[:, None] * model.head.gains
    torch.testing.assert_close((weights[:, 0] * values).sum(-1), model(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("expression", [*MODELS, "sin(x)"])
def test_self_attention_is_the_same_function(expression):
    method = "smooth" if expression == "sin(x)" else "auto"
    model = ah.compile(expression, (-6, 6), tol=1e-5, method=method)
    network = model.as_self_attention(4)
    x = 2 * torch.randn(5, 4, 1, dtype=torch.float64).clamp(-3, 3)
    torch.testing.assert_close(network(x), model(x), rtol=0, atol=1e-7)
    torch.testing.assert_close(network.literal()(x), model(x), rtol=0, atol=1e-7)
    assert ah.walk(network, x).softmax == 1
    named, z = {name: w[0] for name, w in network.matrices()[0].items()}, network.stages[0](x).mT
    scores = (named["W_K"] @ z).mT @ (named["W_Q"] @ z)
    out = (named["W_V"] @ z @ scores.softmax(-2) @ named["W_O"]).mT
    torch.testing.assert_close(out, model(x), rtol=0, atol=1e-7)


@pytest.mark.parametrize("expression", ["selu(x)", "hardswish(x)", "elu(x)", "gelu(x)", "relu(x)"])
def test_self_attention_keeps_its_digits_in_float32(expression):
    """Silencing other tokens must not cost the token's own scores their digits."""
    model = ah.compile(expression, (-15, 15), tol=1e-5, dtype=torch.float32)
    x = torch.linspace(-15, 15, 4000).reshape(-1, 4, 1)
    gap = (model.as_self_attention(4)(x) - model.literal()(x)).abs().max()
    assert gap <= 3e-5


@pytest.mark.parametrize("expression", MODELS)
def test_compiled_models_are_affine_maps_and_attention(expression):
    model = ah.compile(expression, tol=1e-4)
    assert ah.walk(model, torch.randn(3, 1, dtype=torch.float64)).softmax == 1


@pytest.mark.heavy
def test_torch_compile_gives_the_same_numbers():
    model = ah.compile("gelu(x)", tol=5e-7, dtype=torch.float32)
    x = 4 * torch.randn(10_000)
    torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=0, atol=3e-6)
