"""Nothing nonlinear is missed when a converted model is watched: whoever hides it, however, the report names it."""

import functools
import operator
import threading
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import gelu as g

import anchorhead as ah
from anchorhead.model.activation import ActivationHead

X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))


class Wrap(nn.Module):
    """c(function(self, a(x))): where the function comes from cannot be read off the forward."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c, self.b = nn.Linear(8, 8), nn.Linear(8, 8), nn.Bilinear(8, 8, 8)
        self.register_buffer("scale", torch.rand(8))
        self.held, self.head = [function], nn.GELU()

    def forward(self, x):
        return self.c(self.held[0](self, self.a(x)))


def watched(function):
    return ah.convert(Wrap(function), inputs=X).report


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x


class Dressed(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        return torch.Tensor.tanh(out.as_subclass(torch.Tensor)) if func is torch.Tensor.add else out


class Boxed(torch.Tensor):
    """A tensor that holds another, and applies tanh to what is negated."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.neg.default:
            return Boxed(args[0].inner.tanh())
        raise NotImplementedError(func)


def other_package(h):
    """As if from elsewhere: known by no name."""
    return h / (1 + h.abs())


def branch(m, h):
    return h if h.sum() > 0 else -h


def in_thread(m, h):
    found = []
    worker = threading.Thread(target=lambda: found.append(h.detach().tanh()))
    worker.start()
    worker.join()
    return h + found[0]


def written_out(m, h):
    out = torch.empty_like(h)
    torch.tanh(h, out=out)
    return out


def by_view(m, h):
    h = h.clone()
    h[..., :2].clamp_(min=0)
    return h


def by_storage(m, h):
    h = h.contiguous()
    np.maximum(h.numpy(), 0, out=h.numpy())
    return h


def attention_with_leak(m, h):
    scores = h @ h.mT
    return scores.softmax(-1) @ h + scores.sum(-1, keepdim=True)


def wrong_axis(m, h):
    return (h @ h.mT).softmax(-2) @ h


def signed_weights(m, h):
    weights = (h @ h.mT).softmax(-1)
    return (weights + (h[..., :6] - h[..., :6].mean(-1, keepdim=True))) @ h


def weights_twice(m, h):
    weights = [(q @ h.mT).softmax(-1) for q in (h, 2 * h)]  # one line, two softmaxes
    return (weights[0] @ weights[1])[..., :1] * torch.ones(8)


def weights_by_themselves(m, h):
    weights = (h @ h.mT).softmax(-1)
    return (weights @ weights)[..., :1] * torch.ones(8)


def after_an_error(m, h):
    """A head that fails must not leave the watcher believing that it is still inside."""
    try:
        m.head("no tensor")
    except Exception:
        return h.tanh()


def by_gradient(m, h):
    with torch.enable_grad():
        x = h.detach().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x)[0]


ISSUE = {
    "an alias of an import": lambda m, h: g(h),
    "an alias of a function": lambda m, h: (lambda a: a(h))(F.gelu),
    "getattr": lambda m, h: getattr(F, "gel" + "u")(h),
    "another package": lambda m, h: other_package(h),
    "where": lambda m, h: torch.where(h > 0, h, 0.1 * h),
    "max with zero": lambda m, h: torch.max(h, torch.zeros(())),
    "clamp_min": lambda m, h: h.clamp_min(0),
    "threshold": lambda m, h: F.threshold(h, 0.1, 0.0),
    "expit": lambda m, h: torch.special.expit(h),
    "a product with a comparison": lambda m, h: h * (h > 0),
    "a cube": lambda m, h: h * h * h,
    "a quotient": lambda m, h: 1 / (2 + h),
    "einsum with itself": lambda m, h: torch.einsum("bij,bij->bij", h, h),
    "branching": branch,
    "bilinear": lambda m, h: m.b(h, h),
    "an autograd function": lambda m, h: Square.apply(h),
}

HIDDEN = {
    "in place": lambda m, h: h.clone().sigmoid_(),
    "out=": written_out,
    "a view in place": by_view,
    "compiled": lambda m, h: torch.compile(lambda y: y.tanh())(h),
    "scripted": lambda m, h: torch.jit.trace(torch.tanh, h)(h),
    "sorting": lambda m, h: h.sort(-1).values,
    "topk": lambda m, h: h.topk(8, -1).values,
    "the largest": lambda m, h: h.amax(-1, keepdim=True).expand_as(h),
    "the median": lambda m, h: h.median(-1, keepdim=True).values.expand_as(h),
    "rounding": lambda m, h: h.round(),
    "rounding in a division": lambda m, h: torch.div(h, 0.1, rounding_mode="floor"),
    "an integer cast": lambda m, h: h.int().float(),
    "a copy into integers": lambda m, h: torch.zeros_like(h, dtype=torch.long).copy_(h).float(),
    "bits": lambda m, h: (h.view(torch.int32) & 0x7FFFFFFF).view(torch.float32),
    "cumprod": lambda m, h: h.cumprod(-1),
    "prod": lambda m, h: h.prod(-1, keepdim=True).expand_as(h),
    "a norm": lambda m, h: h / h.norm(dim=-1, keepdim=True),
    "a deviation": lambda m, h: h.std(-1, keepdim=True).expand_as(h),
    "softmax over features": lambda m, h: h.softmax(-1),
    "softmax over fixed keys": lambda m, h: (h @ m.a.weight).softmax(-1) @ m.c.weight,
    "log_softmax": lambda m, h: h.log_softmax(-1),
    "logsumexp": lambda m, h: h.logsumexp(-1, keepdim=True).expand_as(h),
    "exp": lambda m, h: torch.exp(h),
    "an index from data": lambda m, h: m.scale[h.argmax(-1, keepdim=True).expand_as(h)],
    "a gather by data": lambda m, h: h.gather(-1, h.argsort(-1)),
    "a mask from data": lambda m, h: h.masked_fill(h < 0, 0.0),
    "data": lambda m, h: h.data.tanh(),
    "numpy": lambda m, h: torch.from_numpy(np.tanh(h.detach().numpy())),
    "numpy in place": by_storage,
    "numpy by protocol": lambda m, h: h + torch.as_tensor(np.tanh(np.asarray(h.detach()))),
    "a list": lambda m, h: torch.tensor([[[abs(v) for v in r] for r in s] for s in h.tolist()]),
    "dlpack": lambda m, h: torch.from_numpy(np.tanh(np.from_dlpack(h.detach()))),
    "a dlpack capsule": lambda m, h: h + torch.from_dlpack(torch.utils.dlpack.to_dlpack(h.detach().clone())),
    "a number": lambda m, h: h * h.mean().item(),
    "a printed number": lambda m, h: h + float(str(h.sum().detach().reshape(1)).split("[")[1].split("]")[0]),
    "an overriding subclass": lambda m, h: h.as_subclass(Dressed).add(0).as_subclass(torch.Tensor),
    "a wrapping subclass": lambda m, h: (-Boxed(h)).inner,
    "a partial": lambda m, h: functools.partial(F.leaky_relu, negative_slope=0.3)(h),
    "operator": lambda m, h: operator.pow(h, 2),
    "operator.mul": lambda m, h: operator.mul(h, h + 1),
    "aten": lambda m, h: torch.ops.aten.gelu(h),
    "vmap": lambda m, h: torch.vmap(torch.sin)(h),
    "functional_call": lambda m, h: torch.func.functional_call(nn.PReLU(8), {"weight": m.scale}, (h.mT,)).mT,
    "torch.func.grad": lambda m, h: torch.func.grad(lambda y: (y**3).sum())(h),
    "autograd in the forward": by_gradient,
    "a complex modulus": lambda m, h: torch.complex(h, h * 0).abs(),
    "a complex square": lambda m, h: (torch.complex(h, h) * torch.complex(h, h)).imag,
    "polar": lambda m, h: torch.polar(torch.ones_like(h), h).real,
    "a filter of its own": lambda m, h: F.conv1d(h, h[0].mean(0).reshape(1, 1, 8)[..., :1].expand(6, 6, 1)),
    "a matrix of its own": lambda m, h: h @ (h.mT @ h),
    "an inverse": lambda m, h: torch.linalg.inv(h.mT @ h + torch.eye(8)),
    "scores that leak": attention_with_leak,
    "softmax over the wrong axis": wrong_axis,
    "weights with something added": signed_weights,
    "softmax twice": lambda m, h: (h @ h.mT).softmax(-1).softmax(-1) @ h,
    "two softmaxes": weights_twice,
    "a softmax by itself": weights_by_themselves,
    "after an error in a head": after_an_error,
    "torch.cond": lambda m, h: torch.cond(h.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (h,)),
    "a distance": lambda m, h: torch.cdist(h, h)[..., :1].expand_as(h),
    "a product by addcmul": lambda m, h: torch.addcmul(h, h, h),
    "lerp by data": lambda m, h: torch.lerp(h, m.scale.expand_as(h), h),
    "a power of a constant": lambda m, h: torch.pow(2.0, h),
    "xlogy": lambda m, h: torch.xlogy(m.scale, h * h),
    "a recurrent cell": lambda m, h: nn.GRU(8, 8, batch_first=True)(h)[0],
    "max pooling": lambda m, h: F.max_pool1d(h, 3, 1, 1),
    "foreach": lambda m, h: torch._foreach_abs([h])[0],
    "a thread": in_thread,
    "a bucket": lambda m, h: torch.bucketize(h, m.scale.sort().values).float(),
    "a length": lambda m, h: h + len(h[h > 0]),
    "nan_to_num": lambda m, h: torch.nan_to_num(h / 0.0, posinf=1.0, neginf=-1.0, nan=0.0),
    "a histogram": lambda m, h: h + torch.histc(h, 8),
    "softmax with a fixed query": lambda m, h: (m.scale @ h.mT).unsqueeze(1).softmax(-1) @ h + h,
    "softmax with values that are constants times one": lambda m, h: h.softmax(-1) @ (torch.eye(8) + 0 * h.sum()),
    "softmax with values of which constants are used": lambda m, h: (
        h.softmax(-1) @ torch.cat([torch.eye(8).expand(3, 8, 8), h.mT], -1)
    )[..., :8],
    "scores that are nothing": lambda m, h: (h + 0 * (h @ (h.mT @ h).detach().tanh())).softmax(-1) @ (h.mT @ h),
    "keys that do not move": lambda m, h: (h @ (torch.eye(8) + 0 * h.sum())).softmax(-1) @ torch.diag_embed(h[:, 0]),
    "keys that move together": lambda m, h: (h @ (torch.eye(8) + h.sum())).softmax(-1) @ torch.diag_embed(h[:, 0]),
    "something added to scores": lambda m, h: (h[..., :6] + 0 * (h @ h.mT)).softmax(-1) @ h,
    "values with a common part": lambda m, h: (h @ h.mT).softmax(-1) @ (torch.eye(6, 8) + h.mean((1, 2), True)),
    "values that move a little": lambda m, h: (h @ h.mT).softmax(-1) @ (torch.eye(6, 8) + 1e-7 * h),
    "values that no weight meets": lambda m, h: (
        torch.cat([h @ h.mT, h @ h.mT - 1e9], -1).softmax(-1) @ torch.cat([torch.eye(6, 8).expand(3, 6, 8), h], 1)
    ),
    "fused attention with fixed keys": lambda m, h: F.scaled_dot_product_attention(h, torch.eye(8), torch.eye(8)),
    "fused attention with keys that do not move": lambda m, h: F.scaled_dot_product_attention(
        h, torch.eye(8) + 0 * h[:, :1].mT, torch.eye(8) + 0 * h[:, :1].mT
    ),
    "fused attention behind a mask": lambda m, h: F.scaled_dot_product_attention(
        h, torch.cat([torch.eye(8).expand(3, 8, 8), h], 1), torch.cat([torch.eye(8).expand(3, 8, 8), h], 1),
        attn_mask=torch.arange(14) < 8
    ),
    "a gate by softmax": lambda m, h: (torch.stack([h, 0 * h], -1).softmax(-1) * torch.stack([h, 0 * h], -1)).sum(-1),
    "a gate by softmax and a product": lambda m, h: (
        torch.stack([h, 0 * h], -1).softmax(-1).unsqueeze(-2) @ torch.stack([h, 0 * h], -1).unsqueeze(-1)
    )[..., 0, 0],
    "dropout that looks": lambda m, h: h * torch.bernoulli(h.sigmoid()),
}  # fmt: skip

AFFINE = {
    "fft": lambda m, h: torch.fft.irfft(torch.fft.rfft(h, dim=-1) * torch.randn(5), n=8, dim=-1),
    "cumsum": lambda m, h: h.cumsum(-1),
    "an index that is a list": lambda m, h: h[..., [1, 0]].repeat(1, 1, 4) + h[:, [0]],
    "means and differences": lambda m, h: h - h.mean(-1, keepdim=True) + h.sum(1, keepdim=True),
    "a constant's function": lambda m, h: h * torch.tanh(m.scale) / m.scale.norm() + m.a.weight.exp()[0],
    "rotary factors": lambda m, h: h * torch.arange(6.0)[:, None].cos() + torch.roll(h, 1, -1) * torch.arange(8).sin(),
    "scatter": lambda m, h: torch.zeros_like(h).scatter_add(-1, torch.arange(8).expand(3, 6, 8) % 3, h),
    "setting entries": lambda m, h: torch.zeros(3, 6, 8).index_put((torch.tensor([0]),), h[:1]) + h,
    "a causal mask": lambda m, h: h.masked_fill(torch.ones(6, 8).triu() > 0, 0.0),
    "padding and folding": lambda m, h: F.pad(h, (1, 1))[..., 1:-1] + h.unfold(-1, 1, 1).squeeze(-1),
    "interpolation": lambda m, h: F.interpolate(h, size=8, mode="linear"),
    "attention": lambda m, h: (h @ m.a(h).mT / 8**0.5 + torch.ones(6, 6).triu(1) * -1e9).softmax(-1) @ h,
    "fused attention": lambda m, h: F.scaled_dot_product_attention(h, m.a(h), h, is_causal=True),
    "attention by einsum": lambda m, h: torch.einsum("bij,bjd->bid", torch.einsum("bid,bjd->bij", h, h).softmax(-1), h),
    "vmap": lambda m, h: torch.vmap(lambda row: row @ m.a.weight)(h),
    "dropout": lambda m, h: F.dropout(h, 0.5, training=True),
    "half": lambda m, h: h.bfloat16().float(),
    "complex rotation": lambda m, h: torch.view_as_real(
        torch.view_as_complex(h.reshape(3, 6, 4, 2).contiguous()) * torch.polar(torch.ones(4), torch.arange(4.0))
    ).flatten(2),
}


@pytest.mark.parametrize("name", [*ISSUE, *HIDDEN])
def test_nothing_nonlinear_is_hidden(name):
    report = watched((ISSUE | HIDDEN)[name])
    assert report.watched
    assert report.remaining, name
    assert not report.pure
    assert all(place for place, _ in report.remaining)


@pytest.mark.parametrize("name", AFFINE)
def test_what_is_affine_or_attention_is_not_called_nonlinear(name):
    report = watched(AFFINE[name])
    assert report.watched
    assert report.remaining == []
    assert report.pure
    assert bool(report.attention) == ("attention" in name)


def test_there_are_fifty_ways_to_hide():
    assert len(HIDDEN) >= 50


def test_a_line_of_code_and_a_module_are_named():
    report = watched(lambda m, h: torch.special.expit(h))
    ((place, what),) = report.remaining
    line = test_a_line_of_code_and_a_module_are_named.__code__.co_firstlineno + 1
    assert (place, what) == ("the model", f"Wrap (sigmoid at test_watch.py:{line})")
    assert what in str(report)


def test_a_forward_that_was_replaced_and_hooks_are_seen():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    model[2].forward = types.MethodType(lambda self, x: F.linear(x, self.weight).sin(), model[2])
    report = ah.convert(model, inputs=X).report
    assert [place for place, _ in report.remaining] == ["2"]
    assert "sin" in report.remaining[0][1]
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    model[0].register_forward_hook(lambda m, args, out: out.tanh())
    model[1].register_forward_hook(lambda m, args, out: out.cos())
    model[1].register_forward_pre_hook(lambda m, args: (args[0].sin(),))
    converted = ah.convert(model, inputs=X)
    assert isinstance(converted[1], ActivationHead)
    said = " ".join(what for _, what in converted.report.remaining)
    assert all(name in said for name in ("tanh", "cos", "sin"))
    assert (converted(X) - model(X)).abs().max() < 1e-5


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.unused = nn.Linear(8, 8), nn.Linear(3, 3)
        self.mark = 2.0

    def forward(self, x):
        return self.a(F.gelu(self.a(x)))


def test_a_replaced_forward_is_not_undone_by_rewriting():
    model = Calls()
    model.forward = types.MethodType(lambda self, x: self.a(x) + 1, model)
    assert torch.equal(ah.convert(model, inputs=X)(X), model(X))
    act = nn.Sequential(nn.GELU())
    act[0].forward = types.MethodType(lambda self, x: x.sin(), act[0])
    report = ah.convert(act, inputs=X).report
    assert not report.replaced
    assert "sin" in report.remaining[0][1]


def test_a_rewritten_module_keeps_its_tensors_attributes_and_hooks():
    model = Calls()
    model.register_forward_hook(lambda m, args, out: 2 * out)
    converted = ah.convert(model, inputs=X)
    assert converted.report.replaced
    assert converted.mark == 2.0
    assert set(model.state_dict()) <= set(converted.state_dict())
    assert (converted(X) - model(X)).abs().max() < 1e-5
    assert converted.report.idle == ["unused"]


def test_tokens_masks_and_positions_are_constants_and_embeddings_are_data():
    class Tokens(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.e, self.function = nn.Embedding(20, 8), function

        def forward(self, ids, mask):
            return self.function(self.e(ids), ids, mask)

    ids, mask = torch.arange(12).reshape(2, 6), torch.ones(2, 6, dtype=torch.bool)
    clean = [
        lambda h, ids, mask: h * mask[..., None] + (mask.cumsum(-1) * mask).float().cos()[..., None],
        lambda h, ids, mask: h.masked_fill(~mask[..., None], 0.0) if mask.all() else h,
        lambda h, ids, mask: h * (ids == 3)[..., None],
    ]
    for function in clean:
        assert ah.convert(Tokens(function), inputs=(ids, mask)).report.pure
    for function in (lambda h, ids, mask: h.tanh(), lambda h, ids, mask: h * h * mask[..., None]):
        assert not ah.convert(Tokens(function), inputs=(ids, mask)).report.pure


class OnTokens(nn.Module):
    """What a function makes of tokens, with tensors of every kind."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.held, self.kept = nn.Parameter(torch.randn(20, 8)), [function], torch.randn(20, 8)
        self.register_buffer("table", torch.randn(20, 8))
        self.register_buffer("matrix", torch.randn(8, 8))

    def forward(self, ids):
        return self.held[0](self, ids)


GLOBAL = torch.randn(20, 8)
TOKENS = {
    "numbers of a list": lambda m, ids: torch.stack([m.q[i].sin() for row in ids.tolist() for i in row]),
    "numbers one by one": lambda m, ids: torch.stack([m.q[int(i)].sin() for i in ids.flatten()]),
    "numbers by comparison": lambda m, ids: torch.stack(
        [m.q[next(k for k in range(20) if i == k)].sin() for i in ids.flatten()]
    ),
    "numbers in a list": lambda m, ids: m.q[:, [ids[0, 3], ids[0, 2]]].sin(),
    "a number that indexes": lambda m, ids: m.q[ids[0, 3]].sin(),
    "an array": lambda m, ids: torch.stack([m.q[i].sin() for i in ids.numpy().ravel()]),
    "a shape": lambda m, ids: m.q[len(ids[ids > 3])].sin(),
    "a buffer": lambda m, ids: torch.sin(m.table[ids] @ m.matrix),
    "an attribute": lambda m, ids: torch.sin(m.kept[ids]),
    "a global": lambda m, ids: torch.sin(GLOBAL[ids]),
    "one-hot vectors": lambda m, ids: torch.sin(F.one_hot(ids, 20).float() @ m.table),
    "counts": lambda m, ids: torch.sin(F.one_hot(ids, 20).float().sum(1, keepdim=True) * m.table.mT).sum(-1),
}


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_followed_through_every_tensor_of_the_model(name):
    report = ah.convert(OnTokens(TOKENS[name]), inputs=torch.arange(12).reshape(2, 6)).report
    assert report.watched
    assert report.remaining


def test_tokens_that_stay_in_torch_are_constants_and_one_hot_vectors_are_embeddings():
    for function in (
        lambda m, ids: F.one_hot(ids, 20).float() @ m.q,
        lambda m, ids: m.table[ids] * ids[..., None].float().cos() + (ids.sum() > 3 if ids.any() else 0.0),
    ):
        assert ah.convert(OnTokens(function), inputs=torch.arange(12).reshape(2, 6)).report.pure


def test_what_is_returned_before_it_is_computed_is_named_or_not_watched():
    for made, watched in (
        (lambda m, h: (h, (row.sin() for row in h)), True),
        (lambda m, h: (h, [lambda: h.sin()]), True),
        (lambda m, h: map(torch.sin, h), False),
    ):
        model = Wrap(made)
        model.c = nn.Identity()
        report = ah.convert(model, inputs=X).report
        assert report.watched == watched
        assert not report.pure


def test_what_only_a_second_call_does_is_seen():
    def later(m, h):
        m.held.append(None)
        return h.sin() if len(m.held) > 2 else h

    def kept(m, h):
        m.held.append(h)
        return h if len(m.held) < 3 else h * m.held[1]

    for function, name in ((later, "sin"), (kept, "mul")):
        assert name in str(watched(function).remaining)


def test_affine_models_of_many_layers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.AvgPool2d(2),
                          nn.ConvTranspose2d(4, 2, 2), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
                          nn.Linear(32, 5))  # fmt: skip
    report = ah.convert(model.train()).report
    assert report.inputs == "(2, 3, 32, 32)"
    assert report.pure
    assert model.training


def test_models_whose_inputs_are_not_known_are_converted_and_not_called_complete():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.GELU()

        def forward(self, pair):
            return self.act(pair["left"].tensor)

    report = ah.convert(Odd()).report
    assert len(report.replaced) == 1
    assert not report.watched
    assert not report.pure
    assert "NOT watched" in str(report)
    with pytest.raises(ah.InputError, match="does not take the input"):
        ah.convert(Odd(), inputs=X)


def test_watching_leaves_no_trace():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.calls = nn.Linear(8, 8), 0
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            self.seen += 1
            return x.mul_(2) + self.a(x)

    model, x, state = Counts().train(), X.clone(), torch.random.get_rng_state()
    converted = ah.convert(model, inputs=x)
    for one in (model, converted):
        assert (one.calls, one.seen.item(), one.training) == (0, 0, True)
    assert torch.equal(x, X)
    assert torch.equal(torch.random.get_rng_state(), state)


class Pool(nn.Module):
    """Attention of a learned query, and a sum with what a feed-forward block makes of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.probe = nn.Parameter(torch.randn(1, 1, 8))
        self.att = nn.MultiheadAttention(8, 2, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        h = self.att(self.probe.repeat(len(x), 1, 1), x, x)[0]
        return h + self.ff(h)


def test_a_sum_with_what_a_softmax_that_is_no_attention_made_is_a_sum():
    converted = ah.convert(Pool().eval(), inputs=X)
    ((place, what),) = converted.report.remaining
    assert place == "att"
    assert what.startswith("MultiheadAttention (softmax")
    assert "added" not in what
    with pytest.raises(ah.StructureError, match="softmax"):
        ah.walk(converted, X)


class Columns(nn.Module):
    """Attention with so many columns of values that between two keys some move by less than a ten-thousandth; `fixed`
    makes one of them a constant that differs between keys."""

    def __init__(self, fixed):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 20_000), nn.Linear(20_000, 8)
        self.register_buffer("own", torch.zeros(2, 20_000))
        if fixed:
            with torch.no_grad():
                self.v.weight[7] = 0
                self.own[1, 7] = 1

    def forward(self, x):
        weights = (self.q(x) @ self.k(x).mT).softmax(-1)
        return self.out(weights @ (self.v(x) + self.own))


@pytest.mark.parametrize("fixed", [False, True])
def test_two_keys_are_enough_for_attention_and_one_constant_column_is_still_found(fixed):
    converted = ah.convert(Columns(fixed).eval(), pure=True, inputs=X[:1, :2])
    assert converted.report.pure == (not fixed)
    assert ("values that do not depend on the data" in str(converted.report)) == fixed
    if fixed:
        with pytest.raises(ah.StructureError, match="values that do not depend on the data"):
            ah.walk(converted, X[:1, :2])
    else:
        assert ah.walk(converted, X[:1, :2]).softmax == 1


class Clamped(nn.Module):
    def forward(self, x):
        return torch.clamp(x, max=1.0)


class Chosen(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, 0.1 * x)


class Overwritten(nn.Sequential):
    def forward(self, x):
        return F.relu_(self[0](x))


LEFT = {
    "sin: left, since of calls": lambda u, v: torch.sin(u),
    "erf: left, since of calls": lambda u, v: u * 0.5 * (1 + torch.erf(u / 2**0.5)),
    "mul: left, since a product of two signals is": lambda u, v: u * v,
    "topk: left, since conversion has no head": lambda u, v: u + u.topk(1).values,
    "native_layer_norm: a norm, which pure=True converts": lambda u, v: F.layer_norm(u, (4,)),
}


@pytest.mark.parametrize("said", LEFT)
def test_everything_that_remains_has_its_reason(said):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, x):
            return LEFT[said](self.a(x), self.b(x))

    report = str(ah.convert(Block(), inputs=torch.randn(2, 3)).report)
    assert f"\n  {said}" in report
    assert sum("left, since" in line or "a norm, which" in line for line in report.splitlines()) == 1


def test_what_to_write_is_said_of_functions_that_are_left_and_is_converted():
    inside = nn.Sequential(nn.Linear(3, 4), Clamped(), Chosen())
    left = ah.convert(inside).report
    assert [name for name, why in left.refused if "pure=True reads it, and has a head for it if" in why] == ["1", "2"]
    assert not any("left, since" in line for line in str(left).splitlines())  # each place has its reason once
    assert ah.convert(inside, pure=True).report.pure
    ((_, why),) = ah.convert(Overwritten(nn.Linear(3, 4))).report.refused
    assert why.startswith("relu_ overwrites its argument, and is not replaced; to have them converted, make them ")
    assert why.endswith("nn.ReLU()")
