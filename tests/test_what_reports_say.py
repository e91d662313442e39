"""Reports name every reason for what is left, and every layer that follows, whether it can be read or not."""

import math
import re

import pytest
import torch
from torch import nn

import anchorhead as ah
from anchorhead.conversion.instead import instead

SIZES = dict(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)


class Adapted(nn.Module):
    """A linear layer with two more matrices beside it."""

    def __init__(self, base) -> None:
        super().__init__()
        self.base_layer, self.in_features, self.out_features = base, base.in_features, base.out_features
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Scaled(nn.Linear):
    """Multiplies by more than its weight."""

    def forward(self, x):
        return 100 * super().forward(x)


def quantised():
    block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return torch.ao.quantization.quantize_dynamic(block, {nn.Linear})


BLOCKS = {
    "adapted": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), Adapted(nn.Linear(16, 8))),
    "scaled": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), Scaled(16, 8)),
    "quantised": quantised,
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.filterwarnings("ignore")
def test_a_layer_whose_matrix_is_not_its_weight_is_named_without_a_bound(name):
    block = BLOCKS[name]()
    report = ah.convert(block, inputs=torch.randn(3, 8)).report
    row = report.replaced[0]
    assert (row.feeds, row.neurons, row.output_bound) == ("2", 16, None)
    assert row.unread == type(block[2]).__name__
    assert f"2 follows, no bound on its output is claimed, since {row.unread} multiplies by something else" in str(
        report
    )
    assert len(report.blocks) == 1
    with pytest.raises(ah.InputError, match=rf"{row.unread} multiplies|has 3"):
        ah.feed_forward_as_attention(block)


def test_an_adapter_in_a_gated_block_is_named():
    transformers = pytest.importorskip("transformers")
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    llama.model.layers[0].mlp.down_proj = Adapted(llama.model.layers[0].mlp.down_proj)
    row = ah.convert(llama).report.blocks[0]
    assert (row.feeds, row.neurons, row.output_bound) == ("model.layers.0.mlp.down_proj", 64, None)


def test_every_reason_that_applies_to_a_row_is_given():
    row = "Mixer (silu at a.py:1, softplus at a.py:2, exp at a.py:3, mul at a.py:4, bmm at a.py:5, cumsum at a.py:6)"
    lines = instead([("mixer", row)], set())
    starts = {line.strip().partition(":")[0] for line in lines}
    assert starts == {"silu, softplus", "exp", "bmm", "cumsum"}
    assert instead([("norm", "Norm (pow at a.py:1, rsqrt at a.py:2, mul at a.py:3)")], set())[0].strip()[:6] == "rsqrt:"
    assert len(instead([("norm", "Norm (pow at a.py:1, rsqrt at a.py:2, mul at a.py:3)")], set())) == 1
    (softcap,) = instead([("attention", "Attention (bmm, tanh, softmax, bmm)")], set())
    assert "pure=True converts" in softcap


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), nn.GELU()

    def forward(self, x):
        return self.lin(x)


class Branched(nn.Module):
    """Calls tanh where tracing follows, and where this input does not go."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.inner = nn.Linear(4, 4), Tanh()

    def forward(self, x):
        return self.inner(x) if x.shape[0] > 100 else self.lin(x)


class Tanh(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def test_the_first_line_says_that_no_head_ran():
    both = nn.Sequential(Unused(), Unused())
    report = ah.convert(both, inputs=torch.randn(2, 4)).report
    assert str(report).startswith("2 activations are attention now (none of them ran)")
    assert report.unused == ["0.act", "1.act"]


def test_a_head_that_did_not_run_has_one_name():
    report = ah.convert(nn.Sequential(Branched()), inputs=torch.randn(2, 4)).report
    (row,) = report.replaced
    assert report.unused == [row.place]
    assert "_head" not in str(report)


def test_several_layers_move_and_one_moves():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.d, self.act = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(8, 4), nn.GELU()

        def forward(self, x):
            h = self.act(self.a(x))
            return self.b(h) + self.d(h)

    assert "b, d move by at most" in str(ah.convert(Two(), inputs=torch.randn(2, 4)).report)


def test_a_report_says_that_it_is_of_evaluation_mode():
    report = ah.convert(nn.Sequential(nn.GELU()), inputs=torch.randn(2, 4)).report
    assert "complete for what ran on these inputs in evaluation mode" in str(report)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_model_that_holds_a_converted_one_is_not_written_without_its_heads(layers, tmp_path):
    transformers = pytest.importorskip("transformers")
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"num_hidden_layers": layers})).eval()
    llama.model = ah.convert(llama.model)
    with pytest.raises(ah.InputError, match="without the heads of the LlamaModel in it"):
        llama.save_pretrained(tmp_path)
    assert any("heads." in name for name in llama.state_dict())


class Twins(nn.Module):
    """An activation that two layers take."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.one, self.other = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        h = self.act(self.first(x))
        return self.one(h) + self.other(h)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["first", "one", "other"])
def test_weights_that_are_not_finite_are_named_and_bound_nothing(name, value, tmp_path):
    model = ah.convert(Twins(), inputs=torch.randn(3, 4))
    model.get_submodule(name).weight.data[0, 0] = value
    report = model.report
    assert report.not_finite == [f"{name}.weight"]
    assert f"NOT finite: numbers in {name}.weight" in str(report)
    assert (report.replaced[0].output_bound is None) == (name != "first")
    assert not re.search(r"at most (nan|inf)", str(report))
    ah.save_converted(model, tmp_path / "out")
    assert ah.load_converted(tmp_path / "out", Twins()).report == report


def test_a_folder_that_cannot_be_written_is_not_left_behind(tmp_path, monkeypatch):
    model = ah.convert(Twins(), inputs=torch.randn(3, 4))

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("anchorhead.conversion.save_folder.save_file", full)
    with pytest.raises(ah.FileError, match="no space left"):
        ah.save_converted(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Chosen(nn.Module):
    """A leaky relu, by a mask."""

    def forward(self, x):
        y, low = x.clone(), x < 0
        y[low] = 0.2 * y[low]
        return y


class Where(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, torch.exp(x) - 1)


@pytest.mark.parametrize("pure", [False, True])
def test_numbers_chosen_by_a_mask_are_to_be_written_as_where(pure):
    said = str(ah.convert(nn.Sequential(nn.Linear(4, 4), Chosen()), inputs=torch.randn(3, 4), pure=pure).report)
    assert "torch.where(condition, a, b)" in said
    assert "stack" not in said
    assert "has no head for it" not in said


def test_a_function_of_each_number_that_only_a_pure_conversion_reads_is_said_to_be_one():
    model = nn.Sequential(nn.Linear(4, 4), Where())
    plain, pure = (ah.convert(model, inputs=torch.randn(3, 4), pure=pure).report for pure in (False, True))
    ((place, why),) = plain.refused
    assert place == "1"
    assert "pure=True reads it" in why
    assert "has no head for it" not in str(plain)
    assert pure.pure
    assert not pure.refused


def test_slopes_that_the_dtype_cannot_hold_are_said_to_be_rounding():
    """SELU's is none in float32, and stays what it is where the model becomes float64."""
    model = ah.convert(nn.Sequential(nn.Linear(4, 8), nn.SELU()))
    for kind in ("float32", "float64"):
        found = model.to(getattr(torch, kind)).report
        row, numbers = found.replaced[0], model[1].heads["activation"].numbers
        off = abs(numbers.gains[-1] - 1.0507009873554804934) * 1e4
        assert row.error < off < row.error + row.rounding * 1e4
        assert f"on R, and rounding, of stored slopes and in {kind}, adds at most " in str(found)


@pytest.mark.parametrize("norm", [nn.InstanceNorm1d(4), nn.InstanceNorm1d(4, affine=True), nn.InstanceNorm2d(4)])
def test_norms_of_every_channel_are_said_to_be_converted_where_they_are(norm):
    x = torch.randn(2, 4, 6, 6) if isinstance(norm, nn.InstanceNorm2d) else torch.randn(2, 4, 6)
    said = str(ah.convert(nn.Sequential(nn.GELU(), norm), inputs=x).report)
    assert "\n  native_batch_norm: a norm of each channel, which pure=True converts where it is of every sample" in said
    assert "conversion has no head for it" not in said
    assert ah.convert(nn.Sequential(nn.GELU(), norm), inputs=x, pure=True).report.pure


def test_statistics_of_a_batch_are_said_to_stay():
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    report = ah.convert(nn.Sequential(nn.GELU(), norm), inputs=torch.randn(2, 4, 6), pure=True).report
    assert "with statistics of the whole batch it mixes samples, and stays" in str(report)
    assert [place for place, _ in report.remaining] == ["1"]
