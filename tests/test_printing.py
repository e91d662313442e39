"""What a user holds is readable where it is printed, and where an interactive session shows it."""

import pytest
import torch

import anchorhead as ah


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """One of everything, by name, with what must be told of it."""
    folder = tmp_path_factory.mktemp("printed")
    head, network = ah.compile("gelu(x)", tol=1e-3), ah.compile("x*y + exp(x)", (-1, 1), tol=1e-2)
    head.save(folder / "head")
    block = torch.nn.Sequential(torch.nn.Linear(2, 3, dtype=torch.float64), torch.nn.GELU())
    converted = ah.convert(block, tol=1e-3)
    ah.save_converted(converted, folder / "converted")
    prompt = ah.in_context.compile("mean(x)*q", {"x": (-1, 1)}, {"q": (0, 1)}, tol=1e-3)
    points = torch.linspace(-3, 3, 50, dtype=torch.float64)
    return {
        "model": (head, "|gelu(x) - model| <= "),
        "network": (network, "|x*y + exp(x) - model| <= "),
        "prompt": (prompt, "mean(x)*q"),
        "certificate": (head.certificate, "proved: |gelu(x) - model| <= "),
        "verified": (ah.verify(folder / "head"), "proved: |gelu(x) - model| <= "),
        "folder": (ah.verify(folder / "converted"), "1 heads of a converted model"),
        "nodes": (network.report, "exp(x)"),
        "probe": (network.probe(torch.zeros(3, 2, dtype=torch.float64)), "layer 0: measured"),
        "plan": (ah.plan("tanh(x)", (-1, 1), tol=1e-1), "tanh(x) on [-1, 1] to within 0.1, float64\n  "),
        "theorem's plan": (
            ah.theorems.plan("two_layer", low=0, high=1, tol=0.5, tokens=1, features=2, lipschitz=1.0),
            "levels",
        ),
        "prompts' plan": (ah.in_context.plan_universal(0.5, {"x": (0, 1)}, lipschitz=1.0), "masses in 2ths"),
        "diagnosis": (ah.diagnose(head, points), "healthy"),
        "conversion": (converted.report, "gelu(x)"),
        "recertified": (ah.recertify(converted), "as it was"),
        "theorem": (
            ah.theorems.single_head([[1.0]], [0.0], -1, 1, anchors=5),
            "single_head: clip(w_i·x_i + t_i, -1, 1)",
        ),
    }


def test_all_say_what_they_are(held):
    for name, (thing, told) in held.items():
        assert told in str(thing), name
        assert told.strip() in repr(thing), name
        for text in (str(thing), repr(thing)):
            assert "object at 0x" not in text, name
            assert "assumptions=(" not in text, name


def test_the_paths_of_numbers_have_shapes_and_keys(held):
    head = held["model"][0]
    assert "5 keys, float64" in repr(head.head)
    assert str(head.head.numbers).startswith("head of 5 keys, slopes from ")
    assert "query (1, 8, 10)" in repr(head.as_self_attention(3))
    assert "gain (1, 1)" in repr(held["theorem"][0].literal())
