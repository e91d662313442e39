"""Conversion says what it does not do: forwards that tracing would freeze, activations out of reach, missing bounds."""

import copy
import functools
import pickle
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah
from anchorhead.model.activation import ActivationHead

X = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c = nn.Linear(8, 16), nn.Linear(16, 8)
        self.mul = 2.0


class Scale(Block):
    def forward(self, x, scale=None):
        h = F.gelu(self.a(x))
        return self.c(h if scale is None else h * 2)


class Mask(Block):
    def forward(self, x, mask=None):
        h = F.gelu(self.a(x))
        if mask is not None:
            h = h * mask
        return self.c(h)


class Drops(Block):
    def forward(self, x):
        return self.c(F.dropout(F.gelu(self.a(x)), 0.5, self.training))


class Kind(Block):
    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            x = x * 3
        return self.c(F.gelu(self.a(x)))


class Catches(Block):
    def forward(self, x):
        h = F.gelu(self.a(x))
        try:
            if h.sum() > 0:
                h = h * 2
        except Exception:
            h = h * 100
        return self.c(h)


class Counts(Block):
    def forward(self, x):
        self.mul = self.mul + 1
        return self.c(F.gelu(self.a(x))) * self.mul


class Random(Block):
    def forward(self, x):
        return self.c(F.gelu(self.a(x)) + 0 * torch.rand(()))


@pytest.mark.parametrize("kind", [Scale, Mask, Drops, Kind, Catches, Counts, Random])
def test_forwards_that_tracing_would_freeze_keep_all_that_they_do(kind):
    model = kind().train()
    converted = ah.convert(model)
    assert [(row.place, row.formula) for row in converted.report.replaced] == [("gelu", "gelu(x)")]
    for args in [(), (torch.rand(16),)][: 1 + (kind in (Scale, Mask))]:
        for training in (True, False):
            torch.manual_seed(0)
            expected = model.train(training)(X, *args)
            torch.manual_seed(0)
            assert (converted.train(training)(X, *args) - expected).abs().max() < 1e-5 * (1 + expected.abs().max())


class OfItsOwn(Block):
    def forward(self, x, scale=None):
        def inner(y):
            return F.gelu(y) if scale is None else F.gelu(y) * scale

        return self.c(inner(self.a(x)))


class InPlace(Block):
    def forward(self, x, scale=None):
        return self.c(F.relu(self.a(x), inplace=True) if scale is None else self.a(x))


class Around(Block):
    def forward(self, x, scale=None):
        super().train(self.training)
        return self.c(F.gelu(self.a(x)) if scale is None else self.a(x))


@pytest.mark.parametrize("kind", [InPlace, Around])
def test_forwards_that_cannot_be_rewritten_are_left_alone_and_named(kind):
    model = kind()
    converted = ah.convert(model)
    assert "cannot be rewritten" in converted.report.refused[0][1]
    assert torch.equal(converted.eval()(X), model.eval()(X))


def test_functions_within_a_forward_are_rewritten_too():
    model = OfItsOwn()
    converted = ah.convert(model)
    assert len(converted.report.replaced) == 2
    for args in ((), (2.0,)):
        assert (converted(X, *args) - model(X, *args)).abs().max() < 1e-5


def test_a_child_activation_is_replaced_even_there():
    class Child(Mask):
        def __init__(self):
            super().__init__()
            self.act = nn.GELU()

        def forward(self, x, mask=None):
            h = self.act(self.a(x))
            return self.c(h if mask is None else h * mask)

    model = Child()
    converted = ah.convert(model)
    mask = torch.rand(16)
    for args in ((X,), (X, mask)):
        assert (converted(*args) - model(*args)).abs().max() < 1e-5
    assert isinstance(converted.act, ActivationHead)
    assert converted.report.replaced[0].feeds == "c"
    assert converted.report.replaced[0].output_bound is None
    assert converted.report.pure  # without a mask nothing is multiplied
    with_mask = ah.convert(model, inputs=(X, mask)).report
    assert any("mul at" in what for _, what in with_mask.remaining)


class Helper(Block):
    def forward(self, x):
        return self.encode(x)

    def encode(self, x):
        return self.c(F.gelu(self.a(x)))


class InPlace(Block):
    def forward(self, x):
        return self.c(self.a(x).relu_())


class Glu(Block):
    def forward(self, x):
        return self.c(torch.cat([F.glu(self.a(x))] * 2, -1))


class Beside(Block):
    def forward(self, x):
        h = torch.sigmoid(self.a(x))
        return self.c(h.clamp(min=0) + torch.erf(h) + h.abs() + torch.sin(h) + h**2 + torch.maximum(h, -h))


class Made(Block):
    def forward(self, x):
        return self.c(nn.ReLU()(self.a(x)))


class Held(Block):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.c(self.act(self.a(x)))


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * torch.sigmoid(x)


class Applies(Block):
    def forward(self, x):
        return self.c(Opaque.apply(self.a(x)))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Helper(), ["gelu"]),
        (InPlace(), ["relu"]),
        (Glu(), ["glu"]),
        (Beside(), ["clamp", "erf", "abs", "sin", "maximum", "pow"]),
        (Made(), ["relu"]),
        (Held(lambda x: F.gelu(x)), ["act"]),
        (Held(functools.partial(F.gelu, approximate="tanh")), ["act"]),
        (Applies(), ["sigmoid", "mul"]),
    ],
)
def test_nothing_is_missed_silently(model, names):
    converted = ah.convert(model)
    report = str(converted.report)
    assert (converted(X) - model(X)).abs().max() < 1e-5
    for name in names:
        assert name in report or any(r.formula.startswith(name) for r in converted.report.replaced), (name, report)


def between(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), *middle, nn.Linear(16, 8)).double()


@pytest.mark.parametrize("middle", [nn.LayerNorm(16), nn.Hardshrink()])
def test_no_bound_is_claimed_where_something_stands_between(middle):
    assert ah.convert(between(middle), tol=1e-3).report.replaced[0].output_bound is None


class Scaled(Block):
    def forward(self, x):
        return self.c(1000 * F.gelu(self.a(x)))


def test_a_bound_that_is_claimed_holds():
    assert ah.convert(Scaled(), tol=1e-3).report.replaced[0].output_bound is None
    model = between(nn.Dropout(0.5)).eval()
    converted = ah.convert(model, tol=1e-3)
    x = 3 * torch.randn(2000, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert (converted(x) - model(x)).abs().max() <= converted.report.replaced[0].output_bound


def test_gates_between_their_partner_and_the_linear_layer():
    class Gated(Block):
        def __init__(self):
            super().__init__()
            self.b, self.act = nn.Linear(8, 16), nn.SiLU()

        def forward(self, x):
            return self.c(self.act(self.a(x)) * self.b(x))

    report = ah.convert(Gated(), accept=True).report
    assert report.replaced[0].gated
    assert report.replaced[0].output_bound > 0


def test_torch_layers_given_a_module_run_the_head_without_gradients_too():
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation=nn.GELU(), batch_first=True).eval()
    converted = ah.convert(layer, tol=1e-1)
    z = torch.randn(2, 5, 16)
    with torch.no_grad():
        assert (converted(z) - layer(z)).abs().max() > 1e-4
    assert converted.report.blocks[0].feeds == "linear2"


def test_padding_masks_of_torch_encoders():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    converted = ah.convert(encoder)
    x, mask = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 4:] = True
    with torch.no_grad():
        difference = (converted(x, src_key_padding_mask=mask) - encoder(x, src_key_padding_mask=mask))[~mask]
    assert difference.abs().max() < 1e-5


def test_what_is_converted_is_not_converted_again():
    converted = ah.convert(between())
    with pytest.raises(ah.InputError, match="converted already"):
        ah.convert(converted)


class Residual(Block):
    def forward(self, x):
        return x + self.c(F.gelu(self.a(x)))


@pytest.mark.parametrize(
    "block",
    [
        Residual(),
        nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)),
        nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 8)),
    ],
)
def test_a_block_that_is_more_than_two_layers_is_not_shown_as_them(block):
    with pytest.raises(ah.InputError, match="something else"):
        ah.feed_forward_as_attention(block)


def test_blocks_shown_as_attention_want_modules():
    with pytest.raises(ah.InputError, match="got the class Tanh; give an instance of it"):
        ah.convert(nn.Tanh)
    with pytest.raises(ah.InputError, match="takes a torch module"):
        ah.feed_forward_as_attention(None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_blocks_of_shorter_dtypes_are_shown_with_heads_in_float32(dtype):
    block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(dtype)
    shown, x = ah.feed_forward_as_attention(block), X.to(dtype)
    assert shown.weights(x).dtype == torch.float32
    assert (shown(x) - block(x)).abs().max() <= 8 * torch.finfo(dtype).eps


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wi, self.wo = nn.Linear(8, 32), nn.Linear(16, 8)

    def forward(self, x):
        g, u = self.wi(x).chunk(2, -1)
        return self.wo(F.silu(g) * u)


@pytest.mark.parametrize("scale", [1, 100, 1e6])
def test_gates_need_no_range(scale):
    model = Chunked()
    converted = ah.convert(model, inputs=scale * X)
    assert [(head.role, head.keys) for head in converted.report.replaced[0].heads] == [
        ("activation", 2),
        ("product", 2),
    ]
    expected = model(scale * X)
    assert (converted(scale * X) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_half_precision_keeps_the_heads_numbers():
    model = between().float()
    converted = ah.convert(model).half()
    assert (converted(X.half()).float() - model(X)).abs().max() < 1e-2


def test_what_is_no_folder_is_refused(tmp_path):
    model = between().float()
    (tmp_path / "file").write_text("")
    with pytest.raises(ah.FileError, match="no folder"):
        ah.save_converted(ah.convert(model), tmp_path / "file")
    with pytest.raises(ah.InputError, match="is a path"):
        ah.load_converted(None)


def test_settings_of_generation_are_kept(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=20))
    model.generation_config.repetition_penalty = 1.7
    ah.save_converted(ah.convert(model), tmp_path)
    assert ah.load_converted(tmp_path).generation_config.repetition_penalty == 1.7


def test_a_tolerance_that_cannot_be_kept_raises_unless_it_is_accepted():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    with pytest.raises(ah.ToleranceError, match=r"^1: ") as refused:
        ah.convert(model, tol=1e-12)
    assert 1e-12 < refused.value.best < 1e-6
    assert "tol=1e-12, half of it" in str(refused.value)
    assert "tol=5e-13" not in "".join(traceback.format_exception(refused.value))
    assert f"errs by {refused.value.best:.3g}. Use a larger tol, or accept=True" in str(refused.value)
    assert "domain" not in str(refused.value)
    report = ah.convert(model, tol=1e-12, accept=True).report
    assert [place for place, _ in report.refused] == ["1"]
    assert report.remaining == [("1", "GELU (gelu)")]


class CallsWhatJumps(Block):
    def forward(self, x):
        return self.c(F.softplus(self.a(x), 2.0, 5.0))


class CallsWhatCannotBeRewritten(Block):
    def forward(self, x):
        if x.ndim > 7:
            return super().forward(x)
        return self.c(F.leaky_relu(torch.sigmoid(self.a(x))))


LEFT = {
    "Hardshrink(0.5) jumps": nn.Hardshrink(),
    "Softplus(beta=2, threshold=5) jumps": nn.Softplus(2, 5),
    "not seen to approach a line exponentially on the left": nn.Softsign(),
    "calls softplus, which, with what it is given beside its argument, jumps": CallsWhatJumps(),
    "make them modules: nn.LeakyReLU(), nn.Sigmoid()": CallsWhatCannotBeRewritten(),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_is_left_is_named_with_its_reason_and_what_can_be_done_here(why):
    report = ah.convert(nn.Sequential(nn.Linear(8, 8), LEFT[why]), inputs=torch.randn(4, 8)).report
    ((place, said),) = report.refused
    assert place == "1"
    assert why in said
    assert "domain" not in said
    assert "GELU" not in said


class OverwritesItsInput(Block):
    def forward(self, x):
        out = F.relu(x, inplace=True)
        return self.c(self.a(out)) + x


class CalledForItsEffect(Block):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.a(x)
        self.act(h)
        return self.c(h)


class OverwritesThenMultiplies(Block):
    def forward(self, x):
        h = self.a(x)
        return self.c(F.elu(h, 1.0, True) * h[..., :1] + h)


@pytest.mark.parametrize("kind", [OverwritesItsInput, CalledForItsEffect, OverwritesThenMultiplies])
def test_activations_in_place_keep_their_meaning(kind):
    model, x = kind(), X.clone()
    converted = ah.convert(model)
    assert len(converted.report.replaced) == 1
    assert (converted(x) - model(X.clone())).abs().max() < 1e-5
    assert kind is not OverwritesItsInput or (x >= -1e-5).all()
    gradients = []
    for one in (model, converted):
        one(X.clone()).square().sum().backward()
        gradients.append(one.a.weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


class Liar(nn.Module):
    """Called GELUActivation, whose formula is known by its name, and computes something else."""

    def forward(self, x):
        return F.gelu(x) + 0.01


Liar.__name__, Liar.__module__ = "GELUActivation", "transformers.activations"


def test_a_copy_that_is_farther_away_than_proofs_explain_is_an_error():
    with pytest.raises(ah.ConversionError, match="where the proved errors of its heads explain"):
        ah.convert(nn.Sequential(nn.Linear(8, 16), Liar(), nn.Linear(16, 8)))


def test_the_report_states_the_largest_difference():
    model = between().float()
    converted = ah.convert(model, tol=1e-3, inputs=X)
    assert converted.report.difference == pytest.approx((converted(X) - model(X)).abs().max().item())
    assert converted.report.size == pytest.approx(model(X).abs().max().item())
    assert f"{converted.report.difference:.2e}" in str(converted.report)


def test_the_methods_of_a_rewritten_module_are_kept_and_it_can_be_copied_and_pickled():
    class_ = Helper
    converted = ah.convert(class_(), inputs=X)
    assert isinstance(converted, class_)
    assert torch.equal(converted.encode(X), class_().encode(X))
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(other(X), converted(X))


def test_a_gated_block_is_said_to_have_no_such_form():
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaMLP

    block = LlamaMLP(transformers.LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=16))
    with pytest.raises(ah.InputError, match=r"gated.*ah\.convert converts it"):
        ah.feed_forward_as_attention(block)
