"""What is claimed of a norm holds of its result, with its weight and its bias, in every dtype and on both its ways."""

import pytest
import torch
from torch import nn

import anchorhead as ah
from anchorhead.digits import Up

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
WIDTH = 48


class OnePlus(nn.Module):
    """An RMS norm whose weight is around zero, as Gemma's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(WIDTH)), 1e-6

    def forward(self, x):
        y = x.float() if x.dtype != torch.float64 else x
        y = y * (y.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        return (y * (1.0 + self.weight.to(y.dtype))).to(x.dtype)


class Across(nn.LayerNorm):
    """Over the channels of images, as ConvNeXt's."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Stepwise(nn.Module):
    """An RMS norm that rounds to the dtype before its weight, as Llama's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x):
        y = x.float() if x.dtype != torch.float64 else x
        return self.weight * (y * (y.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)


NORMS = {
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "layer norm without a bias": lambda: nn.LayerNorm(WIDTH, bias=False),
    "layer norm without a weight": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    "group norm": lambda: nn.GroupNorm(4, WIDTH),
    "norm of each channel": lambda: nn.InstanceNorm1d(WIDTH, affine=True),
    "norm of each channel without a weight": lambda: nn.InstanceNorm2d(WIDTH),
    "norm across channels": lambda: Across(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH, eps=1e-6),
    "one plus the weight": OnePlus,
    "rounded before the weight": Stepwise,
}


EACH, BIASED = nn.InstanceNorm1d | nn.InstanceNorm2d, "|weight y| + |bias|"


def drawn(name, dtype, seed=0):
    """A norm with a weight and a bias of all sizes, and what it is given."""
    norm, draw = NORMS[name](), torch.Generator().manual_seed(seed)
    for held in norm.parameters():
        held.data = torch.randn(held.shape, generator=draw) * 10 ** torch.randn(held.shape, generator=draw).clamp(-2, 2)
    size = (200, WIDTH, 3, 2) if "channel" in name else (200, WIDTH, 6) if name == "group norm" else (2000, WIDTH)
    size = (200, WIDTH, 6) if isinstance(norm, nn.InstanceNorm1d) else size
    x = torch.randn(*size, generator=draw)
    return norm.to(dtype), x.to(dtype)


def parts(norm, x):
    """What is normalised, its weight and its bias, in float64 and by formulas of their own."""
    x, shape = x.double(), (-1, *[1] * (x.dim() - 2))
    rows = x.reshape(len(x), 4, -1) if isinstance(norm, nn.GroupNorm) else x
    rows = rows.flatten(2) if isinstance(norm, EACH) else rows
    axis = 1 if isinstance(norm, Across) else -1
    rows = rows - rows.mean(axis, keepdim=True) if isinstance(norm, nn.LayerNorm | nn.GroupNorm | EACH) else rows
    y = (rows / (rows.square().mean(axis, keepdim=True) + norm.eps).sqrt()).reshape(x.shape)
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    w = torch.ones(WIDTH).double() if weight is None else weight.detach().double()
    b = torch.zeros(WIDTH).double() if bias is None else bias.detach().double()
    return y, (w + 1 if isinstance(norm, OnePlus) else w).reshape(shape), b.reshape(shape)


def share(norm, converted, x, kernel):
    """The largest error, over what is claimed."""
    row = converted.report.replaced[0]
    y, w, b = parts(norm, x)
    assert ("bias" in row.formula) == bool(b.any())
    with torch.no_grad():
        found = converted(x) if kernel else torch.cat([converted(part) for part in x.split(10)])
    room = row.relative * ((w * y).abs() + b.abs()) + row.least * w.abs().clamp(min=1)
    if "rms" not in row.formula:
        room += 1e-13 * w.abs() * (1 + y.abs())
    return float(((found.double() - (y * w + b)).abs() / room).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NORMS)
def test_the_result_of_a_norm_keeps_its_claim_with_weight_and_bias(name, dtype):
    norm, x = drawn(name, dtype)
    converted = ah.convert(nn.Sequential(norm), pure=True, inputs=x[:4])
    for kernel in (True, False):
        assert share(norm, converted, x, kernel) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_that_cancels_what_it_is_added_to_keeps_the_claim(dtype):
    norm, x = drawn("layer norm", dtype, seed=1)
    y, w, _ = parts(norm, x)
    norm.bias.data = (-(y * w)[0]).to(dtype)
    converted = ah.convert(nn.Sequential(norm), pure=True, inputs=x[:4])
    assert 0.001 < share(norm, converted, x, False) <= 1


@pytest.mark.parametrize("name", NORMS)
def test_what_is_said_of_a_norm_names_what_the_bound_is_a_share_of(name, tmp_path):
    norm, x = drawn(name, torch.float32)
    converted = ah.convert(nn.Sequential(norm), pure=True, inputs=x[:4])
    row, of = converted.report.replaced[0], "the result" if getattr(norm, "bias", None) is None else BIASED
    said = f"{Up(row.relative):.1e} of {of}"
    first, second = str(converted.report).splitlines()[1], str(converted.report).splitlines()[3]
    assert said in first
    assert said in second
    assert f"of {of}, rounding included" in str(ah.recertify(converted))
    ah.save_converted(converted, tmp_path)
    assert said in (tmp_path / "README.md").read_text()
    assert ah.verify(tmp_path).level == "proved"
    assert ah.load_converted(tmp_path, nn.Sequential(NORMS[name]())).report.replaced == [row]


def test_a_norm_that_rounds_its_weight_to_one_plus_it_counts_that():
    once, plus = (
        ah.convert(nn.Sequential(drawn(n, torch.float32)[0]), pure=True) for n in ("rms norm", "one plus the weight")
    )
    assert plus.report.replaced[0].relative > once.report.replaced[0].relative + 2.0**-25


class Mixed(nn.Module):
    """In bfloat16 up to a norm, or a partner, in float32."""

    def __init__(self, part) -> None:
        super().__init__()
        self.first, self.part = nn.Linear(WIDTH, WIDTH).bfloat16(), part

    def forward(self, x):
        return self.part(self.first(x))


class Partner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.partner = nn.Parameter(1 + torch.rand(WIDTH))

    def forward(self, x):
        return nn.functional.silu(x) * (x.float() * self.partner)


def test_where_an_argument_is_of_a_shorter_dtype_than_the_result_the_claim_is_of_the_shorter():
    for part in (Stepwise(), Partner()):
        converted = ah.convert(Mixed(part), pure=True, inputs=torch.randn(4, WIDTH).bfloat16())
        assert [row.dtype for row in converted.report.replaced] == ["bfloat16"]


def test_weights_of_a_norm_keep_their_dtype_where_the_model_computes_in_another():
    norm = OnePlus()
    norm.weight.data = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
    converted = ah.convert(Mixed(norm), pure=True, inputs=torch.randn(4, WIDTH).bfloat16())
    assert torch.equal(converted.part.weight, norm.weight)
