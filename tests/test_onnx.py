"""ONNX files: they say what the model says, to the last digits, at any batch and length, and carry its certificate."""

import json
import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah
from anchorhead.export import onnx_file
from anchorhead.export.onnx_file import check_onnx, export_onnx

os.environ.setdefault("HF_HUB_OFFLINE", "1")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
AGREE = {torch.float32: 1e-6, torch.float64: 1e-12}
DTYPES = list(AGREE)


def points(*shape, dtype=torch.float64, reach=1.0):
    return reach * (2 * torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype) - 1)


def read(path):
    file = onnx.load(path)
    onnx.checker.check_model(file)
    return file


def sizes(values):
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def require_compiled(model, path, *inputs, softmax):
    """The file agrees with the model, shows its softmax, and carries its certificate."""
    file = read(path)
    for x in inputs:
        assert check_onnx(model, path, x) <= AGREE[x.dtype]
    assert sum(node.op_type == "Softmax" for node in file.graph.node) == softmax
    assert not {"Exp", "Attention"} & {node.op_type for node in file.graph.node}
    said = {entry.key: entry.value for entry in file.metadata_props}
    assert json.loads(said["anchorhead.certificate"]) == model.certificate.as_dict()
    return file


@pytest.mark.parametrize(
    ("formula", "dtype"), [("gelu(x)", torch.float32), ("gelu(x)", torch.float64), ("relu(x)", torch.float64)]
)
def test_a_head_is_one_softmax_and_free_in_both_sizes(formula, dtype, tmp_path):
    model = ah.compile(formula, tol=1e-5, dtype=dtype)
    path = tmp_path / "head.onnx"
    export_onnx(model, path)
    wide = points(40, 25, dtype=dtype, reach=20.0)
    file = require_compiled(model, path, wide, wide[:1], wide[:, :1], wide[:0], softmax=1)
    assert sizes([*file.graph.input, *file.graph.output]) == {"x": ["batch", "length"], "y": ["batch", "length"]}


def test_an_example_says_how_many_dimensions_and_names_what_the_input_is_called(tmp_path):
    model = ah.compile("relu(x)", dtype=torch.float32)
    path = tmp_path / "head.onnx"
    export_onnx(model, path, torch.zeros(1, dtype=torch.float32), names=["signal"])
    assert sizes(read(path).graph.input) == {"signal": ["batch"]}
    x = points(1000, dtype=torch.float32, reach=9.0)
    assert check_onnx(model, path, x) <= 1e-6
    assert check_onnx(ah.compile("abs(x)", dtype=torch.float32), path, x) > 0.1  # and a difference is told
    with pytest.raises(ah.InputError, match="does not take these inputs"):
        check_onnx(model, path, x[:, None])


def test_a_steep_gate_costs_no_digits(tmp_path):
    model = ah.compile("abs(sin(3*x))", (-0.9, 0.9), tol=1e-5)
    assert 1 < len(model.head.sizes) < model.head.keys
    path = tmp_path / "kinked.onnx"
    export_onnx(model, path)
    require_compiled(model, path, points(1000, 1, reach=0.9), softmax=1)


def test_a_function_of_two_variables(tmp_path):
    model = ah.compile("x*sin(y)", (-1, 1), tol=1e-4, method="graph")
    path = tmp_path / "network.onnx"
    export_onnx(model, path)
    file = require_compiled(model, path, points(1000, 2), points(1, 2), softmax=1)
    assert sizes(file.graph.input) == {"x": ["batch", 2]}


def test_a_perceptron_on_sequences(tmp_path):
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(3, 6), nn.LeakyReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    model = ah.compile(mlp, (-1, 1), tol=1e-3)
    path = tmp_path / "mlp.onnx"
    export_onnx(model, path, points(1, 1, 3))
    file = require_compiled(model, path, points(5, 7, 3), points(1, 1, 3), softmax=2)
    assert sizes(file.graph.output) == {"y": ["batch", "length", 2]}


def test_a_grid(tmp_path):
    model = ah.compile("x*y", (-1, 1), tol=0.05, method="grid", dtype=torch.float32)
    path = tmp_path / "grid.onnx"
    export_onnx(model, path)
    require_compiled(model, path, points(1000, 2, dtype=torch.float32), points(1, 2, dtype=torch.float32), softmax=1)


def test_two_layers_of_the_paper(tmp_path):
    model = ah.compile(lambda x, y: math.sin(x) * y, (0, 1), tol=0.2, method="two_layer")
    path = tmp_path / "two_layer.onnx"
    export_onnx(model, path)
    require_compiled(model, path, points(100, 2).abs(), softmax=2)


class Numbers(nn.Module):
    """Factors close to one, small summands, numbers that a float32 does not hold, and a norm's epsilon."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), nn.LayerNorm(8, eps=1e-3), nn.Linear(8, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, y, unused):
        hidden = self.norm(F.gelu(self.first(y)) * 1.000001 + 1e-9)
        return self.last(self.drop(hidden.clamp(-0.7, 0.7) / 0.3 + torch.full((8,), 0.1, dtype=y.dtype)))


def test_a_converted_module_keeps_its_numbers_and_its_mode(tmp_path):
    torch.manual_seed(0)
    model = ah.convert(Numbers().double(), tol=1e-4)
    model.norm.eval()
    path = tmp_path / "module.onnx"
    export_onnx(model, path, (points(1, 5), torch.zeros(1, 3)))
    assert check_onnx(model, path, (points(50, 5), torch.zeros(50, 3))) <= 1e-12
    assert (model.training, model.drop.training, model.norm.training) == (True, True, False)
    file = read(path)
    assert sizes([*file.graph.input, *file.graph.output]) == {
        "y": ["batch", 5],
        "unused": ["batch", "length"],
        "y_out": ["batch", 2],
    }
    said = {entry.key: entry.value for entry in file.metadata_props}
    assert json.loads(said["anchorhead.report"]) == json.loads(json.dumps(model.report.as_dict()))
    assert b"onnx_file.py" not in path.read_bytes()  # nor any other path of the machine that wrote it


def test_a_converted_sequential(tmp_path):
    torch.manual_seed(0)
    model = ah.convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval())
    path = tmp_path / "sequential.onnx"
    export_onnx(model, path, torch.zeros(2, 4))
    assert check_onnx(model, path, points(9, 4, dtype=torch.float32)) <= 1e-6
    assert check_onnx(model, path, points(9, 4, dtype=torch.float32), optimized=True) <= 1e-6


def tokens(batch, length, padding=0):
    ids = torch.randint(0, 100, (batch, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, length - padding :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_converted_bert_takes_any_batch_and_length(dtype, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, vocab_size=100
    )  # a head of 12 features: the scale of its scores is no number that a float32 holds
    model = ah.convert(transformers.BertModel(config, add_pooling_layer=False).to(dtype).eval(), tol=1e-4)
    path = tmp_path / "bert.onnx"
    export_onnx(model, path, tokens(1, 11))
    for inputs in (tokens(3, 17), tokens(4, 29, padding=5), tokens(1, 1)):
        assert check_onnx(model, path, inputs) <= AGREE[dtype]
    backwards = dict(reversed(tokens(3, 17, padding=2).items()))
    assert check_onnx(model, path, backwards) <= AGREE[dtype]
    found = sizes([*(file := read(path)).graph.input, *file.graph.output])
    assert found["input_ids"] == found["attention_mask"] == ["batch", "length"]
    assert found["last_hidden_state"] == ["batch", "length", 24]


def test_bfloat16_is_written_with_a_warning_and_half_runs(tmp_path):
    x = torch.randn(3, 4)
    model = ah.convert(nn.Sequential(nn.Linear(4, 4), nn.GELU()).to(torch.bfloat16))
    with pytest.warns(UserWarning, match=r"model\.float\(\) or model\.half\(\)"):
        ah.export_onnx(model, tmp_path / "m.onnx", x.bfloat16())
    with pytest.raises(ah.FileError, match=r"model\.half\(\)"):
        ah.check_onnx(model, tmp_path / "m.onnx", x.bfloat16())
    ah.export_onnx(model.half(), tmp_path / "h.onnx", x.half())
    assert ah.check_onnx(model, tmp_path / "h.onnx", x.half()) < 1e-2


def test_what_a_model_does_not_take_is_refused_in_a_sentence_when_its_file_is_checked(tmp_path):
    model = ah.convert(nn.Sequential(nn.Embedding(9, 4), nn.GELU()), inputs=torch.arange(6).reshape(2, 3))
    export_onnx(model, tmp_path / "tokens.onnx", torch.arange(6).reshape(2, 3))
    with pytest.raises(ah.InputError, match=r"does not take these inputs, input \(2, 6\): .*indices.*takes input\.$"):
        check_onnx(model, tmp_path / "tokens.onnx", torch.randn(2, 6))


def test_refusals(tmp_path, monkeypatch):
    path = tmp_path / "none.onnx"
    head = ah.compile("relu(x)")
    converted = ah.convert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with pytest.raises(ah.InputError, match="neither a compiled nor a converted model"):
        export_onnx(nn.Linear(2, 2), path, torch.zeros(1, 2))
    with pytest.raises(ah.InputError, match="give an example"):
        export_onnx(converted, path)
    with pytest.raises(ah.InputError, match="must be tensors, and input is a list"):
        export_onnx(converted, path, {"input": [1.0, 2.0]})
    with pytest.raises(ah.InputError, match=r"does not take the example, which is input \(1, 3\): "):
        export_onnx(converted, path, torch.zeros(1, 3))
    with pytest.raises(ah.InputError, match=r"'x'\. Its forward takes input\.$"):
        export_onnx(converted, path, {"x": torch.zeros(1, 2)})
    with pytest.raises(ah.InputError, match="1 different names"):
        export_onnx(head, path, names=["x", "y"])
    with pytest.raises(ah.DtypeError, match="float32"):
        export_onnx(head, path, torch.zeros(2))
    with pytest.raises(ah.FileError, match="cannot be read"):
        check_onnx(head, path, torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ah.FileError, match="cannot be written"):
        export_onnx(head, tmp_path / "nowhere" / "none.onnx")
    assert not path.exists()
    monkeypatch.setattr(onnx_file.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ah.AnchorheadError, match="pip install onnx onnxscript onnxruntime"):
        export_onnx(head, path)
    with pytest.raises(ah.AnchorheadError, match="pip install onnx onnxscript onnxruntime"):
        check_onnx(head, path, torch.zeros(2, dtype=torch.float64))
