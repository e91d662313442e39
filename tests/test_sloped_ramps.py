"""The slope of a PReLU is a parameter after a conversion as before it: named, trained, loaded, one of each channel."""

import pytest
import torch
from torch import nn

import anchorhead as ah


def model(slopes=1):
    return nn.Sequential(nn.Linear(8, 6), nn.PReLU(slopes), nn.Linear(6, 4))


@pytest.mark.parametrize("slopes", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_slope_stays_a_parameter(slopes, dtype):
    original = model(slopes).to(dtype)
    converted = ah.convert(original)
    assert set(original.state_dict()) <= set(converted.state_dict())
    for value in (0.8, -2.0, 1.0, 30.0):
        original[1].weight.data.fill_(value).mul_(torch.linspace(0.5, 1, slopes))
        converted.load_state_dict(original.state_dict(), strict=False)
        x = torch.randn(50, 8).to(dtype)
        with torch.no_grad():
            allowed = (1e-6 + 4 * torch.finfo(dtype).eps) * (1 + abs(value)) * 100
            assert (converted(x) - original(x)).abs().max() <= allowed
    converted(x).sum().backward()
    assert converted[1].weight.grad.shape == (slopes,)
    assert converted[1].weight.grad.abs().max() > 0


@pytest.mark.parametrize("shape", [(5, 6), (2, 6, 3), (2, 6, 3, 4)])
def test_slopes_are_of_channels(shape):
    original = nn.PReLU(6)
    original.weight.data = torch.linspace(-1, 2, 6)
    x = torch.randn(shape)
    assert torch.allclose(ah.convert(original, inputs=x)(x), original(x), atol=5e-6)


def test_a_folder_has_the_slope(tmp_path):
    original = model()
    original[1].weight.data.fill_(0.7)
    converted = ah.convert(original, inputs=torch.randn(3, 8))
    assert converted.report.pure
    assert [(row.place, row.formula, row.neurons, row.feeds) for row in converted.report.replaced] == [
        ("1.ramp", "relu(x)", 6, "2")
    ]
    ah.save_converted(converted, tmp_path)
    loaded, x = ah.load_converted(tmp_path, model()), torch.randn(5, 8)
    assert torch.equal(loaded(x), converted(x))
    assert loaded.report.pure
    assert ah.verify(tmp_path).level == "proved"


def test_one_module_in_two_places_has_one_slope():
    act = nn.PReLU()
    converted = ah.convert(nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act))
    assert converted[1] is converted[3]
    assert isinstance(converted[1].weight, nn.Parameter)
    calls = []
    act.register_forward_hook(lambda *_: calls.append(0))
    ah.convert(nn.Sequential(act), inputs=torch.randn(2, 4))[0](torch.randn(2, 4))
    assert calls
