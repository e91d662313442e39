"""Targets in several variables: proved bounds against fifty digits, and what a network of heads promises."""

import copy
import functools
import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mp_functions import formula_at
from torch import nn

import anchorhead as ah

SQUARE = {"x": (-1, 1), "y": (-1, 1)}
CASES = [
    (("sin(3*x*y) + exp(-x**2 + y/2)",), SQUARE, 1e-6),
    (("x*y", "sin(x)/(2 + y)"), {"x": (-1, 1), "y": (0, 1)}, 1e-6),
    (("x/y", "x**y", "log(x*y)"), {"x": (1, 2), "y": (1, 3)}, 1e-5),
    (("max(x, y, x*y)", "min(x, 2*y) + abs(x - y)"), SQUARE, 1e-7),
    (("relu(x)*y + gelu(3*x - 2*y)",), {"x": (-3, 3), "y": (-2, 2)}, 1e-7),
    (("sqrt(1 + x**2 + y**2)*z", "tanh(x + y + z)", "2*x - 3*z"), {"x": (-1, 1), "y": (-2, 2), "z": (0, 4)}, 1e-6),
    (("clip(x, y, 1)", "x*x*x*y - x/3"), {"x": (-2, 2), "y": (-1, 1)}, 1e-6),
    (("exp(sin(x*y))*cos(x - y)",), SQUARE, 1e-9),
]


@functools.cache
def compiled(index, dtype=torch.float64):
    texts, domain, tol = CASES[index]
    tol = tol if dtype == torch.float64 else max(100 * tol, 2e-3)
    return ah.compile(list(texts), domain, tol=tol, dtype=dtype)


def inside(model, shares, dtype=torch.float64):
    """The point of the box at these shares of its sides, in the dtype."""
    low, high = np.array(model.certificate.domain).T
    return torch.tensor(low + np.array(shares) * (high - low)).clamp(torch.tensor(low), torch.tensor(high)).to(dtype)


SHARES = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("index", range(len(CASES)))
@given(shares=SHARES)
@settings(max_examples=25)
def test_bound_holds_at_points_nobody_chose(index, dtype, shares):
    model, texts = compiled(index, dtype), CASES[index][0]
    point = inside(model, shares[: len(model.certificate.domain)], dtype)
    values = dict(zip(CASES[index][1], point.tolist(), strict=True))
    fast, literal, kept = model(point), model.literal()(point), model.literal_certificate().outputs
    with mp.workdps(50):
        for i, text in enumerate(texts):
            exact = formula_at(text, values)
            assert abs(exact - mp.mpf(fast[i].item())) <= model.certificate.outputs[i]
            assert abs(exact - mp.mpf(literal[i].item())) <= 1.01 * kept[i]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_certificate_keeps_the_tolerance(index):
    model, (texts, domain, tol) = compiled(index), CASES[index]
    certificate = model.certificate
    assert certificate.level == "proved"
    assert certificate.bound <= tol
    assert max(certificate.outputs) <= certificate.bound
    assert len(certificate.outputs) == len(texts)
    assert certificate.domain == tuple(domain.values())


@pytest.mark.parametrize("index", range(len(CASES)))
def test_network_is_affine_maps_and_attention_only(index):
    model = compiled(index)
    x = inside(model, [0.3] * len(model.certificate.domain)).expand(5, -1)
    walk = ah.walk(model.literal(), x)
    assert walk.softmax == sum(len(layer.parts) for layer in model.network.layered.sequence)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_literal_attention_and_matrices_equal_the_fast_evaluation(index):
    model = compiled(index)
    inputs = len(model.certificate.domain)
    shares = torch.rand(6, inputs, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
    x = torch.stack([inside(model, s.tolist()) for s in shares])
    torch.testing.assert_close(model.literal()(x), model(x), rtol=0, atol=1e-10)
    tokens = model.as_self_attention(3)
    torch.testing.assert_close(tokens(x.reshape(2, 3, inputs)), model(x).reshape(2, 3, -1), rtol=0, atol=1e-8)
    torch.testing.assert_close(tokens.literal()(x.reshape(2, 3, inputs)), tokens(x.reshape(2, 3, inputs)),
                               rtol=0, atol=1e-8)  # fmt: skip
    for weights in model.attention(x):
        assert weights.shape[0] == 6
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1], dtype=x.dtype))


@pytest.mark.parametrize("index", range(len(CASES)))
def test_save_then_load_is_the_identity_and_verifies(index, tmp_path):
    model, path = compiled(index), tmp_path / "model.safetensors"
    model.save(path)
    assert ah.verify(path) == model.certificate
    back = ah.load(path)
    x = torch.stack([inside(model, [s] * len(model.certificate.domain)) for s in (0.1, 0.5, 0.77)])
    assert torch.equal(back(x), model(x))
    assert back.certificate == model.certificate
    assert str(back) == str(model)
    back.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_model_is_differentiable_and_batched():
    model = compiled(0)
    x = torch.tensor([[0.3, -0.4], [0.1, 0.9]], dtype=torch.float64, requires_grad=True)
    assert model(x).shape == (2, 1)
    assert model(x.expand(3, 4, 2, 2)).shape == (3, 4, 2, 1)
    (slope,) = torch.autograd.grad(model(x).sum(), x)
    (exact,) = torch.autograd.grad(model.exact(x).sum(), x)
    torch.testing.assert_close(slope, exact, rtol=0, atol=1e-4)


def test_structure_costs_keys_not_powers_of_them():
    model = compiled(0)
    assert model.resources.keys < 40
    assert model.resources.layers == 2


def test_product_of_many_variables_costs_keys_in_proportion():
    keys = {}
    for n in (2, 4, 8, 16):
        model = ah.compile("*".join(f"x{i}" for i in range(n)), (0.5, 1.5), tol=1e-4)
        assert model.certificate.bound <= 1e-4
        assert model.resources.layers == {2: 1, 4: 2, 8: 3, 16: 4}[n]
        keys[n] = model.resources.keys
        x = 0.5 + torch.rand(200, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        assert (model(x)[:, 0] - x.prod(-1)).abs().max() <= model.certificate.bound
    assert all(keys[n] <= 4 * (n - 1) for n in keys)


def test_heads_are_shared():
    model = ah.compile(["x*y", "y*z", "x*z", "sin(x + y) + sin(y - z)"], {"x": (0, 1), "y": (0, 2), "z": (1, 4)})
    assert len({id(part.head) for layer in model.network.layered.sequence for part in layer.parts}) == 2


def test_report_says_where_the_error_comes_from():
    model = compiled(0)
    nodes = model.report.nodes
    assert [n.label for n in nodes] == ["x*y", "x**2", "sin(3*x*y)", "exp(-x**2 + y/2)"]
    assert sum(n.own for n in nodes) == pytest.approx(model.certificate.bound, rel=0.2)
    assert all(n.label in str(model) for n in nodes)
    assert sum(n.heads * n.keys for n in nodes) == model.resources.keys


def test_probe_names_the_first_layer_that_exceeds_its_share():
    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", SQUARE, tol=1e-6)
    x = 2 * torch.rand(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    assert model.probe(x).first is None
    assert len(model.probe(x).layers) == 3
    second = model.network.layered.sequence[1].parts[0]
    second.head = ah.compile("sin(u)", (-3.1, 3.1), tol=1e-3).head
    assert model.probe(x).first.layer == 1
    assert model.probe(x).first.label == "sin(3*x*y)"
    assert "exceeds" in str(model.probe(x))


@settings(max_examples=12)
@given(data=st.data())
def test_random_formulas_keep_their_bounds(data):
    """Formulas of a small grammar, compiled and compared with mpmath at the corners, the centre and random points."""
    leaves = st.sampled_from(["x", "y", "z", "2", "(x - 1)", "(y + 1/3)"])
    formulas = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds("({} + {})".format, inner, inner),
            st.builds("({}*{})".format, inner, inner),
            st.builds("({} - {}/3)".format, inner, inner),
            st.builds("{}({})".format, st.sampled_from(["sin", "tanh", "abs", "gelu", "relu", "atan"]), inner),
            st.builds("max({}, {})".format, inner, inner),
            st.builds("({}/(2 + sin({})))".format, inner, inner),
        ),
        max_leaves=6,
    )
    text = data.draw(formulas)
    domain = {"x": (-1, 1), "y": (-1, 2), "z": (0, 1)}
    model = ah.compile([text, "x + y*z"], domain, tol=1e-4)
    shares = [*itertools.product((0.0, 1.0), repeat=3), (0.5, 0.5, 0.5), *data.draw(st.lists(
        st.tuples(*[st.floats(0, 1)] * 3), min_size=5, max_size=5))]  # fmt: skip
    for share in shares:
        point = inside(model, share)
        with mp.workdps(40):
            exact = formula_at(text.replace("1/3", "1/(3+0*x)"), dict(zip("xyz", point.tolist(), strict=True)))
            assert abs(exact - mp.mpf(model(point)[0].item())) <= model.certificate.outputs[0]


def tampered(path, tmp_path, change):
    """The saved file with its record changed, and its digest made to fit."""
    from safetensors.numpy import load_file, save_file

    from anchorhead.file.container import digest, read

    record, arrays = read(path).record, load_file(path)
    change(record, arrays)
    record["digest"] = digest(record, {k: a.tobytes() for k, a in arrays.items()})
    other = tmp_path / "other.safetensors"
    save_file(arrays, other, metadata={"anchorhead": json.dumps(record, sort_keys=True)})
    return other


TAMPERING = {
    "a smaller bound": lambda r, a: r["certificate"].update(
        outputs=[1e-9], approximation=1e-9, rounding=0.0, bound=1e-9
    ),
    "another formula": lambda r, a: r.update(expressions=["sin(3*x*y) + exp(-x**2 + y/3)"]),
    "a wider box": lambda r, a: (
        r.update(domain=[[-2, 1], [-1, 1]]),
        r["certificate"].update(domain=[[-2, 1], [-1, 1]]),
    ),
    "another value": lambda r, a: a["heads.0.constants"].__setitem__(0, a["heads.0.constants"][0] * 1.01),
    "another head": lambda r, a: r["uses"][2].__setitem__(1, 3),
    "another centre": lambda r, a: r["uses"][2].__setitem__(2, 0.5),
    "a head's smaller error": lambda r, a: r["heads"][1].update(approximation=1e-12),
    "a wider head": lambda r, a: r["heads"][2].update(high=5.0),
    "a missing use": lambda r, a: r["uses"].pop(),
    "not a use": lambda r, a: r["uses"].__setitem__(0, None),
    "no heads": lambda r, a: r.update(heads=None),
    "a gain that no partner can have": lambda r, a: a["heads.0.gains"].__setitem__(0, 0.1),
    "missing boxes": lambda r, a: a.update({"heads.0.edges": a["heads.0.edges"][1:]}),
}


@pytest.mark.parametrize("what", TAMPERING)
def test_verification_refuses(what, tmp_path):
    path = tmp_path / "model.safetensors"
    compiled(0).save(path)
    with pytest.raises((ah.VerificationError, ah.FileError)):
        ah.verify(tampered(path, tmp_path, TAMPERING[what]))


REFUSALS = [
    (lambda: ah.compile("x/y", SQUARE), ah.SingularityError, r"1/u.*\[-1, 1\].*u = y"),
    (lambda: ah.compile("log(x*y)", SQUARE), ah.SingularityError, r"log.*\[-1, 1\]"),
    (lambda: ah.compile("log(x*x + y*y)", SQUARE), ah.SingularityError, r"\[0, 2\]"),
    (lambda: ah.compile("sin(3*x*y)", SQUARE, tol=1e-16), ah.ToleranceError, "rounding"),
    (lambda: ah.compile("sin(3*x*y)", SQUARE, tol=3e-6, dtype=torch.float32), ah.ToleranceError, r"sin.* dominates"),
    (lambda: ah.compile("x*y"), ah.InputError, "bounded domain"),
    (lambda: ah.compile("x*y", {"x": (0, 1)}), ah.InputError, "no interval for y"),
    (lambda: ah.compile("x*y", {"x": (0, 1), "y": (0, 1), 3: (0, 1)}), ah.ExpressionError, "3 cannot name"),
    (lambda: ah.compile("x*y", [(0, 1), (0, 1), (0, 1)]), ah.AnchorheadError, "one for each"),
    (lambda: ah.compile("x*y", {"x": (0, 1), "y": (1, 0)}), ah.InputError, "swap"),
    (lambda: ah.compile("x*y", {"x": (0, 1), "y": (0, float("inf"))}), ah.InputError, "finite"),
    (lambda: ah.compile("x*y", (0, 1), keys=5), ah.InputError, "keys="),
    (lambda: ah.compile("x*y", (0, 1), method="gated"), ah.InputError, "one variable"),
    (lambda: ah.compile("x*y", (0, 1), method="fast"), ah.InputError, "method"),
    (lambda: ah.compile(["2", "3"], (0, 1)), ah.ExpressionError, "no variable"),
    (lambda: ah.compile([], (0, 1)), ah.ExpressionError, "output"),
    (lambda: ah.compile("x*y", (0, 1), tol=1e300), ah.InputError, "below"),
    (lambda: ah.compile("x*y", (0, 1), shape=(2,)), ah.InputError, "shape="),
    (lambda: ah.compile(["x*y", 3], (0, 1)), ah.ExpressionError, "3 is not one"),
    (lambda: ah.compile(nn.Linear(4, 2), [(0, 1)] * 3), ah.ShapeError, "takes 4 inputs"),
    (lambda: ah.compile(lambda x: x.sum(-1) ** 2, (0, 1)), ah.ExpressionError, "shape="),
    (lambda: compiled(0)(torch.zeros(3)), ah.ShapeError, "takes"),
    (lambda: compiled(0)(torch.zeros(4, 2)), ah.DtypeError, "float64"),
    (lambda: compiled(0)([0.0, 1.0]), ah.InputError, "torch tensor"),
    (lambda: compiled(0).as_self_attention(0), ah.InputError, "at least 1"),
    (lambda: compiled(0).as_self_attention(20000), ah.SizeError, "fewer tokens"),
]


@pytest.mark.parametrize(("call", "error", "sentence"), REFUSALS, ids=[s for _, _, s in REFUSALS])
def test_refusal_says_what_to_do(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_functions_of_several_numbers_are_traced():
    model = ah.compile(lambda x, y: torch.sin(x) * y + torch.exp(-(x**2)), {"x": (-1, 1), "y": (0, 2)}, tol=1e-6)
    point = torch.tensor([0.3, 1.7], dtype=torch.float64)
    exact = torch.sin(point[0]) * point[1] + torch.exp(-(point[0] ** 2))
    assert (model(point)[0] - exact).abs() <= model.certificate.bound
    assert model.certificate.level == "proved"


def test_inputs_are_in_the_order_that_the_certificate_names():
    """Of a function its arguments, whatever the order of the domain; of formulas the domain's."""
    point = torch.tensor([0.3, 0.9], dtype=torch.float64)
    model = ah.compile(lambda x, y: torch.sin(x) / (y + 2), {"y": (-1, 1), "x": (0, 2)}, tol=1e-6)
    assert model.certificate.variables == ("x", "y")
    assert model.certificate.domain == ((0, 2), (-1, 1))
    assert abs(model(point)[0] - torch.sin(point[0]) / (point[1] + 2)) <= 1e-6
    model = ah.compile("sin(x)/(y + 2)", {"y": (-1, 1), "x": (0, 2)}, tol=1e-6)
    assert model.certificate.variables == ("y", "x")
    assert abs(model(point)[0] - torch.sin(point[1]) / (point[0] + 2)) <= 1e-6
    assert "y in [-1, 1], x in [0, 2]" in str(model.certificate)


@pytest.mark.parametrize("text", ["x - y", "x/10 + 3*y/10", "5 + 0*x + 0*y", "x*y - y*x", "relu(y - y)*silu(x*y)"])
def test_affine_and_constant_targets_need_no_attention(text, tmp_path):
    model = ah.compile(text, {"x": (-1, 1), "y": (-1, 1)})
    assert model.resources.layers == 0
    point = torch.tensor([0.3, -0.7], dtype=torch.float64)
    with mp.workdps(40):
        exact = formula_at(text, {"x": point[0].item(), "y": point[1].item()})
        assert abs(exact - mp.mpf(model(point)[0].item())) <= model.certificate.bound
    model.save(tmp_path / "file")
    assert ah.verify(tmp_path / "file") == model.certificate
    assert model.attention(point) == []


def test_fixed_variables_are_allowed():
    model = ah.compile("x*y + sin(x*z)", {"x": (2, 2), "y": (3, 3), "z": (0, 1)}, tol=1e-6)
    point = torch.tensor([2.0, 3.0, 0.4], dtype=torch.float64)
    assert abs(model(point)[0] - (6 + math.sin(0.8))) <= model.certificate.bound


def test_numbers_that_were_changed_are_not_saved_as_proved(tmp_path):
    model = ah.compile("x*y", SQUARE, tol=1e-4)
    model.network.layered.sequence[0].rows.weight.data.add_(1.0)
    assert model.certificate.level == "unproved"
    assert model.certificate.bound == math.inf
    model.save(tmp_path / "file")
    assert ah.load(tmp_path / "file").certificate.level == "unproved"
    with pytest.raises(ah.VerificationError):
        ah.verify(tmp_path / "file")


@pytest.mark.parametrize("make", [lambda: compiled(0), lambda: ah.compile("sin(x)", (-1, 1))])
def test_another_dtype_is_refused(make):
    model = copy.deepcopy(make())
    for change in (model.float, model.half, lambda: model.to(torch.float32)):
        with pytest.raises(ah.PrecisionError, match="dtype="):
            change()
    assert model.to("cpu") is model
    assert model.double() is model


def test_training_mode_is_said():
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 1))
    assert any("evaluation mode" in a for a in ah.compile(module, (-1, 1), tol=1e-4).certificate.assumptions)
    assert not any("evaluation mode" in a for a in ah.compile(module.eval(), (-1, 1), tol=1e-4).certificate.assumptions)


def test_every_model_has_a_probe_and_prints_its_cost():
    x = torch.rand(50, 2, dtype=torch.float64)
    for model in (compiled(0), ah.compile("sin(x*y)", (0, 1), tol=1e-3, method="grid")):
        assert model.probe(x).first is None
        assert model.probe(x[:0]).first is None
        assert f"{model.resources.keys} keys" in str(model)
    head = ah.compile("gelu(x)", tol=1e-6)
    assert head.probe(x).first is None
    assert f"{head.head.keys} keys" in str(head)


def test_a_constant_that_samples_contradict_is_refused():
    with pytest.raises(ah.InputError, match="cannot be right"):
        ah.compile(lambda x, y: 100 * float(x) * float(y), (-1, 1), tol=0.5, lipschitz=1.0)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        return x + self.second(torch.nn.functional.silu(self.first(self.norm(x))))


def spread_box(features, half):
    """A box whose points all have a variance bounded away from zero."""
    centre = torch.linspace(-2, 2, features, dtype=torch.float64)
    return centre - half, centre + half


def check_module(module, model, low, high, count=300):
    draw = torch.Generator().manual_seed(5)
    x = low + torch.rand(count, *low.shape, generator=draw, dtype=torch.float64) * (high - low)
    with torch.no_grad():
        exact = module.double()(x)
        found = model(x.to(next(model.parameters()).dtype)).double()
    error = (found - exact).abs().reshape(count, -1).amax(0)
    assert (error <= torch.tensor(model.certificate.outputs) + 1e-13).all()
    assert found.shape == exact.shape
    return float(error.max())


def test_residual_block_with_layer_norm_is_proved():
    torch.manual_seed(1)
    module, (low, high) = Residual(), spread_box(6, 0.25)
    model = ah.compile(module, (low, high), tol=1e-4)
    assert model.certificate.bound <= 1e-4
    check_module(module, model, low, high)
    ah.walk(model.literal(), low)


def test_layer_norm_is_proved():
    torch.manual_seed(2)
    module, (low, high) = nn.LayerNorm(16), spread_box(16, 0.3)
    nn.init.normal_(module.weight)
    model = ah.compile(module, (low, high), tol=1e-4)
    assert model.certificate.bound <= 1e-4
    check_module(module, model, low, high)


def test_own_attention_passes_through_as_it_is():
    torch.manual_seed(3)
    module = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, activation="gelu")
    low = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).flip(0) * 3
    low[:, 0] += 3
    high = low + 0.02
    model = ah.compile(module.eval(), (low, high), tol=1e-3)
    check_module(module, model, low, high, 50)
    assert "softmax" in {node.function for node in model.report.nodes}
    ah.walk(model.literal(), low)


def test_sequence_map_of_the_paper():
    """n = 20, d = 5, a ReLU network of width 10 on the flattened sequence, inputs on [0, 1]."""
    torch.manual_seed(4)
    module = nn.Sequential(nn.Flatten(), nn.Linear(100, 10), nn.ReLU(), nn.Linear(10, 100), nn.Unflatten(1, (20, 5)))
    model = ah.compile(module, (0, 1), tol=1e-5, shape=(20, 5))
    assert model.certificate.bound <= 1e-5
    low = torch.zeros(20, 5, dtype=torch.float64)
    check_module(module, model, low, low + 1)
    assert model(low.expand(7, 2, 20, 5)).shape == (7, 2, 20, 5)


def test_module_files_carry_their_target(tmp_path):
    torch.manual_seed(6)
    module = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3), nn.Softplus(), nn.Linear(3, 2))
    model = ah.compile(module, (-1, 1), tol=1e-6, dtype=torch.float64)
    path = tmp_path / "mlp.safetensors"
    model.save(path)
    found, claimed = ah.verify(path), model.certificate
    assert found.expression == f"circuit {claimed.circuit[:12]} (5 -> 2)"  # never a name that the file gives itself
    assert replace(found, expression=claimed.expression, source=claimed.source) == claimed
    x = torch.rand(9, 5, dtype=torch.float64)
    assert torch.equal(ah.load(path)(x), model(x))

    def other_weight(record, arrays):
        line = record["program"]["steps"][0][3]
        line[2] = line[2] * 1.5

    def later_wire(record, arrays):
        record["program"]["steps"][0][3][1] = 10_000

    for change in (other_weight, later_wire):
        with pytest.raises((ah.VerificationError, ah.FileError)):
            ah.verify(tampered(path, tmp_path, change))


def test_deep_perceptrons_compile():
    torch.manual_seed(7)
    layers = [nn.Linear(4, 16), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(16, 16), nn.Tanh()]
    module = nn.Sequential(*layers, nn.Linear(16, 2))
    model = ah.compile(module, (-1, 1), tol=1e-5)
    assert model.resources.layers == 5
    check_module(module, model, -torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))


def test_an_infinite_slope_at_an_input_costs_only_what_the_head_errs() -> None:
    model = ah.compile("sqrt(x) + y**2", {"x": (0, 1), "y": (0, 1)}, tol=1e-3)
    assert model.certificate.bound <= 1e-3
    x = torch.rand(1000, 2, dtype=torch.float64)
    exact = x[:, :1].sqrt() + x[:, 1:].square()
    assert (model(x) - exact).abs().max() <= model.certificate.bound


def test_rounding_of_a_certificate_is_that_of_every_output() -> None:
    """An output without heads errs by rounding alone, and it need not be the one that errs most."""
    model = ah.compile(["x*y", "sin(x + y)*1e-6", "1000003*x"], (-1, 1), tol=1e-5)
    x = 2 * torch.rand(1000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    exact = [1000003 * Fraction(u) for u in x[:, 0].tolist()]
    seen = max(abs(Fraction(v) - u) for u, v in zip(exact, model(x)[:, 2].tolist(), strict=True))
    assert 0 < seen <= model.certificate.rounding
    assert model.certificate.bound <= 1e-5


def test_a_factor_that_settles_takes_keys_only_where_it_has_not() -> None:
    """A gaussian of a wide range by constant values, which carry the other factor."""
    box = {"x": (-2, 3), "y": (-2, 3)}
    model = ah.compile("exp(-(30*(y + x))**2)*y", box, tol=1e-8)
    assert model.certificate.bound <= 1e-8
    assert model.resources.keys <= 32
    near = torch.linspace(-2, 2, 2001, dtype=torch.float64)
    x = torch.stack([near, torch.linspace(-0.1, 0.1, 2001, dtype=torch.float64) - near], 1)
    exact = torch.exp(-((30 * x.sum(1, keepdim=True)) ** 2)) * x[:, 1:]
    assert (model(x) - exact).abs().max() <= model.certificate.bound


def test_a_refusal_of_composition_says_what_was_found(monkeypatch) -> None:
    """Of the circuit that came nearest, and of a head whose search was given up, after a look at its likeliest size."""
    monkeypatch.setattr("anchorhead.compiler.proved_heads.settling", lambda target: None)
    with pytest.raises(
        ah.ToleranceError, match=r"\*y dominates, and as far as .* no less than about \S+e-07"
    ) as refused:
        ah.compile("exp(-(25*(y + x))**2)*y", {"x": (-2, 3), "y": (-2, 3)}, tol=1e-9, method="graph")
    assert 1e-9 < refused.value.best < 1e-5
