"""Whatever a model computes with after its conversion comes back from its folder, or is refused."""

import json
import math

import pytest
import torch
from torch import nn

import anchorhead as ah


class Counted(nn.Module):
    """Numbers that a forward assigns, that are private, or in lists and dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), nn.GELU()
        self.factor, self._own, self.factors, self.named = 1.0, 1.0, [1.0, (1.0, 2)], {"a": 1.0}
        self.same = self.factors

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        self.factor = self.factor * 1.0
        return self.act(self.lin(x)) * self.factor * self._own * self.same[0] * self.named["a"]


def edit(model, name, value):
    if name == "factors":
        model.factors[0] = value
    elif name == "named":
        model.named["a"] = value
    else:
        setattr(model, name, value)


@pytest.mark.parametrize("value", [3.0, -0.1, math.inf])
@pytest.mark.parametrize("name", ["factor", "_own", "factors", "named"])
def test_state_that_was_edited_comes_back(name, value, tmp_path):
    model, x = ah.convert(Counted()), torch.randn(5, 4)
    edit(model, name, value)
    expected = model(x)
    ah.save_converted(model, tmp_path)
    for _ in range(2):  # and again from what was loaded
        loaded = ah.load_converted(tmp_path, Counted())
        assert torch.equal(loaded(x).nan_to_num(7.0), expected.nan_to_num(7.0))
        assert loaded.factors is loaded.same
        ah.save_converted(loaded, tmp_path)


def test_state_that_was_edited_before_the_conversion_comes_back(tmp_path):
    original, x = Counted(), torch.randn(5, 4)
    original._own, original.named["a"] = -2.0, 0.5
    model = ah.convert(original)
    ah.save_converted(model, tmp_path)
    assert torch.equal(ah.load_converted(tmp_path, Counted())(x), model(x))


def test_state_that_is_no_plain_value_any_more_is_refused(tmp_path):
    model = ah.convert(Counted())
    model.factor = object()
    with pytest.raises(ah.InputError, match="factor is no plain value any more"):
        ah.save_converted(model, tmp_path)


def test_an_edited_number_of_a_rotary_embedding_comes_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=100)
    model = ah.convert(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval(), pure=True)
    model.model.rotary_emb.attention_scaling = 3.0
    tokens = torch.arange(12).reshape(2, 6)
    ah.save_converted(model, tmp_path)
    assert torch.equal(ah.load_converted(tmp_path)(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("state", [{"forward": "1"}, {"training": "0"}, {"act.heads": "0"}, {"factor": "x"}, [1]])
def test_a_folder_that_sets_something_else_is_refused(state, tmp_path):
    from anchorhead.file.folder import record_bytes, record_digest

    ah.save_converted(ah.convert(Counted()), tmp_path)
    record = json.loads((tmp_path / "anchorhead.json").read_bytes()) | {"state": state}
    record["digest"] = record_digest(record)
    (tmp_path / "anchorhead.json").write_bytes(record_bytes(record))
    with pytest.raises(ah.FileError):
        ah.load_converted(tmp_path, Counted())
