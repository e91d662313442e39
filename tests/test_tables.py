"""What users and files name is printed as it is: never taken for markup, never sent to the terminal as control."""

from dataclasses import replace

import pytest
from rich.console import Console
from rich.errors import MarkupError

import anchorhead as ah
from anchorhead import cli, tables

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
        tables._print_nodes((replace(node, **{name: HOSTILE}),))
        assert "[/bold] [red]x[/red] \\x1b[2K\\r" in said(capsys)


def test_a_plan_with_markup_in_its_names(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    found = ah.plan("sin(x)", (-1, 1), tol=1e-2)
    options = tuple(replace(option, method="[/bold]") for option in found.options)
    tables.print_plan(replace(found, expression=HOSTILE, options=options))
    said(capsys)


def test_progress_with_markup_in_it(monkeypatch):
    monkeypatch.setattr(cli, "Console", lambda **_: Console(force_terminal=True, quiet=True))
    with cli._progress(False) as report:
        try:
            report(HOSTILE)
        except MarkupError as error:
            pytest.fail(str(error))
