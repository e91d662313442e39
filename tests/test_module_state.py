"""Compiling refuses what is no function of its input, with a sentence, and leaves everything as it was."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import anchorhead as ah


class Counting(nn.Module):
    def __init__(self, width=None):
        super().__init__()
        self.k = 0
        self.layer = nn.Linear(width, 2) if width else nn.Tanh()

    def forward(self, x):
        self.k += 1
        return self.layer(x) * self.k


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layer(x).tanh()


class Remembering(nn.Module):
    """The last input is added to the next."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 2), 0.0

    def forward(self, x):
        found = self.layer(x) + self.last
        self.last = float(found.detach().sum())
        return found


class Cached(nn.Module):
    """Fills a cache at the first call, which is no change of what it computes."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), None

    def forward(self, x):
        if self.scale is None:
            self.scale = torch.tensor(2.0)
        return self.layer(x).tanh() * 2


class Noisy(nn.Module):
    def forward(self, x):
        return x * random.random()


class NoisyArrays(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) * float(np.random.rand())  # noqa: NPY002


class Dimensions(nn.Module):
    """Something else for one input than for a batch of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).tanh() if x.dim() == 2 else self.layer(x).sin()


class While(nn.Module):
    """Something else while it is traced."""

    def __init__(self, width=None):
        super().__init__()
        self.layer = nn.Linear(width, 2) if width else nn.Tanh()

    def forward(self, x):
        return self.layer(x) * (2 if torch.compiler.is_compiling() else 1)


class Trained(nn.Module):
    def __init__(self, width=None):
        super().__init__()
        self.layer = nn.Linear(width, 2) if width else nn.Tanh()

    def forward(self, x):
        return self.layer(x) * (3.0 if self.training else 1.0)


CHANGING = [(Counting(), None, "attribute k"), (Counting(3), 3, "attribute k"), (Buffered(), 3, "buffer calls")]
DIFFERENT = [(Noisy(), None), (NoisyArrays(), 3)]


@pytest.mark.parametrize(("module", "shape", "what"), CHANGING)
@pytest.mark.parametrize("method", ["auto", "grid"])
def test_a_module_that_changes_itself_is_refused_and_left_as_it_was(module, shape, what, method):
    module = copy.deepcopy(module).double()
    before = copy.deepcopy(module.__dict__)
    with pytest.raises(ah.ExpressionError, match=f"changes its {what}"):
        ah.compile(module, (0, 1), shape=shape, tol=1e-2, method=method)
    assert {k: v for k, v in module.__dict__.items() if k[0] != "_"} == {k: v for k, v in before.items() if k[0] != "_"}
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), before["_buffers"].values(), strict=False))


def test_a_module_that_remembers_its_last_input_is_refused():
    with pytest.raises(ah.ExpressionError, match=r"attribute last|different results|could not trace"):
        ah.compile(Remembering(), (0, 1), tol=1e-2)


def test_a_cache_is_no_change():
    assert ah.compile(Cached(), (0, 1), tol=1e-2).certificate.level == "proved"


@pytest.mark.parametrize(("module", "shape"), DIFFERENT)
@pytest.mark.parametrize("method", ["auto", "grid"])
def test_what_is_random_is_refused_and_generators_are_left_alone(module, shape, method):
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    with pytest.raises(ah.AnchorheadError, match="different results for the same input"):
        ah.compile(module.double(), (0, 1), shape=shape, tol=1e-2, method=method)
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_counters_outside_the_function_are_refused_and_put_back():
    k = 0
    seen = []
    module = Counting(3)

    def closing(x):
        nonlocal k
        k += 1
        return x.sin()

    def listing(x):
        seen.append(len(seen))
        return x.sin()

    for function, shape, what in (
        (closing, None, "variable k"),
        (listing, None, "variable seen"),
        (lambda x: module(x), 3, "attribute k"),
        (module.forward, 3, "attribute k"),
    ):
        with pytest.raises(ah.ExpressionError, match=what):
            ah.compile(function, (0, 1), shape=shape, tol=1e-2)
    assert k == module.k == len(seen) == 0


COUNT = 0


def counted(x):
    global COUNT
    COUNT += 1
    return x.sin() + COUNT


def test_global_counters_are_refused_and_put_back():
    with pytest.raises(ah.ExpressionError, match="global variable COUNT"):
        ah.compile(counted, (0, 1), tol=1e-2)
    assert COUNT == 0


def test_one_input_and_a_batch_must_mean_the_same():
    with pytest.raises(ah.ExpressionError, match="other results for one input"):
        ah.compile(Dimensions(), (0, 1), tol=1e-2)
    with pytest.raises(ah.ExpressionError, match="shape of its input"):
        ah.compile(lambda x: x.sin() if x.dim() == 1 else x.cos(), (0, 1), tol=1e-2)
    single = ah.compile(lambda x: x.softmax(0), (0, 1), shape=3, tol=1e-2)
    assert any("for single inputs of shape (3,)" in a for a in single.certificate.assumptions)
    batch = ah.compile(lambda x: x.cumsum(1).flatten(-2)[..., :3], (0, 1), shape=(2, 2), tol=1e-2)
    assert any("for batches of inputs" in a for a in batch.certificate.assumptions)
    plain = ah.compile(nn.Linear(3, 2), (0, 1), tol=1e-2)
    assert not any("inputs of shape" in a for a in plain.certificate.assumptions)


@pytest.mark.parametrize("width", [None, 3])
def test_a_trace_must_say_what_the_module_does(width):
    with pytest.raises(ah.ExpressionError, match="something else while it is traced"):
        ah.compile(While(width), (0.1, 1), tol=1e-2)


@pytest.mark.parametrize("width", [None, 3])
def test_another_training_mode_is_stated_and_the_flag_is_left(width):
    module = Trained(width)
    certificate = ah.compile(module, (0, 1), tol=1e-2).certificate
    assert any("evaluation mode" in a for a in certificate.assumptions)
    assert module.training
    again = ah.compile(module.eval(), (0, 1), tol=1e-2).certificate
    assert not any("evaluation mode" in a for a in again.assumptions)


def test_modules_that_are_sampled_are_left_as_they_were():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 1)).double()
    before = copy.deepcopy(module.state_dict())
    ah.compile(module, (0, 1), shape=2, tol=0.5, method="grid")
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_result_that_depends_on_the_size_of_a_batch_is_said():
    class Large(nn.Module):
        def forward(self, x):
            y = x.sin().sum(-1, keepdim=True)
            return 2 * y if x.shape[0] > 64 else y

    said = ah.compile(Large(), (-1, 1), shape=(3,), tol=1e-3).certificate.assumptions
    assert any("differently" in sentence for sentence in said)


def test_constant_function_compiles():
    assert ah.compile(lambda x: torch.tensor(3.0), (-1, 1)).certificate.bound < 1e-12
