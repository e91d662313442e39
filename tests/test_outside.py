"""One policy for inputs outside the domain, for every kind of model; on all of R the largest floats have answers."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import nn

import anchorhead as ah

MAKERS = {
    "head": lambda **more: ah.compile("sin(x)", (-1, 1), tol=1e-3, **more),
    "half line": lambda **more: ah.compile("softplus(x)", (-math.inf, 1), tol=1e-3, **more),
    "network": lambda **more: ah.compile("x*y + sin(x)", {"x": (-1, 1), "y": (0, 2)}, tol=1e-2, **more),
    "grid": lambda **more: ah.compile("sin(x + y)", {"x": (-1, 1), "y": (0, 2)}, tol=1e-2, method="grid", **more),
    "two layers": lambda **more: ah.compile(
        lambda x: x.sum(-1, keepdim=True), [(-1, 1), (0, 2)], method="two_layer", tol=0.8, **more
    ),
}


def inside(kind):
    return torch.tensor([1.0, -1.0] if kind in ("head", "half line") else [[1.0, 0.0], [-1.0, 2.0]]).double()


def beyond(kind, value=1.5):
    x = inside(kind)
    x[0] = value if x.ndim == 1 else torch.tensor([value, 1.0])
    return x


@pytest.fixture(scope="module")
def models():
    return {kind: make() for kind, make in MAKERS.items()}


@pytest.fixture
def model(models, request):
    return copy.deepcopy(models[request.param])


@pytest.mark.parametrize(("model", "kind"), [(k, k) for k in MAKERS], indirect=["model"])
def test_leaving_the_domain_warns_once_and_says_where_and_how_far(model, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(inside(kind))
        model(inside(kind)[:0])
    with pytest.warns(ah.OutsideRangeWarning, match=r"is 1\.5, outside \[-(1|inf), 1\] by 0\.5") as said:
        model(beyond(kind))
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(beyond(kind))
    assert model.outside_count == 2


@pytest.mark.parametrize(("model", "kind"), [(k, k) for k in MAKERS], indirect=["model"])
def test_the_policy_can_be_changed(model, kind):
    model.outside = "error"
    for _ in range(2):
        with pytest.raises(ah.OutsideRangeError, match="outside"):
            model(beyond(kind))
    model(inside(kind))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)) if kind in ("head", "grid") else model):
        assert other.outside == "error"
    model.outside = "ignore"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(beyond(kind))
    with pytest.raises(ah.InputError, match=r"'warn', 'error', 'ignore'"):
        model.outside = "shout"


@pytest.mark.parametrize(("model", "kind"), [(k, k) for k in MAKERS], indirect=["model"])
def test_what_is_not_a_number_is_outside(model, kind):
    model.outside = "error"
    with pytest.raises(ah.OutsideRangeError, match="not a number"):
        model(beyond(kind, math.nan))


@pytest.mark.parametrize("kind", MAKERS)
def test_the_policy_is_an_argument_of_compile_and_load(kind, tmp_path):
    model = MAKERS[kind](outside="error")
    model.save(tmp_path / "m")
    assert (model.outside, ah.load(tmp_path / "m").outside) == ("error", "warn")
    with pytest.raises(ah.OutsideRangeError):
        ah.load(tmp_path / "m", outside="error")(beyond(kind))


def test_unknown_policies_are_refused_before_any_work(tmp_path):
    for call in (
        lambda: MAKERS["head"](outside="refuse"),
        lambda: ah.load(tmp_path / "nothing", outside="x"),
        lambda: ah.convert(nn.Tanh(), outside="x"),
        lambda: ah.load_converted(tmp_path, outside="x"),
    ):
        with pytest.raises(ah.InputError, match="outside="):
            call()


def test_every_coordinate_is_compared_with_its_own_interval(models):
    model = copy.deepcopy(models["network"])
    model.outside = "error"
    model(torch.tensor([[-1.0, 1.5]], dtype=torch.float64).expand(1000, 2))
    wrong = torch.tensor([[-1.0, 1.5]], dtype=torch.float64).repeat(1000, 1)
    wrong[998, 1] = -0.25
    with pytest.raises(ah.OutsideRangeError, match=r"Number 1 of an input .* is -0\.25, outside \[0, 2\] by 0\.25"):
        model(wrong)


def test_ends_count_as_the_nearest_number_of_the_dtype():
    model = ah.compile("sin(x)", (-0.1, 0.3), tol=1e-3, dtype=torch.float32, outside="error")
    model(torch.tensor([-0.1, 0.3]))
    with pytest.raises(ah.OutsideRangeError):
        model(torch.nextafter(torch.tensor([0.3]), torch.tensor([1.0])))


@pytest.mark.parametrize(("model", "kind"), [(k, k) for k in MAKERS], indirect=["model"])
def test_exported_models_do_not_look(model, kind):
    program = torch.export.export(model, (inside(kind),))
    assert not [node for node in program.graph.nodes if "look" in str(node.target)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.module()(beyond(kind))


@pytest.mark.parametrize(("model", "kind"), [(k, k) for k in MAKERS], indirect=["model"])
def test_batches_of_torch_func_are_looked_at(model, kind):
    with pytest.warns(ah.OutsideRangeWarning, match=r"is 1\.5, outside"):
        torch.func.vmap(torch.func.grad(lambda x: model(x).sum()))(beyond(kind))
    assert model.outside_count == 1


@pytest.mark.heavy
@pytest.mark.parametrize(("model", "kind"), [("head", "head"), ("network", "network")], indirect=["model"])
def test_compiled_programs_look_too(model, kind):
    compiled = torch.compile(model, fullgraph=True)
    compiled(inside(kind))
    assert model.outside_count == 0
    with pytest.warns(ah.OutsideRangeWarning):
        compiled(beyond(kind))
    assert model.outside_count == 1
    model.outside = "error"
    with pytest.raises(ah.OutsideRangeError):
        compiled(beyond(kind))


LINE = {
    "min(2 - 3.98*x, 1/3 - 4.36*x)": lambda x: (-3.98 if x < 0 else -4.36) * x,
    "gelu(x)": lambda x: max(x, 0.0),
    "relu(x)": lambda x: max(x, 0.0),
    "softplus(x)": lambda x: max(x, 0.0),
    "silu(x)": lambda x: max(x, 0.0),
    "elu(x)": lambda x: x if x > 0 else -1.0,
    "max(x, 2*x - 1, -5*x)": lambda x: 2 * x if x > 0 else -5 * x,
    "tanh(x)": lambda x: math.copysign(1.0, x),
}


@pytest.mark.parametrize("expression", LINE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_largest_floats_have_the_right_answer(expression, dtype):
    """Infinite only where the target itself exceeds the dtype."""
    try:
        model = ah.compile(expression, tol=1e-2, dtype=dtype)
    except ah.ToleranceError:
        assert dtype == torch.float32
        return
    largest = torch.finfo(dtype).max
    shares = [1.0, 0.9, 0.5, 0.24, 0.19, 1 / 16, 1 / 17, 1 / 300, 1e-5, 1e-20]
    for x in torch.tensor([sign * largest * share for sign in (1, -1) for share in shares], dtype=dtype):
        value, found = LINE[expression](x.item()), model(x).item()
        if abs(value) > largest:
            assert found == math.copysign(math.inf, value)
        else:
            room = model.certificate.approximation + model.certificate.rounding * (1 + abs(x.item()))
            assert abs(found - value) <= room + 2e-15 * abs(value)


def test_a_prompt_outside_is_warned_of_at_the_line_that_called():
    model = ah.in_context.compile("q*mean(x)", tokens={"x": (-1, 1)}, query={"q": (-1, 1)})
    query = torch.zeros(1, 1, dtype=torch.float64)
    with pytest.warns(ah.OutsideRangeWarning) as said:
        model(torch.full((3, 1), 2.0, dtype=torch.float64), query)
    assert said[0].filename == __file__
