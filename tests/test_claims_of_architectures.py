"""In every architecture of the page each row's claim holds of what its place computes, against float64, with weights
and biases of all sizes and in every dtype; and a pure model that was cast is pure once it was watched again."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import anchorhead as ah

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))
import architectures

FORMULAS = {
    "gelu(x)": F.gelu,
    "gelu_tanh(x)": lambda x: F.gelu(x, approximate="tanh"),
    "silu(x)": F.silu,
    "relu(x)": torch.relu,
    "tanh(x)": torch.tanh,
    "0.5*x*(tanh(0.79788456*x*(0.044715*x*x + 1)) + 1)": lambda x: (
        0.5 * x * (torch.tanh(0.79788456 * x * (0.044715 * x * x + 1)) + 1)
    ),
}


def exact(row, module, args):
    """What the place is to compute, and what its claim allows, in float64."""
    u = args[0].double()
    if row.kind == "norm":
        eps = float(re.search(r"eps=([^,)]+)", row.formula)[1])
        centred = not row.formula.startswith("rms")
        v = u - u.mean(-1, keepdim=True) if centred else u
        y = v / (v.square().mean(-1, keepdim=True) + eps).sqrt()
        w = torch.ones(()).double() if module.weight is None else module.weight.detach().double()
        w = w + ("weight + 1" in row.formula)
        b = torch.zeros(()).double() if module.bias is None else module.bias.detach().double()
        room = row.relative * ((w * y).abs() + b.abs()) + row.least * w.abs().clamp(min=1)
        return y * w + b, room + centred * 1e-12 * w.abs() * (1 + y.abs())
    v = args[1].double() if len(args) > 1 else torch.ones(()).double()
    phi = FORMULAS[row.formula](u)
    return phi * v, (row.error + row.rounding * (1 + u.abs())) * v.abs() + row.relative * (phi * v).abs() + row.least


def looked_at(model):
    """Hooks that note, for each place, the largest error over what is claimed."""
    shares = {}

    def note(row, module, args, out):
        value, room = exact(row, module, args)
        fits = value.abs() < torch.finfo(out.dtype).max  # results beyond overflow, as the original's
        apart = ((out.double() - value).abs() / room)[fits]
        shares[row.place] = max(shares.get(row.place, 0.0), float(apart.max()))

    rows = {row.place: row for row in model.report.replaced}
    hooks = [
        place.module.register_forward_hook(lambda m, args, out, row=rows[place.place]: note(row, m, args, out))
        for place in model.report.places
    ]
    return shares, hooks


@pytest.mark.heavy
@pytest.mark.parametrize("name", [row[0] for row in architectures.NAMED])
def test_every_row_of_an_architecture_keeps_its_claim_in_every_dtype(name):
    kind, config, sizes = next(row[1:] for row in architectures.NAMED if row[0] == name)
    original, draw = architectures.small(kind, config, sizes), torch.Generator().manual_seed(0)
    for module in original.modules():
        if "Norm" in type(module).__name__:
            for held in module.parameters(recurse=False):
                held.data = 2 * torch.randn(held.shape, generator=draw)
    model = ah.convert(original, pure=True)
    pure, item = model.report.pure, model.report.item
    places = {row.place for row in model.report.replaced} - set(model.report.unused)
    assert places
    wide = [torch.float64] * (name != "Mixtral")  # whose experts torch has in shorter dtypes alone
    for dtype in (torch.float32, torch.bfloat16, torch.float16, *wide):
        model.to(dtype)
        assert model.report.pure == (pure and dtype == torch.float32)
        shares, hooks = looked_at(model)
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in item.items()}
        with torch.no_grad():
            model(**given)
        for hook in hooks:
            hook.remove()
        assert set(shares) == places
        assert all(share <= 1 for share in shares.values()), max(shares.items(), key=lambda pair: pair[1])
        if dtype != torch.float32:
            assert model.report.watch().watched
            clamps = dtype == torch.float16 and name in ("T5, gated", "Whisper")
            assert model.report.pure == (pure and not clamps)
