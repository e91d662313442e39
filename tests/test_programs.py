"""Programs in the prompt: one network with fixed weights runs them, within what is proved, and nothing else is run."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead.circuit.rows import StoredMap
from anchorhead.cli import app
from anchorhead.file.container import digest
from anchorhead.model.program import Program
from anchorhead.proof.interpretation import output_bounds
from anchorhead.proof.turns import KEPT

F64 = torch.float64
INTERPRETER = ah.interpreter(registers=24, instructions=64)
WEIGHTS = {name: matrix.numpy().tobytes() for name, matrix in INTERPRETER.matrices().items()}
UNIT = st.floats(-1, 1)


@cache
def formula() -> tuple[ah.CompiledModel, Program]:
    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-10)
    return model, ah.program(model)


@cache
def perceptron() -> tuple[nn.Module, ah.CompiledModel, Program]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    model = ah.compile(net, (-1, 1), tol=1e-10)
    return net, model, ah.program(model)


@cache
def cosine() -> Program:
    return ah.program(ah.compile("cos(w)", (-1.125, 1.125), tol=1e-10), turns=60)


@cache
def statistic() -> tuple[ah.CompiledModel, Program]:
    tokens, query = {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}
    model = ah.in_context.compile("q*cov(x, y)/(var(x) + 0.2)", tokens=tokens, query=query, tol=1e-9)
    return model, ah.program(model)


@cache
def descent() -> tuple[ah.in_context.GradientDescent, Program]:
    bounds = {"x": 1, "y": 2, "w": 1.5}
    model = ah.in_context.gradient_descent(
        "squared", features=2, examples=30, steps=20, learning_rate=0.5, bounds=bounds
    )
    return model, ah.program(model)


def programs() -> list[Program]:
    return [formula()[1], perceptron()[2], cosine(), statistic()[1], descent()[1]]


@pytest.mark.heavy
def test_one_interpreter_runs_all_of_them_with_the_same_weights() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(50, 2, generator=draw, dtype=F64) * 2 - 1
    model, program = formula()
    assert (INTERPRETER(program, x) - model(x)).abs().max() < 1e-9
    z = torch.rand(50, 4, generator=draw, dtype=F64) * 2 - 1
    _, compiled, network = perceptron()
    assert (INTERPRETER(network, z) - compiled(z)).abs().max() < 1e-9
    w = torch.rand(50, generator=draw, dtype=F64) * 2 - 1
    direct = w
    for _ in range(60):
        direct = direct.cos()
    assert (INTERPRETER(cosine(), w) - direct).abs().max() < 1e-9
    prompt, asked = (torch.rand(*shape, generator=draw, dtype=F64) * 2 - 1 for shape in ((40, 2), (3, 1)))
    model, program = statistic()
    assert (INTERPRETER(program, prompt, asked) - model(prompt, asked)).abs().max() < 1e-9
    algorithm, program = descent()
    X = torch.rand(30, 2, generator=draw, dtype=F64) * 2 - 1
    y = X @ torch.tensor([0.7, -0.4], dtype=F64) + 0.1 * torch.randn(30, generator=draw, dtype=F64)
    found = INTERPRETER(program, torch.cat([X, y[:, None]], -1), torch.zeros(2, dtype=F64))
    assert (found - algorithm(X, y)).abs().max() < 1e-9
    assert {name: matrix.numpy().tobytes() for name, matrix in INTERPRETER.matrices().items()} == WEIGHTS


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(UNIT, UNIT)
def test_a_formula_is_within_what_is_proved(x: float, y: float) -> None:
    _, program = formula()
    with mpmath.workdps(40):
        a, b = mpmath.mpf(x), mpmath.mpf(y)
        exact = mpmath.sin(3 * a * b) + mpmath.exp(-(a**2) + b / 2)
        found = mpmath.mpf(INTERPRETER(program, torch.tensor([x, y], dtype=F64)).item())
        assert abs(found - exact) <= program.certificate.bound


@pytest.mark.heavy
@settings(max_examples=30, deadline=None)
@given(st.floats(-1.125, 1.125))
def test_sixty_turns_are_within_what_is_proved(w: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.mpf(w)
        for _ in range(60):
            exact = mpmath.cos(exact)
        found = INTERPRETER(cosine(), torch.tensor(w, dtype=F64)).item()
        assert abs(mpmath.mpf(found) - exact) <= cosine().certificate.bound


@pytest.mark.heavy
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(UNIT, UNIT), min_size=1, max_size=30), UNIT)
def test_a_function_of_a_prompt_is_within_what_is_proved(tokens: list[tuple[float, float]], q: float) -> None:
    _, program = statistic()
    x, y = (np.array(column, dtype=np.longdouble) for column in zip(*tokens, strict=True))
    spread = ((x - x.mean()) ** 2).mean()
    exact = q * ((x - x.mean()) * (y - y.mean())).mean() / (spread + np.longdouble("0.2"))
    found = INTERPRETER(program, torch.tensor(tokens, dtype=F64), torch.tensor([[q]], dtype=F64)).item()
    assert abs(found - exact) <= program.certificate.bound


@pytest.mark.heavy
def test_descent_is_within_what_is_proved_and_refuses_a_state_outside() -> None:
    _, program = descent()
    draw = np.random.default_rng(0)
    X = draw.uniform(-1, 1, (12, 2))
    y = X @ [0.9, -0.3]
    w = np.zeros(2)
    for _ in range(20):
        w = w - 0.5 * ((X @ w - y)[:, None] * X).mean(0)
    tokens = torch.tensor(np.column_stack([X, y]), dtype=F64)
    found = INTERPRETER(program, tokens, torch.zeros(2, dtype=F64))
    assert np.abs(found.numpy() - w).max() <= program.certificate.bound
    assert any("checks" in text for text in program.certificate.assumptions)
    apart = torch.tensor([[1.0, 1.0, 2.0], [1.0, -1.0, -2.0]], dtype=F64)  # leads to w = (0, 2)
    with pytest.raises(ah.OutsideRangeError, match="left its domain"):
        INTERPRETER(program, apart, torch.zeros(2, dtype=F64))


@pytest.mark.heavy
def test_literally_it_is_self_attention_that_leaves_the_program_as_it_was() -> None:
    x = torch.tensor([[0.3, -0.8], [1.0, 1.0]], dtype=F64)
    _, program = formula()
    assert (INTERPRETER.literal(program, x) - INTERPRETER(program, x)).abs().max() <= program.certificate.rounding
    before = INTERPRETER.sequence(program, x)
    after = before
    for _ in range(program.steps):
        after = INTERPRETER.layer(after)
    assert torch.equal(before[:, : program.tokens], after[:, : program.tokens])
    assert torch.equal(before[:, -1], after[:, -1])
    prompt, asked = torch.rand(2, 9, 2, dtype=F64), torch.rand(2, 3, 1, dtype=F64)
    _, program = statistic()
    gap = (INTERPRETER.literal(program, prompt, asked) - INTERPRETER(program, prompt, asked)).abs().max()
    assert gap <= program.certificate.rounding


@pytest.mark.heavy
def test_masked_tokens_do_not_count() -> None:
    _, program = statistic()
    prompt, asked = torch.rand(9, 2, dtype=F64), torch.rand(3, 1, dtype=F64)
    mask = torch.tensor([True, False, True, True, False, True, True, True, False])
    found = INTERPRETER(program, prompt, asked, mask)
    assert torch.allclose(found, INTERPRETER(program, prompt[mask], asked), atol=1e-11)


@pytest.mark.heavy
def test_saved_verified_and_loaded_it_is_the_same(tmp_path) -> None:
    for k, program in enumerate(programs()):
        path = tmp_path / f"{k}.safetensors"
        program.save(path)
        checked = ah.verify(path)
        assert checked.level == "proved"
        assert checked.bound <= program.certificate.bound
        loaded = Program.load(path)
        for name, tensor in program.named_buffers():
            assert torch.equal(tensor, dict(loaded.named_buffers())[name]), name
    with pytest.raises(ah.FileError, match=r"ah\.Program\.load"):
        ah.load(path)


def _edited(source, target, change) -> None:
    """A copy of a file with other numbers or another record, and a digest that fits."""
    from safetensors import safe_open

    with safe_open(source, "numpy") as file:
        record = json.loads(file.metadata()["anchorhead"])
    arrays = load_file(source)
    change(record, arrays)
    record["digest"] = digest(record, {name: array.tobytes() for name, array in arrays.items()})
    save_file(arrays, target, metadata={"anchorhead": json.dumps(record, sort_keys=True)})


@pytest.mark.parametrize(
    "change",
    [
        lambda record, arrays: arrays["keys.0.entries"].__setitem__(3, 17.0),
        lambda record, arrays: arrays["keys.0.bias"].__setitem__(0, 1e-3),
        lambda record, arrays: arrays["values.0.entries"].__setitem__(0, 9.0),
        lambda record, arrays: arrays["values.0.columns"].__setitem__(0, 0),
        lambda record, arrays: arrays["values.0.bias"].__setitem__(0, 1.0),
        lambda record, arrays: arrays["keys.0.columns"].__setitem__(0, 99),
        lambda record, arrays: record.update(gap=2.0),
        lambda record, arrays: record.update(gap=3.0),
        lambda record, arrays: record.update(turns=2),
        lambda record, arrays: record.update(turns=10**9),
        lambda record, arrays: record["target"]["outputs"].__setitem__(0, [0.5]),
        lambda record, arrays: record["certificate"].update(rounding=1e-30),
    ],
)
def test_a_forged_program_is_refused(tmp_path, change) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    ah.program(ah.compile(net, (-1, 1), tol=1e-6)).save(tmp_path / "good.safetensors")
    _edited(tmp_path / "good.safetensors", tmp_path / "bad.safetensors", change)
    with pytest.raises((ah.FileError, ah.VerificationError)):
        ah.verify(tmp_path / "bad.safetensors")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 23), st.floats(-1e-4, 1e-4), st.integers(0, 100))
def test_the_bound_holds_for_the_tokens_that_run(place: int, by: float, seed: int) -> None:
    """Edited tokens are further from the network's, and the bound for them is so much larger."""
    net, _, program = perceptron()
    keys = program.code.code.keys
    bias = list(keys.bias)
    bias[place] += by
    moved = StoredMap(keys.entries, keys.columns, keys.starts, tuple(bias))
    code = replace(program.code, code=replace(program.code.code, keys=moved))
    bound = max(output_bounds(code))
    other = Program(code, program.certificate)
    x = torch.rand(20, 4, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2 - 1
    with torch.no_grad():
        assert (INTERPRETER(other, x) - net(x)).abs().max() <= bound


def test_changed_tokens_are_not_called_proved(tmp_path) -> None:
    program = copy.deepcopy(ah.program(ah.compile("tanh(x)", (-1, 1), tol=1e-9)))
    assert program.certificate.level == "proved"
    program.values[0, 1] += 0.1
    assert program.certificate.level == "unproved"
    with pytest.raises(ah.FileError, match="make it again"):
        program.save(tmp_path / "x.safetensors")


def test_what_cannot_be_run_is_refused_with_a_sentence() -> None:
    program = ah.program(ah.compile("tanh(x)", (-1, 1), tol=1e-9))
    with pytest.raises(ah.SizeError, match="registers=2"):
        ah.interpreter(1)(program, torch.zeros(3, dtype=F64))
    with pytest.raises(ah.InputError, match="bounded domain"):
        ah.program(ah.compile("gelu(x)", tol=1e-6))
    with pytest.raises(ah.InputError, match="as many of both"):
        ah.program(ah.compile("x*y", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-6), turns=3)
    with pytest.raises(ah.InputError, match="compiled model"):
        ah.program("sin(x)")
    with pytest.raises(ah.InputError, match=r"ah\.program"):
        INTERPRETER("sin(x)", torch.zeros(1, dtype=F64))
    with pytest.raises(ah.InputError, match="whole number"):
        ah.interpreter(0)
    with pytest.raises(ah.InputError, match="neither query nor mask"):
        INTERPRETER(program, torch.zeros(1, dtype=F64), mask=torch.tensor([True]))
    with pytest.warns(ah.OutsideRangeWarning):
        INTERPRETER(program, torch.tensor([2.0], dtype=F64))


def test_an_affine_map_has_no_program():
    with pytest.raises(ah.InputError, match="affine"):
        ah.program(ah.compile("x + y", (-1, 1)))


def test_an_affine_map_that_is_repeated_has_one() -> None:
    model = ah.compile(["(3*x - 4*y)/5", "(4*x + 3*y)/5"], {"x": (-1.5, 1.5), "y": (-1.5, 1.5)}, tol=1e-9)
    program, x = ah.program(model, turns=7), torch.rand(50, 2, dtype=torch.float64) - 0.5
    exact = x @ torch.linalg.matrix_power(torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64), 7).T
    assert (ah.interpreter()(program, x) - exact).abs().max().item() <= program.certificate.bound <= 1e-7


@pytest.mark.heavy
def test_turns_that_spread_errors_over_the_domain_are_said_to_be_known_by_it_alone(tmp_path: Path) -> None:
    model = ah.compile("3.7*x*(1-x)", (0, 1), tol=1e-10)
    assert ah.program(model, turns=5).certificate.level == "proved"
    for turns in (40, 20):
        program = ah.program(model, turns=turns)
        assert program.certificate.level == "trivial"
        assert program.certificate.bound <= 1.02
    assert str(program.certificate).startswith("nothing useful is known")
    program.save(tmp_path / "turns.safetensors")
    assert Program.load(tmp_path / "turns.safetensors").certificate.level == "trivial"
    with pytest.raises(ah.VerificationError, match="trivial"):
        ah.verify(tmp_path / "turns.safetensors")


@pytest.mark.heavy
@pytest.mark.parametrize(("turns", "level"), [(15, "proved"), (18, "trivial"), (22, "trivial"), (200, "trivial")])
def test_no_number_of_turns_is_said_to_lead_further_apart_than_its_domain_is_wide(turns: int, level: str) -> None:
    program = ah.program(ah.compile("3.9*x*(1-x)", (0, 1), tol=1e-12), turns=turns)
    known = program.certificate
    assert known.level == level
    assert known.bound <= 1 + 1e-9
    assert (known.assumptions[-1] == KEPT) == (turns == 200)
    for start in (0.2, 0.3, 0.5, 0.9):
        exact = mpmath.mpf(start)
        with mpmath.workdps(200):
            for _ in range(turns):
                exact = mpmath.mpf("3.9") * exact * (1 - exact)
        assert abs(INTERPRETER(program, torch.tensor(start, dtype=F64)).item() - float(exact)) <= known.bound


@pytest.mark.heavy
def test_the_program_of_an_algorithm_is_never_said_to_be_further_off_than_its_declared_range() -> None:
    for steps, level in ((5, "proved"), (10, "trivial"), (30, "trivial")):
        descent = ah.in_context.gradient_descent("squared", features=3, examples=20, steps=steps, learning_rate=0.3)
        program = ah.program(descent)
        assert program.certificate.level == level
        assert program.certificate.bound <= 2 * descent.bounds.w
        assert (KEPT in program.certificate.assumptions) == (level == "trivial")


def test_turns_that_may_lead_out_of_where_the_target_is_defined_have_a_program() -> None:
    model = ah.compile("1/(w + 1.5) - 0.7 + 0.2*w", (-1, 1), tol=1e-9)
    program = ah.program(model, turns=40)
    assert program.certificate.bound <= 4, "no further than twice the domain is wide"
    w = mpmath.mpf(0)
    for _ in range(40):
        w = 1 / (w + mpmath.mpf(1.5)) - mpmath.mpf("0.7") + mpmath.mpf("0.2") * w
    assert abs(INTERPRETER(program, torch.tensor(0.0, dtype=F64)).item() - float(w)) <= program.certificate.bound


@pytest.mark.heavy
def test_an_algorithm_has_a_program_without_a_tol_and_refusals_speak_of_the_one_given() -> None:
    descent = ah.in_context.gradient_descent("squared", features=2, examples=16, steps=10, learning_rate=0.2)
    assert ah.program(descent).code.turns == 10
    with pytest.raises(ah.ToleranceError, match=r"tol=1e-11, 1e-12 in each of 10 turns"):
        ah.program(descent, tol=1e-11)


@pytest.mark.heavy
@pytest.mark.parametrize("tol", [1e-4, 1e-3, 1e-2])
def test_every_tol_above_one_that_is_had_is_had(tol: float) -> None:
    model = ah.compile("max(x,y)*z", {"x": (-1, 1), "y": (-1, 1), "z": (0, 2)}, tol=1e-6)
    program = ah.program(model, tol=tol)
    x = (torch.rand(200, 3, generator=torch.Generator().manual_seed(0), dtype=F64) * 2 - 1).round(decimals=1)
    x[:, 2] += 1
    exact = torch.maximum(x[:, 0], x[:, 1]) * x[:, 2]
    assert (INTERPRETER(program, x)[:, 0] - exact).abs().max().item() <= program.certificate.bound <= tol


def test_a_file_of_a_program_is_shown_with_its_certificate_and_tokens(tmp_path: Path) -> None:
    program = ah.program(ah.compile("cos(w)", (-1.125, 1.125), tol=1e-8), turns=4)
    program.save(tmp_path / "turns.safetensors")
    runner = CliRunner()
    said = runner.invoke(app, ["show", str(tmp_path / "turns.safetensors")])
    assert said.exit_code == 0
    assert str(Program.load(tmp_path / "turns.safetensors").certificate) in said.output
    assert f"tokens {program.tokens}, instructions 3 in each of 4 turns" in said.output
    plain = json.loads(runner.invoke(app, ["show", "--json", str(tmp_path / "turns.safetensors")]).output)
    assert (plain["turns"], plain["certificate"]["bound"]) == (4, program.certificate.bound)
