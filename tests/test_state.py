"""What is stored is what runs: the parameters are the only numbers, a literal form is a copy, copies keep edits."""

import copy
import pickle

import pytest
import torch
import torch._dynamo
from torch import nn

import anchorhead as ah
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.module import HeadModule
from anchorhead.model.activation import ActivationHead
from anchorhead.model.fused import evaluate
from anchorhead.theorems import multi_head, single_head, two_layer


@pytest.fixture(autouse=True)
def programs_of_its_own():
    """torch.compile counts how often a forward was compiled in a process, whatever the model, and gives up at eight."""
    torch._dynamo.reset()


def double(values):
    return torch.tensor(values, dtype=torch.float64)


X = torch.linspace(-1, 1, 41, dtype=torch.float64)
POINTS = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def head(expression="sin(x)", keys=5, dtype=torch.float64, domain=(-1, 1)):
    return ah.compile(expression, domain, keys=keys, dtype=dtype)


def two_layers():
    return ah.compile(lambda x: x.sum(-1, keepdim=True), (0, 1), shape=(2,), method="two_layer", tol=0.3)


MODELS = {
    "head": (lambda: head(), X),
    "kinked": (lambda: ah.compile("relu(x)+sin(x)", (-1, 1), tol=1e-4), X),
    "network": (lambda: ah.compile("x*y + sin(x)", (0, 1), tol=1e-4), POINTS),
    "maximum": (lambda: ah.compile("max(x, y) + x*y", (0, 1), tol=1e-2), POINTS),
    "grid": (lambda: ah.compile("sin(x + y)", (0, 1), tol=1e-2, method="grid"), POINTS),
    "two layers": (two_layers, POINTS),
    "single head": (lambda: single_head([[1.0, 2.0]], [0.1], 0, 1, 8, dtype=torch.float64), POINTS[:, None]),
    "heads": (lambda: multi_head([[1.0, 2.0]] * 4, [0.1] * 4, 0, 1, 3, dtype=torch.float64), POINTS.reshape(-1, 4, 2)),
}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, (make, _) in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("through_data", [False, True])
def test_every_edited_number_is_what_runs(models, name, through_data):
    x = MODELS[name][1]
    for place, _ in list(models[name].named_parameters()):
        model = copy.deepcopy(models[name])
        parameter = model.get_parameter(place)
        model(x)
        with torch.no_grad():
            noise = 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            (parameter.data if through_data else parameter).add_(noise)
        try:
            literal = model.literal()
        except ah.StructureError:  # a head that carries a partner has constant values only
            assert place.endswith(("gains", "values"))
            continue
        torch.testing.assert_close(model(x), literal(x), rtol=1e-7, atol=1e-7, msg=place)


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_state_is_what_runs(models, name):
    x, model = MODELS[name][1], copy.deepcopy(models[name])
    expected = model(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    assert not torch.equal(model(x), expected)
    model.load_state_dict(models[name].state_dict())
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


def test_cosine_loaded_into_sine_is_cosine():
    sine, cosine = head("sin(x)"), head("cos(x)")
    sine.load_state_dict(cosine.state_dict())
    assert torch.equal(sine(X), cosine(X))
    assert (sine(X) - X.cos()).abs().max() < 1e-6


def test_a_state_of_another_size_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        head(keys=5).load_state_dict(head(keys=4).state_dict())


def test_pieces_of_other_sizes_are_part_of_the_state():
    made = []
    for sizes in ([1, 3], [3, 1]):
        numbers = [0, -1, 0, 1], [0, 1, 2, 1], [1, 2, 3, 4], [0, 1, 0, 1], [-9, 9], [0, 0]
        made.append(HeadModule(Head.of(**dict(zip(NUMBERS, numbers, strict=True)), horner=False, sizes=sizes)))
    made[0].load_state_dict(made[1].state_dict())
    assert made[0].sizes == (3, 1)
    torch.testing.assert_close(made[0](X), made[1].literal()(X))


@pytest.mark.parametrize("name", MODELS)
def test_an_edited_literal_form_leaves_the_model_alone(models, name):
    x, model = MODELS[name][1], models[name]
    before, literal = model(x), model.literal()
    known = {tensor.data_ptr() for tensor in model.state_dict().values() if tensor.numel()}
    assert not known & {tensor.data_ptr() for tensor in literal.state_dict().values() if tensor.numel()}
    with torch.no_grad():
        for parameter in literal.parameters():
            parameter.zero_()
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("name", ["head", "kinked", "network", "maximum", "grid"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_keep_what_was_edited(models, name, copied):
    if name in ("network", "maximum") and copied is not copy.deepcopy:
        pytest.skip("a network is saved, not pickled")
    x, model = MODELS[name][1], copy.deepcopy(models[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    assert torch.equal(copied(model)(x), model(x))


def test_slopes_that_are_no_longer_evenly_spaced_are_summed_key_by_key():
    model = head()
    assert model.head.numbers.horner
    with torch.no_grad():
        model.head.slopes[2] += 0.3
    assert not model.head.numbers.horner
    torch.testing.assert_close(model(X), model.literal()(X), rtol=0, atol=1e-10)
    with torch.no_grad():
        model.head.slopes[2] -= 0.3
        model.head.constants[0] += 1.0  # no longer symmetric
    torch.testing.assert_close(model(X), model.literal()(X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["head", "kinked", "network", "grid"])
def test_gradients_of_the_numbers_are_those_of_the_literal_form(models, name):
    x, model = MODELS[name][1], copy.deepcopy(models[name])
    heads = [m for m in model.modules() if isinstance(m, HeadModule)]
    pairs = [(m, m) for m in heads] or [(model.network.grid, model.network.grid)]
    for part, _ in pairs:
        fast, plain = copy.deepcopy(part).requires_grad_(), part.literal().requires_grad_()
        seen = x if name != "network" else x[:, 0]
        fast(seen).square().sum().backward()
        plain(seen).square().sum().backward()
        for place, parameter in plain.named_parameters():
            if name != "grid":
                torch.testing.assert_close(fast.get_parameter(place).grad, parameter.grad, rtol=1e-6, atol=1e-6)
        if name == "grid":
            torch.testing.assert_close(fast.values.grad.flatten(), plain.values.grad.flatten())


def test_an_optimiser_moves_what_runs():
    model = head("sin(x)").requires_grad_()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    first = None
    for _ in range(60):
        optimiser.zero_grad()
        loss = (model(X) - X.square()).square().mean()
        first = loss.item() if first is None else first
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        assert (model(X) - X.square()).square().mean() < first / 4
        torch.testing.assert_close(model(X), model.literal()(X), rtol=0, atol=1e-9)


def test_the_values_of_steps_that_share_a_head_have_gradients():
    model = ah.compile("x*y + sin(x)", (0, 1), tol=1e-4).requires_grad_()
    model(POINTS).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if name.endswith("values"))


def test_functional_calls_and_batches_of_numbers():
    model = head().head
    numbers = {name: p.detach() for name, p in model.named_parameters()}
    many = {name: torch.stack([p, 1.1 * p]) for name, p in numbers.items()}

    def call(values):
        return torch.func.functional_call(model, values, (X,))

    found = torch.func.vmap(call)(many)
    torch.testing.assert_close(found[0], model(X))
    edited = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in edited.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(found[1], edited(X))
    slope = torch.func.grad(lambda values: call(values).sum())(numbers)
    torch.testing.assert_close(slope["constants"], model.weights(X).sum(0))


@pytest.mark.heavy
def test_fused_heads_follow_their_numbers():
    placed = ActivationHead("tanh(x)", {"activation": ah.compile("tanh(x)", keys=7, dtype=torch.float32)})
    x = torch.linspace(-4, 4, 1 << 15)
    assert (placed(x) - x.tanh()).abs().max() < 1e-2
    with torch.no_grad():
        placed.head.constants.mul_(2)
        placed.head.gains.mul_(2)
    assert (placed(x) - 2 * x.tanh()).abs().max() < 2e-2
    other = ah.compile("sigmoid(x)", keys=7, dtype=torch.float32).head
    placed.head.load_state_dict(other.state_dict())
    torch.testing.assert_close(evaluate(placed.head, x), other(x))


@pytest.mark.heavy
def test_compiled_programs_see_what_was_loaded():
    model = head("sin(x)")
    compiled = torch.compile(model, fullgraph=True)
    assert (compiled(X) - X.sin()).abs().max() < 1e-6
    model.load_state_dict(head("cos(x)").state_dict())
    assert (compiled(X) - X.cos()).abs().max() < 1e-6
    model.requires_grad_()
    compiled(X).sum().backward()
    torch.testing.assert_close(model.head.constants.grad, model.head.weights(X).sum(0).detach())


AUTOCAST = {
    "head": lambda: ah.compile("sin(x)", (-1, 1), tol=1e-4, dtype=torch.float32),
    "network": lambda: ah.compile("x*y + sin(x)", (0, 1), tol=1e-3, dtype=torch.float32),
    "maximum": lambda: ah.compile("max(x, y) + x*y", (0, 1), tol=1e-2, dtype=torch.float32),
    "grid": lambda: ah.compile("sin(x + y)", (0, 1), tol=1e-2, method="grid", dtype=torch.float32),
    "two layers": lambda: ah.compile(
        lambda x: x.sum(-1, keepdim=True), (0, 1), shape=(2,), method="two_layer", tol=0.3, dtype=torch.float32
    ),
    "single head": lambda: single_head([[1.0, 2.0]], [0.1], 0, 1, 8, dtype=torch.float32),
    "lookup": lambda: two_layer(lambda x: x, 1, 2, 4, dtype=torch.float32),
}


@pytest.mark.parametrize("kind", AUTOCAST)
def test_autocast_does_not_reach_what_is_proved(kind):
    model = AUTOCAST[kind]()
    x = POINTS.float()[:, None] if kind in ("single head", "lookup") else POINTS.float()
    expected, literal = model(x), model.literal()
    plain = literal(x)
    with torch.autocast("cpu", torch.bfloat16):
        found, read = model(x), literal(x)
        after = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(read, plain)
    assert after == torch.bfloat16


@pytest.mark.parametrize("kind", ["gradient descent", "newton", "network step", "truncated linear"])
def test_autocast_does_not_reach_in_context_networks(kind):
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 5, 3, generator=draw), torch.randn(2, 5, generator=draw)]
    given = {"features": 3, "examples": 5, "dtype": torch.float32}
    bounds = {"x": 6.0, "y": 6.0}
    if kind == "gradient descent":
        model = ah.in_context.gradient_descent("squared", steps=2, learning_rate=0.05, bounds=bounds, **given)
    elif kind == "newton":
        model = ah.in_context.newton(steps=2, l2=1.0, bounds={"x": 3.0, "y": 3.0, "curvature": 9.0}, **given)
    elif kind == "network step":
        model = ah.in_context.network_step(width=2, learning_rate=0.01, bounds=bounds, **given)
        inputs += [torch.rand(2, 2, 3, generator=draw), torch.rand(2, 2, generator=draw)]
    else:
        model = ah.in_context.truncated_linear(features=3, low=-1.0, high=1.0, dtype=torch.float32)
        inputs = [inputs[0], torch.randn(2, 3, generator=draw), torch.randn(2, generator=draw)]
    expected = model(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(*inputs)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.heavy
def test_autocast_does_not_reach_compiled_programs():
    model = AUTOCAST["network"]()
    x = POINTS.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.compile(model, fullgraph=True)(x)
    torch.testing.assert_close(found, model(x), rtol=0, atol=1e-5)


def test_inputs_may_be_given_by_name():
    assert torch.equal(head()(x=X), head()(X))
    assert torch.equal(head().head(x=X), head()(X))


def test_shortened_products_are_switched_off_and_on_again():
    """Whether this processor can shorten them or not: the setting holds inside a model, and no longer."""

    class Settings(nn.Module):
        def forward(self, z):
            seen.append(torch.backends.mkldnn.matmul.fp32_precision)
            return z

    seen = []
    model = AUTOCAST["network"]()
    model.network.layered.layers.append(Settings())
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        model(POINTS.float())
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["ieee"]
