"""A module that stands in several places of a model stands there again when the model comes from its folder."""

import copy
import warnings

import pytest
import torch
from torch import nn

import anchorhead as ah

transformers = pytest.importorskip("transformers")
IDS = torch.arange(12).reshape(2, 6)


def llama():
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=120)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **sizes)).eval()


def back(model, folder, *given, pure):
    """A conversion, and the same from its folder, without a warning."""
    converted = ah.convert(model, pure=pure)
    ah.save_converted(converted, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return converted, ah.load_converted(folder, *given)


SHARED = {
    "a feed-forward block": ("1.mlp", "0.mlp"),
    "a norm": ("1.input_layernorm", "0.input_layernorm"),
    "an activation": ("1.mlp.act_fn", "0.mlp.act_fn"),
    "a layer": ("1", "0"),
}


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_what_was_shared_is_shared_again_with_heads_in_all_its_places(tmp_path, name, pure):
    model, (path, of) = llama(), SHARED[name]
    owner, _, attribute = path.rpartition(".")
    nn.init.normal_(model.model.layers[0].input_layernorm.weight)
    setattr(model.model.layers.get_submodule(owner), attribute, model.model.layers.get_submodule(of))
    converted, loaded = back(model, tmp_path, pure=pure)
    assert [type(m) for m in loaded.modules()] == [type(m) for m in converted.modules()]
    assert loaded.report == converted.report
    assert loaded.report.pure == pure
    assert len(list(loaded.parameters())) == len(list(converted.parameters()))
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, converted(IDS).logits)
    ah.save_converted(loaded, tmp_path / "again")
    assert torch.equal(ah.load_converted(tmp_path / "again")(IDS).logits, converted(IDS).logits)


def test_weights_that_were_untied_after_the_model_was_built_stay_apart(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=120)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.lm_head.weight = nn.Parameter(torch.randn(120, 32))
    converted, loaded = back(model, tmp_path, pure=False)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert torch.equal(loaded.transformer.wte.weight, model.transformer.wte.weight)
    assert torch.equal(loaded(IDS).logits, converted(IDS).logits)


class Twice(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.second = self.first if shared else copy.deepcopy(self.first)

    def forward(self, x):
        return self.second(self.first(x))


def test_an_instance_that_shares_what_was_not_shared_is_refused(tmp_path):
    ah.save_converted(ah.convert(Twice(False)), tmp_path)
    with pytest.raises(ah.FileError, match=r"second is first in this model.*an instance that is like it"):
        ah.load_converted(tmp_path, Twice(True))


def test_an_instance_that_does_not_share_is_made_to(tmp_path):
    converted, loaded = back(Twice(True), tmp_path, Twice(False), pure=False)
    assert loaded.second is loaded.first
    x = torch.randn(3, 4)
    assert torch.equal(loaded(x), converted(x))


def test_the_width_before_a_head_is_that_of_the_layer_before_it_also_where_it_stands_twice():
    wide = nn.Linear(4, 8)
    row = ah.convert(nn.Sequential(wide, nn.Linear(8, 4), wide, nn.GELU()), inputs=torch.randn(3, 4)).report.replaced[0]
    assert row.neurons == 8
