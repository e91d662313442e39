"""convert(pure=True): affine maps and softmax attention are left, `report.pure` says whether nothing else is, and
`ah.walk` confirms it."""

import copy
import functools
import math
import os
import pickle
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah
from anchorhead.model.norm import NormHead

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
SMALL = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
         "intermediate_size": 64}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
MODELS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", SMALL),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", GROUPED),
    "ModernBERT": ("ModernBertModel", "ModernBertConfig", SMALL | {"pad_token_id": 0}),
    "T5, gated": ("T5ForConditionalGeneration", "T5Config", {
        "vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4,
        "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}),
    "Bloom": ("BloomForCausalLM", "BloomConfig", {"vocab_size": 100, "hidden_size": 32, "n_layer": 1, "n_head": 4}),
    "ViT": ("ViTModel", "ViTConfig", SMALL | {"image_size": 16, "patch_size": 4}),
    "Whisper": ("WhisperModel", "WhisperConfig", {
        "vocab_size": 100, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 8,
        "num_mel_bins": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}),
}  # fmt: skip
TOKENS = torch.randint(3, 100, (2, 8), generator=torch.Generator().manual_seed(0))


@functools.cache
def converted(name):
    kind, config, settings = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    return model, ah.convert(model, pure=True)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_else_is_left(name):
    _, model = converted(name)
    report = model.report
    assert report.pure
    assert not report.remaining
    assert report.difference <= 2e-6 * (1 + report.size)
    norms = [row for row in report.replaced if row.kind == "norm"]
    assert norms
    assert all(row.keys <= 60 and row.relative <= 1e-6 for row in norms)
    assert "norms are attention now" in str(report)


def test_the_exported_graph_of_a_whole_model_is_affine_maps_and_softmax():
    _, model = converted("Gemma2")
    found = ah.walk(model, input_ids=TOKENS)
    norms, gates, attention, caps = 5 + 0, 1, 1, 2  # around attention and block, and the last; per-head norms: none
    assert found.softmax == 5 * norms + 2 * gates + attention + caps
    assert found.scores == attention


class Hides(nn.Module):
    """A norm, and something that neither a name nor a module shows."""

    def __init__(self, hidden):
        super().__init__()
        self.norm, self.last, self.hidden = nn.LayerNorm(8), nn.Linear(8, 8), hidden

    def forward(self, x):
        return self.last(self.hidden(self.norm(x)))


HIDDEN = {
    "a square": lambda y: y * y,
    "a quotient": lambda y: y / (2 + y.mean(-1, keepdim=True)),
    "a maximum": lambda y: y.amax(-1, keepdim=True) + y,
    "a softmax that weighs nothing": lambda y: y.softmax(-1),
    "scores that no softmax takes": lambda y: y @ y.transpose(-1, -2) @ y,
    "rounding": lambda y: y.round(),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_caught_by_report_and_walk(name):
    x = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
    model = ah.convert(Hides(HIDDEN[name]), pure=True, inputs=x)
    assert not model.report.pure
    assert model.report.remaining
    with pytest.raises(ah.StructureError, match="neither affine nor softmax"):
        ah.walk(model, x)
    plain = ah.convert(Hides(lambda y: 2 * y), pure=True, inputs=x)
    assert plain.report.pure
    assert ah.walk(plain, x).softmax == 5


def test_a_walk_changes_nothing_and_hooks_are_seen():
    x = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
    model = ah.convert(Hides(lambda y: 2 * y), pure=True, inputs=x)
    before = {name: (t.dtype, t.clone()) for name, t in model.state_dict().items()}
    ah.walk(model, x)
    assert all(t.dtype == before[name][0] and torch.equal(t, before[name][1]) for name, t in model.state_dict().items())
    model.last.register_forward_hook(lambda module, args, out: out.tanh())
    with pytest.raises(ah.StructureError, match="tanh"):
        ah.walk(model, x)


def test_without_pure_norms_stay():
    model = ah.convert(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
    assert not model.report.pure
    assert not any(isinstance(module, NormHead) for module in model.modules())


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "T5, gated"])
def test_a_pure_folder_is_saved_verified_and_loaded(name, tmp_path):
    _original, model = converted(name)
    ah.save_converted(model, tmp_path)
    checked = ah.verify(tmp_path)
    assert sum(set(roles) == {"square", "coarse", "fine"} for roles in checked.heads.values()) >= 3
    again = ah.load_converted(tmp_path)
    given = {"input_ids": TOKENS} | ({"decoder_input_ids": TOKENS} if name.startswith("T5") else {})
    with torch.no_grad():
        assert torch.equal(again(**given).logits, model(**given).logits)
    assert again.report == model.report
    assert again.report.neurons == model.report.neurons == 64 * len(model.report.blocks) > 0


def test_blocks_are_layers_that_took_what_an_activation_made():
    """Softcaps follow the layers of keys, and feed none; nor are scores neurons, nor what enters a convolution."""
    _, model = converted("Gemma2")
    assert [(r.feeds, r.neurons) for r in model.report.blocks] == [("model.layers.0.mlp.down_proj", 64)]
    assert {r.feeds for r in model.report.replaced if r.formula == "tanh(x)"} == {None}

    class Capped(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.o = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.o(torch.tanh(self.q(x) @ x.mT).softmax(-1) @ x)

    assert not ah.convert(Capped(), inputs=torch.randn(2, 8, 8)).report.blocks
    rows = nn.Sequential(nn.Conv1d(2, 2, 1), nn.ReLU(), nn.Conv1d(2, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(8, 1))
    assert [r.place for r in ah.convert(rows, inputs=torch.randn(3, 2, 4)).report.blocks] == ["3"]


def test_a_class_with_another_eps_is_not_filled(tmp_path):
    ah.save_converted(ah.convert(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), pure=True), tmp_path)
    assert ah.load_converted(tmp_path, nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))(torch.ones(2, 8)).shape == (
        2,
        8,
    )
    with pytest.raises(ah.FileError, match="no such norm"):
        ah.load_converted(tmp_path, nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_round_where_the_original_does(dtype):
    original, _ = converted("Llama")
    short = copy.deepcopy(original).to(dtype)
    model = ah.convert(short, pure=True, inputs={"input_ids": TOKENS})
    assert model.report.pure
    assert all(row.dtype == str(dtype).removeprefix("torch.") for row in model.report.replaced)
    with torch.no_grad():
        apart = (model(TOKENS).logits.double() - short(TOKENS).logits.double()).abs().max()
        assert apart <= 8 * torch.finfo(dtype).eps * short(TOKENS).logits.double().abs().max()


def doubled(function):
    @functools.wraps(function)
    def run(self, *args, **kwargs):
        return 2 * function(self, *args, **kwargs)

    return run


def capped(x, cap):
    return torch.tanh(x / cap) * cap


class Branches(nn.Module):
    """Activations where torch.fx cannot follow: beside a branch, in a function of the file, behind a decorator."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.SiLU()

    @doubled
    def forward(self, x, cap=None, *, plain=True):
        """Says what it does."""
        if plain:
            gate = self.act(self.first(x))
            x = gate * self.second(x)
        y = F.gelu(x, approximate="tanh") + x.sigmoid() if cap is None else capped(x, cap)
        return y + F.gelu(x)


def test_calls_that_cannot_be_traced_are_replaced_in_their_source():
    torch.manual_seed(0)
    model, x = Branches(), 3 * torch.randn(4, 8)
    found = ah.convert(model, pure=True, inputs=x)
    kinds = {row.place: (row.kind, row.formula) for row in found.report.replaced}
    assert kinds == {
        "act": ("gate", "silu(x)"), "gelu": ("activation", "gelu_tanh(x)"), "sigmoid": ("activation", "sigmoid(x)"),
        "gelu_1": ("activation", "gelu(x)"), "tanh": ("activation", "tanh(x)"),
    }  # fmt: skip
    assert found.report.pure
    with torch.no_grad():
        for twin in (found, copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            for given in ({}, {"cap": 2.0}, {"plain": False}):
                assert (twin(x, **given) - model(x, **given)).abs().max() <= 2e-5


SHARED, HOOKED, tanh = nn.SiLU(), nn.SiLU(), torch.tanh
HOOKED.register_forward_hook(lambda module, given, made: 2 * made)


class Names(nn.Module):
    """Calls activations by names: modules of the file, and functions that are not what the file's name says."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x, tanh=torch.sin, **others):
        return SHARED(self.first(x)) + HOOKED(x) + tanh(x)


def test_modules_that_a_file_holds_are_replaced_where_they_are_called():
    torch.manual_seed(0)
    model, x = Names(), torch.randn(3, 8)
    found = ah.convert(model, pure=True, inputs=x)
    assert [(row.place, row.formula) for row in found.report.replaced] == [("SHARED", "silu(x)")]
    ((place, what),) = found.report.remaining
    assert place == "the model"
    assert {"silu", "sin"} <= set(what.replace("(", " ").split())
    with torch.no_grad():
        for twin in (found, copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert (twin(x) - model(x)).abs().max() <= 2e-6


def test_the_head_of_a_language_model_that_calls_gelu_by_its_name_is_converted():
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    config = transformers.RobertaConfig(vocab_size=100, max_position_embeddings=40, **sizes)
    report = ah.convert(transformers.RobertaForMaskedLM(config).eval(), pure=True).report
    assert report.pure
    assert "lm_head.gelu" in [row.place for row in report.replaced]


class AroundIt(nn.Module):
    """A forward that refers to what is around it cannot be compiled anew."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x, twice=False):
        super().train(False)
        return F.gelu(self.first(x)) if not twice else self.first(x)


def test_a_forward_with_names_from_around_it_is_left_and_said():
    report = ah.convert(AroundIt(), pure=True).report
    assert not report.pure
    assert "gelu" in str(report.remaining)


class Calls(nn.Module):
    """Norms as function calls, with weights of the module and without."""

    def __init__(self):
        super().__init__()
        self.gain, self.offset = (nn.Parameter(torch.randn(8)) for _ in range(2))
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        y = F.layer_norm(self.last(F.gelu(x)), (8,), self.gain, bias=self.offset, eps=1e-6)
        return torch.rms_norm(y + x, [8], weight=self.gain, eps=1e-4) + F.layer_norm(x, (8,))


def test_norms_that_are_called_become_heads(tmp_path):
    torch.manual_seed(0)
    model, x = Calls(), 3 * torch.randn(2, 5, 8)
    pure = ah.convert(model, pure=True, inputs=x)
    formulas = {row.formula for row in pure.report.replaced}
    assert formulas == {
        "gelu(x)", "layer_norm(x, eps=1e-06)", "rms_norm(x, eps=0.0001)", "layer_norm(x, eps=1e-05)",
    }  # fmt: skip
    assert pure.report.pure
    assert ah.walk(pure, x).softmax == 3 * 5 + 1
    with torch.no_grad():
        assert (pure(x) - model(x)).abs().max() <= 1e-5
        ah.save_converted(pure, tmp_path)
        assert torch.equal(ah.load_converted(tmp_path, Calls())(x), pure(x))


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e10])
def test_what_is_claimed_of_a_centred_norm_holds_far_from_zero(offset):
    """Against exact fractions: the share, and what rounding of x - mean in float64 adds."""
    norm = torch.nn.LayerNorm(64, elementwise_affine=False).double().eval()
    converted = ah.convert(norm, pure=True, inputs=torch.randn(2, 64, dtype=torch.float64))
    [row] = converted.report.replaced
    assert "mean|x| (1 + |y|)/σ" in str(converted.report)
    x = offset + torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = [Fraction(v) for v in x.tolist()]
    middle = sum(exact) / 64
    spread = math.sqrt(sum((v - middle) ** 2 for v in exact) / 64 + Fraction(norm.eps))
    size = 66 * 2.0**-53 * float(sum(map(abs, exact)) / 64) / spread
    for found, v in zip(converted(x).tolist(), exact, strict=True):
        y = float(v - middle) / spread
        assert abs(found - y) <= row.relative * abs(y) + size * (1 + abs(y)) + 1e-15 * abs(y)


def test_claims_are_of_the_dtype_that_was_seen_at_a_place(tmp_path):
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act = torch.nn.Linear(8, 16), torch.nn.GELU()
            self.last = torch.nn.Linear(16, 8).bfloat16()

        def forward(self, x):
            return self.last(self.act(self.first(x).to(torch.bfloat16)))

    original = Mixed().eval()
    converted = ah.convert(original, inputs=torch.randn(4, 8))
    [row] = converted.report.replaced
    x = torch.linspace(-8, 8, 4001).bfloat16()
    exact = torch.nn.functional.gelu(x.double())
    room = row.error + row.rounding * (1 + x.double().abs()) + row.relative * exact.abs() + row.least
    assert row.dtype == "bfloat16"
    assert ((converted.act(x).double() - exact).abs() <= room).all()
    ah.save_converted(converted, tmp_path / "mixed")
    assert ah.load_converted(tmp_path / "mixed", original).report.replaced[0].dtype == "bfloat16"
    assert ah.verify(tmp_path / "mixed")
    for dtype in (torch.bfloat16, torch.float64):
        alone = ah.convert(torch.nn.Sequential(torch.nn.GELU()), inputs=torch.randn(4, dtype=dtype))
        assert alone.report.replaced[0].dtype == str(dtype).removeprefix("torch.")


def test_a_model_that_is_one_norm_has_a_name_in_its_report(tmp_path):
    converted = ah.convert(nn.LayerNorm(8), pure=True)
    assert "  the model: layer_norm(" in str(converted.report)
    assert ">the model<" in converted.report._repr_html_()
    ah.save_converted(converted, tmp_path / "norm")
    assert "  the model, square: " in str(ah.verify(tmp_path / "norm"))


class Attended(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rest = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x):
        h = self.rest(self.norm(x))
        return x + F.scaled_dot_product_attention(h, h, h)


class Aliased(nn.Module):
    """A block under two names, in a list twice, and within another one."""

    def __init__(self):
        super().__init__()
        self.a = Attended()
        self.b, self.c, self.d = self.a, nn.ModuleList([self.a, Attended(), self.a]), nn.Sequential(self.a)

    def forward(self, x):
        for layer in (self.a, self.b, *self.c, self.d):
            x = layer(x)
        return x


def test_a_walk_confirms_what_stands_in_several_places():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    model = ah.convert(Aliased().eval(), inputs=x, pure=True)
    assert model.report.pure
    assert ah.walk(model, x).softmax > 0
    assert model.b is model.a


@pytest.mark.parametrize(("middle", "spread", "eps"), [(1000, 1, 1e-12), (300, 0.3, 1e-5), (1, 1e-4, 1e-12)])
def test_a_norm_whose_original_rounds_more_is_held_to_float64(middle, spread, eps):
    x = middle + spread * torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    norm = nn.LayerNorm(16, eps=eps)
    exact = copy.deepcopy(norm).double()(x.double())
    converted = ah.convert(norm, pure=True, inputs=x)
    assert (converted(x) - exact).abs().max() < 0.1 * (norm(x) - exact).abs().max()
    assert converted.report.difference > 1e-5
