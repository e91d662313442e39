"""What a configuration names, and functions that a forward finds by name, may change after a conversion: what that does
to a report is said, and what only chooses what is returned, or how attention is computed, is saved and loaded."""

import copy
import dataclasses
import pickle
import sys
import types
import warnings

import pytest
import torch
from torch import nn

import anchorhead as ah

transformers = pytest.importorskip("transformers")
from transformers import LlamaConfig, LlamaForCausalLM, RobertaConfig, RobertaModel  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TOKENS = torch.arange(4, 20).reshape(2, 8)
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


@pytest.fixture
def converted(llama):
    return ah.convert(llama)


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def hidden_states(model):
    return len(model(TOKENS, output_hidden_states=True).hidden_states) == 2


OTHERS = {
    "an activation": ("hidden_act", "relu"),
    "rotary factors": ("rope_parameters", {"rope_type": "default", "rope_theta": 1.0}),
    "a name that was not there": ("attn_logit_softcapping", 5.0),
    "tied weights": ("tie_word_embeddings", True),
    "layers": ("num_hidden_layers", 7),
    "an attention that is none of the library": ("_attn_implementation", "mine"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_value_of_the_configuration_is_another_model(converted, name, tmp_path):
    key, value = OTHERS[name]
    assert converted.report.watched
    setattr(converted.config, key, value)
    assert any(f"config.{key.lstrip('_')} is" in text for text in converted.report.changed)
    assert not converted.report.watched
    with pytest.raises(ah.InputError, match=f"config.{key.lstrip('_')} is"):
        ah.save_converted(converted, tmp_path / "out")


def test_a_value_in_place_of_a_nested_one_is_noticed_and_one_put_back_is_no_change(converted):
    converted.config.rope_parameters["rope_theta"] = 5.0
    assert not converted.report.watched
    converted.config.rope_parameters["rope_theta"] = 10000.0
    assert converted.report.watched


def test_a_configuration_of_one_layer_alone_is_noticed(converted):
    layer = converted.model.layers[0].self_attn
    layer.config = copy.deepcopy(layer.config)
    assert converted.report.watched
    layer.config.num_attention_heads = 1
    assert converted.report.changed == ["model.layers.0.self_attn.config.num_attention_heads is 1 now, and was 2"]


SWITCHES = {
    "use_cache": False,
    "output_hidden_states": True,
    "return_dict": False,
    "pad_token_id": 3,
    "eos_token_id": [2, 5],
    "id2label": {0: "no", 1: "yes", 12: "perhaps"},
    "max_length": 40,
}


def test_what_chooses_what_is_returned_is_free_and_comes_back_from_a_folder(converted, tmp_path):
    for name, value in SWITCHES.items():
        setattr(converted.config, name, value)
    assert not converted.report.changed
    assert converted.report.watched
    ah.save_converted(converted, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        back = ah.load_converted(tmp_path / "out")
    assert {name: getattr(back.config, name) for name in SWITCHES} == SWITCHES
    assert back.config.to_dict() == converted.config.to_dict()
    assert str(back.report) == str(converted.report)
    ah.save_converted(back, tmp_path / "again")
    again = ah.load_converted(tmp_path / "again")
    assert again.config.to_dict() == converted.config.to_dict()
    again.config.head_dim = 4
    assert again.report.changed == ["config.head_dim is 4 now, and was 8"]


def test_a_token_that_layers_were_built_with_does_not_change_them_in_a_folder(tmp_path):
    torch.manual_seed(0)
    converted = ah.convert(RobertaModel(RobertaConfig(**SIZES, max_position_embeddings=40)).eval())
    before = converted(TOKENS).last_hidden_state
    converted.config.pad_token_id = 9  # from which positions are counted, if it is given when the model is built
    ah.save_converted(converted, tmp_path / "out")
    back = ah.load_converted(tmp_path / "out")
    assert back.config.pad_token_id == 9
    assert torch.equal(back(TOKENS).last_hidden_state, before)


def test_hidden_states_that_were_asked_for_once_are_no_change(llama, tmp_path):
    original = copy.deepcopy(llama)
    assert hidden_states(original)  # its library leaves hooks that note what layers return
    for model in (llama, original):
        converted = ah.convert(model)
        assert hidden_states(converted)
        assert converted.report.watched
        ah.save_converted(converted, tmp_path / "out")
        back = ah.load_converted(tmp_path / "out")
        assert back.report.watched
        assert torch.equal(logits(back), logits(converted))


def test_another_function_for_attention_is_saved_and_not_claimed_until_it_was_watched(converted, tmp_path):
    remaining = converted.report.remaining
    converted.set_attn_implementation("eager")
    said = "it computes attention (config) by 'eager' now and was by 'sdpa' when it was watched"
    assert not converted.report.changed
    assert not converted.report.watched
    assert said in str(converted.report)
    assert "report.watch() looks again" in str(converted.report)
    ah.save_converted(converted, tmp_path / "out")
    back = ah.load_converted(tmp_path / "out")
    assert back.config._attn_implementation == "eager"
    assert torch.equal(logits(back), logits(converted))
    assert said in str(back.report)
    for model in (converted, back):
        assert model.report.watch().watched
        assert [place for place, _ in model.report.attention] == ["model.layers.0.self_attn"]
        assert model.report.remaining == remaining
        assert "complete for what ran" in str(model.report)
    converted.set_attn_implementation("sdpa")
    assert not converted.report.watched
    back.set_attn_implementation("sdpa")
    ah.save_converted(back, tmp_path / "out")
    assert ah.load_converted(tmp_path / "out").config._attn_implementation == "sdpa"


def test_the_function_for_attention_that_a_model_was_converted_with_is_that_of_its_folder(llama, tmp_path):
    model = copy.deepcopy(llama)
    model.set_attn_implementation("eager")
    ah.save_converted(ah.convert(model), tmp_path / "out")
    back = ah.load_converted(tmp_path / "out")
    assert back.config._attn_implementation == "eager"
    assert back.report.watched


def test_watching_again_names_what_it_finds(converted):
    report = converted.report
    assert report.watch(torch.arange(6).reshape(1, 6)).seen_on == "(1, 6)"
    assert "complete for what ran on (1, 6)" in str(report)
    with pytest.raises(ah.InputError, match="does not take the input"):
        report.watch("a text")
    assert report.watched
    converted.lm_head = nn.Tanh()
    with pytest.raises(ah.InputError, match="was changed"):
        report.watch()


def other(*given, **named):
    return given[0], given[1]


PATCHES = {
    "a function of its file": (modeling_llama, "apply_rotary_pos_emb", other, "apply_rotary_pos_emb"),
    "a method of a class": (modeling_llama.LlamaAttention, "forward", other, "LlamaAttention.forward"),
    "a function of torch": (nn.functional, "embedding", other, "torch.nn.functional.embedding"),
    "a decorated function behind others": (sys.modules["transformers.masking_utils"], "sdpa_mask", other, "sdpa_mask"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_function_that_was_replaced_is_noticed(converted, name, tmp_path, monkeypatch):
    holder, attribute, function, said = PATCHES[name]
    logits(converted)
    assert converted.report.watched
    with monkeypatch.context() as patch:
        patch.setattr(holder, attribute, function)
        assert any(said in text for text in converted.report.changed)
        with pytest.raises(ah.InputError, match="is not what it was"):
            ah.save_converted(converted, tmp_path / "out")
    assert converted.report.watched


def test_an_entry_of_a_registry_that_was_replaced_is_noticed(converted, monkeypatch):
    registry = modeling_llama.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(registry._global_mapping, "sdpa", other)
    assert any("[sdpa]" in text for text in converted.report.changed)


SCALE, CALLS = 2.0, 0


def scaled(x, by=1.0):
    return SCALE * by * x


def around(by):
    return lambda x, _=1.0: by * x


class Own(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.a, self.act, self.config = nn.Linear(8, 8), nn.GELU(), config

    def forward(self, x):
        global CALLS
        CALLS += 1
        return self.act(self.a(scaled(x))) * self.config.gain


@dataclasses.dataclass
class Settings:
    gain: float = 3.0
    use_cache: bool = True


@pytest.mark.parametrize("kind", [Settings, lambda: types.SimpleNamespace(gain=3.0, use_cache=True)])
def test_a_configuration_of_ones_own_has_no_value_that_is_free(kind, tmp_path):
    torch.manual_seed(0)
    converted = ah.convert(Own(kind()), inputs=X)
    for name, value in {"gain": 2.0, "use_cache": False}.items():
        was = getattr(converted.config, name)
        setattr(converted.config, name, value)
        assert converted.report.changed == [f"config.{name} is {value} now, and was {was}"]
        setattr(converted.config, name, was)
    ah.save_converted(converted, tmp_path / "out")
    assert ah.load_converted(tmp_path / "out", Own(kind())).report.watched
    model = Own(kind())
    model.config.gain = 7.0
    with pytest.warns(UserWarning, match=r"config\.gain"):
        assert not ah.load_converted(tmp_path / "out", model).report.watched


def test_numbers_of_a_file_and_what_functions_close_over_are_noticed_and_counters_are_not(monkeypatch):
    converted = ah.convert(Own(Settings()), inputs=X)
    converted(X)
    assert not converted.report.changed
    here = sys.modules[__name__]
    for name, value in {"SCALE": 4.0, "scaled": around(2.0)}.items():
        with monkeypatch.context() as patch:
            patch.setattr(here, name, value)
            assert converted.report.changed == [f"{__name__}.{name} is not what it was"]
    monkeypatch.setattr(here, "scaled", around(2.0))
    converted = ah.convert(Own(Settings()), inputs=X)
    monkeypatch.setattr(here, "scaled", around(2.0))
    assert not converted.report.changed  # the same again
    monkeypatch.setattr(here, "scaled", around(3.0))
    assert converted.report.changed


def test_a_setting_that_is_a_tuple_is_noticed():
    converted = ah.convert(nn.Sequential(nn.Conv1d(2, 3, 3), nn.GELU()), inputs=torch.randn(1, 2, 9))
    converted[0].stride = (2,)
    assert converted.report.changed == ["0: stride is (2,) now, and was (1,)"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_notice_by_themselves(converted, copied):
    again = copied(converted)
    assert again.report.watched
    again.config.num_attention_heads = 4
    assert not again.report.watched
    assert converted.report.watched
    converted.set_attn_implementation("eager")
    assert copied(converted).report.watch().watched
