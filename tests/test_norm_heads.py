"""Norms as three heads: the proved error holds for every vector, the literal form is the fast one, norms are found."""

import functools
import math
from dataclasses import replace

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anchorhead as ah
from anchorhead.compiler.norm_models import norm_models
from anchorhead.conversion.norms import norm_of
from anchorhead.digits import Up
from anchorhead.errors import VerificationError
from anchorhead.model.norm import NormForm, NormHead
from anchorhead.proof.norm_heads import norm_bound, norm_width

DTYPES = {"float64": torch.float64, "float32": torch.float32}


@functools.cache
def heads():
    return norm_models(64)


@functools.cache
def norm(dtype, centred, eps):
    return NormHead(NormForm(centred, eps), heads(), DTYPES[dtype])


def test_what_was_asked_for_is_proved():
    claims = {role: model.claim for role, model in norm_models(1024).items()}
    assert sum(claim.keys for claim in claims.values()) <= 60
    for dtype, most in (("float32", 1e-6), ("float64", 1e-9)):
        relative, _, (low, high) = norm_bound(claims, dtype, "")
        assert relative <= most
        assert low <= 1e-12
        assert high >= 1e10
    assert norm_width(claims) >= 1024


@st.composite
def vectors(draw):
    """Numbers whose mean square is anywhere in the range: alike, of all sizes, one far larger than the rest, signs."""
    count = draw(st.integers(1, 40))
    shape = draw(st.sampled_from(["any", "alike", "spike", "spread"]))
    parts = draw(st.lists(st.floats(-1, 1).filter(lambda v: abs(v) > 1e-6), min_size=count, max_size=count))
    if shape == "alike":
        parts = [math.copysign(1.0, p) * (1 + 1e-9 * p) for p in parts]
    elif shape == "spike":
        parts = [p * 1e-7 for p in parts[:-1]] + [parts[-1]]
    elif shape == "spread":
        parts = [math.copysign(10 ** (-12 * abs(p)), p) for p in parts]
    size = 10 ** draw(st.floats(-4, 5)) / math.sqrt(sum(p * p for p in parts) / count)
    return [p * size for p in parts]


@pytest.mark.parametrize("dtype", DTYPES)
@given(x=vectors(), eps=st.sampled_from([0.0, 1e-12, 1e-6, 1e-3]), centred=st.booleans())
@settings(max_examples=200)
def test_the_error_is_relative_whatever_is_normalised(dtype, x, eps, centred):
    head = norm(dtype, centred, eps)
    given = torch.tensor([x], dtype=DTYPES[dtype])
    with mpmath.workdps(60):
        numbers = [mpmath.mpf(v) for v in given[0].double().tolist()]
        mean = mpmath.fsum(numbers) / len(numbers) if centred else mpmath.mpf(0)
        v = [n - mean for n in numbers]
        u = mpmath.fsum(n * n for n in v) / len(v) + mpmath.mpf(eps)
        low, high = head.bound.domain
        if not low <= u <= high:
            return
        moved = (len(v) + 2) * 2.0**-53 * mpmath.fsum(map(abs, numbers)) / len(v) if centred else mpmath.mpf(0)
        for exact, found in zip([n / mpmath.sqrt(u) for n in v], head(given)[0].tolist(), strict=True):
            room = head.bound.relative * abs(exact) + head.bound.least
            assert abs(found - exact) <= room + 1.01 * moved * (1 + abs(exact)) / mpmath.sqrt(u)


def exactly(head, u):
    """A head as its formula reads, in mpmath."""
    scores = [mpmath.mpf(s) * u + mpmath.mpf(c) for s, c in zip(head.slopes, head.intercepts, strict=True)]
    weights = [mpmath.exp(s - max(scores)) for s in scores]
    values = [mpmath.mpf(c) + mpmath.mpf(g) * u for c, g in zip(head.constants, head.gains, strict=True)]
    return mpmath.fsum(w * v for w, v in zip(weights, values, strict=True)) / mpmath.fsum(weights)


@given(x=vectors(), eps=st.sampled_from([0.0, 1e-12, 1e-6]))
def test_the_network_of_softmaxes_keeps_the_same_bound(x, eps):
    square, coarse, fine = (model.claim.head for model in heads().values())
    with mpmath.workdps(60):
        v = [mpmath.mpf(n) for n in x]
        u = mpmath.fsum(n * n for n in v) / len(v) + mpmath.mpf(eps)
        blurred = mpmath.fsum(exactly(square, n) for n in v) / len(v) + mpmath.mpf(eps)
        scale = exactly(coarse, blurred)
        factor = exactly(fine, scale * scale * blurred) * scale * mpmath.sqrt(u)
        assert abs(factor - 1) <= norm("float64", False, eps).bound.relative


def test_heads_that_do_not_fit_each_other_have_no_bound():
    claims = {role: model.claim for role, model in heads().items()}
    for wrong in ({"square": claims["fine"]}, {"fine": claims["square"]}, {"coarse": claims["square"]}):
        with pytest.raises(VerificationError):
            norm_bound(claims | wrong, "float32", "")
    with pytest.raises(VerificationError, match="square"):
        norm_bound({role: claims[role] for role in ("coarse", "fine")}, "float32", "")


@pytest.mark.parametrize(
    "form", [NormForm(True, 1e-5), NormForm(False, 1e-6, shift=1.0), NormForm(True, 1e-5, groups=4)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_literal_is_fast(form, dtype):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(*((3, 16, 5) if form.groups else (3, 5, 16)), generator=draw).to(DTYPES[dtype])
    weight, bias = (nn.Parameter(torch.randn(16, generator=draw).to(x.dtype)) for _ in range(2))
    head = NormHead(form, heads(), x.dtype, weight, bias)
    assert torch.allclose(head(x), head.literal()(x), rtol=0, atol=2e-5)
    walked = ah.walk(head, x)
    assert walked.softmax == 5
    assert walked.scores == 0


def test_large_inputs_are_fused_and_gradients_follow():
    layer = nn.LayerNorm(64)
    head = NormHead(NormForm(True, 1e-5), heads(), torch.float32, layer.weight, layer.bias)
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(head(x), layer(x), atol=1e-6)
        assert torch.equal(head(x[:7]), head(x[:7].clone()))
    grads = []
    for module in (head, layer):
        given = x.clone().requires_grad_()
        (module(given) ** 3).sum().backward()
        grads += [given.grad, layer.weight.grad.clone()]
        layer.weight.grad = None
    assert torch.allclose(grads[0], grads[2], atol=1e-4)
    assert torch.allclose(grads[1], grads[3], rtol=1e-4)


def test_what_leaves_the_interval_is_said():
    head = norm("float64", False, 0.0)
    with pytest.warns(ah.OutsideRangeWarning, match=r"mean square.*off by any amount.*said once, and outside_count"):
        head(torch.zeros(1, 8, dtype=torch.float64))
    head.outside = "error"
    with pytest.raises(ah.AnchorheadError, match="outside"):
        head(torch.full((1, 8), 1e9, dtype=torch.float64))
    with pytest.raises(ah.AnchorheadError, match="up to"):
        head(torch.ones(1, 10_000, dtype=torch.float64))
    head.outside = "warn"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_without_an_eps_has_that_of_the_dtype_in_which_torch_computes(dtype):
    layer = nn.RMSNorm(16, dtype=dtype)
    (head,) = (place.module for place in ah.convert(layer, pure=True).report.places)
    x = (1e-3 * torch.randn(64, 16, generator=torch.Generator().manual_seed(0))).to(dtype)
    assert (head(x) - layer(x)).abs().max() <= 2 * torch.finfo(dtype).eps * layer(x).abs().max() + 1e-6


class Centred(nn.Module):
    """A layer norm that nobody has heard of."""

    def __init__(self, power=-0.5, before=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(12))
        self.power, self.before, self.tiny = power, before, 1e-4

    def forward(self, x):
        v = x - x.mean(-1, keepdim=True) * self.before
        return v * (v.pow(2).mean(-1, keepdim=True) + self.tiny) ** self.power * (1 + self.weight)


class Across(nn.Module):
    """Of the channels of an image, written out."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(12)), nn.Parameter(torch.zeros(12))

    def forward(self, x):
        v = x - x.mean(1, keepdim=True)
        return (
            v / (v.pow(2).mean(1, keepdim=True) + 1e-6).sqrt() * self.weight[:, None, None] + self.bias[:, None, None]
        )


class Turned(nn.LayerNorm):
    """Of the channels of a sequence."""

    def __init__(self):
        super().__init__(12)

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class RMSNorm(nn.Module):
    """A name, and something else."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(12)), 1e-6

    def forward(self, x):
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.eps)


NORMS = {
    "layer norm": (lambda: nn.LayerNorm(12), NormForm(True, 1e-5, biased=True)),
    "over two axes": (lambda: nn.LayerNorm((3, 4), eps=1e-6), NormForm(True, 1e-6, axes=2, biased=True)),
    "without a weight": (lambda: nn.LayerNorm(12, elementwise_affine=False), NormForm(True, 1e-5)),
    "rms norm": (lambda: nn.RMSNorm(12, eps=1e-4), NormForm(False, 1e-4)),
    "rms norm, eps of the dtype": (lambda: nn.RMSNorm(12), NormForm(False, torch.finfo(torch.float32).eps)),
    "group norm": (lambda: nn.GroupNorm(3, 12), NormForm(True, 1e-5, groups=3, biased=True)),
    "norm of each channel": (lambda: nn.InstanceNorm2d(12), NormForm(True, 1e-5, axes=2, by_channel=True)),
    "norm of each channel with statistics": (lambda: nn.InstanceNorm1d(12, track_running_stats=True), None),
    "across channels": (Across, NormForm(True, 1e-6, across=4, biased=True)),
    "across channels of sequences": (Turned, NormForm(True, 1e-5, across=3, biased=True)),
    "of nobody": (Centred, NormForm(True, 1e-4, shift=1.0)),
    "another power": (lambda: Centred(-0.4), None),
    "half centred": (lambda: Centred(before=0.5), None),
    "a name alone": (RMSNorm, None),
    "linear": (lambda: nn.Linear(12, 12), None),
    "scale": (lambda: nn.Identity(), None),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_known_by_what_they_compute(name):
    make, form = NORMS[name]
    found = norm_of(make())
    assert (found and replace(found[0], rounds=False)) == form  # where one that rounds at every step rounds is open


def test_a_norm_across_channels_takes_what_it_was_known_by():
    norm = ah.convert(nn.Sequential(nn.Conv2d(3, 12, 3), Across()), pure=True, inputs=torch.rand(2, 3, 8, 8))[1]
    assert norm(torch.rand(2, 12, 5, 5)).shape == (2, 12, 5, 5)
    with pytest.raises(ah.ShapeError, match=r"across axis 1 of 4 axes, and was given an input of 3"):
        norm(torch.rand(12, 12, 5))


class Named(nn.Module):
    """A norm whose weight and bias are called otherwise."""

    def __init__(self, names, centred):
        super().__init__()
        self.names, self.centred, self.eps = names, centred, 1e-6
        for k, name in enumerate(names):
            setattr(self, name, nn.Parameter(torch.randn(8, generator=torch.Generator().manual_seed(k))))

    def forward(self, x):
        v = x - x.mean(-1, keepdim=True) if self.centred else x
        y = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps) * getattr(self, self.names[0])
        return y + getattr(self, self.names[1]) if len(self.names) > 1 else y


@pytest.mark.parametrize(
    "names", [("scale",), ("g",), ("gamma", "beta"), ("scale", "bias"), ("a_2", "b_2"), ("w", "b")]
)
@pytest.mark.parametrize("centred", [True, False])
def test_norms_are_known_whatever_their_numbers_are_called(names, centred, tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 8), Named(names, centred)), torch.randn(5, 8)
    converted = ah.convert(model, pure=True, inputs=x)
    assert converted.report.pure
    assert (converted(x) - model(x)).abs().max() < 1e-5
    ah.save_converted(converted, tmp_path)
    again = ah.load_converted(tmp_path, nn.Sequential(nn.Linear(8, 8), Named(names, centred)))
    assert torch.equal(again(x), converted(x))
    assert set(model.state_dict()) <= set(converted.state_dict())


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Gemma3", "T5", "Olmo2", "Qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms_of_the_transformers_library_round_where_they_do(name, dtype):
    transformers = pytest.importorskip("transformers")
    where = getattr(transformers.models, name.lower())
    kind = getattr(getattr(where, f"modeling_{name.lower()}"), f"{name}{'Layer' if name == 'T5' else 'RMS'}Norm")
    draw = torch.Generator().manual_seed(0)
    module = kind(64)
    module.weight.data = torch.randn(64, generator=draw)
    module = module.to(dtype)
    form, width = norm_of(module)
    assert (width, form.centred, form.shift) == (64, False, 1.0 if name.startswith("Gemma") else 0.0)
    head = NormHead(form, heads(), dtype, module.weight)
    x = (3 * torch.randn(50, 64, generator=draw)).to(dtype)
    with torch.no_grad():
        ours, theirs = head(x), module(x)
        assert ours.dtype == theirs.dtype
        away = (ours.double() - theirs.double()).abs() / theirs.double().abs().clamp(min=1e-3)
        assert away.max() <= 2 * torch.finfo(dtype).eps
        if dtype != torch.float32:
            assert (ours == theirs).double().mean() > 0.99
        assert F.cosine_similarity(ours.double(), theirs.double()).min() > 1 - 1e-4


def test_the_line_of_a_norm_has_what_underflows() -> None:
    norm = nn.RMSNorm(8, eps=1e-6, elementwise_affine=False)
    converted = ah.convert(nn.Sequential(nn.Linear(8, 8), norm).half(), pure=True)
    row = converted.report.replaced[0]
    assert f"and {Up(row.least):.1e} where that underflows" in str(converted.report)
