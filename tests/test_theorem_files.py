"""Networks of theorems are models like the others: they print, save and load; what is stored is what runs."""

import json
import random
import struct

import pytest
import torch
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead.cli import app
from anchorhead.digits import Up
from anchorhead.explore.numbers import grid
from anchorhead.explore.page import page_entries, page_text
from anchorhead.file.container import digest
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.module import HeadModule

T = ah.theorems
DRAW = torch.Generator().manual_seed(0)
WEIGHTS = torch.randn(5, 2, generator=DRAW, dtype=torch.float64)
FORMULAS = ["sin(3*x1)*x2", "x2", "x1 - x3"]


def f(x):
    return (2 * x).sin().flip(-2)


def single(dtype=torch.float64, **more):
    return T.single_head(WEIGHTS, WEIGHTS[:, 0], -1, 1.5, anchors=7, dtype=dtype, **more)


CASES = {
    "single": single,
    "single, float32": lambda: single(torch.float32),
    "single, float16": lambda: T.single_head([[1.0], [0.5]], [0.0, 0.1], -1, 1, 4, beta=2.0, dtype=torch.float16),
    "single, bfloat16": lambda: T.single_head([[1.0, 0.5]], [0.0], -1, 1, 2, beta=1.5, dtype=torch.bfloat16),
    "single, cast": lambda: single().to(torch.float32),
    "causal": lambda: single(causal=True, output_features=2, output_row=lambda k: k % 2),
    "multi": lambda: T.multi_head(WEIGHTS, WEIGHTS[:, 1], -1, 1, heads=4),
    "multi, cast": lambda: T.multi_head(WEIGHTS, WEIGHTS[:, 1], -1, 1, heads=4).to(torch.float32),
    "two layers": lambda: T.two_layer(f, tokens=3, features=1, levels=3),
    "two layers, formulas": lambda: T.two_layer(FORMULAS, 3, 1, 3, low=-1, ramp_anchors=5, slope=0.1),
    "own columns": lambda: T.two_layer(FORMULAS, 3, 1, 3, columns="own", dtype=torch.float32),
    "shifts": lambda: T.two_layer(f, tokens=4, features=1, levels=2, columns="own", shifts=4),
    "shifts, cast": lambda: T.two_layer(f, tokens=3, features=1, levels=3, columns="own", shifts=4).to(torch.float32),
    "softmax": lambda: T.attention_then_softmax(f, tokens=3, features=1, levels=3),
    "softmax, own columns": lambda: T.attention_then_softmax(f, tokens=3, features=1, levels=3, columns="own"),
}


def measures(dtype=torch.float64):
    return ah.in_context.universal(
        lambda p, w: (w @ p[:, 0]).abs(), {"x": (-1, 1)}, 4, 3, lipschitz=1.0, dtype=dtype, examples=100
    )


@pytest.fixture(params=CASES)
def model(request):
    return CASES[request.param]()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file of every kind."""
    folder = tmp_path_factory.mktemp("theorems")
    made = {name: make() for name, make in CASES.items() if "," not in name} | {"universal": measures()}
    for name, model in made.items():
        model.save(folder / name)
    return [folder / name for name in made]


def inputs(model):
    shape = getattr(model, "size", (6, 1))
    return (3 * torch.rand(9, *shape, generator=DRAW, dtype=torch.float64) - 1.2).to(model.dtype)


def parts(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["anchorhead"]), load_file(path)


def rewrite(path, record, tensors):
    """Writes a file as an attacker would, with a digest that fits."""
    record = record | {"digest": digest(record, {k: v.tobytes() for k, v in tensors.items()})}
    save_file(tensors, path, metadata={"anchorhead": json.dumps(record)})
    return path


def test_load_is_the_identity(model, tmp_path):
    model.save(tmp_path / "one")
    back = ah.load(tmp_path / "one")
    x = inputs(model)
    assert type(back) is type(model)
    assert str(back) == str(model)
    assert not back.edited
    assert torch.equal(back(x), model(x))
    assert torch.equal(back.literal()(x), model.literal()(x))
    assert back.as_dict() == model.as_dict()
    back.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_bounds_are_those_of_the_network_that_was_saved(model, tmp_path):
    model.save(tmp_path / "one")
    back = ah.load(tmp_path / "one")
    if isinstance(model, T.GridNetwork):
        assert back.bound_for(lipschitz=3.0) == model.bound_for(lipschitz=3.0)
        assert back.bound_for(lipschitz=3.0, norm=2) == model.bound_for(lipschitz=3.0, norm=2)
    else:
        assert (back.bound, back.sum_bound) == (model.bound, model.sum_bound)
        x = inputs(model)
        assert torch.equal(back.exact(x), model.exact(x))


def test_exact_needs_formulas_once_it_was_saved(tmp_path):
    known, opaque = CASES["two layers, formulas"](), CASES["two layers"]()
    x = inputs(known)
    for model in (known, opaque):
        model.save(tmp_path / model.theorem)
        back = ah.load(tmp_path / model.theorem)
        if model is known:
            assert torch.equal(back.exact(x), model.exact(x))
        else:
            with pytest.raises(ah.AnchorheadError, match="values of f on the grid and not f itself"):
                back.exact(x)


@pytest.mark.parametrize("name", ["two layers, formulas", "own columns"])
def test_formulas_that_are_not_those_of_the_values_are_not_believed(name, tmp_path):
    CASES[name]().save(tmp_path / "one")
    assert not ah.load(tmp_path / "one").edited
    record, tensors = parts(tmp_path / "one")
    changed = record | {"expressions": [f"{text} + 0.001" for text in record["expressions"]]}
    assert ah.load(rewrite(tmp_path / "two", changed, tensors)).edited


def test_formulas_are_the_function():
    x = torch.rand(20, 3, 1, dtype=torch.float64)
    a, b, c = x.squeeze(-1).unbind(-1)
    expected = torch.stack([(3 * a).sin() * b, b, a - c], -1).unsqueeze(-1)
    assert torch.allclose(T.two_layer(FORMULAS, 3, 1, 3).exact(x), expected, atol=1e-15, rtol=0)
    assert T.two_layer("x1*x2", 1, 2, 4).exact(x.reshape(-1, 1, 2)).shape == (30, 1, 1)


@pytest.mark.parametrize("given", [["x1", "x2"], ["x4", "x1", "x2"], 3, [], "floor(x1)"])
def test_what_is_neither_function_nor_formulas_is_refused(given):
    with pytest.raises(ah.InputError):
        T.two_layer(given, tokens=3, features=1, levels=3)


def test_edited_networks_stay_edited(model, tmp_path):
    with torch.no_grad():
        model.attention.query[0, 0, 0] += 0.5
    model.save(tmp_path / "one")
    back = ah.load(tmp_path / "one")
    x = inputs(model)
    assert back.edited
    assert "changed since" in str(back)
    assert torch.equal(back(x), model(x))
    with pytest.raises(ah.AnchorheadError, match="changed since"):
        back.bound_for(lipschitz=1.0) if isinstance(back, T.GridNetwork) else back.bound


@pytest.mark.parametrize("make", [single, CASES["multi"], CASES["two layers"]])
def test_numbers_that_lost_digits_have_no_bound_in_a_dtype_with_more(make, tmp_path):
    model = make().to(torch.float32).to(torch.float64)
    assert model.edited
    assert "cast from float32" in str(model)
    with pytest.raises(ah.AnchorheadError, match="cast from float32"):
        model.bound_for(lipschitz=2.0) if isinstance(model, T.GridNetwork) else model.bound
    model.save(tmp_path / "one")
    back, x = ah.load(tmp_path / "one"), inputs(model)
    assert back.edited
    torch.testing.assert_close(back(x), model(x), rtol=0, atol=1e-12)
    assert not make().to(torch.float32).edited


@pytest.mark.parametrize("make", [single, CASES["two layers"]])
def test_numbers_that_require_gradients_are_not_said_to_be_others(make, tmp_path):
    model = make().requires_grad_(True)
    bound = lambda m: m.bound_for(lipschitz=2.0) if isinstance(m, T.GridNetwork) else m.bound
    assert not model.edited
    assert "require gradients" in str(model)
    with pytest.raises(ah.AnchorheadError, match="requires_grad_"):
        bound(model)
    model.save(tmp_path / "one")
    assert bound(ah.load(tmp_path / "one")) == bound(make())
    model(inputs(model)).sum().backward()
    assert model.attention.query.grad is not None
    assert bound(model.requires_grad_(False)) == bound(make())


def test_forged_numbers_have_no_bound(model, tmp_path):
    """Where a file says that its numbers are the construction's and they are not, the theorem is not claimed."""
    model.save(tmp_path / "one")
    record, tensors = parts(tmp_path / "one")
    assert record["built"] is True
    for name in sorted(tensors):
        if name.startswith(("stages.0", "stages.1")):
            changed = {k: v.copy() for k, v in tensors.items()}
            if len(changed[name]):
                changed[name][-1] = 2 * changed[name][-1] or 1
                back = ah.load(rewrite(tmp_path / "two", record, changed))
                assert back.edited, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_measures(dtype, tmp_path):
    model = measures(dtype)
    model.save(tmp_path / "one")
    back = ah.load(tmp_path / "one")
    x = inputs(model).clamp(-1, 1)
    assert torch.equal(back(x), model(x))
    assert back.certificate == model.certificate
    assert back.certificate.level == "conditional"
    assert str(back) == str(model)
    back.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with pytest.raises(ah.AnchorheadError, match="not F itself"):
        back.exact(x)
    with torch.no_grad():
        model.cells.levels[0] += 1e-3
    model.save(tmp_path / "one")
    assert ah.load(tmp_path / "one").certificate.level == "unproved"
    with pytest.raises(ah.VerificationError, match="construction"):
        ah.load(tmp_path / "one", verify=True)


def test_verify_says_that_there_is_no_proof_in_the_file(files):
    for path in files:
        with pytest.raises(ah.VerificationError, match=r"proved on paper.*ah\.load\(path, verify=True\)"):
            ah.verify(path)


def test_loading_with_verify_refuses_numbers_that_are_not_the_construction_s(files, tmp_path):
    for path in files:
        ah.load(path, verify=True)
        record, tensors = parts(path)
        if record["theorem"] == "universal":
            continue
        query = tensors["stages.1.query"].copy()
        query[query != 0] *= 1.01
        forged = rewrite(tmp_path / "one", record, tensors | {"stages.1.query": query})
        assert ah.load(forged).edited
        with pytest.raises(ah.VerificationError, match="not those of its theorem's construction"):
            ah.load(forged, verify=True)


@pytest.mark.parametrize("seed", range(60))
def test_bytes_changed_at_random_are_refused(files, seed, tmp_path):
    draw = random.Random(seed)
    data = bytearray(draw.choice(files).read_bytes())
    for _ in range(draw.choice((1, 1, 3))):
        at = draw.randrange(len(data))
        data[at] ^= 1 << draw.randrange(8)
    if draw.random() < 0.2:
        del data[draw.randrange(len(data)) :]
    (tmp_path / "one").write_bytes(bytes(data))
    with pytest.raises(ah.FileError):
        ah.load(tmp_path / "one")


STRANGE = (None, True, -1, 0, 1, 2, 3, 7, 10**9, 2**70, 0.5, -0.5, 1e300, 1e-300, "x", "own", [], {}, [1], ["q"])


@pytest.mark.parametrize("seed", range(60))
def test_records_changed_at_random_are_refused_or_what_they_say(files, seed, tmp_path):
    """With a digest that fits: whatever else the record says, a network loads or a sentence comes."""
    draw = random.Random(seed)
    path = draw.choice(files)
    record, tensors = parts(path)
    name = draw.choice(sorted(set(record) - {"digest", "versions"}))
    changed = dict(record)
    if draw.random() < 0.2:
        del changed[name]
    else:
        changed[name] = draw.choice(STRANGE)
    if draw.random() < 0.3:
        other = draw.choice(sorted(tensors))
        tensors = tensors | {other: tensors[other][: len(tensors[other]) // 2].copy()}
    try:
        back = ah.load(rewrite(tmp_path / "one", changed, tensors))
    except (ah.FileError, ah.VerificationError):
        return
    back.save(tmp_path / "two")
    again, same = parts(tmp_path / "two")
    assert {k: v for k, v in again.items() if k in changed and k not in ("digest", "built")} == {
        k: v for k, v in changed.items() if k not in ("digest", "built")
    }
    assert all((same[k] == v).all() for k, v in tensors.items())


def test_numbers_that_the_dtype_does_not_hold_are_refused(tmp_path):
    CASES["single, float16"]().save(tmp_path / "one")
    record, tensors = parts(tmp_path / "one")
    tensors["stages.1.key"][0] = 1.0000001
    with pytest.raises(ah.FileError, match="float16 does not"):
        ah.load(rewrite(tmp_path / "two", record, tensors))


def test_printing_says_p_beta_bound_and_shapes(model):
    told = str(model)
    assert f"p = {model.ramp_anchors if isinstance(model, T.GridNetwork) else len(model.anchors)}" in told
    assert f"β = {model.beta:.6g}" in told
    assert "bound_for" in told if isinstance(model, T.GridNetwork) else f"<= {Up(model.bound):.4g}" in told
    for name, matrix in model.matrices().items():
        assert f"{name} {tuple(matrix.shape)}" in told
    assert "\n" not in repr(model)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["single", "causal", "multi", "two layers", "own columns", "shifts", "softmax"])
def test_onnx_files_compute_the_same(name, tmp_path):
    pytest.importorskip("onnxruntime")
    model = CASES[name]()
    ah.export_onnx(model, tmp_path / "model.onnx")
    x = inputs(model)
    assert ah.check_onnx(model, tmp_path / "model.onnx", x) <= 400 * torch.finfo(model.dtype).eps


@pytest.mark.heavy
def test_onnx_files_of_functions_of_measures_take_any_length(tmp_path):
    pytest.importorskip("onnxruntime")
    model = measures()
    ah.export_onnx(model, tmp_path / "model.onnx")
    for n in (1, 4, 9):
        x = 2 * torch.rand(3, n, 1, generator=DRAW, dtype=torch.float64) - 1
        assert ah.check_onnx(model, tmp_path / "model.onnx", x) <= 1e-12


def test_heads_of_one_number_are_those_that_run():
    """What the page draws, softmax over keys as they are stored, is what the network computes."""
    u = torch.linspace(-1.5, 2, 41, dtype=torch.float64)
    for model in (
        T.single_head([[1.0], [1.0]], [0.0, 0.0], -1, 1.5, anchors=7),
        T.single_head([[1.0], [1.0]], [0.3, 0.3], -1, 1.5, anchors=5, causal=True),
        T.multi_head([[1.0]] * 4, [0.1] * 4, -1, 1.5, heads=3),
    ):
        x = (u - model.bias[0]).reshape(-1, 1, 1).expand(-1, model.tokens, 1)
        total = sum(HeadModule(head)(u) for head in model.scalar_heads())
        assert torch.allclose(model(x)[:, 0].sum(-1), total, rtol=0, atol=1e-12)


def test_the_page_takes_saved_networks(files):
    for path in files:
        entries = page_entries(path)
        for entry in entries:
            (head,) = entry["heads"]
            module = HeadModule(Head.of(**{name: head[name] for name in NUMBERS}, horner=False, sizes=head["sizes"]))
            error = (module(torch.tensor(grid(*entry["window"]))) - torch.tensor(entry["f"])).abs().max()
            assert float(error) <= head["claim"]["approximation"]
        assert page_text(entries)


def test_the_page_refuses_what_it_cannot_draw(tmp_path):
    model = CASES["single"]()
    with torch.no_grad():
        model.attention.query += 1
    model.save(tmp_path / "one.safetensors")
    with pytest.raises(ah.InputError, match="changed since"):
        page_entries(tmp_path / "one.safetensors")
    ranges = {"x": (-1, 1), "y": (0, 1)}
    made = ah.in_context.universal(lambda p, w: w @ p[:, 0], ranges, 2, 2, lipschitz=1.0)
    made.save(tmp_path / "two.safetensors")
    with pytest.raises(ah.InputError, match="coordinates x, y"):
        page_entries(tmp_path / "two.safetensors")


def test_the_command_shows_saved_networks(files):
    for path in files:
        runner = CliRunner()
        shown = runner.invoke(app, ["show", str(path)])
        assert shown.exit_code == 0, shown.output
        assert str(ah.load(path)).splitlines()[0] in shown.output
        told = json.loads(runner.invoke(app, ["show", str(path), "--json"]).output)
        assert told["file"] == str(path)
        assert told["theorem"]
        assert told["resources"]["heads"] >= 1


@pytest.mark.parametrize("name", ["weights", "bias", "anchors"])
@pytest.mark.parametrize("make", [ah.theorems.single_head, ah.theorems.multi_head])
def test_a_bound_is_not_of_a_target_that_was_changed(make, name, tmp_path) -> None:
    size = {"anchors": 16} if make is ah.theorems.single_head else {"heads": 8}
    network = make(torch.ones(4, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.float64), -1, 1, **size)
    assert network.bound > 0
    getattr(network, name).add_(0.5)
    assert network.edited
    assert not hasattr(network, "bound")
    network.save(tmp_path / "changed.safetensors")
    assert ah.load(tmp_path / "changed.safetensors").edited
