"""Under `python -O`, which drops assert statements, damaged files meet the same verdicts: no check is an assert."""

import copy
import json
import random
import struct
import subprocess
import sys

import pytest
import torch
from torch import nn

import anchorhead as ah
from anchorhead.file.container import digest

VERDICTS = """
import json, sys
import anchorhead as ah
assert not sys.argv[1], "assertions are on"
found = {}
for path in sys.argv[2:]:
    for read in (ah.verify, ah.load):
        try:
            read(path)
            said = "accepted"
        except ah.AnchorheadError as error:
            said = type(error).__name__
        except Exception as error:
            said = "raw " + repr(error)
        found[path + " " + read.__name__] = said
print(json.dumps(found))
"""


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)).double()


MODELS = {
    "head": lambda: ah.compile("sin(x) + abs(x)", (-1, 1), tol=1e-2),
    "network": lambda: ah.compile("x*y + max(x, y) + x**2", (-1, 1), tol=1e-2, method="graph"),
    "module": lambda: ah.compile(perceptron(), (-1, 1), tol=1e-2),
    "grid": lambda: ah.compile("x*y", (-1, 1), tol=0.1, method="grid"),
}


def parts(path):
    """What a file holds: its record, and each tensor's description and bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    record = json.loads(header.pop("__metadata__")["anchorhead"])
    body = data[8 + length :]
    return record, {name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def written(path, record, tensors):
    """A file as an attacker would write it, with a digest that fits."""
    record = {name: value for name, value in record.items() if name != "digest"}
    record["digest"] = digest(record, {name: held for name, (_, held) in tensors.items()})
    header, body = {"__metadata__": {"anchorhead": json.dumps(record)}}, b""
    for name, (entry, held) in tensors.items():
        header[name] = entry | {"data_offsets": [len(body), len(body) + len(held)]}
        body += held
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return str(path)


def places(value, path=()):
    """Every place in a record, as a path of keys and indices."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def damaged(value):
    """What may stand in a value's place, of its own type and of others."""
    if isinstance(value, bool) or value is None:
        return [not value, 7]
    if isinstance(value, int | float):
        return [-1, value + 1, 2**62, 0.5, "1", None]
    if isinstance(value, str):
        return ["", "nope", "x*y*z", 3]
    if isinstance(value, list):
        return [[], value[:-1], value + value[-1:], value[::-1], [value], {}]
    return [{}, [], None]


def changed_records(record, choose, count):
    """Copies of a record, each with one place damaged or gone."""
    everywhere = list(places(record))
    for path in choose.sample(everywhere, min(count, len(everywhere))):
        copied = copy.deepcopy(record)
        *above, last = path
        holder = copied
        for key in above:
            holder = holder[key]
        if isinstance(holder, dict) and choose.random() < 0.1:
            del holder[last]
        else:
            holder[last] = choose.choice(damaged(holder[last]))
        yield copied


def changed_tensors(tensors):
    """Tensors with one of them longer, shorter, empty, of another type, gone, or under another name."""
    for name, (entry, held) in tensors.items():
        size = 8 if entry["dtype"] == "F64" else 4
        many = len(held) // size
        for shape, kept in (([many + 1], held + held[:size]), ([many - 1], held[size:]), ([0], b""), ([1, many], held)):
            yield tensors | {name: (entry | {"shape": shape}, kept)}
        if size == 8:
            yield tensors | {name: (entry | {"dtype": "F32", "shape": [2 * many]}, held)}
        rest = {other: part for other, part in tensors.items() if other != name}
        yield rest
        yield rest | {name + "x": (entry, held)}


def verdicts(files, *flags):
    script = VERDICTS if flags else VERDICTS.replace("assert not", "assert")
    command = [sys.executable, *flags, "-c", script, "" if flags else "on", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", MODELS)
def test_damaged_files_meet_the_same_verdict_without_assertions(kind, tmp_path):
    MODELS[kind]().save(tmp_path / kind)
    record, tensors = parts(tmp_path / kind)
    choose = random.Random(kind)
    files = [written(tmp_path / "as it was", record, tensors)]
    for i, other in enumerate(changed_records(record, choose, 120)):
        files.append(written(tmp_path / f"record {i}", other, tensors))
    for i, other in enumerate(changed_tensors(tensors)):
        files.append(written(tmp_path / f"tensors {i}", record, other))
    usual, optimised = verdicts(files), verdicts(files, "-O")
    assert {name: said for name, said in optimised.items() if said.startswith("raw")} == {}
    assert optimised == usual
    assert usual[f"{files[0]} verify"] == usual[f"{files[0]} load"] == "accepted"
    refused = [name for name, said in optimised.items() if name.endswith("verify") and said != "accepted"]
    assert len(refused) > len(files) / 2


@pytest.mark.heavy
def test_the_library_runs_without_assertions():
    script = """
import anchorhead as ah
model = ah.compile("sin(x*y)", (-1, 1), tol=1e-2)
print(model.certificate.level)
for wrong in (("1/x", (-1, 1)), ("floor(x)", (0, 1)), ("x", (1, 0)), ("x", (0, 10**400))):
    try:
        ah.compile(*wrong)
    except ah.AnchorheadError as error:
        print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False)
    said = ["proved", "SingularityError", "DiscontinuityError", "InputError", "InputError"]
    assert done.stdout.split() == said, done.stderr
