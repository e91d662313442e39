"""Hook points on functions of a prompt and on learning algorithms: what is cached is true, and what is patched counts.

Mechanisms are run as programs (`stated.py`) that share no code with the library.
"""

import json
import warnings
from functools import cache

import prompt_formulas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stated import run_prompt

import anchorhead as ah

pytest.importorskip("transformer_lens")

TOKENS, QUERY = {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}
ROOM = 1e-6
FORMULAS = {
    "slope": ("q*cov(x, y)/(var(x) + 0.2)", QUERY),
    "kernel": ("attend(-5*(x - q)**2, y)", QUERY),
    "several": (("max(q, mean(x))", "exp(attend(q*x, y))", "sqrt(mean(y*y) + 1)"), QUERY),
    "no query": ("tanh(attend(x*y, y)) + var(x)", None),
}


@cache
def model(name):
    formula, query = FORMULAS[name]
    formula = list(formula) if isinstance(formula, tuple) else formula
    return ah.in_context.compile(formula, TOKENS, query, tol=1e-3, progress=False)


@cache
def hooked(name):
    return ah.to_hooked(model(name))


def prompt(name, batch, n, m, seed):
    """tokens, query and a mask that counts at least the first token."""
    draw = torch.Generator().manual_seed(seed)
    tokens, query = (2 * torch.rand(batch, *size, generator=draw, dtype=torch.float64) - 1 for size in ((n, 2), (m, 1)))
    mask = torch.rand(batch, n, generator=draw) > 0.3
    mask[:, 0] = True
    return tokens, query if FORMULAS[name][1] else None, mask


def program(name, tokens, query, mask, patched=None):
    """What is written at every position of one prompt, and the outputs (m)(outputs). A token that does not count stands
    at the low ends of its intervals."""
    tokens = torch.where(mask[:, None], tokens, -1.0)
    stated = json.loads(json.dumps(model(name).mechanism.as_dict(), allow_nan=False))
    asked = [[]] if query is None else query.tolist()
    return run_prompt(stated, tokens.tolist(), asked, mask.tolist(), patched)


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=8)
@given(n=st.integers(1, 6), m=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_every_head_writes_what_is_stated_where_it_has_to_and_zero_elsewhere(name, n, m, seed):
    tokens, query, mask = prompt(name, 2, n, m, seed)
    network = hooked(name)
    out, found = network.run_with_cache(tokens, query, mask)
    assert out.shape == model(name)(tokens, query, mask).shape
    assert (out - model(name)(tokens, query, mask)).abs().max() < 1e-9
    for b in range(2):
        written, outputs = program(name, tokens[b], None if query is None else query[b], mask[b])
        for head in network.mechanism.heads:
            made = network.written(found, head.name, head.layer)[b].tolist()
            for p, value in enumerate(made):
                stated = written[p].get((head.name, head.layer))
                assert value == 0 if stated is None else abs(value - stated) <= head.error + ROOM, head.words
        meant = torch.tensor([[float(v) for v in row] for row in outputs]).double()
        assert (out[b].reshape(meant.shape) - meant).abs().max() <= model(name).certificate.bound + ROOM


@pytest.mark.parametrize("name", FORMULAS)
def test_patterns_sum_to_one_and_see_nothing_but_tokens_that_count(name):
    tokens, query, mask = prompt(name, 3, 5, 2, 7)
    _, found = hooked(name).run_with_cache(tokens, query, mask)
    for block in range(len(hooked(name).blocks)):
        assert (found[f"blocks.{block}.attn.hook_pattern"].sum(-1) - 1).abs().max() < 1e-12
    for head in hooked(name).mechanism.heads:
        weights = hooked(name).pattern(found, head.name, head.layer)
        home = {"token": slice(0, 5), "query": slice(5, None), "prompt": slice(None)}[head.place]
        assert (weights[:, home].sum(-1) - 1).abs().max() < 1e-12
        if head.kind == "pool":
            assert weights.shape[1:] == (weights.shape[1],) * 2
            assert not weights[:, :, 5:].any()
            assert not weights[:, :, :5].transpose(1, 2)[~mask].any()
        else:
            assert weights.shape[-1] == head.keys


def test_a_pattern_is_the_kernel_that_it_was_compiled_for():
    tokens, query, mask = prompt("kernel", 3, 5, 2, 1)
    _, found = hooked("kernel").run_with_cache(tokens, query, mask)
    scores = -5 * (tokens[:, None, :, 0] - query) ** 2
    meant = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    [attention] = [head.name for head in model("kernel").mechanism.heads if head.kind == "pool"]
    assert (hooked("kernel").pattern(found, attention)[:, 5:, :5] - meant).abs().max() < 1e-3


@pytest.mark.parametrize("name", FORMULAS)
def test_a_patched_head_changes_the_answer_as_the_program_says_in_whichever_layer(name):
    """What a head wrote for a prompt that is a little different, in every layer that writes the number."""
    tokens, query, mask = prompt(name, 1, 4, 2, 3)
    other, network = 0.9 * tokens, hooked(name)
    _, found = network.run_with_cache(other, query, mask)
    for head in network.mechanism.heads:
        value = network.written(found, head.name, head.layer)
        hook = network.ablation(head.name, value, layer=head.layer)
        out = network.run_with_hooks(tokens, query, mask, fwd_hooks=[hook])
        asked = None if query is None else query[0]
        _, meant = program(name, tokens[0], asked, mask[0], {(head.name, head.layer): value[0].tolist()})
        expected = torch.tensor([[float(v) for v in row] for row in meant], dtype=torch.float64)
        run = network.mechanism.run(tokens, query, mask, patched={(head.name, head.layer): value})
        assert torch.allclose(run.outputs[0], expected, rtol=1e-9, atol=1e-9)
        assert (out[0].reshape(expected.shape) - expected).abs().max() <= 20 * model(name).certificate.bound, head.words


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_that_is_a_formula_is_what_its_head_writes(name):
    """Read by Python's grammar and mpmath from the text alone, arguments in their order."""
    tokens, query, _ = prompt(name, 1, 4, 1, 7)
    _, found = hooked(name).run_with_cache(tokens, query)
    asked, tried = {} if query is None else {"q": float(query)}, 0
    for head in model(name).mechanism.heads:
        if head.place == "token" or "_" in head.name:
            continue
        meant = float(prompt_formulas.value(head.name, tokens[0].tolist(), list(TOKENS), asked))
        assert abs(hooked(name).written(found, head.name, head.layer)[0, -1] - meant) <= head.error + 1e-9, head.name
        tried += 1
    assert tried > 1


def test_an_attention_inside_a_formula_is_written_as_it_was():
    found = ah.in_context.compile("tanh(attend(-k, v))", {"v": (-1, 1), "k": (-2, 2)}, tol=1e-3)
    assert [head.where for head in found.mechanism.heads] == ["attend(-k, v)", "tanh(attend(-k, v))"]
    assert "weighted by softmax of -k" in str(found.mechanism)
    assert "tanh(attend(-k, v))" in str(found)
    two = ah.in_context.compile("attend(2*k, v) + attend(-3*k, v)", {"v": (-1, 1), "k": (-2, 2)}, tol=1e-3)
    assert len({head.words for head in two.mechanism.heads}) == 2


def test_variances_and_covariances_are_found_as_they_are_called():
    mechanism = model("slope").mechanism
    assert mechanism.head("cov(x, y)").name == "mean((x - mean(x))*(y - mean(y)))"
    assert mechanism.head("var(x)").name == "mean((x - mean(x))**2)"
    with pytest.raises(ah.InputError, match="No head of this model is called"):
        mechanism.head("var(y)")


@pytest.mark.parametrize("name", ["slope", "no query"])
def test_a_bridge_of_a_prompt_holds_the_same_numbers(name):
    tokens, query, mask = prompt(name, 2, 4, 3, 5)
    bridge, named = ah.to_bridge(model(name)), {"mask": mask} | ({} if query is None else {"query": query})
    (out, found), (expected, other) = (
        bridge.run_with_cache(tokens, **named),
        hooked(name).run_with_cache(tokens, query, mask),
    )
    assert torch.equal(out, expected)
    for block in range(len(hooked(name).blocks)):
        assert torch.equal(found[f"blocks.{block}.z.hook_out"], other[f"blocks.{block}.attn.hook_z"])
    assert torch.equal(bridge.pattern(found, "mean(x)"), hooked(name).pattern(other, "mean(x)"))
    hook, same = bridge.ablation("mean(x)", 0.2), hooked(name).ablation("mean(x)", 0.2)
    assert torch.equal(bridge.run_with_hooks(tokens, **named, fwd_hooks=[hook]),
                       hooked(name).run_with_hooks(tokens, query, mask, fwd_hooks=[same]))  # fmt: skip
    for name_ in ("attention_mask", "nonsense"):
        with pytest.raises(ah.InputError, match=rf"takes no {name_}; .*mask="):
            bridge(tokens, **named, **{name_: mask})


def test_transformer_lens_patches_a_prompt_that_is_one_tensor():
    patching = pytest.importorskip("transformer_lens.patching")
    network = ah.to_hooked(model("slope"), tokens=4)
    (tokens, query, _), (other, _, _) = prompt("slope", 3, 4, 2, 1), prompt("slope", 3, 4, 2, 2)
    out, found = network.run_with_cache(tokens, query)
    assert torch.equal(network(network.sequence(tokens, query)), out)
    far = lambda made: (made - out).abs().mean()
    table = patching.get_act_patch_attn_head_out_all_pos(network, network.sequence(other, query), found, far)
    for head in network.mechanism.heads:
        hook = network.ablation(head.name, network.written(found, head.name, head.layer), head.layer)
        by_name = far(network.run_with_hooks(other, query, fwd_hooks=[hook])).item()
        assert table[head.layer, head.head].item() == pytest.approx(by_name, abs=1e-6)


def test_gradients_pass_hook_points_and_stay_off_tokens_that_do_not_count():
    tokens, query, mask = prompt("slope", 2, 5, 1, 4)
    tokens.requires_grad_()
    (found,) = torch.autograd.grad(hooked("slope")(tokens, query, mask).sum(), tokens)
    (meant,) = torch.autograd.grad(model("slope")(tokens, query, mask).sum(), tokens)
    assert (found - meant).abs().max() < 1e-8
    assert not found[~mask].any()


def test_models_in_float32_from_files_and_of_modules_have_hook_points(tmp_path):
    tokens, query, mask = prompt("slope", 2, 5, 2, 4)
    single = ah.in_context.compile("q*mean(x*y)", TOKENS, QUERY, tol=1e-2, dtype=torch.float32, progress=False)
    rounded = tokens.float(), query.float(), mask
    assert (ah.to_hooked(single)(*rounded) - single(*rounded)).abs().max() < 1e-5
    model("slope").save(tmp_path / "slope.safetensors")
    again = ah.to_hooked(ah.load(tmp_path / "slope.safetensors"))
    assert again.names == hooked("slope").names
    assert torch.equal(again(tokens, query, mask), hooked("slope")(tokens, query, mask))
    traced = ah.in_context.compile(lambda t: torch.tanh(t).mean(-2), TOKENS, tol=1e-3, progress=False)
    assert (ah.to_hooked(traced)(tokens, mask=mask) - traced(tokens, mask=mask)).abs().max() < 1e-9


def test_what_is_no_prompt_is_refused_in_a_sentence():
    tokens, query, mask = prompt("slope", 2, 4, 3, 5)
    network, fixed = hooked("slope"), ah.to_hooked(model("slope"), 4)
    for made, asked, said in (
        (network, (tokens,), "needs query="),
        (network, (tokens[0], query[0]), "one dimension of prompts"),
        (network, (tokens.float(), query), "float32"),
        (network, (tokens[:, :0], query), "no tokens"),
        (network, (tokens, query, mask[:, :2]), "mask must be boolean"),
        (network, (network.sequence(tokens, query),), r"to_hooked\(model, tokens=n\)"),
        (fixed, (torch.ones(2, 7, 3).double(),), r"hooked\.sequence\(tokens, query\)"),
        (fixed, (tokens[:, :3], query), "has 3 tokens, and to_hooked was told tokens=4"),
    ):
        with pytest.raises(ah.AnchorheadError, match=said):
            made(*asked)
    with pytest.raises(ah.SizeError, match="fewer prompts at a time"):
        network(tokens[:, :1].expand(2, 3000, 2), query)
    with pytest.raises(ah.InputError, match="tokens=0"):
        ah.to_hooked(model("slope"), 0)
    with pytest.warns(ah.OutsideRangeWarning, match="in a token"):
        ah.to_hooked(ah.in_context.compile("mean(x*x)", {"x": (-1, 1)}, tol=1e-2, progress=False))(3 * tokens[..., :1])
    with pytest.raises(ah.PrecisionError, match="Compile it with the dtype"):
        network.float()


def algorithms():
    build = ah.in_context
    X = torch.tensor([[0.5, -0.4], [-0.2, 0.3], [0.1, 0.6]]).double()
    y, query = torch.tensor([1.0, 0.0, 1.0]).double(), X[:2] / 2
    sizes = {"features": 2, "examples": 3}
    return [
        (build.gradient_descent("squared", **sizes, steps=3, learning_rate=0.1), (X, y)),
        (build.gradient_descent("logistic", **sizes, steps=2, learning_rate=0.1, l1=0.1), (X, y)),
        (build.newton(**sizes, steps=3, l2=0.1), (X, y)),
        (build.newton_descent("logistic", **sizes, steps=2, inversions=3, l2=0.5), (X, y)),
        (build.kernel_ridge(2, 1.0, 0.5, examples=3), (X, y, query)),
        (build.kernel_regression(2, 0.5), (X, y, query)),
        (build.nearest_neighbour(2, margin=1e-3), (X, y, X)),
    ]


def test_weights_of_a_learning_algorithm_are_those_of_its_model():
    model = ah.in_context.gradient_descent("squared", features=1, examples=4, steps=1, learning_rate=0.1)
    hooked, X = ah.to_hooked(model), torch.tensor([[0.5], [-0.25], [0.125], [0.75]], dtype=torch.float64)
    before = hooked(X, X[:, 0])
    for name in ("blocks", "written", "mechanism"):
        assert not hasattr(hooked, name)
        with pytest.raises(ah.InputError, match=rf"no {name}: .*hooked\.model\.parameters\(\)"):
            getattr(hooked, name)
    with torch.no_grad():
        next(hooked.model.parameters()).mul_(1.5)
    assert not torch.equal(hooked(X, X[:, 0]), before)
    assert model.certificate.level == "unproved"


def test_learning_algorithms_have_hook_points_at_every_softmax_and_every_state():
    for network, examples in algorithms():
        made = ah.to_hooked(network)
        out, found = made.run_with_cache(*examples)
        assert (out - network(*examples)).abs().max() < 1e-9
        patterns = [value for name, value in found.items() if name.endswith("hook_pattern")]
        expected = network.attention(*examples)
        assert len(patterns) == len(expected) > 0
        assert all(torch.equal(a, b) for a, b in zip(patterns, expected, strict=True))
        assert set(found) == set(made.hook_dict)


def test_an_iterate_that_is_patched_is_where_descent_goes_on():
    (network, (X, y)), *_ = algorithms()
    made, start = ah.to_hooked(network), torch.tensor([0.3, -0.2]).double()
    _, found = made.run_with_cache(X, y)
    path = torch.stack([found["begin.state.hook_w"], *(found[f"steps.{t}.state.hook_w"] for t in range(3))])
    assert (path - network.exact(X, y)).abs().max() < 1e-6
    patched = made.run_with_hooks(X, y, fwd_hooks=[("steps.1.state.hook_w", lambda w, hook: start)])
    assert (patched - (start - 0.1 * X.T @ (X @ start - y) / 3)).abs().max() < 1e-6


def test_what_is_no_stack_of_blocks_says_what_can_be_had():
    (network, (X, y)), *_ = algorithms()
    with pytest.raises(ah.InputError, match=r"ah\.to_hooked\(model\) has hook points at its steps, model\.attention"):
        ah.to_bridge(network)
    with pytest.raises(ah.InputError, match="leave it out"):
        ah.to_hooked(network, 3)
    with pytest.raises(ah.DtypeError):
        ah.to_hooked(network)(X.float(), y)
    with pytest.raises(ah.InputError, match=r"model\.layer\(sequence\)"):
        ah.to_hooked(ah.interpreter())


def test_a_run_that_leaves_the_bounds_is_refused_with_hook_points_as_without():
    bounds = {"x": 1, "y": 50, "w": 0.5}
    model = ah.in_context.gradient_descent("poisson", features=1, examples=4, steps=3, learning_rate=0.5, bounds=bounds)
    X, y = torch.ones(4, 1, dtype=torch.float64), torch.full((4,), 50.0, dtype=torch.float64)
    for network in (model, ah.to_hooked(model)):
        with pytest.raises(ah.in_context.OutsideBoundsError, match="At step 1 an entry of w reached 24"):
            network(X, y)
    with pytest.raises(ah.in_context.OutsideBoundsError, match="At step 1"):
        ah.to_hooked(model).run_with_cache(X, y)


def test_a_patch_that_leads_out_of_the_bounds_is_warned_of_however_it_is_made():
    network = ah.to_hooked(
        ah.in_context.gradient_descent("squared", features=1, examples=4, steps=2, learning_rate=0.5)
    )
    X, y = torch.full((4, 1), 0.3, dtype=torch.float64), torch.ones(4, dtype=torch.float64)

    def in_place(w, hook):
        w += 1e9
        return w

    for hook in (in_place, lambda w, hook: w + 1e9):
        with pytest.warns(ah.OutsideRangeWarning, match="After the hook at steps.0.state.hook_w the run left"):
            network.run_with_hooks(X, y, fwd_hooks=[("steps.0.state.hook_w", hook)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.run_with_hooks(X, y, fwd_hooks=[("steps.0.state.hook_w", lambda w, hook: w + 1)])
