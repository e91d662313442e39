"""A converted model that was trained, compiled, checkpointed or run on long inputs is saved and comes back the same."""

import warnings

import pytest
import torch
from torch import nn

import anchorhead as ah

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


def llama(**more):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=16, **more)
    return transformers.LlamaForCausalLM(config).eval()


def again(model, folder, module=None):
    ah.save_converted(model, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return ah.load_converted(folder, module)


@pytest.mark.parametrize("wrapped", [lambda m: torch.compile(m, backend="eager"), nn.DataParallel])
def test_what_is_around_a_model_is_not_what_is_saved(wrapped, tmp_path):
    converted = ah.convert(block(), inputs=X)
    back = again(wrapped(converted), tmp_path / "out", block())
    assert back.report.watched
    assert torch.equal(back(X), converted(X))


def test_gradient_checkpointing_is_no_change(tmp_path):
    tokens = torch.arange(4, 20).reshape(2, 8)
    converted = ah.convert(llama()).train()
    converted.gradient_checkpointing_enable()
    converted.enable_input_require_grads()
    converted(tokens, labels=tokens).loss.backward()
    torch.optim.SGD(converted.parameters(), 0.1).step()
    assert not converted.report.changed
    back = again(converted, tmp_path / "out")
    assert torch.equal(back(tokens).logits, converted.eval()(tokens).logits)


def test_a_hook_of_the_same_name_from_elsewhere_is_a_change():
    def output_capturing_hook(module, given, made):
        return 2 * made

    converted = ah.convert(block(), inputs=X)
    converted[0].register_forward_hook(output_capturing_hook)
    assert converted.report.changed == ["0 has other forward hooks"]


ROTARY = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    "long": {"rope_type": "longrope", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 16,
             "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
}  # fmt: skip


@pytest.mark.parametrize("kind", ROTARY)
def test_rotary_factors_that_long_inputs_made_come_back(kind, tmp_path):
    tokens = torch.arange(4, 34).reshape(1, 30)
    original = llama(rope_parameters=ROTARY[kind])
    converted = ah.convert(original)
    with torch.no_grad():
        far = (converted(tokens).logits - original(tokens).logits).abs().max()
    assert far < 1e-5
    assert not converted.report.changed
    back = again(converted, tmp_path / "out")
    assert torch.equal(back(tokens).logits, converted(tokens).logits)
    twice = again(back, tmp_path / "twice")
    assert torch.equal(twice(tokens).logits, converted(tokens).logits)


class Keeps(nn.Module):
    """A list of tensors that grows with every call."""

    def __init__(self):
        super().__init__()
        self.a, self.act, self.seen = nn.Linear(8, 8), nn.GELU(), []

    def forward(self, x):
        self.seen.append(x.mean())
        return self.act(self.a(x)) + self.seen[0]


def test_a_state_that_no_folder_rebuilds_is_refused_before_anything_is_written(tmp_path):
    converted = ah.convert(Keeps(), inputs=X)
    converted(X)
    with pytest.raises(ah.InputError, match=r"seen\.0 was not there when the model was converted"):
        ah.save_converted(converted, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    converted.seen.clear()
    ah.save_converted(converted, tmp_path / "out")


def test_tensors_that_are_gone_are_named(tmp_path):
    model = block()
    model.register_buffer("shift", torch.ones(3))
    converted = ah.convert(model, inputs=X)
    converted.shift = None
    with pytest.raises(ah.InputError, match="shift is not there any more"):
        ah.save_converted(converted, tmp_path / "out")


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_of_a_quantised_layer_are_refused(tmp_path):
    quantised = torch.ao.quantization.quantize_dynamic(block(), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ah.InputError, match=r"0\._packed_params\._packed_params holds .* quantised"):
        ah.save_converted(ah.convert(quantised, inputs=X), tmp_path / "out")


def test_classes_of_one_name_are_told_apart():
    class Linear(nn.Linear):
        pass

    converted = ah.convert(block(), inputs=X)
    converted[0] = Linear(8, 8)
    assert "Linear now, and was of torch.nn.modules.linear.Linear" in converted.report.changed[0]


def test_paths_that_are_no_conversions_are_named(tmp_path):
    with pytest.raises(ah.FileError, match="does not exist"):
        ah.load_converted(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(ah.FileError, match="is no folder"):
        ah.load_converted(tmp_path / "file")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ah.FileError, match="not converted; anchorhead convert"):
        ah.load_converted(tmp_path)


def test_an_attention_function_that_is_not_here_is_said(tmp_path):
    transformers = pytest.importorskip("transformers")
    sdpa = transformers.AttentionInterface()["sdpa"]
    own = transformers.AttentionInterface._global_mapping
    own["ours"] = lambda *given, **named: sdpa(*given, **named)
    try:
        model = llama()
        model.set_attn_implementation("ours")
        ah.save_converted(ah.convert(model), tmp_path / "out")
    finally:
        del own["ours"]
    with pytest.warns(UserWarning, match="converted with ours"):
        back = ah.load_converted(tmp_path / "out")
    assert not back.report.watched
    assert "by 'sdpa' now and was by 'ours' when it was watched" in str(back.report)


def test_an_earlier_conversion_stays_where_the_next_cannot_be_written(tmp_path):
    tokens = torch.arange(4, 20).reshape(2, 8)
    converted = ah.convert(llama())
    ah.save_converted(converted, tmp_path / "out")
    converted.generation_config.temperature = 0.5  # without do_sample, which its library refuses to write
    with pytest.raises(ah.FileError, match="cannot be written"):
        ah.save_converted(converted, tmp_path / "out")
    assert torch.equal(ah.load_converted(tmp_path / "out")(tokens).logits, converted(tokens).logits)
    converted.generation_config.temperature = None
    assert again(converted, tmp_path / "out").report.watched


def test_embeddings_that_were_resized_before_are_those_of_the_folder(tmp_path):
    original = llama()
    original.resize_token_embeddings(70)
    back = again(ah.convert(original), tmp_path / "out")
    assert back.report.watched
    assert back(torch.tensor([[69]])).logits.shape == (1, 1, 70)


def test_a_configuration_that_parts_share_only_in_the_folder_is_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    decoder = transformers.BertConfig(vocab_size=60, **sizes, is_decoder=True, add_cross_attention=True)
    vision = transformers.ViTConfig(**sizes, image_size=16, patch_size=8)
    parts = transformers.ViTModel(vision), transformers.BertLMHeadModel(decoder)
    model = transformers.VisionEncoderDecoderModel(encoder=parts[0], decoder=parts[1]).eval()
    given = {"pixel_values": torch.randn(1, 3, 16, 16), "decoder_input_ids": torch.arange(4, 8).reshape(1, 4)}
    assert again(ah.convert(model, inputs=given), tmp_path / "out").report.watched
