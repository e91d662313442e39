"""What is asked wrongly of converted models is refused in a sentence, and not by what lies below."""

import pytest
import torch
from torch import fx, nn

import anchorhead as ah

X = torch.randn(4, 8)


def block():
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


@pytest.fixture(scope="module")
def converted():
    return ah.convert(block())


@pytest.mark.parametrize(
    "asked",
    [
        lambda: ah.convert(torch.jit.script(block())),
        lambda: ah.convert(nn.Sequential(torch.jit.trace(block(), X))),
        lambda: torch.jit.script(ah.convert(block())),
        lambda: torch.jit.script(ah.compile("gelu(x)", tol=1e-2)),
        lambda: ah.convert(block().to("meta")),
        lambda: ah.convert(block().to(torch.float8_e4m3fn)),
        lambda: ah.convert(nn.Sequential(nn.LazyLinear(8), nn.GELU()), inputs=X),
        lambda: ah.convert(block(), tol=True),
        lambda: ah.convert(block(), pure="yes"),
        lambda: ah.convert(block(), accept=3),
        lambda: ah.convert(block(), warm="x"),
        lambda: ah.convert(block(), trainable=1),
        lambda: ah.convert(block(), progress=3),
        lambda: ah.walk(None, X),
        lambda: ah.walk(block()),
        lambda: ah.walk(nn.Linear(8, 8), X[:, :3]),
        lambda: ah.warm(None),
        lambda: ah.compile("gelu(x)", tol=1e-3, progress=3),
        lambda: ah.compile(nn.GELU),
        lambda: ah.plan(nn.GELU, (-1, 1)),
        lambda: ah.in_context.compile(nn.GELU, {"x": (-1, 1)}),
        lambda: ah.compile("gelu(x)", tol=1e-2).save(None),
        lambda: ah.compile("gelu(x)", tol=1e-2)(torch.ones(3, 1, device="meta", dtype=torch.float64)),
        lambda: ah.in_context.compile(None, {"x": (-1, 1)}),
        lambda: ah.in_context.compile("mean(x)", {"x": (-1, 1)}, progress=3),
    ],
)
def test_it_is_refused(asked):
    with pytest.raises(ah.AnchorheadError) as refused:
        asked()
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("record", [torch.jit.trace, lambda model, x: torch.export.export(model, (x,)).module()])
def test_what_is_advised_in_the_place_of_torch_jit_script_computes_the_same(converted, record):
    assert torch.equal(record(converted, X)(X + 1), converted(X + 1))


@pytest.mark.parametrize(
    ("inputs", "named"),
    [((), {}), ((3,), {}), (("x",), {}), ((), {"nope": X}), ((X[:, :3],), {}), ((X.double(),), {})],
)
def test_walks_on_what_a_model_does_not_take(converted, inputs, named):
    with pytest.raises(ah.InputError, match="does not take these inputs"):
        ah.walk(converted, *inputs, **named)


def test_a_converted_model_without_heads_takes_inputs_by_name():
    assert ah.walk(ah.convert(nn.Sequential(nn.Linear(8, 8))), input=X).affine


def test_graph_modules_have_reports():
    model = fx.symbolic_trace(block())
    converted = ah.convert(model, inputs=X)
    assert converted.report.pure
    assert (converted(X) - model(X)).abs().max() < 1e-5


def test_norms_stay_what_they_are_when_heads_are_trained():
    model = ah.convert(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()), pure=True, trainable=True)
    found = ah.recertify(model)
    assert found.proved
    assert [head.formula for head in found.heads] == ["gelu(x)", "layer_norm(x, eps=1e-05, bias)"]


def test_a_hook_before_a_head_is_seen_and_the_head_is_still_one():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    for hook, pure in ((lambda m, args: (2 * args[0],), True), (lambda m, args: (args[0].sin(),), False)):
        model = block()
        model[1].register_forward_pre_hook(hook)
        model[1].register_forward_hook(lambda m, args, out: out + 1)
        converted = ah.convert(model, inputs=x)
        assert converted.report.pure == pure
        assert (converted(x) - model(x)).abs().max() < 1e-5
        if pure:
            assert ah.walk(converted, x).softmax == 1
        else:
            assert "sin" in str(converted.report.remaining)
            with pytest.raises(ah.StructureError, match="sin"):
                ah.walk(converted, x)
