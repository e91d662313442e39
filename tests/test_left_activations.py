"""Activations that conversion does not find are named where they ran, with a reason that is true."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


class Held(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.a, self.f = nn.Linear(8, 8), function

    def forward(self, x):
        return self.f(self.a(x), x)


def hooked():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].register_forward_hook(lambda module, given, made: torch.tanh(made))
    return model


LEFT = {
    "silu": lambda: Held(lambda u, v: F.silu(u) * v),
    "gelu": lambda: Held(lambda u, v: torch.ops.aten.gelu(u)),
    "tanh": hooked,
}


@pytest.mark.parametrize("name", LEFT)
def test_an_activation_that_was_not_found_is_said_to_have_been_called_elsewhere(name):
    said = str(ah.convert(LEFT[name](), inputs=X).report)
    assert "conversion has no head for it" not in said
    assert f"  {name}: called where conversion does not look" in said


APART = ("MultiheadAttention", "Softmax", "Softmax2d", "Softmin", "LogSoftmax", "Hardshrink", "Softsign")
MODULES = [getattr(nn, name)(*((0.3, 0.3) if name == "Threshold" else ()))
           for name in nn.modules.activation.__all__ if name not in APART]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_what_has_a_head_as_a_module_is_not_said_to_have_none(module):
    assert ah.convert(nn.Sequential(module), tol=1e-3, inputs=X).report.pure
    hidden = ah.convert(Held(lambda u, v: module(u)), inputs=X).report
    assert hidden.remaining
    assert "conversion has no head for it" not in str(hidden)


class Called(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        F = nn.functional
        return F.softshrink(self.a(x), 0.25) + F.threshold(self.a(x), 0.3, 0.3) + torch.selu(x) + torch.celu(x)


class Branched(Called):
    def forward(self, x):
        if x.sum() > 100:
            x = -x
        return F.softshrink(self.a(x), 0.25) + F.threshold(self.a(x), 0.3, 0.3) + torch.selu(x) + torch.celu(x)


@pytest.mark.parametrize("kind", [Called, Branched])
def test_every_activation_of_torch_that_has_a_head_is_converted_where_it_is_called(kind):
    converted = ah.convert(kind(), tol=1e-3, inputs=X)
    assert len(converted.report.replaced) == 4
    assert not converted.report.refused


def test_a_call_that_jumps_keeps_no_other_from_being_converted():
    class Both(Called):
        def forward(self, x):
            return F.threshold(self.a(x), 0.3, 0.5) + F.softshrink(x)

    report = ah.convert(Both(), tol=1e-3, inputs=X).report
    assert [row.formula for row in report.replaced] == ["softshrink(x, 0.5)"]
    [(_, why)] = report.refused
    assert "calls threshold" in why
    assert "jumps" in why


def threshold(x):
    return x * (x > 0.1)


def test_a_function_with_the_name_of_an_activation_is_not_taken_for_it():
    class Own(Called):
        def forward(self, x):
            return threshold(self.a(x)) + F.softshrink(x)

    report = ah.convert(Own(), tol=1e-3, inputs=X).report
    assert len(report.replaced) == 1
    assert not report.refused


def bent(x):
    return torch.sin(x)


class Traced(Called):
    def forward(self, x):
        h = F.gelu(self.a(x))
        h = h.abs()
        return bent(h)


class Read(Called):
    def forward(self, x):
        if x.sum() > 100:
            return x
        h = F.gelu(self.a(x))
        return torch.exp(h)


AFTER = {"abs": (Traced.forward, 2), "sin": (bent, 1), "gt": (Read.forward, 1), "exp": (Read.forward, 4)}
LINES = {name: function.__code__.co_firstlineno + after for name, (function, after) in AFTER.items()}


@pytest.mark.parametrize(("kind", "names"), [(Traced, ["abs", "sin"]), (Read, ["gt", "exp"])])
@pytest.mark.parametrize("copied", [lambda m: m, lambda m: pickle.loads(pickle.dumps(m))])
def test_what_remains_has_its_line_in_a_forward_that_was_rewritten(kind, names, copied):
    report = copied(ah.convert(kind(), inputs=X)).report.watch()
    assert len(report.replaced) == 1
    [(_, said)] = report.remaining
    for name in names:
        assert f"{name} at test_left_activations.py:{LINES[name]}" in said


def test_what_a_walk_refuses_has_its_line_in_a_forward_that_was_rewritten():
    with pytest.raises(ah.StructureError, match=rf"abs at test_left_activations.py:{LINES['abs']},"):
        ah.walk(ah.convert(Traced(), inputs=X), X)


def test_what_has_no_head_is_still_said_to_have_none():
    said = str(ah.convert(Held(lambda u, v: torch.sort(u)[0]), inputs=X).report)
    assert "  sort: left, since conversion has no head for it" in said


def test_what_a_hook_computes_is_of_the_module_that_has_it():
    model = hooked()
    model.append(nn.GELU())
    model[2].register_forward_hook(lambda module, given, made: torch.sin(made))
    report = ah.convert(model, inputs=X).report
    assert [(place, what.partition(" at ")[0]) for place, what in report.remaining] == [
        ("0", "Linear (tanh"),
        ("2", "ActivationHead (sin"),
    ]


def test_a_hook_that_fails_leaves_the_module_all_the_same():
    """What is computed after it is of the module around."""

    class Caught(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.a.register_forward_hook(lambda module, given, made: 1 / 0)

        def forward(self, x):
            try:
                return self.a(x)
            except ZeroDivisionError:
                return torch.sin(x)

    [(place, _)] = ah.convert(Caught(), inputs=X).report.remaining
    assert place == "the model"


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.g, self.extra = nn.Linear(8, 8), nn.GELU(), nn.GELU()

    def forward(self, x):
        h = self.g(self.a(x))
        h += x
        return h


def test_a_place_that_did_not_run_is_named_though_its_head_ran_elsewhere():
    report = ah.convert(Unused(), inputs=X).report
    assert report.idle == report.unused == ["extra"]
    assert "2 activations are attention now (1 did not run)" in str(report)


READ_ONLY = {
    "a compiled model": lambda: ah.compile("gelu(x)", tol=1e-2),
    "a property": lambda: type("Reporting", (nn.Identity,), {"report": property(lambda self: 1)})(),
}


@pytest.mark.parametrize("name", READ_ONLY)
def test_modules_with_a_report_of_their_own_are_refused(name):
    with pytest.raises(ah.InputError, match="report"):
        ah.convert(READ_ONLY[name]())


class Bent(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, x * x + 1)


class Clamped(nn.Module):
    def forward(self, x):
        return torch.clamp(x, x.mean(), 3)


class Softmax(nn.Module):
    def forward(self, x):
        return x.softmax(-1)


class Snake(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x + torch.sin(self.a * x) ** 2 / self.a


class Written(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, torch.exp(x) - 1)


def test_an_elu_that_is_written_as_a_choice_has_the_head_of_one():
    converted = ah.convert(nn.Sequential(nn.Linear(8, 8), Written()), inputs=X, pure=True)
    assert converted.report.pure
    assert (converted[1](X) - F.elu(X)).abs().max() < 2e-6


def test_a_module_that_is_as_was_advised_and_cannot_be_read_is_told_why():
    report = ah.convert(nn.Sequential(nn.Linear(8, 8), Bent()), inputs=X, pure=True).report
    [(place, why)] = report.refused
    assert place == "1"
    assert why.startswith("Bent cannot be read as a function of each number: torch.where may jump")
    assert "compute it in a module of its own" not in str(report)


def test_what_mixes_numbers_is_told_by_what():
    [(_, why)] = ah.convert(nn.Sequential(nn.Linear(8, 8), Clamped()), inputs=X, pure=True).report.refused
    assert "torch's mean is not an elementwise operation" in why


def test_what_is_seen_to_mix_numbers_is_no_activation_that_was_left():
    assert not ah.convert(nn.Sequential(nn.Linear(8, 8), Softmax()), inputs=X, pure=True).report.refused


def test_functions_with_parameters_are_said_to_have_no_head():
    said = str(ah.convert(nn.Sequential(nn.Linear(8, 8), Snake()), inputs=X, pure=True).report)
    assert "what has parameters within, as a slope for each channel, has no head" in said


def computing(function):
    """A module without parameters, of a class whose forward computes that of every number."""
    return type("Of", (nn.Module,), {"forward": lambda self, x: function(x)})()


SINGULAR = {
    "1/x": (lambda x: 1 / x, "not finite near x = 0"),
    "nan_to_num": (lambda x: torch.nan_to_num(1 / x), "not finite near x = 0"),
    "log": (lambda x: x.log(), "x is not positive there"),
    "sqrt": (lambda x: x.sqrt(), "x is negative there"),
    "tan": (lambda x: x.tan(), "x passes an odd multiple of pi/2 there"),
    "power": (lambda x: x**1.5, "the power of x is not defined"),
    "large": (lambda x: (1e200 * (1e200 * x)).clamp(-1, 1), "A constant of the target is too large"),
}


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("pure", [True, False])
def test_a_function_that_is_not_finite_everywhere_is_left_with_the_reason(name, pure):
    function, said = SINGULAR[name]
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), computing(function))
    report = ah.convert(model, pure=pure, inputs=X).report
    assert [row.formula for row in report.replaced] == ["gelu(x)"]
    ((place, why),) = report.refused
    assert place == "2"
    assert "domain" not in why
    if pure:
        assert "has no head on all of R: " in why
        assert said in why
    else:
        assert "if it is finite everywhere and nears straight lines on both sides" in why


class Scalar(nn.Module):
    """Activations of single numbers: of a parameter, of a mean, of a batch of one."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.t = nn.Linear(8, 8), nn.Linear(8, 1), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        gate = torch.sigmoid(self.a(x).mean()) * F.softplus(self.t)
        return gate * F.gelu(self.a(x)), torch.tanh(self.b(x).squeeze())


def test_activations_of_single_numbers_are_converted():
    for inputs in (X, X[:1]):
        report = ah.convert(Scalar(), inputs=inputs).report
        assert len(report.replaced) == 4
        assert report.difference < 1e-5
