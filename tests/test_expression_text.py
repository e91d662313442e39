"""Text becomes a graph and the graph the same text; what is not an expression is refused at once, with its place."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression import Expression, Node, parse
from anchorhead.expression.graph import constant, divide, negate, number_of, variable

CANONICAL = [
    "x",
    "3",
    "-2",
    "0.1",
    "1e-10*x",
    "1/3*x",
    "x*(1/3)",
    "x*-2",
    "-x**-2",
    "(-x)**2",
    "(-2)**x",
    "-2**2",
    "x**y**z",
    "(x**y)**z",
    "x - (y - z)",
    "x - y - z",
    "x/(y/z)",
    "x/y/z",
    "-(x*y)",
    "-x*y",
    "--x",
    "1/0",
    "9**9**9**9",
    "pi*e",
    "sin(3*x*y) + exp(-x**2)",
    "leaky_relu(x, 0.01)",
    "clip(x, -1, 1)",
    "max(x, y, 0.5)",
    "rrelu(x, 0.125, 1/3)",
    "selu(hardswish(x))",
]

SAME = {
    "arcsin(x)": "asin(x)",
    "maximum(x, 1)": "max(x, 1)",
    "clamp(x, -1, 1)": "clip(x, -1, 1)",
    "clamp(x, max=1, min=-1)": "clip(x, -1, 1)",
    "clip(x, min=0)": "max(x, 0)",
    "clip(x, max=0)": "min(x, 0)",
    "swish(x)": "silu(x)",
    "gelu(x, approximate='tanh')": "gelu_tanh(x)",
    "gelu(x, approximate='none')": "gelu(x)",
    "leaky_relu(x)": "leaky_relu(x, negative_slope=1/100)",
    "elu(x, alpha=3/2)": "elu(x, 1.5)",
    "softplus(x, beta=2)": "softplus(x, 2)",
    "+x": "x",
    "0x10*x": "16*x",
    "1_000.5": "1000.5",
    "pow(x, 2)": "x**2",
    " x \n": "x",
}

# text: (error, words of the message)
REFUSED = {
    "": (ExpressionError, "empty"),
    "  \n\t": (ExpressionError, "empty"),
    "__import__('os').system('x')": (ExpressionError, "plain name"),
    "__import__('os')": (ExpressionError, "only, and this is a constant of type str"),
    "eval(x)": (ExpressionError, "not a function that is known"),
    "x.__class__": (ExpressionError, "attribute"),
    "(lambda: 0)()": (ExpressionError, "plain name"),
    "lambda x: x": (ExpressionError, "lambda"),
    "[x for x in y]": (ExpressionError, "ListComp"),
    "x[0]": (ExpressionError, "subscript"),
    "x < y": (ExpressionError, "comparison"),
    "x if y else z": (ExpressionError, "condition"),
    "x and y": (ExpressionError, "logical"),
    "(x := 3)": (ExpressionError, "assignment"),
    "x = 3": (ExpressionError, "does not parse"),
    'f"{x}"': (ExpressionError, "formatted string"),
    "'abc'": (ExpressionError, "type str"),
    "b'abc'": (ExpressionError, "type bytes"),
    "True": (ExpressionError, "type bool"),
    "None": (ExpressionError, "type NoneType"),
    "...": (ExpressionError, "type ellipsis"),
    "2j": (ExpressionError, "type complex"),
    "(x, y)": (ExpressionError, "tuple"),
    "sin(*x)": (ExpressionError, "starred"),
    "sin(**x)": (ExpressionError, "unpacked"),
    "elu(x, alpha=1, alpha=2)": (ExpressionError, "repeated|twice"),
    "x\n+1": (ExpressionError, "line 2"),
    "x; y": (ExpressionError, "does not parse"),
    "import os": (ExpressionError, "does not parse"),
    "x\x00": (ExpressionError, "character"),
    "ｘ": (ExpressionError, "character"),
    "x²": (ExpressionError, "character"),
    "x\u202e": (ExpressionError, "character"),
    "x^2": (ExpressionError, r"write \*\*"),
    "x @ y": (ExpressionError, "operator"),
    "~x": (ExpressionError, "signs"),
    "not x": (ExpressionError, "signs"),
    "sihn(x)": (ExpressionError, "did you mean sin"),
    "relu(": (ExpressionError, "does not parse"),
    "sin(x))": (ExpressionError, "does not parse"),
    "sin": (ExpressionError, "is a function"),
    "sin()": (ExpressionError, "takes 1 argument"),
    "sin(x, y)": (ExpressionError, "takes 1 argument"),
    "max(x)": (ExpressionError, "2 or more"),
    "clip(x, 1)": (ExpressionError, "lower and an upper"),
    "clip(x, 1, 2, 3)": (ExpressionError, "lower and an upper"),
    "clip(x, 1, 2, min=0)": (ExpressionError, "lower and an upper"),
    "prelu(x)": (ExpressionError, "needs the number weight"),
    "leaky_relu(x, y)": (ExpressionError, "plain number"),
    "leaky_relu(x, slope=1)": (ExpressionError, "no keyword slope"),
    "elu(x, 1, alpha=1)": (ExpressionError, "twice"),
    "celu(x, 0)": (ExpressionError, "must not be 0"),
    "softplus(x, -1)": (ExpressionError, "positive"),
    "gelu(x, approximate='sigmoid')": (ExpressionError, "neither"),
    "1e99999999": (ExpressionError, "too large"),
    "1e-99999999": (ExpressionError, "too large or too small"),
    "7" * 5000: (ExpressionError, "digits"),
    "__x": (ExpressionError, "cannot name a variable"),
    "x % 2": (DiscontinuityError, "jumps"),
    "x // 2": (DiscontinuityError, "jumps"),
    "hardshrink(x)": (DiscontinuityError, "softshrink is its continuous relative"),
    "threshold(x, 0, 1)": (DiscontinuityError, "jumps at the threshold"),
    "sign(x)": (DiscontinuityError, "jumps at 0"),
    "floor(x)": (DiscontinuityError, "between jumps"),
    "heaviside(x, 0)": (DiscontinuityError, "jumps at 0"),
    "softplus(x, 1, 20)": (DiscontinuityError, "threshold"),
    "(" * 100_000: (ExpressionError, "characters"),
    "(" * 19_000: (ExpressionError, "brackets"),
    "(" * 201 + "x" + ")" * 201: (ExpressionError, "brackets"),
    "[" * 5000 + "]" * 5000: (ExpressionError, "brackets"),
    "-" * 1_000_000 + "x": (ExpressionError, "characters"),
    "-" * 15_000 + "x": (ExpressionError, "chain"),
    "- " * 9_000 + "x": (ExpressionError, "chain"),
    "not " * 4_000 + "x": (ExpressionError, "signs|nested|parse"),
    "x" + "**2" * 5_000: (ExpressionError, "chain"),
    "+".join(["x"] * 9_900): (ExpressionError, "too many terms"),
    "x if x else " * 1_500 + "x": (ExpressionError, "condition|nested"),
    "sin(x)" * 3000: (ExpressionError, "parse"),
}


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical_text_is_its_own_text(text):
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", SAME)
def test_spellings_of_one_function_are_one_graph(text):
    assert parse(text) == parse(SAME[text])


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:30]))
def test_what_is_not_an_expression_is_refused(text):
    kind, words = REFUSED[text]
    with pytest.raises(kind, match=words) as caught:
        parse(text)
    assert len(str(caught.value)) < 1000


def test_a_refusal_points_at_the_place():
    with pytest.raises(ExpressionError) as caught:
        parse("x + sihn(x)")
    assert str(caught.value).endswith("line 1, column 5:\n  x + sihn(x)\n      ^")
    with pytest.raises(ExpressionError) as caught:
        parse("sqrt(1 +\n (s - y) ^2)")
    assert str(caught.value).endswith("line 2, column 10:\n   (s - y) ^2)\n           ^")


def test_variables_keep_the_order_they_are_given_or_appear_in():
    assert parse("y + x*y").variables == ("y", "x")
    assert parse("y + x", variables=["x", "y", "z"]).variables == ("x", "y", "z")
    assert parse("3").variable == "x"
    with pytest.raises(ExpressionError, match="not a variable here"):
        parse("y", variables=["x"])
    with pytest.raises(ExpressionError, match="already means something"):
        parse("x", variables=["sin"])
    with pytest.raises(ExpressionError, match="cannot name"):
        parse("x", variables=["x y"])
    with pytest.raises(ExpressionError, match="one variable"):
        parse("x*y").variable  # noqa: B018
    with pytest.raises(ExpressionError, match="twice"):
        parse("x", variables=["x", "x"])


def test_decimals_are_the_decimals_they_are():
    assert number_of(parse("0.1").node) == Fraction(1, 10)
    assert number_of(constant(0.1)) != Fraction(1, 10)
    assert number_of(parse("1.5e-3").node) == Fraction(3, 2000)


def test_nodes_never_change_and_survive_pickling():
    expression = parse(["gelu(x) + y", "0.1*x"], variables=["y", "x"])
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert pickle.loads(pickle.dumps(expression)).outputs[0] is expression.outputs[0]
    with pytest.raises(AttributeError):
        expression.outputs[0].op = "sub"
    with pytest.raises(AttributeError):
        expression.variables = ("x",)


def graphs() -> st.SearchStrategy[Node]:
    numbers = st.fractions(max_denominator=1000) | st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6)
    leaves = numbers.map(constant) | st.sampled_from("xyz").map(variable) | st.sampled_from([Node("pi"), Node("e")])

    def grow(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        pairs = st.tuples(inner, inner)
        infix = st.builds(lambda op, args: Node(op, args), st.sampled_from(["add", "sub", "mul", "pow", "max"]), pairs)
        unary = st.builds(lambda op, arg: Node(op, (arg,)), st.sampled_from(["sin", "gelu", "abs"]), inner)
        return infix | unary | inner.map(negate) | pairs.map(lambda pair: divide(*pair))

    return st.recursive(leaves, grow, max_leaves=25)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_text_of_any_graph_parses_to_that_graph(node):
    assert parse(str(node)).node is node


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | st.text("x0123456789.+-*/()e, ^%[]{}:=\"'\n_sincomax", max_size=60))
def test_any_text_is_an_expression_or_refused(text):
    try:
        result = parse(text)
    except ExpressionError:
        return
    assert isinstance(result, Expression)
    assert parse(result.text, result.variables) == result
