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


def test_a_patch_of_a_prompt_that_lacks_positions_says_how_to_pad_it() -> None:
    hooked, (tokens, query) = given("prompt")
    name = "(x - mean(x))*(y - mean(y))"
    numbers = torch.rand(2, 5, dtype=DOUBLE)
    for value in (numbers, numbers[:, 0]):
        with pytest.raises(ah.ShapeError, match=r"behind them, the queries.*torch\.nn\.functional\.pad"):
            hooked.run_with_hooks(tokens, query, fwd_hooks=[hooked.ablation(name, value)])
    with pytest.raises(ah.ShapeError, match=r"torch\.nn\.functional\.pad"):
        slope().mechanism.run(tokens, query, patched={name: numbers})
    padded = torch.nn.functional.pad(numbers, (0, 3))
    found = hooked.run_with_hooks(tokens, query, fwd_hooks=[hooked.ablation(name, padded)])
    assert (found[..., 0] - query[..., 0] * numbers.mean(-1, keepdim=True)).abs().max() < 1e-2
    one = numbers[:, 0][:, None].expand(-1, 8)
    found = hooked.run_with_hooks(tokens, query, fwd_hooks=[hooked.ablation("cov(x, y)", one)])
    assert (found[..., 0] - query[..., 0] * one[:, :1]).abs().max() < 1e-2


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
