"""Attention in its two evaluations, the affine maps, and the walker."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorhead as ah
from anchorhead.model.affine import (
    AppendColumns,
    AppendRows,
    MixSequence,
    PositionGain,
    PositionWise,
    TokenWise,
)
from anchorhead.model.attention import Attention
from anchorhead.model.network import Network


def random_attention(draw, dtype):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    heads, columns, width = draw(st.integers(1, 4)), draw(st.integers(1, 12)), draw(st.integers(1, 6))
    rows = [draw(st.integers(1, 5)), draw(st.integers(1, 5))]
    shared = draw(st.booleans())

    def matrix(r):
        return torch.randn(1 if shared else heads, r, width, generator=generator, dtype=torch.float64).to(dtype)

    query = torch.randn(heads, rows[0], width, generator=generator, dtype=torch.float64).to(dtype)
    kind = draw(st.sampled_from(["all", "keep", "output"]))
    output = None
    if kind == "output":
        output = torch.randn(heads, columns, draw(st.integers(1, 7)), generator=generator, dtype=torch.float64).to(
            dtype
        )
    start = draw(st.integers(0, columns - 1))
    keep = slice(start, draw(st.integers(start + 1, columns))) if kind == "keep" else None
    layer = Attention(query, matrix(rows[0]), matrix(rows[1]), output=output, keep=keep,
                      causal=draw(st.booleans()), stack=draw(st.booleans()))  # fmt: skip
    batch = draw(st.sampled_from([(), (3,), (2, 3)]))
    z = torch.randn(*batch, columns, width, generator=generator, dtype=torch.float64).to(dtype)
    return layer, z


@given(st.data(), st.sampled_from([torch.float64, torch.float32]))
def test_fast_equals_literal(data, dtype):
    layer, z = random_attention(data.draw, dtype)
    fast, (literal, weights) = layer(z), layer.literal()(z, return_weights=True)
    assert fast.shape == literal.shape
    torch.testing.assert_close(fast, literal, rtol=200 * torch.finfo(dtype).eps, atol=2000 * torch.finfo(dtype).eps)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@given(st.data())
def test_matrices_reproduce_the_layer(data):
    layer, z = random_attention(data.draw, torch.float64)
    named = layer.matrices(z.shape[-2])
    columns = z.mT.unsqueeze(-3)
    scores = (named["W_K"] @ columns).mT @ (named["W_Q"] @ columns)
    if layer.causal:
        scores = scores.masked_fill(torch.ones_like(scores[..., :, :], dtype=torch.bool).tril(-1), -math.inf)
    out = named["W_V"] @ columns @ scores.softmax(-2) @ named["W_O"]
    torch.testing.assert_close(out.sum(-3).mT, layer(z))


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_chunks_do_not_change_the_result(rows, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 4, generator=generator) for _ in range(3))
    whole = torch.softmax(q @ k.mT, -1) @ v
    monkeypatch.setattr("anchorhead.model.attention.CHUNK_ENTRIES", rows * 2 * 3 * 4)
    from anchorhead.model.attention import fused

    torch.testing.assert_close(fused(q, k, v), whole, rtol=1e-4, atol=1e-5)


def test_affine_maps_do_what_they_say():
    z = torch.randn(2, 3, 4, dtype=torch.float64)
    w, b = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(TokenWise(w, b)(z), nn.functional.linear(z, w, b))
    ww, bb = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(PositionWise(ww, bb)(z), torch.einsum("iod,bid->bio", ww, z) + bb)
    gain = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(PositionGain(gain)(z), PositionWise(torch.diag_embed(gain), 0 * gain)(z))
    columns = torch.randn(2, 4, dtype=torch.float64)
    assert (AppendColumns(columns, front=True)(z)[:, :2] == columns).all()
    assert (AppendColumns(columns)(z)[:, 3:] == columns).all()
    rows = torch.randn(3, 2, dtype=torch.float64)
    assert (AppendRows(rows)(z)[..., 4:] == rows).all()
    mix, shift = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(MixSequence(mix, shift)(z), torch.einsum("mn,bnd->bmd", mix, z) + shift)


def theorem_networks():
    w, t = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    f = lambda x: torch.sin(x)
    return {
        "single_head": (ah.theorems.single_head(w, t, -1, 1, 9), (4, 2)),
        "single_head causal": (ah.theorems.single_head(w, t, -1, 1, 9, causal=True), (4, 2)),
        "multi_head": (ah.theorems.multi_head(w, t, -1, 1, 3), (4, 2)),
        "two_layer": (ah.theorems.two_layer(f, 2, 1, 4), (2, 1)),
        "attention_then_softmax": (ah.theorems.attention_then_softmax(f, 2, 1, 4), (2, 1)),
    }


@pytest.mark.parametrize("name", list(theorem_networks()))
def test_theorems_are_affine_maps_and_attention(name):
    model, shape = theorem_networks()[name]
    x = torch.rand(3, *shape, dtype=torch.float64)
    found = ah.walk(model, x)
    assert found.softmax == len([w for w in model.attention_weights(x)]) + (name == "attention_then_softmax")
    assert found.scores >= 1
    torch.testing.assert_close(model.literal()(x), model(x), rtol=0, atol=1e-10)


@torch.library.custom_op("evil::neg", mutates_args=())
def evil_neg(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


@evil_neg.register_fake
def _(x):
    return torch.empty_like(x)


class Evil(nn.Module):
    def forward(self, z):
        return torch.ops.evil.neg(z)


class Floor(nn.Module):
    def forward(self, z):
        return torch.div(z, 1.0, rounding_mode="floor")


class Truncate(nn.Module):
    def forward(self, z):
        return z.unsqueeze(-1).sum(-1, dtype=torch.int64) * 1.0


class Half(nn.Module):
    def forward(self, z):
        return z.half().float()


class Bits(nn.Module):
    def forward(self, z):
        return z.view(torch.int32).view(torch.float32)


class Remember(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(3))

    def forward(self, z):
        self.kept.add_(z[0, 0])
        return z * self.kept


class Branch(nn.Module):
    def forward(self, z):
        return z if z.sum() > 0 else -z


class Disguised(ah.theorems.SingleHead):
    def forward(self, x):
        return super().forward(x).relu()


class Scores(nn.Module):
    def forward(self, z):
        return z @ z.mT


class Gate(nn.Module):
    def forward(self, z):
        return z * z.softmax(-1)


class Normalise(nn.Module):
    def forward(self, z):
        return z / z.sum(-1, keepdim=True)


class Pick(nn.Module):
    def forward(self, z):
        return z.gather(-1, z.argsort(-1))


class WrongAxis(nn.Module):
    def forward(self, z):
        return (z @ z.mT).softmax(-1).mT @ z


class RawScores(nn.Module):
    def forward(self, z):
        return (z @ z.mT) @ z


@pytest.mark.parametrize(
    ("offender", "node"),
    [
        (nn.ReLU(), "relu"),
        (nn.GELU(), "gelu"),
        (nn.Tanh(), "tanh"),
        (nn.LayerNorm(3), "layer_norm"),
        (Scores(), "matmul|bmm"),
        (RawScores(), "matmul|bmm"),
        (Gate(), "mul"),
        (Normalise(), "div"),
        (Pick(), "sort|gather"),
        (WrongAxis(), "matmul|bmm"),
        (Floor(), "div"),
        (Truncate(), "sum|exported"),
        (Half(), "to"),
        (Bits(), "view"),
        (Remember(), "state"),
        (Branch(), "exported"),
        (Evil(), "evil"),
    ],
)
def test_walker_names_what_does_not_belong(offender, node):
    with pytest.raises(ah.StructureError, match=node):
        ah.walk(nn.Sequential(nn.Linear(3, 3), offender), torch.randn(2, 3, 3))


@pytest.mark.parametrize("name", list(theorem_networks()))
def test_walker_sees_networks_inside_others(name):
    model, shape = theorem_networks()[name]
    x = torch.rand(3, *shape, dtype=torch.float64)
    width = model(x).shape[-1]
    assert ah.walk(nn.Sequential(model, nn.Linear(width, 2, dtype=torch.float64)), x).softmax >= 1
    with pytest.raises(ah.StructureError, match="relu"):
        ah.walk(nn.Sequential(model, nn.ReLU()), x)


def test_walker_is_not_fooled_by_a_literal_form():
    model, shape = theorem_networks()["single_head"]
    x = torch.rand(3, *shape, dtype=torch.float64)
    model.register_forward_hook(lambda module, args, out: out.relu())
    with pytest.raises(ah.StructureError):
        ah.walk(model, x)
    model, _ = theorem_networks()["single_head"]
    model.__class__ = Disguised
    with pytest.raises(ah.StructureError):
        ah.walk(model, x)


class Einsum(nn.Module):
    def forward(self, z):
        weights = torch.einsum("bqd,bkd->bqk", z, z).softmax(-1)
        return torch.einsum("bqk,bkd->bqd", weights, z)


class Columns(nn.Module):
    def forward(self, z):
        return z @ (z.mT @ z).softmax(-2) + torch.ones_like(z).cumsum(-1)


@pytest.mark.parametrize("network", [Einsum(), Columns()])
def test_walker_accepts_attention_however_it_is_written(network):
    assert ah.walk(network, torch.randn(2, 3, 3)).softmax == 1


def test_walker_accepts_stock_attention():
    layer = nn.MultiheadAttention(4, 2, batch_first=True)

    class Stock(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, z):
            return z + self.layer(z, z, z, need_weights=False)[0]

    assert ah.walk(Stock(), torch.randn(2, 3, 4)).softmax == 1


def test_networks_save_as_plain_tensors():
    model, _ = theorem_networks()["single_head"]
    state = model.state_dict()
    assert state
    assert all(isinstance(v, torch.Tensor) for v in state.values())
    assert isinstance(model, Network)
