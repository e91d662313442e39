"""The gallery's ground truth is true: every head writes what its JSON says, to the proved error, and matters so.

The mechanism is run as a program (`stated.py`) that shares no code with the library.
"""

import json
import math
import re
from functools import cache
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stated import line, run
from torch import nn

import anchorhead as ah
from anchorhead.model.stock import to_stock_attention

NAMES = ah.gallery.names()
ROOM = 1e-12
"""For the rounding of what is compared."""


@cache
def item(name):
    return ah.gallery.load(name)


@cache
def stated(name):
    """The mechanism as it is read back from JSON."""
    return json.loads(json.dumps(item(name).as_dict(), allow_nan=False))["mechanism"]


def inputs(name, count, seed):
    """Points of the domain, a third of them corners: (count, inputs)."""
    low, high = torch.tensor(item(name).model.certificate.domain, dtype=torch.float64).T
    part = torch.rand(count, len(low), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    part[: count // 3] = part[: count // 3].round()
    return low + (high - low) * part


def states(name, x):
    """The state after every layer, (layers)(inputs, heads)."""
    network = item(name).model.network
    return network.layered.states(x)[1:] if name != "sine" else [network(x)]


def test_there_are_ten_and_each_says_what_it_is():
    assert len(NAMES) == 10
    assert all(len(item(name).description) > 20 for name in NAMES)
    with pytest.raises(ah.InputError, match="The gallery has no 'nothing'"):
        ah.gallery.load("nothing")


def test_formulas_of_descriptions_are_those_of_the_targets():
    for name, text, formula in (
        ("sine", "sin(3x)", "sin(3*x)"),
        ("gate", "silu(2a)·b", "silu(2*a)*b"),
        ("formula", "sin(3xy) + exp(-x²)", "sin(3*x*y) + exp(-x**2)"),
    ):
        assert text in item(name).description
        same = ah.compile(formula, dict.fromkeys(item(name).mechanism.inputs, (-1, 1)), tol=1e-2).certificate.expression
        assert item(name).model.certificate.expression == same


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_every_head_writes_what_is_stated(name, seed):
    x = inputs(name, 4, seed)
    found = states(name, x)
    for row, point in enumerate(x.tolist()):
        wires, _ = run(stated(name), point)
        for head in stated(name)["heads"]:
            written = found[head["layer"]][row, head["head"]].item()
            assert abs(written - wires[head["name"]]) <= head["error"] + ROOM, head["words"]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_the_program_is_the_target(name, seed):
    x, model = inputs(name, 3, seed), item(name).model
    exact, made = model.exact(x).reshape(3, -1), model(x).reshape(3, -1)
    for row, point in enumerate(x.tolist()):
        _, outputs = run(stated(name), point)
        for k, value in enumerate(outputs):
            assert abs(exact[row, k].item() - value) <= ROOM
            assert abs(made[row, k].item() - value) <= model.certificate.bound + ROOM


def patched(name, x, layer, head, value):
    """The stock form's outputs with a value in the place of what one head writes."""
    z, stages = x[:, None], list(item(name).model.to_stock_attention().stages)
    for at, stage in enumerate(stages):
        z = stage(z)
        if at == 2 * layer + 1:
            z = z.clone()
            z[:, 0, head] = value
    return z[:, 0]


@pytest.mark.parametrize("name", NAMES)
def test_a_patched_head_changes_the_function_as_the_program_says(name):
    """What a head wrote for another input, put in its place: the outputs follow the program with that number there.

    Heads further on may then see arguments that no input gives; where those leave what a head is proved for, nothing
    is known, and nothing asked. The room is for errors, which grow on their way as they may in the patched network.
    """
    x, other = inputs(name, 6, 1), inputs(name, 6, 2).flip(0)
    model, tried = item(name).model, 0
    for head in stated(name)["heads"]:
        if head["kind"] == "carry":
            continue
        values = [run(stated(name), point)[0][head["name"]] for point in other.tolist()]
        made = patched(name, x, head["layer"], head["head"], torch.tensor([float(v) for v in values]).double())
        for row, point in enumerate(x.tolist()):
            _, plain = run(stated(name), point)
            wires, meant = run(stated(name), point, {head["name"]: values[row]})
            if not all_proved(name, wires):
                continue
            tried += 1
            said = model.mechanism.run(x[row], patched={(head["name"], head["layer"]): float(values[row])})
            assert all(abs(said.outputs[k] - float(m)) < 1e-9 for k, m in enumerate(meant))
            effect = max(abs(a - b) for a, b in zip(plain, meant, strict=True))
            off = max(abs(made[row, k].item() - m) for k, m in enumerate(meant))
            assert off <= 20 * model.certificate.bound + 0.02 * effect, head["words"]
    assert tried > 0


def all_proved(name, wires):
    """Whether all heads see arguments that they are proved for."""
    for head in stated(name)["heads"]:
        if head["proved_for"] is not None:
            low, high = map(float, head["proved_for"])
            if not low <= line(head["reads"]["u"], wires) <= high:
                return False
    return True


def test_patched_arguments_may_leave_what_a_head_is_proved_for():
    """A square of the layer norm for another input may make the mean of squares more than any input does."""
    even, odd = [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, -1.0, -1.0]
    wires = [run(stated("layer_norm"), point)[0] for point in (even, odd)]
    assert all(all_proved("layer_norm", found) for found in wires)
    patched = {"square_0": wires[1]["square_0"]}
    assert not all_proved("layer_norm", run(stated("layer_norm"), even, patched)[0])


@pytest.mark.parametrize("name", NAMES)
def test_names_are_formulas_of_what_is_carried(name):
    """Where a name is a formula in the inputs, it has the value that the program has."""
    [point] = inputs(name, 1, 5).tolist()
    wires, _ = run(stated(name), point)
    given = {key: mp.mpf(v) for key, v in zip(stated(name)["inputs"], point, strict=True)}
    numbered = {key: wires[key] for key in wires if key.isidentifier()}
    for key, value in wires.items():
        if not key.isidentifier():
            assert abs(value - applied_in(key, numbered | given)) <= ROOM


def applied_in(text, values):
    from stated import NAMES as known

    return mp.mpf(eval(text, {"__builtins__": {}}, known | values))


def test_names_are_distinct_and_survive_a_file(tmp_path):
    for name in ("sorting", "digits", "gradient_descent"):
        path = tmp_path / f"{name}.safetensors"
        item(name).model.save(path)
        again = ah.load(path).mechanism
        assert again.as_dict() == item(name).mechanism.as_dict()
        for names in again.states:
            assert len(set(names)) == len(names)


def test_no_error_is_told_of_numbers_that_were_changed():
    for formula in ("sin(3*x*y)", "sin(3*x)"):
        model = ah.compile(formula, (-1, 1), tol=1e-3)
        assert all(0 < head.error < 1e-3 for head in model.mechanism.heads)
        with torch.no_grad():
            next(model.parameters()).mul_(1.5)
        assert all(head.error == math.inf for head in model.mechanism.heads)
        assert all(head["error"] is None for head in model.mechanism.as_dict()["heads"])


def test_files_have_the_mode_that_files_have(tmp_path):
    plain, model = tmp_path / "plain", tmp_path / "model.safetensors"
    plain.touch()
    item("sine").model.save(model)
    assert model.stat().st_mode == plain.stat().st_mode
    model.chmod(0o640)
    item("sine").model.save(model)
    assert model.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ah.FileError):
        item("sine").model.save(tmp_path / "nowhere" / "model.safetensors")


def test_a_notebook_shows_every_head():
    for shown in (item("sorting")._repr_html_(), item("sorting").mechanism._repr_html_()):
        assert all(f">{head.words}<" in shown for head in item("sorting").mechanism.heads)


def test_sorting_sorts_and_digits_are_read():
    x = inputs("sorting", 100, 0)
    assert (item("sorting").model(x) - x.sort(-1).values).abs().max() <= item("sorting").model.certificate.bound
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, labels = datasets.load_digits(return_X_y=True)
    found = item("digits").model(torch.tensor(pixels / 16)).argmax(-1)
    assert (found == torch.tensor(labels)).double().mean() > 0.96


@pytest.mark.heavy
def test_a_folder_holds_models_that_verify_and_their_mechanisms(tmp_path):
    written = ah.gallery.write(tmp_path / "gallery")
    assert len(written) == 21
    assert sum(path.stat().st_size for path in written) < 300_000
    index = json.loads((tmp_path / "gallery" / "index.json").read_text())
    assert list(index) == NAMES
    for name in NAMES:
        assert ah.verify(tmp_path / "gallery" / f"{name}.safetensors").level == "proved"
        assert json.loads((tmp_path / "gallery" / f"{name}.json").read_text()) == json.loads(
            json.dumps(item(name).as_dict())
        )
    first = {path.name: path.read_bytes() for path in written}
    assert {path.name: path.read_bytes() for path in ah.gallery.write(tmp_path / "again")} == first


def test_a_head_under_another_row_map_has_a_mechanism():
    plain = ah.compile("sin(3*x)", (-1, 1), tol=1e-3)
    for row_map, proved in ((ah.row_maps.Sigmoid(), True), (ah.row_maps.Hardmax(), False)):
        model = plain.with_row_map(row_map)
        [head] = model.mechanism.heads
        assert head.words == f"computes sin(3*u) of u = x, with weights by the row map {row_map.name}"
        assert (head.error == model.certificate.bound) == proved == (model.certificate.level == "proved")


def test_what_has_no_parts_says_so():
    grid = ah.compile("sin(x + y)", (-1, 1), tol=1e-2, method="grid")
    with pytest.raises(ah.InputError, match="method='graph'"):
        _ = grid.mechanism
    assert not any(hasattr(grid, name) for name in ("mechanism", "head", "claim", "circuit"))
    assert hasattr(item("sine").model, "mechanism")
    with pytest.raises(AttributeError, match="no attribute 'mechanisms'"):
        _ = grid.mechanisms
    with pytest.raises(ah.InputError, match=r"called 'cos'; those that compute something are sin"):
        item("sine").mechanism.head("cos")


@pytest.mark.parametrize("name", NAMES)
def test_hook_points_have_the_names(name):
    pytest.importorskip("transformer_lens")
    x = inputs(name, 5, 3)
    hooked = ah.to_hooked(item(name).model)
    out, cache = hooked.run_with_cache(x[:, None])
    literal = item(name).model.literal_certificate().bound
    assert (out[:, 0] - item(name).model.exact(x).reshape(5, -1)).abs().max() <= literal + 1e-9
    for head in stated(name)["heads"]:
        if head["kind"] != "carry":
            found = hooked.written(cache, head["name"])[:, 0]
            meant = [run(stated(name), point)[0][head["name"]] for point in x.tolist()]
            room = 1e-3 if head["error"] > 1e-6 else 1e-5
            assert max(abs(a - b) for a, b in zip(found.tolist(), meant, strict=True)) <= head["error"] + room
    ablated = hooked.run_with_hooks(x[:, None], fwd_hooks=[hooked.ablation(hooked.names[-1][-1], 0.25)])
    last = item(name).mechanism.head(hooked.names[-1][-1])
    meant = [run(stated(name), point, {last.name: mp.mpf(0.25)})[1] for point in x.tolist()]
    assert max(abs(ablated[i, 0, k].item() - v) for i, row in enumerate(meant) for k, v in enumerate(row)) < 2e-3


@pytest.mark.parametrize("name", ["sine", "gate", "parity", "layer_norm", "recall", "digits"])
def test_the_largest_value_is_the_largest_constant_or_gain_of_the_literal_form(name):
    model = ah.gallery.load(name).model
    held = [
        p.abs().max().item() for key, p in model.literal().named_parameters() if key.endswith(("constants", "gains"))
    ]
    assert model.largest_value == max(held, default=0.0)


def test_a_cache_shows_the_largest_value_where_the_partner_is_one():
    pytest.importorskip("transformer_lens")
    for size in (1, 100):
        model = ah.compile("x*y", {"x": (-size, size), "y": (-size, size)}, tol=1e-3)
        _, cache = ah.to_hooked(model).run_with_cache(torch.ones(1, 1, 2, dtype=torch.float64))
        assert cache["blocks.0.attn.hook_v"].abs().max() == model.largest_value


def test_a_notebook_shows_what_a_network_with_hook_points_has():
    pytest.importorskip("transformer_lens")
    model = item("formula").model
    shown = ah.to_hooked(model)._repr_html_().replace("<wbr>", "")
    for said in (">2, 2<", "blocks.l.attn.hook_z", *(f">{head.kept}<" for head in model.literal_mechanism().heads)):
        assert said in shown


@pytest.mark.parametrize("x", [torch.zeros(2, 2).double(), torch.zeros(2, 3, 2).double(), torch.zeros(1, 1, 2)])
def test_hook_points_refuse_other_inputs_in_a_sentence(x):
    pytest.importorskip("transformer_lens")
    hooked = ah.to_hooked(item("formula").model)
    with pytest.raises(ah.AnchorheadError, match=r"shape|float64"):
        hooked(x)
    with pytest.raises(ah.InputError, match="those that compute something are"):
        hooked.ablation("cos(x)")


def test_what_is_no_value_cache_or_model_is_refused_in_a_sentence():
    pytest.importorskip("transformer_lens")
    hooked, other = ah.to_hooked(item("formula").model), ah.to_hooked(item("digits").model)
    x = inputs("formula", 5, 3)[:, None]
    for value in ("a", None, True, [1.0]):
        with pytest.raises(ah.InputError, match="neither a number nor a tensor"):
            hooked.ablation("x*y", value)
    plain, numpy = (hooked.run_with_hooks(x, fwd_hooks=[hooked.ablation("x*y", v)]) for v in (0.5, np.float32(0.5)))
    assert torch.equal(plain, numpy)
    with pytest.raises(ah.ShapeError, match=r"\(4, 1\).*\(5, 1\)"):
        hooked.run_with_hooks(x, fwd_hooks=[hooked.ablation("x*y", torch.zeros(4, 1).double())])
    _, cache = other.run_with_cache(inputs("digits", 5, 3)[:, None])
    for foreign in (cache, {}, None):
        with pytest.raises(ah.InputError, match="not this network's"):
            hooked.written(foreign, "x*y")


@pytest.mark.parametrize("make", [ah.to_hooked, ah.to_bridge])
def test_what_a_cache_lacks_and_what_no_head_writes_is_said(make):
    pytest.importorskip("transformer_lens")
    made, x = make(item("formula").model), inputs("formula", 5, 3)[:, None]
    _, part = made.run_with_cache(x, names_filter=lambda name: name == made.point(0, "z"))
    assert torch.equal(made.written(part, "x*y"), made.written(made.run_with_cache(x)[1], "x*y"))
    for read in (made.pattern, made.reading):
        with pytest.raises(ah.InputError, match=r"has other hook points, and no blocks\.0\..*names_filter"):
            read(part, "x*y")
    with pytest.raises(
        ah.InputError, match=r"No head writes 'y', .* number 1 at (\S+), in a bridge at (\S+)\.$"
    ) as said:
        made.written(part, "y")
    places = re.search(r"at (\S+), in a bridge at (\S+)\.$", str(said.value)).groups()
    _, cache = made.run_with_cache(x)
    assert torch.equal(cache[places[make is ah.to_bridge]][..., 1], x[..., 1])


def test_an_item_has_the_domain_and_the_bound_of_its_file():
    for found in map(item, ("sine", "formula")):
        assert found.domain == found.model.certificate.domain == tuple(map(tuple, found.as_dict()["domain"]))
        assert found.bound == found.model.certificate.bound == found.as_dict()["bound"]


@pytest.mark.parametrize("make", [ah.to_hooked, ah.to_bridge])
def test_hook_points_warn_outside_the_domain_as_the_model_does(make):
    pytest.importorskip("transformer_lens")
    model = ah.compile("sin(3*x*y)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-2)
    made, far = make(model), torch.full((2, 1, 2), 1.5, dtype=torch.float64)
    with pytest.warns(ah.OutsideRangeWarning):
        made(far)
    model.outside = "error"
    with pytest.raises(ah.OutsideRangeError):
        made(far)


def test_what_has_no_stock_form_says_what_has():
    with pytest.raises(ah.InputError, match=r"give its \.model"):
        to_stock_attention(item("sine"))
    descent = ah.in_context.gradient_descent("squared", features=1, examples=4, steps=1, learning_rate=0.1)
    with pytest.raises(ah.InputError, match=r"no form as layers of nn.*step\[0\]\.heads\[0\]"):
        to_stock_attention(descent)
    assert isinstance(descent.as_self_attention(4).step[0].heads[0], nn.Module)
    converted = ah.convert(nn.Sequential(nn.Linear(2, 2), nn.GELU()))
    with pytest.raises(ah.InputError, match=r"report\.places\[i\]\.module"):
        to_stock_attention(converted)
    seen = []
    converted.report.places[0].module.register_forward_hook(lambda module, given, made: seen.append(made))
    assert torch.equal(converted(torch.ones(3, 2)), seen[0])
    with pytest.raises(ah.InputError, match="path"):
        ah.gallery.write(None)


def test_the_page_on_hooks_says_what_happens():
    """Its examples without a prompt need TransformerLens; they assert what they say."""
    pytest.importorskip("transformer_lens")
    page = (Path(__file__).parents[1] / "docs/interpretability.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if not block.startswith(">>>")]
    assert len(blocks) == 10
    known = {}
    for block in blocks:
        exec(block, known)


@pytest.mark.parametrize("name", ["sine", "formula", "recall", "sorting"])
def test_a_bridge_holds_the_same_numbers(name):
    pytest.importorskip("transformer_lens")
    x = inputs(name, 5, 4)[:, None]
    hooked, bridge = ah.to_hooked(item(name).model), ah.to_bridge(item(name).model)
    (out, cache), (expected, other) = bridge.run_with_cache(x), hooked.run_with_cache(x)
    assert torch.equal(out, expected)
    for block in range(len(hooked.blocks)):
        for part in ("q", "k", "v", "pattern", "z"):
            assert torch.equal(cache[f"blocks.{block}.{part}.hook_out"], other[f"blocks.{block}.attn.hook_{part}"])
        made = cache[f"blocks.{block}.hook_out"]
        assert torch.equal(made, other[f"blocks.{block}.hook_attn_out"][..., : made.shape[-1]])
    assert torch.equal(cache["blocks.0.hook_in"], other["hook_embed"])
    place, ablate = hooked.ablation(hooked.names[0][-1], 0.1)
    there = place.replace("attn.hook_z", "z.hook_out")
    assert torch.equal(bridge.run_with_hooks(x, fwd_hooks=[(there, ablate)]),
                       hooked.run_with_hooks(x, fwd_hooks=[(place, ablate)]))  # fmt: skip
    with pytest.raises(ah.ShapeError, match="takes"):
        bridge(x[:, :, :0])
    name_, point = bridge.names[0][-1], bridge.ablation(bridge.names[0][-1], 0.1)[0]
    assert (bridge.names, bridge.where(name_), point) == (hooked.names, hooked.where(name_), there)
    assert torch.equal(bridge.written(cache, name_), hooked.written(other, name_))


@pytest.mark.parametrize("make", [ah.to_hooked, ah.to_bridge])
def test_transformer_lens_is_told_the_truth(make):
    pytest.importorskip("transformer_lens")
    made = make(item("layer_norm").model)
    cfg = made.cfg
    assert (cfg.n_layers, cfg.n_heads, cfg.d_mlp, cfg.attn_only, cfg.attention_dir) == (3, 8, 0, True, "bidirectional")
    assert (cfg.normalization_type, cfg.act_fn, cfg.default_prepend_bos) == (None, None, False)
    assert not any(module.training for module in made.modules())


@pytest.mark.parametrize("name", ["formula", "layer_norm"])
def test_heads_are_patched_by_transformer_lens(name):
    """Blocks with fewer heads than others have idle ones, which matter nothing."""
    patching = pytest.importorskip("transformer_lens.patching")
    hooked = ah.to_hooked(item(name).model)
    clean, other = inputs(name, 5, 1)[:, None], inputs(name, 5, 2)[:, None]
    (out, cache), plain = hooked.run_with_cache(clean), hooked(other)
    far = lambda found: (found - out).abs().mean()
    found = patching.get_act_patch_attn_head_out_all_pos(hooked, other, cache, far)
    assert found.shape == (len(hooked.names), max(map(len, hooked.names)))
    for block, names in enumerate(hooked.names):
        assert found[block, len(names) :].tolist() == pytest.approx([far(plain).item()] * (found.shape[1] - len(names)))
    for head in hooked.mechanism.heads:
        if head.kind != "carry":
            hook = hooked.ablation(head.name, hooked.written(cache, head.name))
            by_name = far(hooked.run_with_hooks(other, fwd_hooks=[hook])).item()
            assert found[head.layer, head.head].item() == pytest.approx(by_name)


@pytest.mark.parametrize("make", [ah.to_hooked, ah.to_bridge])
def test_a_head_that_carries_is_addressed_by_its_layer(make):
    """x*y is computed in layer 0, read there by the sine, and carried through layer 1 to the sum."""
    pytest.importorskip("transformer_lens")
    model = ah.compile("sin(3*x*y) + x*y", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-5)
    made, x = make(model), inputs("formula", 6, 1)[:, None]
    product, (_, found) = x.prod(-1, keepdim=True), made.run_with_cache(x)
    assert (made.where("x*y"), made.where("x*y", layer=0)) == ((0, 0), (0, 0))
    assert made.where("x*y", layer=1) == (1, made.names[1].index("x*y"))
    kinds = [model.mechanism.head("x*y", layer).kind for layer in (None, 0, 1)]
    assert kinds == ["times", "times", "carry"]
    for layer, left in ((None, 0 * product), (0, 0 * product), (1, (3 * product).sin())):
        assert (made.written(found, "x*y", layer)[..., None] - product).abs().max() < 1e-5
        assert (made.pattern(found, "x*y", layer).sum(-1) - 1).abs().max() < 1e-12
        alone = made.run_with_hooks(x, fwd_hooks=[made.ablation("x*y", layer=layer)])
        assert (alone - left).abs().max() < 2e-5
    assert made.pattern(found, "x*y", 1).shape == (6, 1, 1)
    for wrong in (2, -1, "0", True):
        with pytest.raises(ah.InputError, match=r"No head of layer=.* writes 'x\*y'; .* layers 0, 1 does"):
            made.where("x*y", layer=wrong)
    with pytest.raises(ah.InputError, match=r"layer=0 writes 'sin\(3\*\(x\*y\)\)'; a head of layer 1 does"):
        made.ablation("sin(3*(x*y))", layer=0)


def test_an_input_that_is_carried_says_in_which_layers():
    model = ah.in_context.compile("q*mean(x*y)", {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}, tol=1e-3)
    with pytest.raises(ah.InputError, match=r"No head computes 'q'.*give layer=0 or layer=1\."):
        model.mechanism.head("q")
    assert model.mechanism.head("q", layer=1).kind == "carry"


def test_layers_are_counted_from_0_wherever_they_are_named():
    model = item("formula").model
    expected = {head.layer for head in model.mechanism.heads}
    assert {node.layer for node in model.report.nodes} == expected == {0, 1}
    probed = [layer.layer for layer in model.probe(inputs("formula", 3, 0)).layers]
    assert probed == [0, 1, 2]  # the last is the affine map of the outputs


def test_a_function_of_a_prompt_has_names_too():
    model = ah.in_context.compile("q*mean(x*y)", {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}, tol=1e-3)
    assert [head.name for head in model.mechanism.heads if head.kind != "carry"] == ["x*y", "mean(x*y)", "q*mean(x*y)"]


def test_the_command_writes_the_gallery_and_shows_heads(tmp_path, capsys):
    from anchorhead.tables import print_parts

    print_parts(item("formula").model)
    assert "layer 1, head 1  sin(3*(x*y)): computes sin(u) of u = 3*x*y" in capsys.readouterr().out
    for model in (item("sine").model, item("sine").model.with_row_map(ah.row_maps.Sigmoid())):
        print_parts(model)
        assert "layer 0, head 0  sin(3*x): computes sin(3*u) of u = x" in capsys.readouterr().out
    from typer.testing import CliRunner

    from anchorhead.cli import app

    found = CliRunner().invoke(app, ["gallery", "-o", str(tmp_path / "made")])
    assert found.exit_code == 0
    assert "21 files" in found.stdout


@pytest.mark.parametrize(
    ("formula", "domain", "options"),
    [("1/x", (1e-3, 1e3), {"relative": True, "tol": 1e-4}), ("gelu(x)", None, {"tol": 1e-7, "dtype": torch.float32})],
)
def test_the_error_of_a_head_says_to_what_it_is_relative_and_how_rounding_grows(formula, domain, options):
    model = ah.compile(formula, domain, **options)
    [head] = model.mechanism.heads
    x = torch.logspace(-3, 3, 4001, dtype=torch.float64).clamp(1e-3, 1e3).to(options.get("dtype", torch.float64))
    x = x if domain else torch.cat([x, 1e30 * x])
    exact = model.exact(x.double())
    allowed = head.error * (exact.abs() if head.relative else 1) + head.rounding * (1 + x.double().abs())
    off = (model(x).double() - exact).abs()
    assert (off <= allowed).all()
    assert (off > head.error).any()  # so that what is beside it counts
    assert (head.as_dict()["relative"], head.as_dict()["rounding"]) == (head.relative, head.rounding)
    assert ("|number|" in head.kept, "(1 + |u|)" in head.kept) == (bool(domain), not domain)


def test_inputs_called_u_and_v_are_no_roles():
    model = ah.compile("u*v + exp(-v)*u", {"u": (-1, 1), "v": (-1, 1)}, tol=1e-3)
    assert [head.words for head in model.mechanism.heads] == ["computes u*v", "computes exp(-v)*u"]


def test_errors_of_an_edited_network_with_hook_points_are_not_known():
    model = ah.compile("sin(2*a*b) + a", {"a": (-1, 1), "b": (0, 1)}, tol=1e-4)
    for make in (ah.to_hooked, ah.to_bridge):
        network = make(model)
        assert max(head.error for head in network.mechanism.heads) < 1e-3
        with torch.no_grad():
            next(iter(network.blocks)).attn.W_V.mul_(1.01)
        assert min(head.error for head in network.mechanism.heads) == math.inf
        assert network.where("sin(2*a*b)") == network.where("sin(2*b*a)")


def test_a_mechanism_runs_on_lists_and_says_how_to_flatten():
    model = ah.compile(lambda x: torch.relu(x @ x.transpose(-1, -2)), (-1, 1), shape=(2, 2), tol=1e-3)
    assert model.mechanism.run([[0.1, 0.2, 0.3, 0.4]]).outputs.shape == (1, 4)
    with pytest.raises(ah.ShapeError, match=r"x.reshape\(-1, 4\)"):
        model.mechanism.run(torch.rand(5, 2, 2))
    with pytest.raises(ah.InputError, match="tensors or lists of numbers"):
        model.mechanism.run("x")


def test_a_mechanism_says_which_heads_left_what_they_are_proved_for():
    model = ah.compile("sin(3*x*y) + exp(-x**2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-3)
    x = torch.tensor([[0.5, 0.5], [1.0, -1.0]])
    assert not model.mechanism.run(x).outside
    far = model.mechanism.run(x, patched={"x*y": torch.tensor([9.0, 0.5])}).outside
    assert {name: where.tolist() for name, where in far.items()} == {("sin(3*(x*y))", 1): [True, False]}
    prompt = ah.in_context.compile("mean(1/a)", {"a": (1, 2)}, tol=1e-3)  # where 0 would be outside
    tokens, mask = torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([True, True, False])
    assert not prompt.mechanism.run(tokens, mask=mask).outside
    found = prompt.mechanism.run(tokens).outside  # the inverse, and the mean that reads it
    assert [where.tolist() for where in found.values()] == [[False, False, True, False]] * 2


def test_two_patches_of_one_head_are_refused():
    model = ah.compile("sin(3*x*y)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-2)
    with pytest.raises(ah.InputError, match="another patch was given"):
        model.mechanism.run(torch.zeros(1, 2), patched={"x*y": 1.0, "y*x": 0.0})


def test_words_of_a_mechanism_end_with_its_outputs():
    mechanism = ah.compile(["sin(3*x)/4 + min(x, y) - 2", "x + 2*y"], {"x": (-1, 1), "y": (-1, 1)}, tol=1e-2).mechanism
    said = str(mechanism).splitlines()[-2:]
    assert said == ["output 0: 0.25*sin(3*x) + min(x, y) - 2", "output 1: x + 2*y"]
    assert all(line.partition(": ")[2] in mechanism.html() for line in said)
    affine = ah.compile("x + 2*y", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-2).mechanism
    assert str(affine) == "output 0: x + 2*y"


def test_names_are_found_in_any_order_and_as_they_were_written():
    largest = ah.compile("max(x, y)*x", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-3)
    assert largest.mechanism.head("max(y, x)").name == "max(x, y)"
    tokens = {"a": (-1, 1), "b": (0, 2)}
    prompt = ah.in_context.compile("sin(3*attend(4*q*a - b, b))", tokens, {"q": (-1, 1)}, tol=1e-3)
    for name in ("attend(4*q*a - b, b)", "attend(-b + 4*a*q, b)"):
        assert prompt.mechanism.head(name).kind == "pool"


def test_a_minimum_is_found_read_and_patched_as_it_is_written():
    """The head writes -min: the largest of the negatives."""
    model = ah.compile("x*min(x, y)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-6)
    (head, sign), (same, plain) = (model.mechanism.signed(name) for name in ("min(y, x)", "-min(x, y)"))
    assert (head, head.name, sign, plain) == (same, "-min(x, y)", -1, 1)
    assert model.mechanism.heads[-1].words == "computes the product u·v of u = x and v = min(x, y)"
    x = inputs("formula", 6, 1)[:, None]
    half = {"min(x, y)": 0.5}
    assert torch.equal(model.mechanism.run(x, patched=half).outputs, x[..., :1] / 2)
    pytest.importorskip("transformer_lens")
    hooked = ah.to_hooked(model)
    _, cache = hooked.run_with_cache(x)
    for name, factor in (("min(x, y)", 1), ("-min(x, y)", -1)):
        assert (hooked.written(cache, name) - factor * x.amin(-1)).abs().max() < 1e-6
        patched = hooked.run_with_hooks(x, fwd_hooks=[hooked.ablation(name, 0.5 * factor)])
        assert (patched - x[..., :1] / 2).abs().max() < 1e-6


def test_attention_of_a_module_is_found_by_its_head_and_token(tmp_path):
    pytest.importorskip("transformer_lens")
    torch.manual_seed(0)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            return self.inner(x, x, x, average_attn_weights=False)[0]

    module = Attention().double().eval()
    made = ah.compile(module, (-1, 1), tol=1e-3, shape=(3, 4))
    made.save(tmp_path / "attention.safetensors")
    model, x = ah.load(tmp_path / "attention.safetensors"), 2 * torch.rand(5, 3, 4, dtype=torch.float64) - 1
    _, weights = module.inner(x, x, x, average_attn_weights=False)
    hooked = ah.to_hooked(model)
    _, cache = hooked.run_with_cache(x.flatten(1)[:, None])
    for head in range(2):
        for token in range(3):
            name = f"inner: softmax[{head}, {token}], entry 1"
            assert (hooked.pattern(cache, name)[:, 0] - weights[:, head, token]).abs().max() < 1e-12
            assert f"attention inner: softmax[{head}, {token}] over" in model.mechanism.head(name).words
    with pytest.raises(ah.InputError, match="add `, entry 0` or `, entry 1`"):
        hooked.where("inner: softmax[0, 0]")


@pytest.mark.parametrize(
    ("target", "shape", "sentence"),
    [
        (torch.sort, (4,), "return torch.sort\\(x\\).values alone"),
        (lambda x: x.max(-1), (4,), "return .values alone"),
        (lambda a, b, c: torch.sort(torch.stack([a, b, c])).values, None, "function of one tensor .* shape="),
        (
            torch.nn.MultiheadAttention(4, 2, batch_first=True).double(),
            (3, 4),
            "wrap it .* lambda x: target\\(x, x, x\\)",
        ),
    ],
)
def test_a_refusal_says_what_to_write_instead(target, shape, sentence):
    with pytest.raises(ah.AnchorheadError, match=sentence):
        ah.compile(target, (-1, 1), tol=1e-3, shape=shape)


def test_what_has_no_hook_points_is_told_what_has():
    model = ah.compile(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).double(), (-1, 1), tol=1e-3)
    with pytest.raises(ah.ShapeError, match=r"x.reshape\(-1, 1, 4\)"):
        ah.to_hooked(model)(torch.zeros(5, 2, 2, dtype=torch.float64))
    with pytest.raises(ah.InputError, match=r"of ah\.in_context"):
        ah.to_hooked(3)
    with pytest.raises(ah.InputError, match=r"ah.load\('model.safetensors'\)"):
        ah.to_hooked("model.safetensors")


def test_the_digits_held_out_are_those_that_are_named():
    datasets, selection = pytest.importorskip("sklearn.datasets"), pytest.importorskip("sklearn.model_selection")
    item = ah.gallery.load("digits")
    assert "train_test_split(X / 16, y, test_size=0.3, random_state=0, stratify=y)" in item.description
    X, y = datasets.load_digits(return_X_y=True)
    _, held, _, labels = selection.train_test_split(X / 16, y, test_size=0.3, random_state=0, stratify=y)
    assert round(float((item.model(torch.tensor(held)).argmax(-1).numpy() == labels).mean()), 3) == 0.969
