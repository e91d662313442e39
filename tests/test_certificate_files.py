"""A saved model says what it is: load is the identity, verify checks the proof, and every tampering is found."""

import json
import math
import struct
import subprocess
import sys

import numpy as np
import pytest
import second_checker
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import anchorhead as ah
from anchorhead.file.container import digest


@pytest.fixture(scope="module", params=["gelu", "relu", "sin", "half"])
def saved(request, tmp_path_factory):
    cases = {
        "gelu": ("gelu(x)", None, 1e-5, torch.float32),
        "relu": ("relu(x)", None, 1e-6, torch.float64),
        "sin": ("sin(3*x)", (-1, 1), 1e-8, torch.float64),
        "half": ("selu(y)", {"y": (-9, 9)}, 1e-4, torch.float64),
    }
    expression, domain, tol, dtype = cases[request.param]
    model = ah.compile(expression, domain, tol=tol, dtype=dtype)
    path = tmp_path_factory.mktemp("models") / f"{request.param}.safetensors"
    model.save(path)
    return model, path


def parts(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["anchorhead"]), load_file(path)


def rewrite(path, record, tensors, sign=True):
    """Writes a file as an attacker would, with a digest that fits."""
    if sign:
        record = record | {"digest": digest(record, {k: v.tobytes() for k, v in tensors.items()})}
    save_file(tensors, path, metadata={"anchorhead": json.dumps(record)})
    return path


def claiming(record, **changes):
    return record | {"certificate": record["certificate"] | changes}


def test_load_is_the_identity(saved):
    model, path = saved
    back = ah.load(path)
    assert back.certificate == model.certificate
    assert back.method == model.method
    x = torch.linspace(-5, 5, 1001, dtype=model.head.dtype)
    assert torch.equal(back(x), model(x))
    assert repr(back) == repr(model)
    again = path.with_suffix(".again")
    back.save(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("target", "method", "count"),
    [("sin(x)", "auto", 0), ("x*y", "auto", 1), (["x*y", "x"], "auto", 2), ("sin(x)*y", "grid", 1)],
)
def test_outputs_have_a_bound_each_and_one_head_has_its_own(target, method, count):
    certificate = ah.compile(target, (-1, 1), tol=1e-2, method=method).certificate
    assert len(certificate.outputs) == count
    assert max(certificate.outputs or (certificate.bound,)) <= certificate.bound == certificate.allowed(0.5, 0.1)


def test_verify_confirms_and_returns_the_certificate(saved):
    model, path = saved
    done = []
    assert ah.verify(path, progress=done.append) == model.certificate
    assert done[-1] == f"{model.certificate.boxes} of {model.certificate.boxes} boxes"


def test_changed_weight(saved, tmp_path):
    _, path = saved
    record, tensors = parts(path)
    for name in ("constants", "gains", "intercepts", "slopes"):
        changed = {k: v.copy() for k, v in tensors.items()}
        changed[name][-1] += 1e-3
        with pytest.raises(ah.FileError, match="changed since"):
            ah.verify(rewrite(tmp_path / "unsigned", record, changed, sign=False))
        if name in ("constants", "gains"):  # a gate moved by a hair is another head that keeps the bound
            with pytest.raises(ah.VerificationError):
                ah.verify(rewrite(tmp_path / "signed", record, changed))


def test_edited_bound(saved, tmp_path):
    _, path = saved
    record, tensors = parts(path)
    for name in ("approximation", "rounding"):
        edited = claiming(record, **{name: 0.5 * record["certificate"][name]})
        with pytest.raises(ah.VerificationError):
            ah.verify(rewrite(tmp_path / "file", edited, tensors))


@pytest.mark.parametrize("other", ["cos(3*x)", "0", "x", "1/x", "floor(x)", "x*y", "import os"])
def test_another_expression(saved, tmp_path, other):
    _, path = saved
    record, tensors = parts(path)
    with pytest.raises(ah.AnchorheadError):
        ah.verify(rewrite(tmp_path / "file", record | {"expressions": [other]}, tensors))


@pytest.mark.parametrize(
    "domain", [[-100.0, 100.0], [-0.5, 0.5], [0.0, "inf"], ["nan", 1.0], [1.0, -1.0], "R", [1], ["x", 2]]
)
def test_another_domain(saved, tmp_path, domain):
    _, path = saved
    record, tensors = parts(path)
    with pytest.raises(ah.AnchorheadError):
        ah.verify(rewrite(tmp_path / "file", record | {"domain": [domain]}, tensors))


@pytest.mark.parametrize("expression", ["sigmoid(-x) - 1/2", "sin(0*x) + 1/2 - sigmoid(x)"])
def test_mirrored_evaluation_is_part_of_the_proof(tmp_path, expression):
    """On the right such a model is mirrored from the left; a claim of more digits than that has must fail."""
    path = tmp_path / "file"
    ah.compile(expression, tol=1e-9).save(path)
    record, tensors = parts(path)
    tensors["edges"] = np.linspace(40.0, 60.0, 41)
    edited = claiming(record | {"domain": [[40.0, 60.0]]}, approximation=1e-14, rounding=1e-17, boxes=40)
    with pytest.raises(ah.VerificationError, match="Rounding"):
        ah.verify(rewrite(path, edited, tensors))


def test_gate_of_a_single_piece(saved, tmp_path):
    model, path = saved
    if len(model.head.sizes) > 1:
        return
    record, tensors = parts(path)
    tensors["gate_levels"][0] = 1e9
    with pytest.raises(ah.VerificationError, match="gate"):
        ah.verify(rewrite(tmp_path / "file", record, tensors))


def test_missing_boxes(saved, tmp_path):
    _, path = saved
    record, tensors = parts(path)
    for edges in (
        tensors["edges"][:-1],
        tensors["edges"][1:],
        tensors["edges"][::-1].copy(),
        tensors["edges"][[0, -1]],
    ):
        with pytest.raises(ah.VerificationError):
            ah.verify(rewrite(tmp_path / "file", record, tensors | {"edges": edges}))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99},
        {"sizes": [1, 1, 1]},
        {"sizes": "all"},
        {"dtype": "float16"},
        {"variables": 3},
        {"variables": ["x", "y"]},
        {"method": "[/bold]"},
        {"domain": [[-1, 10**400]]},
        {"certificate": None},
        {"certificate": {"level": "proved"}},
        {"uniform": "yes"},
    ],
)
def test_nonsense_in_the_record(saved, tmp_path, change):
    _, path = saved
    record, tensors = parts(path)
    broken = rewrite(tmp_path / "file", record | change, tensors)
    for read in (ah.verify, ah.load):
        with pytest.raises(ah.AnchorheadError):
            read(broken)


def test_truncated_and_hostile_files(saved, tmp_path):
    _, path = saved
    data = path.read_bytes()
    file = tmp_path / "file"
    nested = b"[" * 100_000
    hostile = [data[:n] for n in (0, 4, 8, 100, len(data) // 2, len(data) - 1)]
    hostile += [
        b"\xff" * 8 + data[8:],
        struct.pack("<Q", len(nested)) + nested,
        b"\x80\x04pickle",
        data[:8] + b"{}" * 50,
    ]
    hostile += [struct.pack("<Q", 2) + b"[]", data.replace(b"data_offsets", b"data_offsetz")]
    for content in hostile:
        file.write_bytes(content)
        for read in (ah.verify, ah.load):
            with pytest.raises(ah.FileError):
                read(file)
    with pytest.raises(ah.FileError, match=r"holds no converted model: it has no anchorhead\.json"):
        ah.verify(tmp_path)
    with pytest.raises(ah.FileError, match="cannot be read"):
        ah.verify(tmp_path / "nothing")


def test_not_finite_numbers(saved, tmp_path):
    _, path = saved
    record, tensors = parts(path)
    tensors["constants"][0] = math.inf
    with pytest.raises(ah.FileError, match="not finite"):
        ah.load(rewrite(tmp_path / "file", record, tensors))


def test_checker_needs_neither_torch_nor_numpy(saved):
    _, path = saved
    script = f"""
import sys
for name in ("torch", "numpy", "scipy", "safetensors", "anchorhead.compiler", "anchorhead.model"):
    sys.modules[name] = None
import anchorhead as ah
print(ah.verify({str(path)!r}).level)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "proved", done.stderr


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "anchorhead", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_commands(tmp_path):
    file, figure = tmp_path / "m.safetensors", tmp_path / "m.png"
    made = run("compile", "gelu(x)", "--tol", "1e-4", "-o", file, "--json")
    assert made.returncode == 0, made.stderr
    said = json.loads(made.stdout)
    assert said["certificate"]["level"] == "proved"
    assert said["certificate"]["bound"] <= 1e-4
    verified = run("verify", file, "--json")
    assert json.loads(verified.stdout)["verified"] is True
    shown = run("show", file, "--plot", figure)
    assert "approximation" in shown.stdout
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert f"figure: {figure}" in shown.stdout
    ah.theorems.single_head([[1.0]], [0.0], low=-1, high=1, anchors=8).save(tmp_path / "theorem.safetensors")
    assert f"figure: {figure}" in run("show", tmp_path / "theorem.safetensors", "--plot", figure).stdout
    planned = json.loads(run("plan", "sin(3*x)", "--domain", "x=-1:1", "--tol", "1e-3", "--json").stdout)
    assert planned["options"][0]["keys"] < 10
    file.write_bytes(file.read_bytes()[:-5])
    broken = run("verify", file)
    assert broken.returncode == 2
    assert broken.stderr.startswith("anchorhead: ")
    for wrong in (
        ["compile", "gelu(x)", "--domain", "x=3"],
        ["compile", "nope(x)"],
        ["plan"],
        ["compile", "x", "--dtype", "int8"],
    ):
        refused = run(*wrong)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    """Two readers might take two different claims for the one that was verified."""
    path = tmp_path / "model.safetensors"
    ah.compile("tanh(x)", tol=1e-3).save(path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    record = header["__metadata__"]["anchorhead"]
    header["__metadata__"]["anchorhead"] = record.replace(
        '"approximation": ', '"approximation": 1e-30, "approximation": '
    )
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(ah.FileError, match="twice"):
        ah.verify(path)


def test_what_is_loaded_with_verify_has_the_certificate_that_was_checked(tmp_path):
    path, model = tmp_path / "model.safetensors", ah.compile("sin(3*x)", (-1, 1), tol=1e-3, method="nearest")
    with torch.no_grad():
        model.head.constants[0].mul_(1 + 1e-15)  # an end key, beside which there is room
    model.save(path)
    assert ah.load(path).certificate.level == "unproved"
    assert ah.load(path, verify=True).certificate == ah.verify(path)
    with torch.no_grad():
        model.head.constants.mul_(1.5)
    model.save(path)
    with pytest.raises(ah.VerificationError):
        ah.load(path, verify=True)
    with pytest.raises(ah.InputError):
        ah.load(path, verify="yes")


HEADERS = {
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "a byte order mark": lambda text: text.encode("utf-8-sig"),
    "metadata that are no texts": lambda text: text.replace('"__metadata__":{', '"__metadata__":{"count":1,').encode(),
    "half a character": lambda text: text.replace('"__metadata__":{', '"__metadata__":{"note":"\\ud800",').encode(),
    "half a character in the record": lambda text: text.replace('{"anchorhead":"{', '{"anchorhead":"{\\ud800').encode(),
}


@pytest.mark.parametrize("form", HEADERS)
def test_a_header_that_safetensors_refuses_is_refused_by_both_checkers(saved, tmp_path, form):
    path, data = tmp_path / "model.safetensors", saved[1].read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = HEADERS[form](data[8 : 8 + length].decode())
    assert header != data[8 : 8 + length]
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])
    with pytest.raises(SafetensorError):
        load_file(path)
    for read in (ah.verify, ah.load):
        with pytest.raises(ah.FileError):
            read(path)
    assert second_checker.check(path).status == "refused"
