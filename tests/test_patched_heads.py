"""What is said of heads holds at the very ends of what they are proved for: at inputs, and where numbers were patched.

The truth is the mechanism's JSON, run as a program that shares no code with the library (`stated.py`).
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stated import line, run
from torch import nn

import anchorhead as ah
from anchorhead.expression.functions import FUNCTIONS
from anchorhead.expression.parse import parse

PAGE = Path(__file__).parents[1] / "docs/format.md"
ROOM = 1e-12
"""For the rounding of what is compared."""


class Softened(nn.Module):
    """A softmax with several values, and a sine beside it."""

    def forward(self, x):
        return torch.cat([torch.softmax(3 * x[..., :3], -1), torch.sin(x[..., 3:4])], -1)


MADE = {
    "square": lambda: ah.compile("x**2 + y", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-6, outside="ignore"),
    "product": lambda: ah.compile("x*y + sin(x)", {"x": (-0.8, 1), "y": (0, 3)}, tol=1e-5, outside="ignore"),
    "tree": lambda: ah.compile("exp(x*y)*cos(x + y) + tanh(x*y)**2", (-1, 1), tol=1e-4, outside="ignore"),
    "gate": lambda: ah.compile("silu(2*x)*exp(-y*x)", (-1, 1), tol=1e-4, method="graph", outside="ignore"),
    "root": lambda: ah.compile("sqrt((x*y)**2 + 0.1)*x", (-1, 1), tol=1e-3, outside="ignore"),
    "maximum": lambda: ah.compile("max(x, x*y)*y", (-1, 1), tol=1e-3, outside="ignore"),
    "single precision": lambda: ah.compile("x*y + y**2", (-1, 1), tol=1e-3, dtype=torch.float32, outside="ignore"),
    "one head": lambda: ah.compile("tanh(3*x)", (-2, 1), tol=1e-6, outside="ignore"),
    "softmax": lambda: ah.compile(Softened(), (-1, 1), shape=(4,), tol=1e-4, outside="ignore"),
    "norm": lambda: ah.compile(nn.LayerNorm(3, eps=0.1, dtype=torch.float64), (-1, 1), tol=1e-2, outside="ignore"),
}  # fmt: skip


@cache
def made(name):
    """The model, and its mechanism as it is read back from JSON."""
    model = MADE[name]()
    return model, json.loads(json.dumps(model.mechanism.as_dict(), allow_nan=False))


def written(model, x, patched):
    """What every head writes of one input, by layer and number; patched: likewise, in the place of that."""
    if not hasattr(model.network, "layered"):
        return {(0, 0): model.network(x).item()}
    found, state = {}, x
    for layer, part in enumerate(model.network.layered.layers):
        state = part(state).clone()
        for (at, head), value in patched.items():
            if at == layer:
                state[head] = value
        found |= {(layer, head): value for head, value in enumerate(state.tolist())}
    return found


def strayed(head, wires):
    """Whether a line that the head reads has left its range."""
    values = ((line(head["reads"][role], wires), map(float, ends)) for role, ends in head["ranges"].items())
    return any(not low - ROOM <= value <= high + ROOM for value, (low, high) in values)


def check(name, x, patched, error):
    """That heads whose lines are in their ranges, and all before them, write what the program has, to their error."""
    model, stated = made(name)
    by_name = {(h["layer"], h["head"]): h["name"] for h in stated["heads"]}
    wires, _ = run(stated, x.tolist(), {by_name[key]: value for key, value in patched.items()})
    found, lost, held = written(model, x, patched), set(), 0
    for head in stated["heads"]:
        read = {part for stated_line in head["reads"].values() for part in stated_line["terms"]}
        key = head["layer"], head["head"]
        if key in patched:
            continue
        if strayed(head, wires) or lost & read:
            lost.add(head["name"])
            continue
        assert abs(found[key] - wires[head["name"]]) <= head[error] + ROOM, (head["words"], x, patched)
        held += 1
    return held


def inputs(name, count, seed, reach=1.0):
    """Points of the domain, a third of them corners, and as much farther from its middle as `reach` says."""
    model, _ = made(name)
    low, high = torch.tensor(model.certificate.domain, dtype=model.network.dtype).T
    part = torch.rand(count, len(low), generator=torch.Generator().manual_seed(seed), dtype=low.dtype)
    part[: count // 3] = part[: count // 3].round()
    return (low + high) / 2 + reach * (part - 0.5) * (high - low)


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32), reach=st.floats(0.5, 4))
def test_a_head_keeps_its_error_wherever_its_lines_are_in_their_ranges(name, seed, reach):
    for x in inputs(name, 4, seed, reach):
        check(name, x, {}, "patched_error")
    for x in inputs(name, 4, seed):
        _, stated = made(name)
        assert check(name, x, {}, "error") == len(stated["heads"])


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=15)
@given(data=st.data())
def test_a_head_keeps_its_error_where_numbers_of_other_inputs_are_put_in(name, data):
    """Among them the least and the largest that any of many inputs has, so that lines are at their ends."""
    model, stated = made(name)
    points = inputs(name, 24, data.draw(st.integers(0, 2**32)))
    known = [run(stated, point.tolist())[0] for point in points]
    patched = {}
    for head in stated["heads"]:
        if head["kind"] != "carry" and data.draw(st.booleans()):
            values = torch.tensor(sorted(float(wires[head["name"]]) for wires in known)).to(model.network.dtype)
            patched[head["layer"], head["head"]] = values[data.draw(st.sampled_from([0, -1, 5]))].item()
    check(name, points[data.draw(st.integers(0, 23))], patched, "patched_error")


@pytest.mark.parametrize("name", MADE)
def test_ranges_are_where_inputs_lead_and_no_farther_than_a_hull(name):
    """Every line of an input of the domain is in its range, and of what is read alone the ends are reached."""
    model, stated = made(name)
    points = inputs(name, 60, 1)
    known = [run(stated, point.tolist())[0] for point in points]
    assert not model.mechanism.run(points).outside
    for head in stated["heads"]:
        assert head["proved_for"] == head["ranges"].get("u")
        for role, ends in head["ranges"].items():
            low, high = map(float, ends)
            values = [float(line(head["reads"][role], wires)) for wires in known]
            assert low - ROOM <= min(values)
            assert max(values) <= high + ROOM
            if set(head["reads"][role]["terms"]) <= set(stated["inputs"]):
                assert (low, high) == pytest.approx((min(values), max(values)), abs=1e-6)


def test_a_run_names_every_head_that_left_what_it_is_proved_for():
    model, _ = made("square")
    x = torch.tensor([[2.0, 0.0], [1.0, 9.0]], dtype=torch.float64)
    assert {name: where.tolist() for name, where in model.mechanism.run(x).outside.items()} == {
        ("x**2", 0): [True, False]
    }
    model, _ = made("maximum")
    found = model.mechanism.run([[0.5, 0.5]], patched={"x*y": 5.0}).outside
    assert list(found) == [("max(x, x*y)", 1), ("y*max(x, x*y)", 2)]


def test_every_head_says_which_row_of_the_attention_has_its_weights():
    """By the hook points, which are of the softmax written out, in an order of their own."""
    pytest.importorskip("transformer_lens")
    models = [made(name)[0] for name in MADE] + [ah.compile(nn.Softmax(-1), (-1, 1), shape=(3,), tol=1e-3)]
    for model in models:
        x = torch.rand(5, *(model.input_shape or (1,)), dtype=model.network.dtype)
        hooked, rows = ah.to_hooked(model), set()
        _, cache = hooked.run_with_cache(x.reshape(5, 1, -1))
        given = model.attention(x if model.input_shape else x[:, 0])
        for head in model.mechanism.heads:
            assert (head.attention is None) == (head.kind == "carry")
            if head.attention is not None:
                entry, row = head.attention
                pattern = hooked.pattern(cache, head.name, head.layer)[:, 0]
                room = 1e-4 if model.network.dtype == torch.float32 else 1e-9
                assert (given[entry][:, row, : head.keys] - pattern).abs().max() < room
                rows.add((entry, row))
        assert rows == {(e, row) for e, weights in enumerate(given) for row in range(weights.shape[1])}
        assert model.resources.heads == len(rows)


def test_every_head_of_a_prompt_says_which_row_of_the_attention_has_its_weights():
    pytest.importorskip("transformer_lens")
    model = ah.in_context.compile("q*cov(x, y) + attend(q*x, y)*exp(q)", {"x": (-1, 1), "y": (-1, 1)},
                                  {"q": (-1, 1)}, tol=1e-2)  # fmt: skip
    tokens, query = 2 * torch.rand(2, 6, 2, dtype=torch.float64) - 1, torch.rand(2, 3, 1, dtype=torch.float64)
    hooked, rows, given = ah.to_hooked(model), set(), model.attention(tokens, query)
    _, cache = hooked.run_with_cache(tokens, query)
    homes = {"token": slice(0, 6), "query": slice(6, 9), "prompt": slice(6, 7)}
    for head in (head for head in model.mechanism.heads if head.attention is not None):
        entry, row = head.attention
        keys = 6 if head.kind == "pool" else head.keys
        pattern = hooked.pattern(cache, head.name, head.layer)[:, homes[head.place], :keys]
        assert (given[entry][..., row, :keys] - pattern).abs().max() < 1e-9, head.words
        rows.add((entry, row))
    assert rows == {(e, row) for e, weights in enumerate(given) for row in range(weights.shape[-2])}


def test_the_page_of_formulas_has_every_function_that_a_mechanism_may_name():
    """With as many parameters as a mechanism writes, so that an interpreter can be written from the page."""
    section = PAGE.read_text(encoding="utf-8").split("## Formulas", 1)[1].split("## A head", 1)[0]
    listed = {word: 1 for part in re.findall(r"`([^`]+)`", section) for word in re.findall(r"[a-z]\w*", part)}
    for call in re.findall(r"`(\w+)\(([^`]*)\)`", section):
        listed[call[0]] = len(call[1].split(","))
    for name, function in FUNCTIONS.items():
        assert name in listed
        if function.most == 1:
            given = ", ".join(["u", *("0.25" for p in function.parameters if p.default is None)])
            text = str(parse(f"{name}({given})", ["u"]).outputs[0])
            assert text.startswith(f"{name}(u")
            assert len(text.split(",")) == listed[name]


def test_functions_of_mechanisms_have_all_their_parameters():
    for formula, function in (("softplus(x)", "softplus(u, 1)"), ("elu(x)", "elu(u, 1)"), ("mish(x)", "mish(u)")):
        model = ah.compile(formula, (-1, 1), tol=1e-2)
        assert [head.function for head in model.mechanism.heads] == [function]
    model = ah.compile("sin(sqrt(2)*x + y)", (-1, 1), tol=1e-2)
    assert model.mechanism.heads[0].reads["u"].terms == {"x": "=sqrt(2)", "y": 1}
