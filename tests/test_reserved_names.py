"""A name that formulas read as a number or a function is no variable, wherever one names it: else what is proved would
be another function than the one that was meant."""

import pytest
import torch
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead.cli import app
from anchorhead.expression.functions import ALIASES, CONSTANTS, FUNCTIONS
from anchorhead.expression.graph import Expression, variable

BOX = (-1, 1)


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize(
    "asked",
    [
        lambda name: ah.compile(f"sin(a*{name})", {"a": BOX, name: BOX}),
        lambda name: ah.compile(f"sin({name})", {name: BOX}),
        lambda name: ah.compile("sin(x)", {name: BOX}),
        lambda name: ah.compile([f"a*{name}", "a"], {"a": BOX, name: BOX}),
        lambda name: ah.compile(f"3*{name} + 0*x", {"x": BOX, name: BOX}),
        lambda name: ah.plan(f"sin(a*{name})", {"a": BOX, name: BOX}),
        lambda name: ah.distance(f"sin({name}*x)", "sin(3*x)", {"x": BOX, name: BOX}),
        lambda name: ah.in_context.compile(f"mean({name})", tokens={name: BOX}),
        lambda name: Expression([variable(name)], [name]),
    ],
)
def test_constants_are_no_variables(asked, name):
    with pytest.raises(ah.ExpressionError, match=f"{name} is a number in every formula"):
        asked(name)


@pytest.mark.parametrize("name", [*FUNCTIONS, *ALIASES, "nan", "inf", "Infinity", "__x", "1x", 3])
def test_what_formulas_read_otherwise_is_no_variable(name):
    with pytest.raises(ah.ExpressionError, match=r"rename|cannot name"):
        ah.compile("x*y", {"x": BOX, "y": BOX, name: BOX})


def test_the_command_refuses_them():
    found = CliRunner().invoke(app, ["compile", "sin(a*e)", "-d", "a=-1:1", "-d", "e=-1:1"])
    assert found.exit_code != 0
    assert "e is a number in every formula" in str(found.exception)


def test_parameters_of_python_functions_name_variables():
    with pytest.raises(ah.ExpressionError, match="e is a number in every formula"):
        ah.compile(lambda a, e: torch.sin(a * e), [BOX, BOX])
