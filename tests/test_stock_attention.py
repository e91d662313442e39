"""Models as nn.MultiheadAttention and nn.Linear: the same outputs, the same weights, and nothing else inside."""

import math

import pytest
import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

import anchorhead as ah
from anchorhead.model import stock
from anchorhead.model.attention import Attention, LiteralAttention
from anchorhead.model.stock import StockAttention, StockLayer, StockLift, to_stock_attention

STOCK = {nn.MultiheadAttention, nn.Linear, NonDynamicallyQuantizableLinear, nn.ModuleList}
GLUE = {StockAttention, StockLift, StockLayer}
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}


def cube(*shape, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(*shape, generator=draw, dtype=torch.float64) - 1).to(dtype)


def literal_network(model, tokens):
    return model.as_self_attention(tokens) if isinstance(model, ah.CompiledModel) else model


def require_same(model, x, tokens=None, weights_within=None, walk=True):
    """Outputs and attention weights of the stock stack against the model's own; returns the stack."""
    found = to_stock_attention(model, tokens)
    own = literal_network(model, x.shape[1])
    within = CLOSE[x.dtype]
    expected = own(x)
    scale = max(1.0, expected.abs().max().item())
    for evaluated in (expected, own.literal()(x)):
        torch.testing.assert_close(found(x), evaluated, rtol=0, atol=within * scale)
    ours, theirs = own.attention_weights(x), found.attention_weights(x)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=within if weights_within is None else weights_within)
        torch.testing.assert_close(b.sum(-1), torch.ones_like(b[..., 0]), rtol=0, atol=1e-5)
    if walk and x.dtype is torch.float64:
        require_stock(found, x)
    return found


def require_stock(found, x):
    assert {type(m) for m in found.modules()} <= STOCK | GLUE
    assert {name.rpartition(".")[2] for name, _ in found.named_parameters()} <= {
        "weight",
        "in_proj_weight",
        "positions",
    }
    layers = [m for m in found.modules() if isinstance(m, nn.MultiheadAttention)]
    walked = ah.walk(found, x[:2])
    assert walked.softmax == walked.scores == len(layers) >= 1


HEADS = {
    "gelu, affine values": ("gelu(x)", None, "auto", 8.0),
    "relu, kinked": ("relu(x)", None, "kinked", 8.0),
    "tanh, constant values": ("tanh(x)", None, "auto", 8.0),
    "sin, constant values": ("sin(3*x)", (-1, 1), "smooth", 1.0),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_stock_attention(name, dtype):
    formula, domain, method, reach = HEADS[name]
    model = ah.compile(formula, domain, tol=1e-5 if dtype is torch.float64 else 1e-3, method=method, dtype=dtype)
    assert bool(model.head.gains.any()) == ("constant" not in name)
    for tokens in (None, 5):
        x = reach * cube(40, tokens or 1, 1, dtype=dtype)
        found = require_same(model, x, tokens, walk=tokens == 5)
        torch.testing.assert_close(found(x), model(x), rtol=0, atol=CLOSE[dtype] * reach)


NETWORKS = {
    "two variables": ("sin(3*x*y) + exp(-x**2 + y/2)", 2),
    "three factors": ("x*y*z", 3),
    "a maximum": ("max(x, y)", 2),
    "two outputs": (["x*y", "max(sin(x), y)"], 2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_stock_attention(name):
    target, inputs = NETWORKS[name]
    model = ah.compile(target, (-1, 1), tol=1e-3, method="graph")
    for tokens in (1, 3):
        x = cube(40, tokens, inputs)
        found = require_same(model, x, tokens, walk=tokens == 3)
        torch.testing.assert_close(found(x), model(x), rtol=0, atol=1e-9)


def test_a_network_in_float32():
    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", (-1, 1), tol=1e-3, method="graph", dtype=torch.float32)
    require_same(model, cube(40, 2, 2, dtype=torch.float32), 2)


def test_a_perceptron_is_stock_attention():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)]
    model = ah.compile(nn.Sequential(*layers).double(), (-1, 1), tol=1e-5)
    x = cube(40, 2, 4)
    found = require_same(model, x, 2)
    assert sum(isinstance(stage, StockLayer) for stage in found.stages) == 2
    torch.testing.assert_close(found(x), model(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_grid_is_stock_attention(dtype):
    model = ah.compile("sin(3*x*y)", (-1, 1), tol=1e-2, method="grid", dtype=dtype)
    for tokens in (1, 3):
        x = cube(40, tokens, 2, dtype=dtype)
        found = require_same(model, x, tokens, walk=tokens == 3)
        torch.testing.assert_close(found(x), model(x), rtol=0, atol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_single_head_is_stock_attention(causal, dtype):
    weights, bias = 2 * cube(4, 3, dtype=dtype), cube(4, dtype=dtype, seed=1)
    model = ah.theorems.single_head(weights, bias, -2, 3, 64, causal=causal, dtype=dtype)
    steep = 1e-2 if dtype is torch.float32 else None  # logits up to 2e4: float32 holds the weights to so much only
    found = require_same(model, 5 * cube(40, 4, 3, dtype=dtype), weights_within=steep)
    assert (found.stages[1].mask is not None) == causal


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_heads_of_multi_head_add_up(dtype):
    weights, bias = 2 * cube(6, 3, dtype=dtype), cube(6, dtype=dtype, seed=1)
    model = ah.theorems.multi_head(weights, bias, -2, 3, 4, output_features=2, output_row=lambda k: k % 2, dtype=dtype)
    steep = 1e-2 if dtype is torch.float32 else None
    require_same(model, 5 * cube(40, 6, 3, dtype=dtype), weights_within=steep)


def waves(x):
    return torch.sin(3 * x) * x.sum((-2, -1), keepdim=True)


@pytest.mark.parametrize(("tokens", "features"), [(1, 2), (2, 1)])
def test_two_layers_are_stock_attention(tokens, features):
    model = ah.theorems.two_layer(waves, tokens, features, 8)
    require_same(model, 0.5 + 0.5 * cube(40, tokens, features))


def test_a_plain_softmax_becomes_a_layer():
    model = ah.theorems.attention_then_softmax(waves, 2, 1, 8)
    x = 0.5 + 0.5 * cube(40, 2, 1)
    found = to_stock_attention(model)
    torch.testing.assert_close(found(x), model(x), rtol=0, atol=1e-9)
    require_stock(found, x)
    assert len(found.attention_weights(x)) == 2


def test_a_sampled_function_in_two_layers():
    model = ah.compile(lambda x, y: math.sin(x) * y, (0, 1), tol=0.3, lipschitz=1.5, method="two_layer")
    x = 0.5 + 0.5 * cube(40, 1, 2)
    found = to_stock_attention(model)
    torch.testing.assert_close(found(x).flatten(), model(x).flatten(), rtol=0, atol=1e-9)
    require_stock(found, x)


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_any_layer_with_any_output_matrix(stack, shared):
    """W_O that mixes positions, W_Q, W_K, W_V of other shapes than the library's own."""
    heads, columns, width = 3, 7, 5
    query, key, value = cube(heads, 2, width), cube(1 if shared else heads, 2, width, seed=1), cube(heads, 4, width)
    output = cube(1 if shared else heads, columns, 3, seed=2)
    for layer in (
        Attention(query, key, value, output=output, stack=stack, causal=stack),
        Attention(query, key, value, keep=slice(1, 7, 2), stack=stack),
    ):
        zero, x = torch.zeros(columns, width, dtype=torch.float64), cube(6, columns, width, seed=3)
        parts = stock._parts([LiteralAttention(layer)], zero)
        for exact in (True, False):
            found = StockAttention([s for part in parts for s in part.build(exact)], columns, width)
            torch.testing.assert_close(found(x), layer.literal()(x), rtol=1e-12, atol=1e-12)
            assert sum(p.numel() for p in found.parameters()) == sum(part.entries(exact) for part in parts)


def test_query_weights_are_scaled_without_rounding():
    model = ah.compile("gelu(x)", tol=1e-7)
    attention = to_stock_attention(model).stages[1].attention
    query = model.as_self_attention(1).matrices()[0]["W_Q"][0]
    rows, columns = query.shape
    scale = math.sqrt(attention.head_dim)
    assert scale == 2 ** round(math.log2(scale))
    assert torch.equal(attention.in_proj_weight[:rows, :columns] / scale, query)
    assert attention.in_proj_bias is None
    assert attention.out_proj.bias is None


def test_it_is_saved_and_differentiated_like_any_module(tmp_path):
    model = ah.compile("gelu(x)", tol=1e-7)
    first, second = to_stock_attention(model, 2), to_stock_attention(model, 2)
    torch.save(first.state_dict(), tmp_path / "stock.pt")
    with torch.no_grad():
        second.stages[1].attention.in_proj_weight.zero_()
    second.load_state_dict(torch.load(tmp_path / "stock.pt"))
    x = 3 * cube(10, 2, 1)
    assert torch.equal(first(x), second(x))
    torch.testing.assert_close(first(x[0]), first(x)[0])  # without a batch dimension
    assert not any(p.requires_grad for p in first.parameters())
    slopes = [torch.autograd.functional.jacobian(lambda u, f=f: f(u).sum(), x) for f in (first, model)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-9)


def test_what_cannot_be_is_said():
    model = ah.compile("gelu(x)", tol=1e-7)
    with pytest.raises(ah.InputError, match="must be a whole number"):
        to_stock_attention(model, 0)
    with pytest.raises(ah.InputError, match="Linear has no form as layers"):
        to_stock_attention(nn.Linear(1, 1))
    single = ah.theorems.single_head([[1.0], [1.0]], [0.0, 0.0], 0, 1, 8)
    with pytest.raises(ah.InputError, match="built for sequences of 2"):
        to_stock_attention(single, 3)
    found = to_stock_attention(single)
    with pytest.raises(ah.ShapeError, match="takes \\(\\.\\.\\., 2, 1\\)"):
        found(torch.zeros(1, 3, 1))
    with pytest.raises(ah.ShapeError, match="one batch dimension"):
        found(torch.zeros(4, 4, 2, 1, dtype=torch.float64))


def test_size_is_refused_with_its_number(monkeypatch):
    model = ah.theorems.two_layer(waves, 1, 3, 64)
    with pytest.raises(ah.SizeError, match="needs 249,620,544 entries, and 134,217,728 are allowed"):
        to_stock_attention(model)
    head = ah.compile("gelu(x)", tol=1e-7)
    least = sum(p.numel() for p in to_stock_attention(head).parameters()) - 1
    monkeypatch.setattr(stock, "MOST_ENTRIES", least)  # no room for a power of four: heads as small as they can be
    narrow = to_stock_attention(head)
    assert narrow.stages[1].attention.head_dim == 8
    x = cube(40, 1, 1)
    torch.testing.assert_close(narrow(x), head(x), rtol=0, atol=1e-9)


def test_hook_points_of_transformer_lens():
    pytest.importorskip("transformer_lens")
    from anchorhead import to_hooked

    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", (-1, 1), tol=1e-5, method="graph")
    causal = ah.theorems.single_head(2 * cube(4, 3), cube(4), -2, 3, 16, causal=True)
    for built, x in ((model, cube(10, 2, 2)), (causal, cube(10, 4, 3))):
        tokens = 2 if built is model else None
        hooked, found = to_hooked(built, tokens), to_stock_attention(built, tokens)
        out, cache = hooked.run_with_cache(x)
        torch.testing.assert_close(out, found(x), rtol=0, atol=1e-9)
        for i, weights in enumerate(found.attention_weights(x)):
            busy = cache[f"blocks.{i}.attn.hook_pattern"][:, : weights.shape[1]]  # behind them are idle heads
            torch.testing.assert_close(busy, weights, rtol=0, atol=1e-9)
        silent = [("blocks.0.attn.hook_z", lambda z, hook: torch.zeros_like(z))]
        assert not torch.allclose(hooked.run_with_hooks(x, fwd_hooks=silent), out)


def test_models_and_theorems_have_it_as_a_method():
    model = ah.compile("gelu(x)", tol=1e-6)
    x = torch.randn(2, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(model.to_stock_attention()(x), model(x), rtol=0, atol=1e-9)
    ramps = ah.theorems.single_head(torch.ones(2, 3), torch.zeros(2), -1, 1, anchors=8, dtype=torch.float64)
    y = torch.randn(2, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(ramps.to_stock_attention()(y), ramps(y), rtol=0, atol=1e-9)
