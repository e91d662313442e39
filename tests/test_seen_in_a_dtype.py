"""What was seen while a model ran is claimed of the dtype in which it ran, and of no other; bounds are of any."""

import pytest
import torch
from torch import nn

import anchorhead as ah


class Clamped(nn.Module):
    """Does something else in float16, as T5 and Whisper do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x):
        y = self.last(self.act(self.first(x)))
        return y.clamp(-1.0, 1.0) if y.dtype == torch.float16 else y


def converted(model=None):
    return ah.convert(model or Clamped(), pure=True, inputs=torch.randn(4, 8))


def test_what_ran_in_another_dtype_is_not_known_until_it_is_watched_again():
    model = converted()
    assert model.report.pure
    before = model.report.replaced[0].error
    model.half()
    assert not model.report.pure
    assert not model.report.watched
    assert model.report.changed == []
    assert "computes in float16 now and did in float32" in str(model.report)
    assert model.report.replaced[0].dtype == "float16"
    assert before <= model.report.replaced[0].error < 1e-6
    assert not model.report.watch().pure
    assert [what for _, what in model.report.remaining if "clamp" in what]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_that_does_the_same_in_a_dtype_is_pure_once_it_was_watched_there(dtype):
    model = converted().to(dtype)
    assert not model.report.pure
    assert model.report.watch().pure
    assert model.float().report.watched is False


def test_parts_of_another_dtype_are_noticed():
    model = converted(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))).to(torch.bfloat16)
    model.report.watch()
    model[2].float()
    assert "bfloat16 and float32" in str(model.report)


def test_a_folder_says_in_which_dtype_a_model_was_watched(tmp_path):
    model = converted().half()
    ah.save_converted(model, tmp_path)
    loaded = ah.load_converted(tmp_path, Clamped())
    assert not loaded.report.watched
    assert "computes in float16 now and did in float32" in str(loaded.report)
    assert not loaded.report.watch(torch.randn(4, 8)).pure


def test_a_model_that_stays_in_its_dtype_stays_watched(tmp_path):
    model = converted(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).bfloat16().float())
    model.to("cpu").train().eval()
    assert model.report.pure
    ah.save_converted(model, tmp_path)
    assert ah.load_converted(tmp_path, nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))).report.pure


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_model_without_parameters_has_the_dtype_of_what_it_is_given(dtype, tmp_path):
    x = torch.linspace(-3, 3, 24, dtype=dtype).reshape(3, 8)
    converted = ah.convert(nn.Sequential(nn.GELU(), nn.LayerNorm(8, elementwise_affine=False)), pure=True, inputs=(x,))
    gelu, norm = converted.report.replaced
    assert gelu.dtype == norm.dtype == str(dtype).removeprefix("torch.")
    assert gelu.heads[0].dtype == ("float64" if dtype == torch.float64 else "float32")
    assert (gelu.rounding < 1e-12) == (dtype == torch.float64)
    ah.save_converted(converted, tmp_path)
    again = ah.load_converted(tmp_path, nn.Sequential(nn.GELU(), nn.LayerNorm(8, elementwise_affine=False)))
    assert again.report == converted.report
