"""Once numbers were changed, nothing says what was proved of the old ones; what a mechanism runs on is checked."""

import json

import pytest
import torch
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead.cli import app
from anchorhead.model.mechanism import EDITED

SQUARE = {"x": (-3, 3), "y": (-3, 3)}


def edited(part):
    model = ah.compile("sin(x*y) + (x - y)**2", SQUARE, tol=1e-3)
    with torch.no_grad():
        if part == "constants":
            next(p for name, p in model.named_parameters() if name.endswith("constants")).mul_(1.3)
        else:
            model.network.layered.sequence[0].rows.weight.zero_()
    return model


def shown(path, *options):
    result = CliRunner().invoke(app, ["show", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("part", ["constants", "rows"])
def test_an_edited_model_says_so_wherever_it_says_what_heads_do(part, tmp_path):
    model = edited(part)
    assert str(model.mechanism).splitlines()[0] == str(model.literal_mechanism()).splitlines()[0] == EDITED
    assert EDITED in model.mechanism.html()
    assert model.mechanism.as_dict()["edited"]
    assert all(node.error == node.contribution == node.own == float("inf") for node in model.report.nodes)
    model.save(tmp_path / "edited.safetensors")
    said = shown(tmp_path / "edited.safetensors")
    assert EDITED in said
    assert "nan" not in said
    values = json.loads(shown(tmp_path / "edited.safetensors", "--json"), parse_constant=pytest.fail)
    assert values["mechanism"]["edited"]
    assert all(node["error"] is None for node in values.get("nodes", []))
    assert "nan" not in str(ah.load(tmp_path / "edited.safetensors"))
    assert ah.load(tmp_path / "edited.safetensors")._repr_html_()


def test_a_model_that_was_not_edited_does_not_say_so():
    model = ah.compile("x*y", SQUARE, tol=1e-3, dtype=torch.float32)
    for mechanism in (model.mechanism, model.literal_mechanism()):
        assert not mechanism.edited
        assert EDITED not in str(mechanism)


@pytest.mark.parametrize("value", [0.3, 1e40, torch.tensor(0.1, dtype=torch.float64)])
def test_what_is_patched_under_a_minus_keeps_its_digits(value):
    model = ah.compile("x*y + min(x, y)", SQUARE, tol=1e-3)
    x = torch.zeros(1, 2, dtype=torch.float64)
    written = model.mechanism.run(x, patched={"min(x, y)": value}).written["-min(x, y)", 0]
    assert float(written) == -float(value)


def test_a_prompts_mechanism_takes_tokens_and_queries_and_says_so(tmp_path):
    model = ah.in_context.compile("mean(x)*q", {"x": (-1, 1)}, {"q": (-1, 1)}, tol=1e-3)
    tokens, query = torch.rand(2, 3, 1, dtype=torch.float64), torch.rand(2, 1, 1, dtype=torch.float64)
    for given in (tokens, torch.rand(3, 2)):  # the second has as many numbers as there are inputs
        with pytest.raises(ah.InputError, match="needs query="):
            model.mechanism.run(given)
    with pytest.raises(ah.ShapeError, match=r"tokens must be \(\.\.\., n, 1\)"):
        model.mechanism.run(torch.rand(2, 3, 2), query)
    with pytest.raises(ah.ShapeError, match=r"query must be \(\.\.\., m, 1\)"):
        model.mechanism.run(tokens, torch.rand(2))
    assert torch.allclose(model.mechanism.run(tokens, query).outputs, model.exact(tokens, query))
    alone = ah.in_context.compile(["var(x)", "mean(x)"], {"x": (-1, 1)}, tol=1e-3)
    assert torch.allclose(alone.mechanism.run(tokens).outputs, alone.exact(tokens))
    assert alone.mechanism.run(tokens).outputs.shape == alone(tokens).shape == (2, 2)
    with pytest.raises(ah.InputError, match="takes no query"):
        alone.mechanism.run(tokens, query)
    model.save(tmp_path / "prompt.safetensors")
    said = shown(tmp_path / "prompt.safetensors")
    assert "mean(x), of the prompt: computes" in said
    assert "q*mean(x), of each query: computes" in said


def test_an_algorithm_says_that_it_has_no_mechanism():
    model = ah.in_context.gradient_descent("squared", features=2, examples=6, steps=2, learning_rate=0.1)
    assert not hasattr(model, "mechanism")
    with pytest.raises(ah.AnchorheadError, match="is an algorithm, and has no mechanism head by head"):
        _ = model.mechanism
