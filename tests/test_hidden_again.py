"""More ways to hide something nonlinear, and odd models that have nothing to hide."""

import copy
import ctypes
import dataclasses
import io
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.dlpack import from_dlpack, to_dlpack

import anchorhead as ah

X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))


class Wrap(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c, self.held = nn.Linear(8, 8), nn.Linear(8, 8), [function]
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        return self.c(self.held[0](self, self.a(x)))


def by_address(m, h):
    h = h.contiguous()
    numbers = (ctypes.c_float * h.numel()).from_address(h.data_ptr())
    return torch.tensor([math.tanh(v) for v in numbers]).reshape(h.shape)


def by_file(m, h):
    file = io.BytesIO()
    torch.save(h.detach(), file)
    file.seek(0)
    return torch.from_numpy(np.tanh(torch.load(file).numpy()))


def by_backward(m, h):
    w = h.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        w.exp().sum().backward()
    return w.grad


def by_mask(m, h):
    h = h.clone()
    h[h < 0] = 0
    return h


def by_data(m, h):
    y = torch.empty_like(h)
    y.data = h.data.tanh()
    return y


def by_storage(m, h):
    y = torch.empty(0)
    return y.set_(h.detach().exp().untyped_storage(), 0, h.shape)


def by_buffer(m, h):
    m.scale.copy_(h[0, 0].detach())
    return h * m.scale


def by_the_call_before(m, h):
    before = vars(m).get("before")
    m.before = h
    return h if before is None else h * before


def squared_weights(m, h):
    weights = (h @ h.mT).softmax(-1)
    return (weights * weights) @ h


def largest_scores(m, h):
    scores = h @ h.mT
    return scores.masked_fill(scores < scores.topk(2, -1).values[..., -1:], -1e9).softmax(-1) @ h


def two_keys(m, h):
    """tanh, by keys and values that are ±1 and computed from data."""
    one = (h - h) + 1.0
    keys = torch.stack([one, -one], -1)
    return ((h[..., None, None] @ keys.unsqueeze(-2)).softmax(-1) @ keys.unsqueeze(-1))[..., 0, 0]


def entropy(m, h):
    p = (h @ h.mT).softmax(-1)
    return h - (p * p.log()).sum(-1, keepdim=True)


@torch.jit.script
def by_a_scripted_list(x: torch.Tensor):
    numbers: list[float] = x.reshape(-1).tolist()
    out: list[float] = []
    for v in numbers:
        out.append(max(v, 0.0) * v)
    return torch.tensor(out).reshape(x.shape)


class Capsule:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **kwargs):
        return to_dlpack(self.tensor.detach())

    def __dlpack_device__(self):
        return (1, 0)


HIDDEN = {
    "a list in scripted code": lambda m, h: by_a_scripted_list(h),
    "a capsule": lambda m, h: torch.tensor(np.sin(np.from_dlpack(Capsule(h))).tolist()),
    "a tensor of a capsule": lambda m, h: torch.tensor(np.sin(from_dlpack(to_dlpack(h.detach())).numpy()).tolist()),
    "an address": by_address,
    "a pickle": lambda m, h: torch.from_numpy(np.tanh(pickle.loads(pickle.dumps(h.detach())).numpy())),
    "a file": by_file,
    "a copy": lambda m, h: copy.deepcopy(h.detach()).tanh(),
    "a tensor of tensors": lambda m, h: torch.FloatTensor(list(h.flatten().unbind())).reshape(h.shape),
    "a tensor of numbers": lambda m, h: torch.FloatTensor([float(v) ** 2 for v in h.flatten()]).reshape(h.shape),
    "a formatted number": lambda m, h: h + float(f"{h.sum():.3f}"),
    "equality": lambda m, h: h if torch.equal(h, h.abs()) else -h,
    "a sign": lambda m, h: h * torch.copysign(torch.ones(()), h),
    "a backward pass": by_backward,
    "a derivative": lambda m, h: torch.func.jvp(torch.tanh, (h,), (torch.ones_like(h),))[1],
    "a nested tensor": lambda m, h: torch.nested.to_padded_tensor(torch.nested.nested_tensor(list(h)).relu(), 0.0),
    "quantisation": lambda m, h: torch.quantize_per_tensor(h.detach(), 0.1, 0, torch.qint8).dequantize(),
    "eight bits": lambda m, h: h.to(torch.float8_e4m3fn).float(),
    "a reflection": lambda m, h: h * h.flip(-1),
    "an outer product": lambda m, h: torch.einsum("bti,btj->btij", h, h).sum(-1),
    "a linear system": lambda m, h: torch.linalg.solve(torch.eye(8) + 0.01 * h[:, :1].mT @ h[:, :1], h.mT).mT,
    "a determinant": lambda m, h: h * torch.linalg.det(h[:, :, :6])[:, None, None],
    "an embedding with a largest norm": lambda m, h: F.embedding(
        torch.arange(6), h[0].detach().clone(), max_norm=1.0
    ).expand(3, 6, 8),
    "a running maximum": lambda m, h: h.cummax(-1).values,
    "linear attention": lambda m, h: h @ (h.mT @ h),
    "a temperature from data": lambda m, h: ((h @ h.mT) * h.mean()).softmax(-1) @ h,
    "a mask from data": lambda m, h: F.scaled_dot_product_attention(h, h, h, attn_mask=h[..., :6]),
    "weights that are scaled": lambda m, h: ((h @ h.mT).softmax(-1) * (1 + h[..., :6])) @ h,
    "weights that are squared": squared_weights,
    "the largest scores": largest_scores,
    "two keys": two_keys,
    "an entropy": entropy,
    "a direction": lambda m, h: F.normalize(h, dim=-1),
    "a mask that writes": by_mask,
    "data that are replaced": by_data,
    "a storage that is replaced": by_storage,
    "a buffer that is written": by_buffer,
    "the call before": by_the_call_before,
    "a checkpoint": lambda m, h: torch.utils.checkpoint.checkpoint(torch.sin, h, use_reentrant=False),
    "a scatter that multiplies": lambda m, h: h.scatter(0, torch.arange(3)[:, None, None].expand(3, 6, 8), h,
                                                        reduce="multiply"),
    "a scatter that multiplies in place": lambda m, h: h.clone().scatter_(
        0, torch.arange(3)[:, None, None].expand(3, 6, 8), h, reduce="multiply"),
    "the largest of a bag": lambda m, h: F.embedding_bag(torch.arange(6).reshape(3, 2), h[0], mode="max")[:, None],
    "a scatter of the largest": lambda m, h: h.scatter_reduce(0, torch.zeros(3, 6, 8, dtype=int), h, "amax"),
    "a spectrum": lambda m, h: torch.fft.fft(h).abs(),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_is_hidden(name):
    report = ah.convert(Wrap(HIDDEN[name]), inputs=X).report
    assert not report.pure
    assert report.remaining or not report.watched


def test_a_forward_that_writes_to_its_parameters_is_not_run_and_the_reason_is_that():
    def writes(m, h):
        m.c.weight.data.add_(1.0)
        return h

    model = Wrap(writes)
    before = model.c.weight.detach().clone()
    with pytest.raises(ah.InputError, match="writes to its own parameters"):
        ah.convert(model, inputs=X)
    unwatched = ah.convert(model)
    assert "writes to its own parameters" in unwatched.report.unwatched
    for inputs in (None, X):
        with pytest.raises(ah.InputError, match="writes to its own parameters"):
            unwatched.report.watch(inputs)
    assert torch.equal(model.c.weight, before)
    assert torch.equal(unwatched.c.weight, before)


class Sines(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return torch.sin(found) if isinstance(found, torch.Tensor) and found.shape == X.shape else found


class Sine(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            changes = isinstance(found, torch.Tensor) and found.shape == X.shape
            return torch.sin(found).as_subclass(cls) if changes else found


def within_a_mode(m, h):
    with Sines():
        return m.act(h)


def as_another_class(m, h):
    return m.act(h.as_subclass(Sine)).as_subclass(torch.Tensor)


@pytest.mark.parametrize("function", [within_a_mode, as_another_class])
def test_what_runs_within_a_head_by_interception_is_listed(function):
    model = Wrap(function)
    model.act = nn.Tanh()
    try:
        report = ah.convert(model, inputs=X).report
    except ah.ConversionError:  # the head and the function that it stands for are changed differently
        return
    assert not report.pure


class Table(nn.Module):
    def __init__(self, function):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w, self.held = nn.Parameter(torch.randn(10, 4, generator=generator)), [function]
        self.register_buffer("small", torch.randint(-99, 99, (10, 4), dtype=torch.int8, generator=generator))
        self.register_buffer("bits", torch.randn(10, 4, generator=generator).view(torch.int32))
        self.register_buffer("kinds", torch.randint(0, 10, (10,), generator=generator))

    def forward(self, tokens):
        return self.held[0](self, self.w, tokens, tokens[:, :4].float())


TOKENS = torch.randint(0, 10, (2, 6), generator=torch.Generator().manual_seed(0))
OF_TOKENS = {
    "the largest of a bag": lambda m, w, i, t: F.embedding_bag(i, w, mode="max"),
    "distances": lambda m, w, i, t: torch.cdist(t, w),
    "the larger": lambda m, w, i, t: torch.maximum(w[:2], t),
    "a power": lambda m, w, i, t: torch.pow(w[:2].abs(), t),
    "an angle": lambda m, w, i, t: torch.atan2(t, w[:2]),
    "a clamp": lambda m, w, i, t: torch.clamp(t, max=w[:2]),
    "a comparison": lambda m, w, i, t: (t > w[:2]).float(),
    "a comparison with integers": lambda m, w, i, t: (i[:, :4] > m.small[:2]).float(),
    "a ramp": lambda m, w, i, t: F.prelu(t - 4, w[0]),
    "a norm": lambda m, w, i, t: F.layer_norm(t, (4,), w[0], w[1]),
    "a scatter of the largest": lambda m, w, i, t: torch.zeros(10, 4).scatter_reduce(
        0, i.flatten()[:10, None].expand(10, 4), w, "amax"),
    "a scatter that multiplies": lambda m, w, i, t: torch.ones(10, 4).scatter(
        0, i.flatten()[:10, None].expand(10, 4), w, reduce="multiply"),
    "a sine of eight bits": lambda m, w, i, t: torch.sin(m.small[i].float() / 50) @ w.T,
    "a sine of bits": lambda m, w, i, t: torch.sin(m.bits[i].view(torch.float32)) @ w.T,
    "a sine of a table of bits": lambda m, w, i, t: torch.sin(m.bits.view(torch.float32)[i]) @ w.T,
    "a square of integers": lambda m, w, i, t: (m.kinds[i] * m.kinds[i]).float() + w[0, 0],
    "a remainder": lambda m, w, i, t: (m.kinds[i] % 3).float() + w[0, 0],
    "a lookup by a sum": lambda m, w, i, t: w.repeat(6, 1)[m.kinds[i].sum(1)],
    "a lookup by a product": lambda m, w, i, t: F.embedding(m.kinds[i] @ m.kinds[:6] + 5, w.repeat(50, 1)),
    "a lookup by a sum of two": lambda m, w, i, t: w.repeat(2, 1)[m.kinds[i] + m.kinds[i.flip(1)]],
    "a table of numbers of Python": lambda m, w, i, t: torch.tensor([0.1 * k * k for k in range(10)])[i].sin() @ w[:6],
    "a table of random numbers": lambda m, w, i, t: torch.randn(10)[i].sin() @ w[:6],
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TOKENS)
def test_what_tokens_make_of_the_models_tensors_is_looked_at(name):
    model = Table(OF_TOKENS[name])
    converted = ah.convert(model, inputs=TOKENS)
    assert converted.report.remaining
    with pytest.raises(ah.StructureError):
        ah.walk(converted, TOKENS)


LOOKED_UP = {
    "a bag": lambda m, w, i, t: F.embedding_bag(i, w, mode="mean"),
    "kinds": lambda m, w, i, t: F.embedding(m.kinds[i], w) + w[m.kinds[:6]],
    "shifted kinds": lambda m, w, i, t: w.repeat(3, 1)[2 * m.kinds[i].unsqueeze(-1).flatten(1) + 5],
    "small integers": lambda m, w, i, t: m.small[i].float() @ w.T,
    "one-hot vectors": lambda m, w, i, t: F.one_hot(i, 10).float() @ w,
    "a sine of tokens": lambda m, w, i, t: w[i][:, :4] * torch.sin(t)[..., None] / (1 + t[..., None]),
    "a choice": lambda m, w, i, t: torch.where(i[:, :4] > 3, w[:2], -w[:2]) + t * w[:2] + t / w[2],
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_lookups_and_what_is_affine_in_them_are_not_listed(name):
    converted = ah.convert(Table(LOOKED_UP[name]), inputs=TOKENS)
    assert converted.report.remaining == []
    if name != "one-hot vectors":  # whose number of classes an exported graph reads from the tokens
        assert ah.walk(converted, TOKENS)


def heads(t):
    return t.view(*t.shape[:2], 2, 4).transpose(1, 2)


def attend(m, x, bias=0.0):
    return (m.a(x) @ m.c(x).mT + bias).softmax(-1) @ x + x


def remembers(m, x):
    m.held[1:] = [x if len(m.held) == 1 else torch.cat([m.held[1], x], 1)]
    return (m.a(x) @ m.held[1].mT).softmax(-1) @ m.held[1]


HONEST = {
    "two tokens": lambda m, x: attend(m, x[:, :2]),
    "one query": lambda m, x: F.scaled_dot_product_attention(m.a(x[:, -1:]), m.c(x), x),
    "heads by einsum": lambda m, x: torch.einsum(
        "bhqk,bhkd->bqhd", torch.einsum("bhqd,bhkd->bhqk", heads(m.a(x)), heads(m.c(x))).softmax(-1), heads(x)
    ).flatten(2),
    "groups": lambda m, x: F.scaled_dot_product_attention(heads(m.a(x)), heads(x)[:, :1], heads(x)[:, :1],
                                                          enable_gqa=True).transpose(1, 2).flatten(2),
    "a token of its own": lambda m, x: attend(m, torch.cat([m.scale.expand(3, 1, 8), x], 1)),
    "windows with padding": lambda m, x: attend(m, F.pad(x, (0, 0, 0, 2)).reshape(6, 4, 8)),
    "a bias of positions": lambda m, x: attend(m, x, -(torch.arange(6.0) - torch.arange(6.0)[:, None]).abs()),
    "transposed": lambda m, x: (x.mT @ (m.c(x) @ m.a(x).mT).softmax(-2)).mT,
    "less their mean": lambda m, x: (lambda s: (s - s.mean(-1, keepdim=True)).softmax(-1) @ x)(m.a(x) @ m.c(x).mT),
    "values that are nothing": lambda m, x: F.scaled_dot_product_attention(m.a(x), m.c(x), 0 * x) + x,
    "a cache": remembers,
    "of features": lambda m, x: ((m.a(x).mT @ m.c(x)).softmax(-1) @ x.mT).mT,
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_attention_in_other_forms_is_attention(name):
    report = ah.convert(Wrap(HONEST[name]), inputs=X).report
    assert report.remaining == []
    assert report.attention


def test_copies_of_torch_decoders_keep_their_heads():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1).eval()
    converted = ah.convert(model, pure=True, inputs=(X, X.flip(1)))
    assert converted.report.pure
    again = copy.deepcopy(converted)
    assert again.layers[0].activation is again.layers[0]._modules["activation"]
    assert torch.equal(again(X, X.flip(1)), converted(X, X.flip(1)))
    assert ah.walk(converted, X, X.flip(1)).softmax > 2


def test_a_walk_sees_a_scatter_that_multiplies():
    converted = ah.convert(Wrap(HIDDEN["a scatter that multiplies"]), inputs=X)
    with pytest.raises(ah.StructureError, match="scatter"):
        ah.walk(converted, X)


SCALE, SCALES = 1.0, [1.0]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.numbers = nn.Linear(8, 8), [1.0]


class ByAName(Scaled):
    def forward(self, x):
        return F.gelu(self.a(x)) * SCALE


class ByAList(Scaled):
    def forward(self, x):
        return F.gelu(self.a(x)) * SCALES[0] * self.numbers[0]


class ByGradients(Scaled):
    def forward(self, x):
        return F.gelu(self.a(x)) * (1 + torch.is_grad_enabled())


@pytest.mark.parametrize("kind", [ByAName, ByAList, ByGradients])
def test_numbers_that_are_read_when_a_forward_runs_are_not_frozen(kind, monkeypatch):
    model = kind().eval()
    converted = ah.convert(model, inputs=X)
    assert len(converted.report.replaced) == 1
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    monkeypatch.setitem(globals(), "SCALES", [3.0])
    model.numbers[0] = converted.numbers[0] = 4.0
    for wanted in (False, True):
        with torch.set_grad_enabled(wanted):
            assert torch.allclose(converted(X), model(X), atol=1e-5)


def test_a_model_that_returns_a_generator_alone_is_not_watched_and_is_not_asked_for_inputs():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    model.forward = lambda x: (t.sin() for t in x)
    said = str(ah.convert(model, inputs=X).report)
    assert "NOT watched" in said
    assert "inputs=" not in said


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)


class WithoutGradients(Blocks):
    def forward(self, x):
        with torch.no_grad():
            h = F.gelu(self.a(x))
        return self.b(h)


class ByADecorator(Blocks):
    @torch.no_grad()
    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


class InAShorterDtype(Blocks):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.b(F.gelu(self.a(x)))


@pytest.mark.parametrize("kind", [WithoutGradients, ByADecorator, InAShorterDtype])
def test_with_blocks_of_a_forward_stay(kind):
    model = kind()
    converted = ah.convert(model, inputs=X)
    assert len(converted.report.replaced) == 1
    assert converted.report.refused == []
    (expected, found) = (m(X) for m in (model, converted))
    assert (expected.dtype, expected.requires_grad) == (found.dtype, found.requires_grad)
    if expected.requires_grad:
        expected.sum().backward()
        found.sum().backward()
        assert (model.a.weight.grad is None) == (converted.a.weight.grad is None)


class ByAMethod(Blocks):
    def half(this, x):
        with torch.no_grad():
            return F.gelu(this.a(x))

    def forward(this, x):
        return F.gelu(this.b(x)) + this.half(x)


class ByAPlainMethod(Blocks):
    def mlp(this, x):
        return this.b(F.gelu(this.a(x)))

    def forward(this, x):
        return x + this.mlp(x)


def test_what_methods_call_is_converted_or_listed_whatever_self_is_called():
    report = ah.convert(ByAPlainMethod(), inputs=X).report
    assert (len(report.replaced), report.refused) == (1, [])
    report = ah.convert(ByAMethod(), inputs=X).report
    assert len(report.replaced) == 1
    assert "with" in report.refused[0][1]
    assert not report.pure


@dataclasses.dataclass
class Returned:
    h: torch.Tensor

    @property
    def logits(self):
        return self.h.sin()


@pytest.mark.parametrize("returned", [Returned, lambda h: (h, h.sin), lambda h: {"h": h, "f": h.softmax}])
def test_what_is_computed_after_the_return_is_listed(returned):
    model = nn.Sequential(nn.Linear(8, 8))
    plain = model.forward
    model.forward = lambda x: returned(plain(x))
    assert "computed later" in str(ah.convert(model, inputs=X).report.remaining)
