"""Two folders are compared on inputs that the first takes; what cannot be compared is one sentence."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import anchorhead as ah
from anchorhead.conversion.compare import compare, compare_folders

transformers = pytest.importorskip("transformers")

SMALL = {
    "T5ForConditionalGeneration": dict(d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8, vocab_size=120),
    "WhisperForConditionalGeneration": dict(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=120, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ),
    "MixtralForCausalLM": dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=120, num_local_experts=2,
    ),
    "ViTForImageClassification": dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=8
    ),
}  # fmt: skip


def folders(tmp_path, name):
    """A small model, and its conversion."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**SMALL[name])).eval()
    model.save_pretrained(tmp_path / name)
    ah.save_converted(ah.convert(model), tmp_path / f"{name}-converted")
    return tmp_path / name, tmp_path / f"{name}-converted"


@pytest.mark.parametrize("name", SMALL)
def test_models_are_compared_on_inputs_that_they_take(tmp_path, name):
    found = compare_folders(*folders(tmp_path, name), None)
    assert found.inputs >= 2
    assert found.difference <= 1e-5 * (1 + found.size)
    assert found.size > 0


def test_a_decoder_beside_an_encoder_is_given_the_tokens_of_the_texts(tmp_path):
    source, made = folders(tmp_path, "T5ForConditionalGeneration")
    (tmp_path / "texts").write_text("one\n\ntwo words\n", encoding="utf-8")
    found = compare_folders(source, made, tmp_path / "texts")
    assert (found.inputs, found.empty) == (2, 1)
    assert str(found).startswith("2 inputs (1 empty line left out): ")


def test_a_second_folder_that_is_no_conversion_is_refused(tmp_path):
    source, _ = folders(tmp_path, "ViTForImageClassification")
    with pytest.raises(ah.InputError, match="holds no conversion; give the original first"):
        compare_folders(source, source, None)


def test_a_converted_folder_is_drawn_and_replaced_with_a_word(tmp_path):
    source, made = folders(tmp_path, "ViTForImageClassification")
    command = [sys.executable, "-m", "anchorhead"]
    for asked, said in ((["convert", source, "-o", made], f"The earlier conversion in {made} was replaced."),
                        (["show", made, "--plot", tmp_path / "a.svg"], "")):  # fmt: skip
        done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert said in done.stderr
    assert "<svg" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("other", ["WhisperForConditionalGeneration", "T5ForConditionalGeneration"])
def test_two_models_that_are_not_the_same_are_one_sentence(tmp_path, other):
    source, made = folders(tmp_path, "MixtralForCausalLM")[0], folders(tmp_path, other)[1]
    done = subprocess.run([sys.executable, "-m", "anchorhead", "compare", source, made, "--json"], capture_output=True,
                          text=True, check=False, env=os.environ | {"HF_HUB_OFFLINE": "1"})  # fmt: skip
    assert done.returncode == 2
    said = json.loads(done.stdout)
    assert said["error"] == "InputError"
    assert f"a MixtralForCausalLM and {made} a {other}" in said["message"]
    assert "Traceback" not in done.stderr


def test_inputs_that_a_model_does_not_take_are_one_sentence():
    class Fails(nn.Module):
        def forward(self, input):
            return input.missing.shape

    with pytest.raises(ah.InputError, match="The second model, a Fails, does not take input: 'Tensor' object has no"):
        compare(nn.Identity(), Fails(), [{"input": torch.ones(2, 3)}])


def test_texts_without_a_tokenizer_are_one_sentence(tmp_path):
    source, made = folders(tmp_path, "ViTForImageClassification")
    (tmp_path / "texts").write_text("one\n", encoding="utf-8")
    with pytest.raises(ah.FileError, match="has no tokenizer for texts"):
        compare_folders(source, made, tmp_path / "texts")


class Returns(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return x + self.value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_in_one_model_alone_is_infinitely_far(value):
    found = compare(Returns(0.0), Returns(value), [{"x": torch.ones(3, 4)}])
    assert found.difference == found.normalised == float("inf")
    assert found.cosine == -1
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["difference"] == "inf"
    same = compare(Returns(value), Returns(value), [{"x": torch.ones(3, 4)}])
    assert (same.difference, same.normalised, same.cosine) == (0, 0, 1)


@pytest.mark.parametrize("missing", ["original", "converted", "texts"])
def test_what_is_not_there_is_said_before_a_model_is_loaded(missing, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr("anchorhead.conversion.compare.load_folder", loaded.append)
    given = {name: tmp_path / name for name in ("original", "converted", "texts")}
    for name, path in given.items():
        path.mkdir() if name != "texts" else path.write_text("one\n", encoding="utf-8")
    (given["converted"] / "anchorhead.json").write_text("{}", encoding="utf-8")
    given[missing] = tmp_path / "nowhere"
    with pytest.raises(ah.FileError, match=r"nowhere (does not exist|cannot be read)"):
        compare_folders(*given.values())
    assert not loaded
