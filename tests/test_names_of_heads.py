"""Heads asked for by what they compute, however that is written, and what hook points claim of them."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

import anchorhead as ah
from anchorhead.expression.normal import form
from anchorhead.expression.parse import parse
from anchorhead.proof.network_claim import followed

BOX = {"x": (-1, 1), "y": (-1, 1)}
FUNCTIONS = {name: getattr(mpmath, name) for name in ("sin", "exp", "tanh", "cosh", "atan", "sqrt", "log")} | {
    "abs": abs,
    "relu": lambda u: max(u, mpmath.mpf(0)),
    "max": max,
    "min": min,
}


def formulas(*of_two):
    """Short texts over x, y and small numbers; of_two: functions of two arguments, max where none is given."""
    leaf = st.sampled_from(["x", "y", "2", "3", "0.5", "1"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(st.sampled_from([f for f in FUNCTIONS if f not in ("max", "min")]), inner).map(
                lambda t: f"{t[0]}({t[1]})"
            ),
            st.tuples(inner, st.sampled_from(["2", "3", "-1", "0.5", "-2"])).map(lambda t: f"({t[0]})**({t[1]})"),
            st.tuples(st.sampled_from(of_two or ["max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
            inner.map(lambda t: f"-({t})"),
        ),
        max_leaves=5,
    )


def value(text, x, y):
    """By Python's own reading of it, in mpmath; None where it has none."""
    with mp.workdps(40):
        try:
            found = eval(text, {"__builtins__": {}}, FUNCTIONS | {"x": mpmath.mpf(x), "y": mpmath.mpf(y)})
        except (ZeroDivisionError, ValueError, TypeError, OverflowError):
            return None
        return found if isinstance(found, int | float | mpmath.mpf) and mpmath.isfinite(found) else None


def read(text):
    try:
        return form(parse(text).outputs[0])
    except ah.AnchorheadError:
        return None


@given(st.lists(formulas("max", "min"), min_size=6, max_size=12, unique=True))
@settings(max_examples=150)
def test_formulas_of_one_form_are_one_function(texts):
    forms = [(text, read(text)) for text in texts]
    for i, (one, its) in enumerate(forms):
        for other, another in forms[:i]:
            if its is None or its != another:
                continue
            for x, y in ((0.37, 0.81), (-0.63, 0.29), (1.7, -2.3), (-0.4, -1.1)):
                a, b = value(one, x, y), value(other, x, y)
                if a is not None and b is not None:
                    assert mpmath.almosteq(a, b, 1e-12, 1e-12), (one, other)


@given(formulas(), formulas(), formulas())
@settings(max_examples=150)
def test_order_and_brackets_do_not_matter(a, b, c):
    for one, other in (
        (f"{a} + {b} + {c}", f"{c} + ({b} + {a})"),
        (f"{a}*{b}*{c}", f"{c}*({b}*{a})"),
        (f"-({a}) - {b}", f"-1*{b} - {a}"),
        (f"sin(3*({a}))", f"sin(({a})*3)"),
    ):
        if read(one) is not None and read(other) is not None and "**" not in one:
            assert read(one) == read(other), (one, other)


@given(formulas(), formulas(), formulas())
def test_minima_and_sizes_have_one_form(a, b, c):
    assert read(f"abs({a} - {b})") == read(f"abs({b} - {a})")
    assert read(f"({a} - {b})**2") == read(f"({b} - {a})**2")
    assert read(f"({a} - {b})*({c} + {a})") == read(f"-({a} + {c})*({b} - {a})")
    assert read(f"min({a}, {b}, {c})") == read(f"-max(-({c}), -min({a}, {b}))") == read(f"min({c}, {b}, {a})")


@pytest.mark.parametrize(
    ("formula", "typed"),
    [
        ("sin(3*x*y) + exp(-x**2)", ["sin(3*x*y)", "sin(y*3*x)", "exp(-x**2)", "exp(-(x*x))", "y*x"]),
        ("softplus(x)*y + y", ["softplus(x)*y", "y*softplus(x)", "softplus(x, 1)*y"]),
        ("x/(y + 2)", ["x/(y + 2)", "x/(2 + y)", "x*(y + 2)**-1"]),
        ("sqrt(x**2 + y**2 + 1)", ["sqrt(1 + y**2 + x**2)", "y*y", "(x**2 + y**2 + 1)**0.5"]),
    ],
)
def test_a_head_is_found_by_what_was_typed(formula, typed):
    found = ah.compile(formula, BOX, tol=1e-3, method="graph").mechanism
    for name in typed:
        assert read(found.head(name).name) == read(name)


@pytest.mark.parametrize(
    ("formula", "typed", "sign"),
    [
        ("min(x, 2*y) + exp(x)", ["min(x, 2*y)", "min(2*y, x)"], -1),
        ("min(x, 2*y) + exp(x)", ["-min(x, 2*y)", "max(-x, -2*y)"], 1),
        ("min(x, y, 0.5) + exp(x)", ["min(x, y, 0.5)", "min(0.5, y, x)"], -1),
        ("abs(x - y) + exp(x)", ["abs(x - y)", "abs(y - x)"], 1),
    ],
)
def test_minima_and_sizes_are_found_by_their_names_in_any_order(formula, typed, sign):
    found = ah.compile(formula, BOX, tol=1e-3).mechanism
    (head,) = {found.head(name).name for name in typed}
    assert head.removeprefix("-").startswith(("min", "abs"))
    assert {found.signed(name)[1] for name in typed} == {sign}


@pytest.mark.parametrize(
    ("formula", "typed"),
    [
        ("attend(-2*(x - q)**2, y)", ["attend(-2*(q - x)**2, y)", "attend(4*q*x - 2*x*x, y)"]),
        ("attend(4*q*x - 2*x**2, y)", ["attend(-2*(x - q)**2, y)", "attend(2*x*(2*q - x), y)"]),
        ("var(x)*mean(y)", ["mean((mean(x) - x)**2)", "mean((x - mean(x))*(x - mean(x)))", "mean(y)*var(x)"]),
    ],
)
def test_heads_of_a_prompt_are_found_by_what_is_the_same_for_all_tokens(formula, typed):
    found = ah.in_context.compile(formula, BOX, {"q": (-1, 1)} if "q" in formula else None, tol=1e-2).mechanism
    heads = {name: found.head(name) for name in typed}
    assert all(head.where == formula for head in heads.values() if head.name.startswith("attend"))
    for other in ("attend(-2*(x + q)**2, y)", "attend(-2*(x - q)**2, x)", "attend(-(x - q)**2, y)", "(mean(x) + x)**2"):
        with pytest.raises(ah.InputError, match="No head"):
            found.head(other)


def test_a_long_formula_is_found_and_its_parts_are_said_to_be_in_it():
    model = ah.compile("sqrt(x**2 + y**2 + 0.1)/(1 + exp(-x))", BOX, tol=1e-2)
    found = model.mechanism
    assert found.head("(0.1 + y*y + x*x)**0.5/(exp(-x) + 1)").name == "sqrt_0"
    for part, whole in (("sqrt(x**2 + y**2 + 0.1)", "sqrt_0"), ("exp(-x)", r"1/\(exp\(-x\) \+ 1\)")):
        with pytest.raises(ah.InputError, match=f"a part of what the head called '{whole}' computes"):
            found.head(part)
    x = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    run = found.run(x)
    assert torch.equal(run.written["y*y"], x[:, 1] ** 2)
    assert torch.equal(run.written["(0.1 + y*y + x*x)**0.5/(exp(-x) + 1)"], run.written["sqrt_0", 1])
    falls = ah.compile("sin(x*y) + min(x, y)", BOX, tol=1e-2).mechanism.run(x, patched={"y*x": 9.0})
    assert falls.written["min(y, x)", 0].item() == -0.4 == -falls.written["-min(x, y)", 0].item()
    assert falls.outside["sin(y*x)"].all()
    for asked in (("x*y", 0), "exp(x)", 3):
        with pytest.raises(ah.InputError):
            falls.outside[asked]


def test_a_row_of_one_key_is_said_to_have_no_head():
    class Causal(torch.nn.Module):
        def forward(self, x):
            scores = (x @ x.mT).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
            return scores.softmax(-1) @ x

    found = ah.compile(Causal(), (-1, 1), shape=(3, 2), tol=1e-2).mechanism
    rows = {head.where for head in found.heads if "softmax[" in head.where}
    assert len(rows) == 2
    with pytest.raises(ah.InputError, match="a row that sees one key has none"):
        found.head(min(rows).replace("[1]", "[0]"))


def test_another_function_is_not_found():
    found = ah.compile("sin(3*x*y) + exp(-x**2)", BOX, tol=1e-3).mechanism
    for name in ("sin(2*x*y)", "exp(x**2)", "x", "x+y", "x**", "", "1", "*" * 1000, "x" * 10**6, 3, None):
        with pytest.raises(ah.InputError, match="No head"):
            found.head(name)


def test_near_names_are_named_and_not_hundreds():
    model = ah.compile([f"sin({k}*x*y)" for k in range(1, 30)], BOX, tol=1e-2)
    with pytest.raises(ah.InputError, match=r"and \d+ in all") as said:
        model.mechanism.head("sin(31*x*y)")
    assert "sin(3*(x*y))" in str(said.value)
    assert len(str(said.value)) < 300


def test_every_entry_of_an_attention_is_a_field():
    class Attention(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(x[:2], 0) @ x[2:].reshape(2, 2)

    heads = ah.compile(Attention(), [(-1, 1)] * 6, shape=(6,), tol=1e-3).mechanism.as_dict()["heads"]
    assert [head["entry"] for head in heads if head["kind"] == "attend"] == [0, 1]


@pytest.mark.parametrize("make", [ah.to_hooked, ah.to_bridge])
def test_a_form_of_which_nothing_is_proved_is_told(make):
    pytest.importorskip("transformer_lens")
    model = ah.compile("sin(3*x*y)", BOX, tol=1e-4, dtype=torch.float32)
    with pytest.warns(UserWarning, match=r"nothing is proved in float32 of the head called 'sin\(3\*\(x\*y\)\)'"):
        hooked = make(model)
    product, sine = hooked.mechanism.heads
    assert product.error <= product.patched_error < 1e-2
    assert sine.error == sine.patched_error == np.inf
    assert max(head.error for head in model.mechanism.heads) <= 1e-4


@pytest.mark.heavy
def test_a_head_without_a_bound_leaves_theirs_to_all_that_do_not_depend_on_it():
    pytest.importorskip("transformer_lens")
    box = {"a": (-1, 1), "b": (-2, 2), "c": (-1, 1)}
    norm, root, after = "a/sqrt(a**2 + b**2 + c**2 + 0.01)", "sqrt(a*b + 2)", "max(sqrt(a*b + 2), c)"
    model = ah.compile(f"{after} + {norm}", box, tol=1e-5)
    with pytest.warns(ah.LiteralWarning, match=r"of the head called 'sqrt\(a\*b \+ 2\)', nor of what depends on it"):
        hooked = ah.to_hooked(model)
    heads = {head.name: head for head in hooked.mechanism.heads if head.kind != "carry"}
    assert {name for name, head in heads.items() if head.error == np.inf} == {root, after}
    claim = model.network.placed.claim.literal()
    anywhere = replace(claim, heads=tuple(replace(h, low=-np.inf, high=np.inf) for h in claim.heads))
    cells = zip(followed(claim, rounding=True, partly=True), followed(anywhere, rounding=True), strict=True)
    pairs = [pair for found, other in cells for pair in zip(found.errors, other.errors, strict=True)]
    assert all(found == other for found, other in pairs if found < np.inf)  # the norm is followed as one function
    assert 0 < sum(found == np.inf for found, _ in pairs) < len(pairs) / 4
    x = (2 * torch.rand(2000, 1, 3, dtype=torch.float64) - 1) * torch.tensor([1, 2, 1])
    _, cache = hooked.run_with_cache(x)
    meant = hooked.mechanism.run(x).written
    for name in heads.keys() - {root, after}:
        assert (hooked.written(cache, name) - meant[name]).abs().max() <= heads[name].error
    spread = ah.in_context.compile("std(x)*tanh(q)", {"x": (-1, 1)}, {"q": (-1, 1)}, tol=1e-4)
    for head in spread.literal_mechanism().heads:
        assert (head.error == np.inf) == (head.patched_error == np.inf) == ("sqrt" in head.words)


@pytest.mark.parametrize("formula", ["sin(3*x*y) + exp(-x**2)", "x*y", "max(x, y)*x", "1/(x*y + 2)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_with_hook_points_are_those_of_their_form(formula, dtype):
    pytest.importorskip("transformer_lens")
    model = ah.compile(formula, BOX, tol=1e-2 if dtype == torch.float32 else 1e-6, dtype=dtype, evaluation="literal")
    hooked = ah.to_hooked(model)
    x = 2 * torch.rand(2000, 1, 2, dtype=dtype, generator=torch.Generator().manual_seed(1)) - 1
    _, cache = hooked.run_with_cache(x)
    a, b = x.double().unbind(-1)
    for head in hooked.mechanism.heads:
        assert head.error < 1e-2
        names = {"x": a, "y": b, "sin": torch.sin, "exp": torch.exp, "max": torch.maximum, "__builtins__": {}}
        exact = eval(head.name, names)
        found = hooked.written(cache, head.name, layer=head.layer).double()
        assert (found - exact).abs().max() <= head.error + 1e-12


def test_wrong_calls_of_hooked_networks_are_sentences():
    pytest.importorskip("transformer_lens")
    model = ah.compile("sin(3*x*y)", BOX, tol=1e-3)
    hooked, x = ah.to_hooked(model), torch.zeros(4, 1, 2, dtype=torch.float64)
    out, _ = hooked.run_with_cache(x)
    with pytest.raises(ah.ShapeError, match=r"x.reshape\(-1, 1, 2\)"):
        hooked(x[:, 0])
    with pytest.raises(ah.InputError, match="holds no"):
        hooked.written(out, "x*y")
    same = [hooked.run_with_hooks(x, fwd_hooks=[hooked.ablation("x*y", value)])
            for value in (np.full((4, 1), 0.5), torch.full((4, 1), 0.5), 0.5)]  # fmt: skip
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    with pytest.raises(ah.InputError, match="neither a number"):
        hooked.ablation("x*y", np.array(["a"]))

    prompt = ah.in_context.compile("q*mean(x)", {"x": (-1, 1)}, {"q": (-1, 1)}, tol=1e-3)
    tokens = torch.zeros(2, 3, 1, dtype=torch.float64)
    with pytest.raises(ah.InputError, match="by name"):
        ah.to_bridge(prompt)(tokens, tokens)

    descent = ah.to_hooked(
        ah.in_context.gradient_descent("squared", features=2, examples=3, steps=1, learning_rate=0.1)
    )
    X, y = torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ah.InputError, match=r"takes \(X, y, w0, mask\)"):
        descent(X)
    with pytest.raises(ah.ShapeError, match=r"hook_w returned a tensor of shape \(3,\)"):
        descent.run_with_hooks(X, y, fwd_hooks=[("steps.0.state.hook_w", lambda w, hook: torch.zeros(3).double())])
