"""What does not fit a network with hook points is refused in a sentence; each of them shows itself in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import anchorhead as ah

pytest.importorskip("transformer_lens")
DOUBLE = torch.float64


@cache
def model() -> ah.CompiledModel:
    return ah.compile("x*y + sin(z)", (-1, 1), tol=1e-4)


@cache
def slope() -> Any:
    return ah.in_context.compile("q*cov(x, y)", {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}, tol=1e-2)


@cache
def descent() -> Any:
    return ah.in_context.gradient_descent("squared", features=2, examples=6, steps=3, learning_rate=0.1)


def given(kind: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A network with hook points, and what it takes."""
    torch.manual_seed(0)
    make = ah.to_bridge if "bridge" in kind else ah.to_hooked
    if "prompt" in kind:
        return make(slope()), (torch.rand(2, 5, 2, dtype=DOUBLE), torch.rand(2, 3, 1, dtype=DOUBLE))
    if kind == "algorithm":
        return make(descent()), (torch.rand(6, 2, dtype=DOUBLE) / 2, torch.rand(6, dtype=DOUBLE) / 2)
    return make(model()), (torch.rand(5, 1, 3, dtype=DOUBLE),)


def run(kind: str, hooks: list[tuple[str, Callable[..., Any]]]) -> torch.Tensor:
    network, inputs = given(kind)
    if kind == "prompt bridge":
        return network.run_with_hooks(inputs[0], query=inputs[1], fwd_hooks=hooks)
    return network.run_with_hooks(*inputs, fwd_hooks=hooks)


KINDS = ("network", "bridge", "prompt", "prompt bridge", "algorithm")


@pytest.mark.parametrize("kind", KINDS)
def test_every_network_with_hook_points_shows_itself(kind: str) -> None:
    shown = given(kind)[0]._repr_html_().replace("<wbr>", "")
    assert "hook points" in shown
    assert ("steps.t.calls.i.hook_z" if kind == "algorithm" else "blocks.l.") in shown
    names = [] if kind == "algorithm" else [head.name for head in given(kind)[0].mechanism.heads]
    assert all(name in shown for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_point_that_is_not_there_is_refused_with_those_that_are(kind: str) -> None:
    hook = ("blocks.0.nothing", lambda z, hook: z)
    with pytest.raises(ah.InputError, match=r"no hook point 'blocks.0.nothing'; there are .*hooked.hook_dict has all"):
        run(kind, [hook])


def points(kind: str) -> list[str]:
    return [name for name in given(kind)[0].hook_dict if name.endswith(("hook_z", "hook_w", "pattern", "hook_embed"))]


@pytest.mark.parametrize("kind", ["network", "prompt", "algorithm"])
def test_a_hook_gives_back_what_fits_in_the_place_of_what_it_was_given(kind: str) -> None:
    plain = run(kind, [])
    for name in points(kind):
        for change, error in ((lambda z: z.float(), ah.DtypeError), (lambda z: z[..., :-1], ah.ShapeError),
                              (lambda z: z.tolist(), ah.InputError)):  # fmt: skip
            with pytest.raises(error, match=name.replace(".", r"\.")):
                run(kind, [(name, lambda z, hook, change=change: change(z))])
        assert torch.equal(run(kind, [(name, lambda z, hook: None)]), plain)
        assert torch.equal(run(kind, [(name, lambda z, hook: z.clone())]), plain)


@pytest.mark.parametrize("patched", [["x*y"], "x*y", {("x*y", 0, 1): 2.0}, {3: 1.0}, {"x*y": "a"}, {"x*y": None}])
def test_patches_that_are_no_numbers_by_names_are_refused(patched: Any) -> None:
    with pytest.raises(ah.InputError, match=r"by the names of heads|called by a name|A head writes numbers"):
        model().mechanism.run([[0.1, 0.2, 0.3]], patched=patched)


def test_patches_are_numbers_lists_or_tensors() -> None:
    for value in (0.5, [0.5, 0.25], torch.tensor([0.5, 0.25])):
        found = model().mechanism.run([[0.1, 0.2, 0.0]] * 2, patched={"x*y": value}).outputs[:, 0]
        assert found.tolist() == (torch.ones(2, dtype=DOUBLE) * torch.as_tensor(value)).tolist()


@pytest.mark.parametrize("make", [ah.to_hooked, ah.to_bridge])
def test_a_patch_of_a_prompt_is_of_all_positions_or_of_those_of_its_head(make: Any) -> None:
    hooked, (tokens, query) = make(slope()), given("prompt")[1]
    queries = {"query": query} if make is ah.to_bridge else {}
    run = lambda hooks: hooked.run_with_hooks(*(tokens, query)[: 2 - len(queries)], **queries, fwd_hooks=hooks)
    of_tokens, of_queries = torch.rand(2, 5, dtype=DOUBLE), torch.rand(2, 3, dtype=DOUBLE)
    pad = torch.nn.functional.pad
    for name, value, everywhere in (
        ("(x - mean(x))*(y - mean(y))", of_tokens, pad(of_tokens, (0, 3))),
        ("cov(x, y)", of_tokens[:, :1], of_tokens[:, :1].expand(-1, 8)),
        ("q*cov(x, y)", of_queries, pad(of_queries, (5, 0))),
    ):
        assert torch.equal(run([hooked.ablation(name, value)]), run([hooked.ablation(name, everywhere)]))
        at_once, told = (slope().mechanism.run(tokens, query, patched={name: v}) for v in (value, everywhere))
        assert torch.equal(at_once.outputs, told.outputs)
        assert (run([hooked.ablation(name, value)]) - told.outputs).abs().max() < 1e-2
        for wrong in (torch.rand(2, 4, dtype=DOUBLE), torch.rand(2, 7, dtype=DOUBLE)):
            with pytest.raises(ah.ShapeError, match=r"behind them, the m queries"):
                run([hooked.ablation(name, wrong)])
            with pytest.raises(ah.ShapeError, match=r"behind them, the m queries"):
                slope().mechanism.run(tokens, query, patched={name: wrong})


@pytest.mark.parametrize("make", [ah.to_hooked, ah.to_bridge])
def test_one_head_has_one_ablation_and_reads_alone_what_another_run_has(make: Any) -> None:
    hooked = make(ah.compile("sin(3*x*y) + x*y", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-6))
    x = torch.tensor([[[0.5, -0.2]], [[0.9, 0.3]]], dtype=DOUBLE)
    once, twice = hooked.ablation("x*y", 0.5), hooked.ablation("y*x", torch.zeros(2, 1, dtype=DOUBLE))
    for _ in range(2):
        with pytest.raises(ah.InputError, match="another ablation was given"):
            hooked.run_with_hooks(x, fwd_hooks=[once, twice])
        hooked.run_with_hooks(x, fwd_hooks=[once, hooked.ablation("sin(3*x*y)"), hooked.ablation("x*y", 0.0, layer=1)])
    with hooked.hooks(fwd_hooks=[once]):
        _, seen = hooked.run_with_cache(x)
    found = hooked.run_with_hooks(x, fwd_hooks=hooked.reading(seen, "sin(3*x*y)"))
    assert (found - torch.sin(torch.tensor(1.5)) - x.prod(-1, keepdim=True)).abs().max() < 1e-5
    with pytest.raises(ah.ShapeError, match="inputs of the same shape"):
        hooked.run_with_hooks(x[:1], fwd_hooks=hooked.reading(seen, "sin(3*x*y)"))


def test_options_of_other_models_are_refused_by_name() -> None:
    hooked, (x,) = given("network")
    prompts, prompt = given("prompt")
    for run, inputs in ((hooked, (x,)), (hooked.run_with_cache, (x,)), (prompts, prompt)):
        for option in ({"return_type": "logits"}, {"stop_at_layer": 1}, {"return_cache_object": False}):
            with pytest.raises(ah.InputError, match=f"takes no {next(iter(option))}"):
                run(*inputs, **option)


def test_a_prompt_as_one_tensor_is_called_with_its_mask() -> None:
    tokens, query = given("prompt")[1]
    mask = torch.tensor([True, True, False, True, True]).expand(2, -1)
    fixed = ah.to_hooked(slope(), tokens=5)
    found = fixed(fixed.sequence(tokens, query), mask=mask)
    assert (found - slope().exact(tokens, query, mask)).abs().max() < 1e-2
    assert torch.equal(found, fixed(tokens, query, mask))


@pytest.mark.heavy
def test_transformer_lens_patches_what_it_patches_in_all_positions_at_once() -> None:
    """The names that the page has; patching by position is of models whose last dimension is positions."""
    patching = pytest.importorskip("transformer_lens.patching")
    hooked, (x,) = given("network")
    other = -x
    _, kept = hooked.run_with_cache(x)
    for part in ("out", "q", "k", "v", "pattern"):
        table = getattr(patching, f"get_act_patch_attn_head_{part}_all_pos")(hooked, other, kept, lambda y: y.sum())
        assert table.shape == (len(hooked.names), 2)
        assert table.isfinite().all()
    with pytest.raises(IndexError):
        patching.get_act_patch_attn_out(hooked, other, kept, lambda y: y.sum())
    with pytest.raises(IndexError):
        patching.get_act_patch_attn_head_out_by_pos(hooked, other, kept, lambda y: y.sum())


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_that_are_no_list_of_pairs_are_refused(kind: str) -> None:
    network, _ = given(kind)
    pair = (next(iter(network.hook_dict)), lambda value, hook: None)
    assert run(kind, iter([pair])).isfinite().all()  # any row of pairs will do
    for wrong in (pair, [pair[0]], [pair[1]], "blocks", [(*pair, 1)], None, 3):
        with pytest.raises(ah.InputError, match=r"^fwd_hooks is a list of pairs of a hook point's name and a func"):
            run(kind, wrong)
