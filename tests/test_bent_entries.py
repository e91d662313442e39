"""An entry of a file's record that is of another kind, or gone, is refused with a sentence wherever files are read."""

import random

import pytest

import anchorhead as ah
from attack import files
from attack.measuring import Result
from attack.opening import open_bent

MAPS = ah.row_maps


def under(row_map):
    return ah.compile("sin(x)", (-1, 1), tol=1e-1, method="smooth").with_row_map(row_map)


def mean(points, weights):
    return weights @ points[:, 0]


SAVED = {
    "head": lambda: ah.compile("tanh(x)"),
    "network": lambda: ah.compile("x*y", (-1, 1), tol=1e-2),
    "grid": lambda: ah.compile("sin(x + y)", (-1, 1), tol=1e-1, method="grid"),
    "sigmoid": lambda: ah.compile("sin(x)", (-1, 1), tol=1e-1, row_map=MAPS.Sigmoid()),
    "polynomial": lambda: ah.compile("sin(x)", (-1, 1), tol=1e-1, row_map=MAPS.Polynomial(5)),
    "fixed point": lambda: under(MAPS.FixedPoint(8, 8, 4)),
    "linear attention": lambda: under(MAPS.LinearAttention(4)),
    "formulas": lambda: ah.distance("gelu(x)", "silu(2*x)/2"),
    "a box": lambda: ah.distance("x*y", "x*y + x/9", {"x": (0, 1), "y": (0, 1)}),
    "a head": lambda: ah.distance(ah.compile("sin(x)", (-1, 1), tol=1e-1, method="smooth"), "sin(x)", (-1, 1)),
    "a table": lambda: ah.distance(ah.Table(0, 1, [0.0, 1.0, 3.0], "linear"), "x", (0, 1)),
    "pieces": lambda: ah.distance(ah.Piecewise([0, 1, 2], [[0.0, 1.0], [3.0]]), "x", (0, 2)),
    "a theorem": lambda: ah.theorems.single_head([[1.0]], [0.0], low=-1, high=1, anchors=8),
    "a lattice": lambda: ah.in_context.universal(mean, {"x": (0, 1)}, cells=4, masses=4, lipschitz=1.0),
}


def saved(name, folder):
    path = folder / "saved.safetensors"
    SAVED[name]().save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", SAVED)
def test_entries_of_another_kind_are_refused_in_sentences(name, tmp_path):
    result = Result(name)
    open_bent(random.Random(name), saved(name, tmp_path), result, 150)
    assert not result.findings, "\n".join(result.findings)


def refusal(name, folder, path, value):
    """What verify says of a file in which one entry is another."""
    parts = files.read(saved(name, folder))
    record = parts.record
    for key in path[:-1]:
        record = record[key]
    if value is None:
        del record[path[-1]]
    else:
        record[path[-1]] = value
    (folder / "bent.safetensors").write_bytes(files.write(parts))
    with pytest.raises(ah.AnchorheadError) as refused:
        ah.verify(folder / "bent.safetensors")
    return str(refused.value)


@pytest.mark.parametrize("value", [[0], {}])
def test_row_map_whose_name_is_no_text_is_not_known(value, tmp_path):
    assert "row map" in refusal("sigmoid", tmp_path, ("row_map", "name"), value)


def test_distance_from_a_head_says_its_dtype(tmp_path):
    assert "dtype" in refusal("a head", tmp_path, ("curves", 0, "dtype"), None)


def test_refusals_of_entries_are_sentences(tmp_path):
    said = refusal("head", tmp_path, ("domain",), [["-inf", "nan"]])
    assert said == "An end of the domain in the file is 'nan', which is not a number that can be held."
    said = refusal("head", tmp_path, ("certificate", "approximation"), 10**400)
    assert said.startswith("The file's approximation is 1000")
    assert "000..., which is not a number" in said


@pytest.mark.parametrize("value", [3.0, True, "3", [3]])
def test_format_is_a_whole_number(value, tmp_path):
    assert "has format" in refusal("head", tmp_path, ("format",), value)


def test_unknown_fields_of_the_record_are_passed_over(tmp_path):
    parts = files.read(saved("head", tmp_path))
    parts.record["note"] = "of somebody else"
    (tmp_path / "noted.safetensors").write_bytes(files.write(parts))
    assert ah.verify(tmp_path / "noted.safetensors").level == "proved"
