"""Functions of a prompt: one network for every length, within what is proved, from the text to the loaded file."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_formulas import value
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import nn

import anchorhead as ah
from anchorhead.cli import app
from anchorhead.file.container import digest

DOUBLE = {"dtype": torch.float64}
SQUARE = {"x": (-1, 1), "y": (-1, 1)}
QUERY = {"q": (-1, 1)}
SLOPE = "q*cov(x, y)/(var(x) + 0.2)"


@cache
def made(formula, tol=1e-6, dtype=torch.float64, query=True, names=("x", "y")):
    tokens = {name: (0, 1) if name == "g" else (-1, 1) for name in names}
    return ah.in_context.compile(formula, tokens, QUERY if query else None, tol=tol, dtype=dtype)


def prompts(n, names=("x", "y"), seed=0):
    """Tokens anywhere, at the ends, and all alike."""
    draw = torch.Generator().manual_seed(seed)
    low = torch.tensor([0.0 if name == "g" else -1.0 for name in names], **DOUBLE)
    drawn = low + (1 - low) * torch.rand(n, len(names), generator=draw, **DOUBLE)
    ends = torch.where(torch.rand(n, len(names), generator=draw, **DOUBLE) < 0.5, low, torch.ones_like(low))
    return [drawn, ends, drawn[:1].expand(n, -1).contiguous(), ends[:1].expand(n, -1).contiguous()]


def slope(tokens, q):
    """SLOPE by NumPy, in long double."""
    x, y = tokens.numpy().astype(np.longdouble).T
    x, y = x - x.mean(), y - y.mean()
    return q.numpy()[:, 0] * (x * y).mean() / ((x * x).mean() + np.longdouble(2) / 10)


@pytest.mark.parametrize("n", [1, 2, 17, 1_000, 100_000])
def test_one_network_for_every_length(n):
    model, q = made(SLOPE), torch.linspace(-1, 1, 7, **DOUBLE).unsqueeze(-1)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= 1e-6
    assert model.resources.keys <= 60
    hidden = torch.arange(n) % 3 == 1
    for tokens in prompts(n):
        assert np.abs(model(tokens, q).numpy()[:, 0] - slope(tokens, q)).max() <= model.certificate.bound
        if hidden.any():
            masked = torch.where(hidden[:, None], torch.nan, tokens)
            found = model(masked, q, ~hidden).numpy()[:, 0]
            assert np.abs(found - slope(tokens[~hidden], q)).max() <= model.certificate.bound


PROVED = {
    "linear regression": ("mean(y) + (q - mean(x))*cov(x, y)/(var(x) + 0.05)", ("x", "y"), True),
    "soft median": ("attend(-20*abs(x - mean(x)), x)", ("x",), False),
    "kernel regression": ("attend(-50*(x - q)**2, y)", ("x", "y"), True),
    "two samples": ("(mean(g*x)/(mean(g) + 0.1) - mean((1 - g)*x)/(1.1 - mean(g)))/sqrt(var(x) + 0.3)", ("x", "g"),
                    False),
    "skewness": ("mean((x - mean(x))**3)/(var(x) + 0.5)", ("x",), False),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("name", PROVED)
def test_what_is_asked_of_prompts_is_proved_and_kept(name):
    formula, names, asked = PROVED[name]
    model = made(formula, query=asked, names=names)
    assert model.certificate.level == "proved"
    for n in (1, 2, 40):
        for tokens in prompts(n, names, seed=n):
            for q in (-1.0, 0.3, 1.0):
                meant = value(formula, tokens.tolist(), names, {"q": q})
                found = model(tokens, torch.tensor([[q]], **DOUBLE)) if asked else model(tokens)
                assert abs(found.item() - meant) <= model.certificate.bound


TOKEN = st.sampled_from(["x", "y", "x*y", "sin(2*x)", "x**2 + y", "tanh(x + y)", "exp(x/2)", "abs(y)"])
SCORE = st.sampled_from(["3*x", "2*q*x", "-4*(x - q)**2", "q*x + y - abs(x)", "(x + q)*(y - q)"])


@st.composite
def formulas(draw):
    """A formula of means, variances, covariances and attention, and a query."""
    parts = []
    for _ in range(draw(st.integers(1, 2))):
        a, b = draw(TOKEN), draw(TOKEN)
        kind = draw(st.sampled_from(["mean({a})", "var({a})", "cov({a}, {b})", "attend({s}, {a})",
                                     "mean(tanh({a} - mean({b})))"]))  # fmt: skip
        parts.append(kind.format(a=a, b=b, s=draw(SCORE)))
    outer = draw(st.sampled_from(["{0} + q*{1}", "{0}*{1}", "exp({0}/2) - {1}", "{0}/(var(x) + 0.5)", "q**2*{0}"]))
    return outer.format(parts[0], parts[-1])


@pytest.mark.heavy
@settings(max_examples=25)
@given(formula=formulas(), data=st.data())
def test_from_the_text_to_the_loaded_file(tmp_path_factory, formula, data):
    path = tmp_path_factory.mktemp("prompt") / "model.safetensors"
    model = ah.in_context.compile(formula, SQUARE, QUERY, tol=1e-3)
    model.save(path)
    certificate, loaded = ah.verify(path), ah.load(path)
    assert certificate.bound == model.certificate.bound <= 1e-3
    assert loaded.certificate == model.certificate
    numbers = st.floats(-1, 1, width=32)
    for _ in range(2):
        tokens = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9))
        q, copies = data.draw(numbers), data.draw(st.integers(1, 3))
        rows = torch.tensor(tokens * copies, **DOUBLE)
        mask = torch.tensor([True] * len(rows) + [False] * 2)
        padded = torch.cat([rows, torch.full((2, 2), torch.inf, **DOUBLE)])
        meant = value(formula, tokens, ("x", "y"), {"q": q})
        asked = torch.tensor([[q]], **DOUBLE)
        for found in (loaded(rows, asked), loaded(padded, asked, mask), loaded(rows.flip(0), asked)):
            assert abs(found.item() - meant) <= certificate.bound
        assert torch.equal(loaded(rows, asked), model(rows, asked))
        literal = model.literal()(rows, asked).item()
        assert abs(literal - meant) <= model.literal_certificate().bound


def test_several_outputs_batches_and_shapes():
    model = ah.in_context.compile(["mean(x)", "q*var(y)"], SQUARE, QUERY, tol=1e-4)
    tokens, q = torch.rand(3, 2, 11, 2, **DOUBLE), torch.rand(2, 4, 1, **DOUBLE)
    found = model(tokens, q)
    assert found.shape == (3, 2, 4, 2)
    torch.testing.assert_close(found[1, 0, 3], model(tokens[1, 0], q[0, 3:])[0], rtol=0, atol=1e-15)
    torch.testing.assert_close(found[..., 0], tokens[..., 0].mean(-1, keepdim=True).expand(3, 2, 4))
    assert made("mean(x)", query=False)(tokens).shape == (3, 2, 1)
    assert model.exact(tokens, q).shape == found.shape
    assert (model.exact(tokens, q) - found).abs().max() <= model.certificate.bound


def test_a_standard_deviation_of_tokens_that_are_all_alike():
    model = made("std(x)", tol=1e-4, query=False, names=("x",))
    for tokens in [*prompts(1, ("x",)), *prompts(50, ("x",)), torch.full((7, 1), 0.1, **DOUBLE)]:
        meant = value("std(x)", tokens.tolist(), ("x",))
        assert abs(model(tokens).item() - meant) <= model.certificate.bound


def test_float32_keeps_its_bound_on_long_prompts():
    model = made("attend(q*x, y)*var(x)", tol=1e-3, dtype=torch.float32)
    assert model.certificate.level == "proved"
    tokens, q = prompts(60_000)[0].float(), torch.tensor([[0.7]])
    x, y = tokens.double().numpy().T
    weights = np.exp(np.float64(q.item()) * x)
    meant = (weights * y).sum() / weights.sum() * x.var()
    assert abs(model(tokens, q).item() - meant) <= model.certificate.bound


def test_the_network_is_attention_and_affine_maps():
    model, tokens, q = made(SLOPE), torch.rand(6, 2, **DOUBLE), torch.rand(3, 1, **DOUBLE)
    found = ah.walk(model, tokens, q)
    assert found.softmax == 6
    for weights in model.attention(tokens, q):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1], **DOUBLE))
    kernel = made("attend(-50*(x - q)**2, y)")
    assert ah.walk(kernel, tokens, q).scores == 1
    *_, last = kernel.attention(tokens, q)
    assert last.shape == (3, 1, 6)
    torch.testing.assert_close(last[:, 0], (-50 * (tokens[:, 0] - q) ** 2).softmax(-1), rtol=0, atol=1e-6)


class SetNetwork(nn.Module):
    """A perceptron of every token, their mean, and a perceptron of it."""

    def __init__(self, axis=-2):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4), nn.GELU())
        self.whole, self.axis = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), axis

    def forward(self, tokens):
        return self.whole(self.token(tokens).mean(self.axis))


@pytest.mark.parametrize("axis", [-2, 0, 1])
def test_a_set_network_of_torch(axis, tmp_path):
    module = SetNetwork(axis).double()
    model = ah.in_context.compile(module, SQUARE, tol=1e-4)
    assert model.certificate.level == "proved"
    model.save(tmp_path / "set")
    assert ah.verify(tmp_path / "set").bound == model.certificate.bound
    loaded = ah.load(tmp_path / "set")
    for n in (1, 3, 500):
        for tokens in prompts(n):
            meant = module(tokens.unsqueeze(0))[0] if axis == 1 else module(tokens)
            assert (loaded(tokens) - meant).abs().max() <= model.certificate.bound
    ah.walk(loaded, prompts(3)[0])


NO_SETS = {
    "sum": lambda t: t.sum(-2),
    "one of them": lambda t: t[0],
    "each": lambda t: t.tanh(),
    "counted": lambda t: t.mean(-2) * t.shape[-2],
    "softmax": lambda t: t.softmax(-2).mean(-2),
    "mixed": lambda t: t.reshape(t.shape[-1], t.shape[-2]).mean(-1),
    "largest": lambda t: t.amax(-2),
    "pairs": lambda t: (t @ t.mT).mean((-1, -2)),
    "in order": lambda t: t.cumsum(-2).mean(-2),
    "turned": lambda t: (t * t.flip(-2)).mean(-2),
    "but the last": lambda t: t[..., :-1, :].mean(-2),
    "twice": lambda t: torch.cat([t, t.tanh()], -2).mean(-2),
    "numbered": lambda t: (t * torch.arange(t.shape[-2]).unsqueeze(-1)).mean(-2),
    "by length": lambda t: t.mean(-2) if t.shape[-2] < 4 else t.tanh().mean(-2),
}


@pytest.mark.parametrize("name", NO_SETS)
def test_what_does_not_treat_tokens_alike_is_refused(name):
    with pytest.raises(ah.AnchorheadError):
        ah.in_context.compile(NO_SETS[name], SQUARE, tol=1e-2)


REFUSED = {
    "x + 1": "depends on single tokens",
    "mean(q*x)": "every pair of a token and a query",
    "attend(abs(x - q), x)": "which is not a sum of at most 64 products",
    "attend(x, q*x)": "value that depends on token and query",
    "q/mean(x)": "1/u was not found to be bounded on [-1, 1], the interval that u = mean(x) may reach",
    "q/(var(x) - 0.5)": "1/u was not found to be bounded on [-0.5, 0.5]",
    "q/std(x)": "the interval that u = var(x) may reach: it has a singularity there, or comes too near one to tell. "
    "A variance is zero where all tokens are alike, whatever their domain: add a constant to it, as in sqrt(var(x)",
    "q/sqrt(var(x)*var(y))": "u = var(x)*var(y) may reach: it has a singularity there, or comes too near one to tell. "
    "A variance is zero",
    "cov(x)": "cov is called as cov(x, y)",
    "sum(x)": "for prompts of every length; write mean(x), and multiply the answer by the number of tokens",
    "prod(x)": "atanh, attend, celu, clip, cos, cosh, cov,",
    "max(x)": "no network for prompts of every length; attend(100*x, x)",
    "median(x)": "a single token may move it from one end to the other; mean(clip(x",
    "mean(z)": "z is not a variable here",
    "mean": "mean is not a variable here",
}


@pytest.mark.parametrize("formula", REFUSED)
def test_formulas_that_cannot_be_are_refused_with_a_sentence(formula):
    with pytest.raises(ah.AnchorheadError) as refusal:
        ah.in_context.compile(formula, SQUARE, QUERY)
    assert REFUSED[formula] in str(refusal.value)


def test_prompts_are_for_functions_of_prompts():
    with pytest.raises(ah.ExpressionError, match=r"over the tokens of a prompt, which ah.in_context.compile takes"):
        ah.compile("mean(x)", (-1, 1))


def test_what_needs_no_tokens_needs_no_heads():
    model = ah.in_context.compile(["3", "mean(mean(y) + 2)", "cov(x, 1)", "mean(x)"], {"x": (0.5, 0.5), "y": (0, 1)})
    assert model.resources.keys == 0
    tokens = torch.tensor([[0.5, 0.0], [0.5, 1.0]], **DOUBLE)
    torch.testing.assert_close(model(tokens), torch.tensor([3.0, 2.5, 0.0, 0.5], **DOUBLE))
    for wrong in ({"tol": -1.0}, {"dtype": torch.float16}, {"evaluation": "best"}, {"outside": "never"}):
        with pytest.raises(ah.AnchorheadError):
            ah.in_context.compile("mean(x)", {"x": (0, 1)}, **wrong)


def test_ranges_that_cannot_be_are_refused_with_a_sentence():
    for tokens, query, said in (
        ({}, QUERY, "names no variable"),
        ((-1, 1), None, "must name variables"),
        ({"x": (-1, 1)}, {"x": (0, 1)}, "of a token and of a query"),
        ({"x": (-1, math.inf)}, None, "finite ends"),
        ({"mean": (-1, 1)}, None, "already means something"),
    ):
        with pytest.raises(ah.InputError, match=said):
            ah.in_context.compile("mean(x)", tokens, query)
    with pytest.raises(ah.InputError, match="of tokens alone"):
        ah.in_context.compile(SetNetwork(), SQUARE, QUERY)


def test_prompts_that_cannot_be_are_refused_with_a_sentence():
    model, tokens, q = made(SLOPE), torch.zeros(3, 2, **DOUBLE), torch.zeros(1, 1, **DOUBLE)
    for given_, said in (
        ((tokens[:0], q), "no tokens"),
        ((tokens[:, :1], q), r"takes \(..., n, 2\)"),
        ((tokens, q.expand(1, 2)), r"takes \(..., m, 1\)"),
        ((tokens,), "needs query="),
        ((tokens, q, torch.zeros(3, dtype=torch.bool)), "hides every token"),
        ((tokens, q, torch.ones(2, dtype=torch.bool)), "mask must be boolean"),
        ((tokens.expand(2, 3, 2), q.expand(3, 1, 1)), "do not fit each other"),
        ((tokens.float(), q), "float32"),
    ):
        with pytest.raises(ah.InputError, match=said):
            model(*given_)
    with pytest.raises(ah.InputError, match="takes no query"):
        made("mean(x)", query=False)(tokens, q)
    for asked in (lambda: model.as_self_attention(3), lambda: model.to_stock_attention(), lambda: model.probe(tokens),
                  lambda: ah.diagnose(model, tokens)):  # fmt: skip
        with pytest.raises(ah.InputError, match="whole prompt"):
            asked()


def test_the_command_compiles_verifies_and_shows_them(tmp_path, capsys):
    path = str(tmp_path / "model.safetensors")
    arguments = ["--tokens", "x=-1:1", "--tokens", "y=-1:1", "--query", "q=-1:1", "--tol", "1e-3", "-o", path, "--json"]
    command = typer.main.get_command(app)
    command(["compile", "q*mean(x*y)", *arguments], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["certificate"]["level"] == "proved"
    command(["verify", path], standalone_mode=False)
    command(["show", path], standalone_mode=False)
    assert "mean(x*y)" in capsys.readouterr().out
    for wrong in (["mean(x)", "--query", "q=-1:1"], ["mean(x)", "--tokens", "x=-1:1", "--domain", "x=-1:1"],
                  ["mean(x)", "--tokens", "x"]):  # fmt: skip
        with pytest.raises(ah.InputError, match="--"):
            command(["compile", *wrong], standalone_mode=False)


def test_tokens_outside_their_range_are_said():
    model, q = ah.in_context.compile("mean(x)*q", {"x": (-1, 1)}, QUERY), torch.zeros(1, 1, **DOUBLE)
    with pytest.warns(UserWarning, match=r"in a token, is 3, outside \[-1, 1\]"):
        model(torch.tensor([[0.0], [3.0]], **DOUBLE), q)
    model.outside = "error"
    for tokens, asked, said in ((torch.nan, 0.0, "in a token, is not a number"), (0.0, -2.0, "in a query, is -2")):
        with pytest.raises(ah.InputError, match=said):
            model(torch.tensor([[tokens]], **DOUBLE), torch.tensor([[asked]], **DOUBLE))


def edited(path, change):
    """The file with its record changed, and a digest that fits it."""
    with safe_open(path, "numpy") as file:
        record = json.loads(file.metadata()["anchorhead"])
        tensors = {key: file.get_tensor(key).copy() for key in file.keys()}  # noqa: SIM118
    change(record, tensors)
    record["digest"] = digest(record, {key: tensor.tobytes() for key, tensor in tensors.items()})
    save_file(tensors, path, {"anchorhead": json.dumps(record)})


def another_place(record, tensors):
    """The rows of the first layer, which are read at the tokens, read the query."""
    tensors["maps.0.columns"][:] = 2


FORGED = {
    "a query's number taken for a token's": lambda record, _: record["program"].update(tokens=3),
    "no tokens at all": lambda record, _: record["program"].update(tokens=0),
    "more tokens than inputs": lambda record, _: record["program"].update(tokens=7),
    "rows that read another place": another_place,
    "another formula": lambda record, _: record.update(expressions=["q*cov(x, y)/(var(y) + 0.2)"]),
    "a smaller bound": lambda record, _: record["certificate"].update(approximation=1e-9, outputs=[1e-9]),
    "a mean that is none": lambda record, _: record["program"]["steps"][0].__setitem__(4, [0, 0, 1]),
    "a value of a query": lambda record, _: record["program"]["steps"][0].__setitem__(5, [0, 2, 1]),
    "an output of every token": lambda record, _: record["program"].update(outputs=[[0, 0, 1]]),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_files_are_refused(name, tmp_path):
    made(SLOPE).save(tmp_path / "model")
    edited(tmp_path / "model", FORGED[name])
    with pytest.raises((ah.VerificationError, ah.FileError)):
        ah.verify(tmp_path / "model")
