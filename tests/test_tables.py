"""What users and files name is printed as it is: never taken for markup, never sent to the terminal as control; and
however narrow the terminal, no digit is lost."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import anchorhead as ah
from anchorhead import tables

HOSTILE = "[/bold] [red]x[/red] \x1b[2K\r"


@pytest.fixture(scope="module")
def models():
    return ah.compile("sin(x)", (-1, 1), tol=1e-2), ah.compile("x*y", (-1, 1), tol=1e-2, method="graph")


def said(capsys):
    text = capsys.readouterr().out
    assert "[/bold]" in text.replace("\n", "")
    assert "\x1b[2K" not in text
    assert "\r" not in text
    return text


def test_a_method_with_markup_in_its_name(models, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for model in models:
        monkeypatch.setattr(model, "method", HOSTILE)
        tables.print_model(model, False, None)
        assert "[/bold] [red]x[/red] \\x1b[2K\\r" in said(capsys)


def test_nodes_with_markup_in_their_names(models, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    node = models[1].report.nodes[0]
    for name in ("label", "function", "method"):
        tables.print_nodes(replace(models[1].report, nodes=(replace(node, **{name: HOSTILE}),)).rows())
        assert "[/bold] [red]x[/red] \\x1b[2K\\r" in said(capsys)


def test_a_plan_with_markup_in_its_names(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    found = ah.plan("sin(x)", (-1, 1), tol=1e-2)
    options = tuple(replace(option, method="[/bold]") for option in found.options)
    tables.print_plan(replace(found, expression=HOSTILE, options=options))
    said(capsys)


VERBS = ("compile", "verify", "show", "plan", "convert", "compare", "diagnose", "reproduce", "explore")
FORMULA = "sin(12.34567891*x*y) + 0.000123456789*exp(-x**2 + y/2)"


def printed(columns: int, *arguments: str, code: int = 0) -> str:
    """What the command prints into a pipe of that width."""
    command = [sys.executable, "-m", "anchorhead", *arguments]
    environment = os.environ | {"COLUMNS": str(columns)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def numbers(text: str) -> set[str]:
    return set(re.findall(r"[\d.,]*\d(?:e[+-]?\d+)?", text))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A network and a head, in files."""
    folder = tmp_path_factory.mktemp("saved")
    found = {"network": folder / "network.safetensors", "head": folder / "head.safetensors"}
    ah.compile(FORMULA, {"x": (-1.23456789, 1), "y": (-1, 1)}, tol=1e-6).save(found["network"])
    ah.compile("gelu(x)", tol=1e-9).save(found["head"])
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("command", [
    ("show", "network"), ("show", "head"), ("verify", "network"), ("verify", "head"), ("diagnose", "head"),
    ("plan", "sin(3*x)", "-d", "x=-1:1", "--tol", "1e-4"), ("compile", "sin(3*x*y)", "--domain=-1:1", "--tol", "1e-4"),
    ("plan", "--theorem", "two_layer", "--tokens", "2", "--features", "2", "--lipschitz", "3"),
])  # fmt: skip
def test_no_number_is_cut_however_narrow_the_output(command: tuple[str, ...], saved: dict[str, Path]) -> None:
    words = [str(saved.get(word, word)) for word in command]
    wide = printed(300, *words)
    assert len(numbers(wide)) > 3
    for columns in (40, 60, 80):
        narrow = printed(columns, *words)
        assert "…" not in narrow
        assert numbers(wide) <= numbers(narrow), (columns, narrow)


@pytest.mark.heavy
@pytest.mark.parametrize("verb", VERBS)
def test_no_word_of_help_is_cut_however_narrow_the_output(verb: str) -> None:
    for columns in (40, 60, 80):
        assert "…" not in printed(columns, verb, "--help")
    assert "…" not in printed(40, verb, "--unheard-of", code=2)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120])
def test_tables_fit_or_are_written_row_below_row(columns: int, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [("a node with a long name 0.123456789012345", "f(u)", "8.07123456e+05"), ("b", "g(u)", "1.5e-300")]
    tables.show("title", ("node", "function of u", "error"), rows)
    text = capsys.readouterr().out
    for row in rows:
        assert all(word in text for cell in row for word in cell.split())
    assert max(map(len, text.splitlines())) <= max(columns, len("node: " + rows[0][0]))
