"""What is stored is what runs is what is proved: files hold every number, and a claim is about those numbers."""

import json
import math
import struct

import mpmath
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import anchorhead as ah
from anchorhead.file.container import digest

SQUARE = {"x": (-1, 1), "y": (-1, 1)}


def parts(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["anchorhead"]), load_file(path)


def written(path, record, tensors):
    """A file as a forger writes it, with a digest that fits."""
    record = record | {"digest": digest(record, {k: v.tobytes() for k, v in tensors.items()})}
    save_file(tensors, path, metadata={"anchorhead": json.dumps(record)})
    return path


def saved(model, path):
    model.save(path)
    return parts(path)


# constants in closed form, and what cancels in them: the whole chain against 50 digits

CLOSED = {
    "x*y + (cosh(20)-sinh(20))*1e9*y": lambda x, y: x * y + (mpmath.cosh(20) - mpmath.sinh(20)) * mpmath.mpf("1e9") * y,
    "(1 - cos(1/10000))*1e8*x + sin(y)": lambda x, y: (
        (1 - mpmath.cos(mpmath.mpf(1) / 10000)) * mpmath.mpf("1e8") * x + mpmath.sin(y)
    ),
    "(sin(1)**2+cos(1)**2-1.000000000000000000000000000000001)*1e33*x + sin(y)": lambda x, y: -x + mpmath.sin(y),
    "(sqrt(4) - 2)*1e30*x + sin(y)": lambda x, y: mpmath.sin(y),
    "max(x*y, (exp(1) - e)*1e40 + y, pi - 355/113)": lambda x, y: max(x * y, y, mpmath.pi - mpmath.mpf(355) / 113),
}


@pytest.mark.parametrize("text", CLOSED)
def test_closed_constants_reach_the_network_with_all_their_digits(text, tmp_path):
    model = ah.compile(text, SQUARE, tol=1e-6)
    model.save(tmp_path / "file")
    bound = ah.verify(tmp_path / "file").bound
    x = torch.tensor([[a, b] for a in (-1.0, -0.3, 1.0) for b in (-1.0, 0.7, 1.0)], dtype=torch.float64)
    found = ah.load(tmp_path / "file")(x)[:, 0]
    with mpmath.workdps(80):
        for (a, b), value in zip(x.tolist(), found.tolist(), strict=True):
            assert abs(CLOSED[text](mpmath.mpf(a), mpmath.mpf(b)) - value) <= bound <= 1e-6


def test_several_outputs_with_closed_constants(tmp_path):
    model = ah.compile(["(1-cos(1/10000))*1e8*x", "sin(x)"], (-1, 1), tol=1e-10)
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]
    with mpmath.workdps(60):
        factor = (1 - mpmath.cos(mpmath.mpf(1) / 10000)) * mpmath.mpf("1e8")
        for (u,), (first, _) in zip(x.tolist(), model(x).tolist(), strict=True):
            assert abs(factor * mpmath.mpf(u) - first) <= model.certificate.outputs[0]


def test_a_constant_that_is_no_number_is_refused():
    with pytest.raises(ah.AnchorheadError, match="finite"):
        ah.compile("log(-2)*x + sin(y)", SQUARE)


def test_a_coefficient_of_unknown_sign_has_the_range_of_both():
    """(sin(1)**2 + cos(1)**2 - 1) is zero, which no ball shows: whatever is claimed must hold for zero."""
    text = "(sin(1)**2+cos(1)**2-1)*1e300*(x + 3) + sin(y)"
    try:
        model = ah.compile(text, SQUARE, tol=1e-3)
    except ah.AnchorheadError:
        return
    assert abs(model(torch.ones(1, 2, dtype=torch.float64)).item() - math.sin(1)) <= model.certificate.bound


# edited models: what is saved is what runs, and the check decides


def edits():
    return {
        "the last map": lambda m: m.network.layered.last.weight.mul_(2),
        "a bias": lambda m: m.network.layered.last.bias.add_(0.5),
        "the first map": lambda m: m.network.layered.sequence[0].rows.weight.add_(0.01),
        "a head": lambda m: m.network.layered.sequence[0].groups[0].head.constants.add_(0.1),
        "a step's scale": lambda m: next(
            g for layer in m.network.layered.sequence for g in layer.groups if getattr(g, "values", None) is not None
        ).values.mul_(1.01),
    }


@pytest.mark.parametrize("what", edits())
def test_an_edited_network_is_saved_as_it_runs_and_fails_the_check(what, tmp_path):
    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2 + x*(y + 2))", SQUARE, tol=1e-4)
    with torch.no_grad():
        edits()[what](model)
    assert model.certificate.level == "unproved"
    assert "unproved" in str(model)
    model.save(tmp_path / "file")
    back = ah.load(tmp_path / "file")
    x = 2 * torch.rand(50, 2, dtype=torch.float64) - 1
    assert torch.equal(back(x), model(x))
    assert back.certificate.level == "unproved"
    with pytest.raises(ah.VerificationError):
        ah.verify(tmp_path / "file")


def test_an_edit_within_the_claim_is_proved_anew(tmp_path):
    """The claim is wider than the error: a change that stays below it passes, since it is checked and not compared."""
    model = ah.compile("x*y + max(x, y)", SQUARE, tol=1e-2)
    model.save(tmp_path / "before")
    record, tensors = parts(tmp_path / "before")
    record["certificate"] |= {"approximation": 0.02, "outputs": [0.03], "rounding": 0.01}
    claim = written(tmp_path / "claim", record, tensors)
    tensors["maps.1.entries"] = tensors["maps.1.entries"] * (1 + 1e-3)
    edited = written(tmp_path / "edited", record, tensors)
    assert ah.verify(claim).bound == ah.verify(edited).bound
    x = torch.tensor([[a, b] for a in (-1.0, 0.2, 1.0) for b in (-1.0, 0.5, 1.0)], dtype=torch.float64)
    exact = x[:, 0] * x[:, 1] + x.amax(-1)
    assert ((ah.load(edited)(x)[:, 0] - exact).abs() <= 0.03).all()
    tensors["maps.1.entries"] = tensors["maps.1.entries"] * 1.1
    with pytest.raises(ah.VerificationError):
        ah.verify(written(tmp_path / "more", record, tensors))


def test_a_loaded_model_whose_claim_does_not_hold_can_still_be_looked_at(tmp_path):
    model = ah.compile("sin(3*x*y)+max(x,y)", SQUARE, tol=1e-5, method="graph")
    with torch.no_grad():
        model.network.layered.layers[0].groups[0].values.view(-1)[-1] += 0.3
    model.save(tmp_path / "file")
    back = ah.load(tmp_path / "file")
    assert "unproved" in str(back)
    assert "unproved" in repr(back)
    for look in (lambda: back.report, lambda: back.probe(torch.zeros(1, 2, dtype=torch.float64))):
        with pytest.raises(ah.VerificationError, match="does not hold"):
            look()


def test_a_copy_that_was_edited_is_saved_with_its_own_numbers(tmp_path):
    import copy

    model = ah.compile("x*y", SQUARE, tol=1e-4)
    other = copy.deepcopy(model)
    assert other.certificate == model.certificate
    with torch.no_grad():
        other.network.layered.last.weight.mul_(3)
    x = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    other.save(tmp_path / "other")
    assert torch.equal(ah.load(tmp_path / "other")(x), other(x))
    assert not torch.equal(other(x), model(x))
    assert (model.certificate.level, other.certificate.level) == ("proved", "unproved")


@pytest.mark.parametrize("make", [
    lambda: ah.compile("gelu(x)", tol=1e-3),
    lambda: ah.compile("x*y", SQUARE, tol=1e-3, method="grid"),
    lambda: ah.compile(lambda x, y: math.sin(x) * y, (0, 1), tol=0.3, lipschitz=1.5, method="two_layer"),
])  # fmt: skip
def test_every_kind_of_model_loses_its_certificate_when_it_is_edited(make, tmp_path):
    model = make()
    assert model.certificate.level != "unproved"
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    assert model.certificate.level == "unproved"
    model.save(tmp_path / "file")
    back = ah.load(tmp_path / "file")
    assert all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), model.state_dict().values(), strict=True))


# files that lie


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "network"
    return saved(ah.compile("max(x, y) + x*y", SQUARE, tol=1e-4), path)


def test_a_checker_never_repeats_what_a_file_calls_itself(tmp_path):
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)).double()
    record, tensors = saved(ah.compile(mlp, (-1, 1), tol=1e-3), tmp_path / "mlp")
    lie = written(tmp_path / "lie", record | {"name": "the identity", "source": "0" * 64}, tensors)
    checked = ah.verify(lie)
    assert "identity" not in str(checked)
    assert checked.source == ""
    assert checked.expression.startswith("circuit ")
    for text in ("\x1b[2K\r gone", "a\nb", "x" * 10_000):
        with pytest.raises(ah.FileError):
            ah.verify(written(tmp_path / "escape", record | {"name": text}, tensors))
    steps = json.loads(json.dumps(record["program"]["steps"]))
    steps[0][1] = "\x1b[31m"
    with pytest.raises(ah.FileError):
        ah.verify(written(tmp_path / "label", record | {"program": record["program"] | {"steps": steps}}, tensors))


def test_the_source_of_a_module_is_in_its_certificate():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    first = ah.compile(mlp, (-1, 1), tol=1e-3).certificate.source
    assert len(first) == 64
    with torch.no_grad():
        mlp[0].weight[0, 0] += 1e-3
    assert ah.compile(mlp, (-1, 1), tol=1e-3).certificate.source != first


@pytest.mark.parametrize(("dtype", "depth", "value"), [("F32", 59.0, 1e14), ("F64", 400.0, 1e150)])
def test_a_head_whose_coefficients_overflow_is_not_proved(tmp_path, dtype, depth, value):
    number = np.float32 if dtype == "F32" else np.float64
    value = float(number(value))
    record, tensors = saved(
        ah.compile("sin(x)", (-1, 1), tol=1e-2, dtype=torch.float32 if dtype == "F32" else torch.float64),
        tmp_path / "file",
    )
    tensors = {
        "slopes": np.array([-1, 0, 1], number), "intercepts": np.array([0, depth, 0], number),
        "constants": np.full(3, value, number), "gains": np.zeros(3, number), "gate_slopes": np.zeros(1, number),
        "gate_levels": np.zeros(1, number), "edges": np.linspace(-1, 1, 9),
    }  # fmt: skip
    record |= {"expressions": [f"{int(value)} + 0*x"], "variables": ["x"], "uniform": True, "sizes": [3]}
    record["certificate"] |= {"approximation": 1e-3 * value, "rounding": 1e-3 * value, "boxes": 8}
    path = written(tmp_path / "lie", record, tensors)
    with pytest.raises(ah.VerificationError, match="Rounding"):
        ah.verify(path)


def test_claims_that_say_nothing_are_refused(tmp_path):
    record, tensors = saved(ah.compile("gelu(x)", tol=1e-3), tmp_path / "gelu")
    for claim in ({"approximation": 1e308}, {"rounding": 2.0}, {"approximation": 1e308, "rounding": 1e308}):
        wide = record | {"certificate": record["certificate"] | claim}
        with pytest.raises(ah.VerificationError, match="nothing"):
            ah.verify(written(tmp_path / "wide", wide, tensors))


def test_slopes_that_are_too_steep_for_a_grid_are_refused(tmp_path):
    record, tensors = saved(ah.compile("sin(x)*y", SQUARE, tol=1e-2, method="grid"), tmp_path / "grid")
    for steep in (1.7e308, -1.7e308, 1e9):
        slopes = tensors["axes.0.slopes"].copy()
        slopes[-1] = steep
        record["certificate"] |= {"approximation": 1e200, "rounding": 1e200, "outputs": [2e200]}
        with pytest.raises(ah.VerificationError):
            ah.verify(written(tmp_path / "steep", record, tensors | {"axes.0.slopes": slopes}))


@pytest.mark.parametrize("text", ["1e999*x", "x + exp(1000)", "max(x, exp(1e6))", "1" + "*1e300" * 2400 + "*x"])
def test_constants_beyond_all_floats_are_refused_with_a_sentence(text):
    with pytest.raises(ah.AnchorheadError):
        ah.compile(text, (-1, 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("text", ["x + exp(-x**2)", "0.9*x + 0.05*softplus(x)", "0.999*x + 0.001*gelu(x)"])
def test_the_largest_floats_have_their_values(text, dtype):
    model = ah.compile(text, tol=1e-3, dtype=dtype)
    largest = torch.finfo(dtype).max
    x = torch.tensor([s * f * largest for s in (-1, 1) for f in (0.3, 0.5, 0.6, 0.9, 1.0)], dtype=dtype)
    slope = {"x +": (1, 1), "0.9": (0.9, 0.95), "0.99": (0.999, 1)}["0.99" if text[:4] == "0.99" else text[:3]]
    exact = torch.where(x > 0, slope[1] * (x.double() / largest), slope[0] * (x.double() / largest))
    allowed = model.certificate.rounding + 2 * torch.finfo(dtype).eps
    assert ((model(x).double() / largest - exact).abs() <= allowed).all()


@pytest.mark.parametrize("sharpness", [2.0**1023, 2.0**1000, -4.0, 0.0, 3.0])
def test_the_sharpness_of_a_maximum_is_checked(network, tmp_path, sharpness):
    record, tensors = network
    scales = tensors["scales"].copy()
    scales[[i for i, use in enumerate(record["uses"]) if use[0] == "largest"]] = sharpness
    with pytest.raises(ah.VerificationError):
        ah.verify(written(tmp_path / "file", record, tensors | {"scales": scales}))


CHANGES = {
    "outputs of a head": lambda r, t: r["certificate"].update(outputs=[1e-300]),
    "a wire twice": lambda r, t: r["program"]["steps"][0][2][0].extend([0, 1.0, 0, 1.0]),
    "a later wire": lambda r, t: r["program"]["outputs"][0].extend([99, 1.0]),
    "a negative wire": lambda r, t: r["program"]["outputs"][0].extend([-1, 1.0]),
    "another circuit": lambda r, t: r["program"]["outputs"][0].__setitem__(0, 0.25),
    "a long fraction": lambda r, t: r["program"]["outputs"][0].__setitem__(0, "1e1000000000"),
    "a step twice": lambda r, t: r["layers"][0][0].append(r["layers"][0][0][0]),
    "a step left out": lambda r, t: r["layers"][0].pop(),
    "steps that do not go together": lambda r, t: r.update(layers=[[[i for g in r["layers"][0] for i in g]]]),
    "a place that is not there": lambda r, t: t.update({"layers.0.kept": np.array([7], np.int32)}),
    "a place twice": lambda r, t: t.update({"layers.0.kept": np.array([0, 0], np.int32)}),
    "a column that is not there": lambda r, t: t["maps.0.columns"].__setitem__(0, 9),
    "a negative column": lambda r, t: t["maps.0.columns"].__setitem__(0, -1),
    "a column twice": lambda r, t: t.update(
        {"maps.1.columns": np.zeros_like(t["maps.1.columns"]) + t["maps.1.columns"][0]}
    ),
    "rows out of order": lambda r, t: t["maps.0.starts"].__setitem__(1, 3),
    "a missing row": lambda r, t: t.update({f"maps.1.{n}": t[f"maps.1.{n}"][:-1] for n in ("bias", "starts")}),
    "too few scales": lambda r, t: t.update({"scales": t["scales"][:-1]}),
    "a head that is not there": lambda r, t: r["uses"][0].__setitem__(1, 5),
    "a bound that is no number": lambda r, t: r["certificate"].update(outputs=["1e-3"]),
    "a bound of 10**400": lambda r, t: r["certificate"].update(approximation=10**400),
    "a level of its own": lambda r, t: r["certificate"].update(level="certain"),
    "no shape": lambda r, t: r["program"].update(input_shape=[3]),
    "a number that is not finite": lambda r, t: r["heads"][0].update(low=math.nan),
    "boxes that were not checked": lambda r, t: r["certificate"].update(boxes=10**6),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_damaged_networks_are_refused_with_a_sentence(network, tmp_path, what):
    record, tensors = json.loads(json.dumps(network[0])), {k: v.copy() for k, v in network[1].items()}
    if what == "outputs of a head":
        record, tensors = saved(ah.compile("sin(x)", (-1, 1), tol=1e-3), tmp_path / "head")
    CHANGES[what](record, tensors)
    try:
        path = written(tmp_path / "file", record, tensors)
    except ValueError:  # not JSON: written as it stands
        path = tmp_path / "file"
        save_file(tensors, path, metadata={"anchorhead": json.dumps(record | {"digest": ""})})
    with pytest.raises((ah.FileError, ah.VerificationError)):
        ah.verify(path)


@pytest.mark.parametrize("shape", [[], [2], [1, 0], "x", [1.0]])
def test_the_shape_of_an_input_is_one(tmp_path, shape):
    record, tensors = saved(ah.compile("sin(x)", {"x": (-1, 1)}, tol=1e-2, method="grid"), tmp_path / "grid")
    other, numbers = saved(ah.compile(["sin(x)", "exp(x)"], {"x": (-1, 1)}, tol=1e-2), tmp_path / "network")
    files = [
        written(tmp_path / "first", record | {"input_shape": shape}, tensors),
        written(tmp_path / "second", other | {"program": other["program"] | {"input_shape": shape}}, numbers),
    ]
    for path in files:
        for read in (ah.verify, ah.load):
            with pytest.raises(ah.FileError):
                read(path)


def test_a_step_that_reads_a_later_one_is_refused(tmp_path):
    """Layers may evaluate steps in another order than the circuit; a row may still use only what comes before."""
    record, tensors = saved(ah.compile("sin(3*x) + exp(y)*2", SQUARE, tol=1e-3), tmp_path / "file")
    kept = tensors["layers.0.kept"]
    assert (record["layers"], len(kept)) == ([[[0], [1]]], 0)
    both = np.array([0, 1], np.int32)

    def row(*entries):
        columns, numbers = np.array([k for k, _ in entries], np.int32), np.array([c for _, c in entries])
        return {"entries": numbers, "columns": columns, "starts": np.array([0, len(entries)], np.int32), "bias": [0.0]}

    last = {n: tensors[f"maps.1.{n}"] for n in ("entries", "starts", "bias")} | {"columns": np.array([1, 0], np.int32)}
    for query, problem in ((row((0, 3.0)), None), (row((0, 3.0), (2, 0.1)), "after it")):
        maps = [row((1, 1.0)), query, last]
        changed = {k: v for k, v in tensors.items() if not k.startswith(("maps.", "layers."))}
        changed |= {f"maps.{i}.{n}": np.asarray(v) for i, m in enumerate(maps) for n, v in m.items()}
        changed |= {"layers.0.kept": both, "layers.1.kept": np.array([2], np.int32)}
        path = written(tmp_path / "other", record | {"layers": [[[1]], [[0]]]}, changed)
        if problem is None:
            assert ah.verify(path).level == "proved"
        else:
            with pytest.raises(ah.FileError, match=problem):
                ah.verify(path)


# files that waste


def raw(path, header, body=b""):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def test_tensors_that_overlap_are_refused_before_they_are_unpacked(tmp_path):
    ah.compile("sin(x)", (-1, 1), tol=1e-3).save(tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), b"\0" * 800_000
    entry = {"dtype": "F64", "shape": [100_000], "data_offsets": [0, 800_000]}
    many = {f"axes.{i}.slopes": entry for i in range(2000)}
    with pytest.raises(ah.FileError, match="overlap"):
        ah.verify(raw(tmp_path / "lie", {"__metadata__": header["__metadata__"]} | many, body))


@pytest.mark.parametrize(("keys", "edges"), [(3, 1_000_001), (100_000, 9), (8_000, 20_000), (16_384, 65_536)])
def test_more_keys_or_boxes_than_any_proof_has_are_refused_at_once(tmp_path, keys, edges):
    record, tensors = saved(ah.compile("sin(x)", (-1, 1), tol=1e-2), tmp_path / "file")
    numbers = {name: np.linspace(0, 1, keys) for name in ("slopes", "intercepts", "constants", "gains")}
    tensors |= numbers | {"edges": np.linspace(-1, 1, edges)}
    record |= {"sizes": [keys], "uniform": False}
    record["certificate"] |= {"boxes": edges - 1}
    with pytest.raises(ah.FileError, match="at most"):
        ah.verify(written(tmp_path / "lie", record, tensors))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "a\0b", None, 7.5])
def test_what_is_no_file_is_refused(path):
    for read in (ah.verify, ah.load):
        with pytest.raises(ah.FileError):
            read(path)
