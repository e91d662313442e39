"""A traced module is the circuit that computes the same, or is refused with the reason and the place."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anchorhead.circuit.circuit import Apply, Attend, Circuit, Largest, Line, Times
from anchorhead.enclosure.exact import as_float
from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.tensors import evaluate
from anchorhead.tracing.module import TensorFunction, infer_width

ACTIVATIONS = [nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU]


def line_value(line: Line, wires):
    total = torch.full_like(wires[0], as_float(line.bias))
    for wire, c in line.terms.items():
        total = total + as_float(c) * wires[wire]
    return total


def step_value(step, wires):
    at = lambda line: line_value(line, wires)
    if isinstance(step, Apply):
        return [evaluate(step.function, {"u": at(step.argument)})]
    if isinstance(step, Times):
        return [evaluate(step.function, {"u": at(step.argument)}) * at(step.partner)]
    if isinstance(step, Largest):
        return [torch.stack([at(line) for line in step.arguments]).amax(0)]
    scores = torch.stack([
        at(offset) + sum(at(q) * at(k) for q, k in zip(step.query, key, strict=True))
        for key, offset in zip(step.key_rows, step.offsets, strict=True)
    ])  # fmt: skip
    weights = scores.softmax(0)
    columns = [torch.stack([at(row[i]) for row in step.values]) for i in range(step.width)]
    return [(weights * column).sum(0) for column in columns]


def run(circuit: Circuit, inputs):
    """The circuit in float64 on a batch of inputs."""
    flat = inputs.reshape(len(inputs), -1)
    wires = list(flat.T)
    for step in circuit.steps:
        wires += step_value(step, wires)
    outputs = torch.stack([line_value(line, wires) for line in circuit.outputs], 1)
    return outputs.reshape(len(inputs), *circuit.output_shape)


def points(shape, count=7):
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 0.9 + 0.05


def steps_of(circuit, kind):
    return [step for step in circuit.steps if isinstance(step, kind)]


def check(function, shape, *, batched=True, fuse=True, inputs=None):
    """The circuit of the callable, after it has been compared with the callable itself."""
    circuit = TensorFunction(function, shape).circuit(fuse)
    inputs = points(shape) if inputs is None else inputs
    if isinstance(function, nn.Module):
        function = function.to(torch.float64).eval()
    with torch.no_grad():
        wanted = function(inputs.clone()) if batched else torch.stack([function(x.clone()) for x in inputs])
    wanted = wanted[0] if isinstance(wanted, list | tuple) else wanted
    assert circuit.input_shape == shape
    assert len(circuit.inputs) == math.prod(shape)
    assert circuit.output_shape == wanted.shape[1:]
    torch.testing.assert_close(run(circuit, inputs), wanted, rtol=1e-10, atol=1e-10)
    return circuit


def seeded(make):
    torch.manual_seed(0)
    return make()


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.inner = mlp(4, 6, 4, activation=nn.GELU)

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Attention(nn.Module):
    def __init__(self, causal=False, weights=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.causal, self.weights = causal, weights

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        out, weights = self.attention(x, x, x, attn_mask=mask, need_weights=self.weights)
        return torch.cat([out, weights], -1) if self.weights else out


class ByHand(nn.Module):
    def __init__(self, causal=False, pick="matmul"):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 3) for _ in range(3))
        self.causal, self.pick = causal, pick

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.pick == "einsum":
            scores = torch.einsum("bid,bjd->bij", q, k) / math.sqrt(3)
        else:
            scores = q @ k.transpose(-1, -2) * 3**-0.5
        if self.causal:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        weights = scores.softmax(-1)
        return weights @ v if self.pick != "sum" else (weights.unsqueeze(-1) * v.unsqueeze(1)).sum(2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_is_one_step_for_each_activation(activation):
    circuit = check(seeded(lambda: mlp(3, 5, 4, 2, activation=activation)), (3,))
    assert len(circuit.steps) == len(steps_of(circuit, Apply)) == 9
    assert circuit.depths() == [1] * 5 + [2] * 4
    name = activation.__name__.lower()
    assert {step.label for step in circuit.steps} == {f"1: {name}", f"3: {name}"}


def test_parameters_are_the_exact_numbers_that_they_are():
    layer = nn.Linear(2, 1)
    circuit = TensorFunction(layer, (2,)).circuit()
    [line] = circuit.outputs
    assert [line.terms[0], line.terms[1], line.bias] == [*layer.weight[0].tolist(), layer.bias.item()]
    assert not circuit.steps


def test_numbers_of_a_function_are_the_exact_numbers_that_they_are():
    [line] = TensorFunction(lambda x: 0.1 * x + 0.3, (1,)).circuit().outputs
    assert line == Line({0: 0.1}, 0.3)
    [line] = TensorFunction(lambda x: x.mean(-1), (3,)).circuit().outputs
    assert line.terms == {i: Fraction(1, 3) for i in range(3)}


def test_a_network_of_one_feature_is_fused():
    assert len(check(seeded(lambda: mlp(1, 2, 1, activation=nn.Tanh)), (1,)).steps) == 1
    assert len(check(seeded(lambda: mlp(1, 2, 1, activation=nn.Tanh)), (1,), fuse=False).steps) == 2


def test_layer_norm_and_residuals():
    circuit = check(seeded(Residual), (4,))
    assert "norm: layer_norm" in {step.label for step in circuit.steps}
    check(seeded(Residual), (3, 4))


@pytest.mark.parametrize("make", [
    lambda: nn.RMSNorm(4, eps=1e-6), lambda: nn.GroupNorm(2, 4), lambda: nn.BatchNorm1d(4), lambda: nn.PReLU(4),
    lambda: nn.LayerNorm(4, elementwise_affine=False), lambda: nn.Softmax(-1), lambda: nn.LogSoftmax(-1),
    lambda: nn.Softmin(-1), lambda: nn.GLU(), lambda: nn.Softsign(), lambda: nn.Hardtanh(0.2, 0.4), lambda: nn.RReLU(),
    lambda: nn.Unflatten(1, (2, 2)), lambda: nn.Sequential(nn.Dropout(0.5), nn.Identity(), nn.ELU()),
    lambda: nn.Softplus(2), lambda: nn.Threshold(0.5, 0.5),
])  # fmt: skip
def test_layers_of_torch(make):
    check(seeded(make), (4,))


REDUCTIONS = {
    "max": lambda x: x.max(-1).values,
    "min of all": lambda x: x.flatten(1).min(1)[0],
    "amax": lambda x: torch.amax(x, (1, 2)),
    "amin": lambda x: x.amin(1, keepdim=True),
    "mean": lambda x: x.mean((-1, -2)),
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(2),
    "var": lambda x: x.var(2),
    "std": lambda x: x.std((1, 2), correction=0),
    "norm": lambda x: x.norm(dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "1-norm": lambda x: torch.linalg.vector_norm(x, 1, dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(2),
    "softmax of one axis": lambda x: x.softmax(1),
    "cosine": lambda x: F.cosine_similarity(x[:, 0], x[:, 1], dim=-1),
    "loss": lambda x: ((x[:, 0] - x[:, 1]) ** 2).mean(-1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    check(REDUCTIONS[name], (2, 3))


def test_a_maximum_is_one_step():
    circuit = check(lambda x: x.max(-1).values, (4,))
    [step] = circuit.steps
    assert isinstance(step, Largest)
    assert len(step.arguments) == 4
    assert step.label == "max"


ELEMENTWISE = {
    "division": lambda x: x[..., :1] / x[..., 1:] - 1 / x[..., :1],
    "division by a number": lambda x: x / 3 + x.true_divide(torch.tensor([1.0, 2.0, 3.0])),
    "powers": lambda x: x**3 + x**0.5 + 2**x + x[..., :1] ** x[..., 1:2],
    "products": lambda x: x[..., 0] * x[..., 1] * x[..., 2],
    "clamp": lambda x: x.clamp(0.2, 0.6) + torch.clamp(x, min=torch.tensor([0.1, 0.5, 0.9])),
    "maximum": lambda x: torch.maximum(x, x.flip(-1)) - torch.minimum(x, torch.tensor(0.4)),
    "where as a kink": lambda x: torch.where(x > 0.5, 2 * x, 1.0) + torch.where(x[..., :1] < x, x, x[..., :1]),
    "where with a constant mask": lambda x: torch.where(torch.tensor([True, False, True]), x, 7.0),
    "rsub": lambda x: 1 - x + torch.rsub(x, x.sin(), alpha=2),
    "lerp": lambda x: torch.lerp(x, x.exp(), 0.25) + torch.addcmul(x, x, x.cos(), value=3),
    "logaddexp": lambda x: torch.logaddexp(x[..., 0], x[..., 1]),
    "fused": lambda x: torch.sin(3 * x) * torch.exp(-(x**2)),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_operations(name):
    check(ELEMENTWISE[name], (3,))
    check(ELEMENTWISE[name], (3,), fuse=False)


SHAPES = {
    "slices": lambda x: torch.cat([x[:, ::2], x[:, 1:].flip(1)], 1),
    "reshape": lambda x: x.reshape(-1, 12).view(-1, 3, 4).permute(0, 2, 1),
    "split": lambda x: torch.stack([a * b for a, b in zip(*x.chunk(2, 1), strict=True)]),
    "unbind": lambda x: torch.stack(x.unbind(1)[::-1], 2),
    "index": lambda x: x[:, [0, 2, 2]][..., torch.tensor([1, 0])],
    "pad": lambda x: F.pad(x, (1, 2), value=0.5) + F.pad(x, (1, 2), mode="circular"),
    "roll": lambda x: x.roll(1, 1) + x.transpose(1, 2).transpose(2, 1).squeeze(),
    "triangle": lambda x: x.tril() + x.triu(1) * 2,
    "expand": lambda x: x[:, :1].expand(-1, 4, -1) + x.repeat(1, 1, 1) + x.unsqueeze(1).squeeze(1),
    "diagonal": lambda x: x[:, :3].diagonal(dim1=1, dim2=2),
    "new": lambda x: torch.zeros_like(x) + x.new_ones(3) + torch.arange(3) * x,
    "counted": lambda x: torch.ones_like(x, dtype=torch.long).cumsum(1) * x,
    "conv": lambda x: F.conv1d(x, torch.ones(2, 4, 2, dtype=torch.float64), stride=1, padding=1),
    "pool": lambda x: F.max_pool1d(x, 2, 1) + F.avg_pool1d(x, 2, 1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check(SHAPES[name], (4, 3))


@pytest.mark.parametrize("make", [
    lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), lambda: nn.Conv1d(2, 1, 2, dilation=2),
    lambda: nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv2d(1, 2, (2, 3))), lambda: nn.MaxPool1d(2, padding=1),
    lambda: nn.AdaptiveAvgPool1d(3), lambda: nn.InstanceNorm1d(2, affine=True),
])  # fmt: skip
def test_convolutions(make):
    check(seeded(make), (2, 5))


def test_a_map_of_sequences():
    sequence = nn.Sequential(nn.Flatten(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 20), nn.Unflatten(1, (4, 5)))
    circuit = check(sequence, (4, 5))
    assert circuit.inputs[:6] == ("x0_0", "x0_1", "x0_2", "x0_3", "x0_4", "x1_0")
    assert len(circuit.steps) == 6


def test_recurrent_networks():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRU(2, 2, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0][:, -1]

    check(seeded(Last), (3, 2))


ATTENTION = {
    "by hand": lambda: ByHand(),
    "by hand, causal": lambda: ByHand(causal=True),
    "by einsum": lambda: ByHand(pick="einsum"),
    "by a weighted sum": lambda: ByHand(pick="sum"),
    "multihead": lambda: Attention(),
    "multihead, causal": lambda: Attention(causal=True),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_stays_attention(name):
    circuit = check(seeded(ATTENTION[name]), (5, 4))
    attends = steps_of(circuit, Attend)
    heads = 2 if "multihead" in name else 1
    rows = [2, 3, 4, 5] if "causal" in name else [5] * 5
    assert sorted(len(step.key_rows) for step in attends) == sorted(rows * heads)
    assert len(attends) == len(circuit.steps)
    assert max(circuit.depths()) == 1
    assert attends[-1].query


FUNCTIONAL = {
    "plain": lambda x: F.scaled_dot_product_attention(x, x, x),
    "causal": lambda x: F.scaled_dot_product_attention(x, x.sin(), 2 * x, is_causal=True),
    "scale": lambda x: F.scaled_dot_product_attention(x, x, x, scale=0.3),
    "mask": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(4, dtype=torch.bool).logical_not()),
    "bias": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(4, dtype=torch.float64)),
    "constant queries": lambda x: F.scaled_dot_product_attention(torch.ones(2, 3, dtype=torch.float64), x, x),
    "scores turned over": lambda x: (x @ x.mT).softmax(1).mT @ x,
    "relative": lambda x: (x @ x.mT + x @ x.flip(1).mT / 2 + x[..., :1]).softmax(-1) @ x,
    "constant values": lambda x: (x @ x.mT).softmax(-1) @ torch.arange(4, dtype=torch.float64),
    "a sink": lambda x: torch.cat([x @ x.mT, x[..., :1]], -1).softmax(-1)[..., :-1] @ x,
    "pooling": lambda x: (x @ torch.arange(3.0, dtype=torch.float64)).softmax(1).unsqueeze(1) @ x,
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_attention_stays_attention(name):
    circuit = check(FUNCTIONAL[name], (4, 3))
    assert steps_of(circuit, Attend)
    assert not steps_of(circuit, Times)


def test_weights_of_attention_are_worked_out_where_they_are_used():
    check(seeded(lambda: Attention(weights=True)), (3, 4))
    [step] = check(lambda x: x.softmax(-1), (3,)).steps
    assert isinstance(step, Attend)
    assert step.query == ()
    check(lambda x: x.softmax(-1) * x + x.softmax(-1).square(), (3,))
    check(lambda x: (x @ x.mT) + (x @ x.mT).softmax(-1).log(), (3, 2))


@pytest.mark.parametrize("first", [False, True])
def test_a_transformer_layer_is_attention_and_its_mlp(first):
    layer = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=first))
    circuit = check(layer, (3, 4))
    assert len(steps_of(circuit, Attend)) == 6
    rows = {f"self_attn: softmax[{head}, {token}]" for head in range(2) for token in range(3)}
    assert {step.label for step in steps_of(circuit, Attend)} == rows
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_sequence_without_a_batch_is_not_taken_for_a_batch():
    layer = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=False))
    check(layer, (3, 4), batched=False)


def overwrites(x):
    y = x.clone()
    y[:, 0] = x[:, 1]
    y[:, 1:].mul_(2).add_(1)
    y[:, [0, 2]] += torch.tensor([1.0, 2.0])
    z = torch.empty(len(x), 4, dtype=x.dtype)
    z[:, :3] = y.relu_()
    z[:, 3].copy_(x[:, 0])
    x[:, 2] = 1.0
    return torch.cat([y * x, z], 1)


def test_writing_in_place():
    check(overwrites, (3,))
    check(nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True)), (3,))


def test_functions_of_one_input():
    circuit = check(lambda x: x[0] * x[1], (2,), batched=False)
    assert circuit.output_shape == ()
    [step] = circuit.steps
    assert isinstance(step, Times)
    check(lambda x: torch.stack([x.sum(), x.norm(), x @ x]), (3,), batched=False)
    check(lambda x: x.T @ x, (3, 2), batched=False)
    assert TensorFunction(lambda x: torch.tensor(3.0), (2,)).circuit().outputs == (Line({}, 3),)


def test_functions_that_close_over_a_module_of_float32():
    net = seeded(lambda: mlp(3, 4, 2))
    circuit = TensorFunction(lambda x: net(x).sum(-1), (3,)).circuit()
    inputs = points((3,))
    torch.testing.assert_close(run(circuit, inputs), net.double()(inputs).sum(-1), rtol=1e-10, atol=1e-10)


def test_a_function_may_turn_gradients_off():
    def function(x):
        with torch.no_grad():
            y = x * 2
        return y.tanh()

    check(function, (2,))


def test_every_piece_of_a_weighted_softmax_is_one_attention():
    circuit = check(lambda x: (x.softmax(-1) * x.flip(-1)).sin(), (3,))
    assert len(steps_of(circuit, Attend)) == 1


def branches(x):
    y = x * 2
    if y.sum() > 1:
        return y
    return -y


def transforms(x):
    y = x + 1
    return torch.fft.fft(y).real


class Chooses(nn.Module):
    def forward(self, x):
        y = 2 * x
        return y.argmax(-1)


# the callable, the error, words of the message
REFUSED = [
    (Chooses(), DiscontinuityError, ["argmax", "return y.argmax(-1)", "test_tensor_trace.py"]),
    (lambda x: x.max(-1)[1], DiscontinuityError, ["indices of a maximum", "test_tensor_trace.py"]),
    (transforms, ExpressionError, ["fft", "torch.fft.fft(y)", "test_tensor_trace.py"]),
    (torch.special.bessel_j0, ExpressionError, ["bessel_j0"]),
    (branches, ExpressionError, ["could not trace", "if y.sum() > 1", "test_tensor_trace.py"]),
    (lambda x: (x, x + 1), ExpressionError, ["2 values", "return one tensor", "test_tensor_trace.py"]),
    (lambda x: x > 0.5, DiscontinuityError, ["comparison"]),
    (lambda x: (x > 0.5) * x, DiscontinuityError, ["comparison is used as a number", "test_tensor_trace.py"]),
    (lambda x: torch.where(x > 0, x, x + 1), DiscontinuityError, ["torch.where may jump"]),
    (torch.floor, DiscontinuityError, ["floor"]),
    (lambda x: x.sign() * x, DiscontinuityError, ["sign"]),
    (lambda x: x.long() + x, DiscontinuityError, ["torch.int64"]),
    (lambda x: x.double().float(), DiscontinuityError, ["torch.float32 rounds"]),
    (lambda x: x * (x == 0.5), DiscontinuityError, ["equal"]),
    (lambda x: x + torch.rand(3), ExpressionError, ["random"]),
    (lambda x: F.dropout(x), ExpressionError, ["random"]),
    (lambda x: x / 0, ExpressionError, ["division by the constant 0"]),
    (lambda x: x + math.inf, ExpressionError, ["finite"]),
    (nn.Linear(4, 2), ExpressionError, ["could not trace"]),
    (nn.Sequential(nn.Sequential(nn.Hardshrink())), DiscontinuityError, ["hardshrink", "in the module 0.0"]),
    (lambda x: x * x.sum().item(), ExpressionError, ["item"]),
    (lambda x: x.scatter(0, torch.tensor([0]), x, reduce="add"), ExpressionError, ["is added to it"]),
    (torch.sinc, ExpressionError, ["sinc"]),
    (lambda x: None, ExpressionError, ["returns nothing"]),
    (lambda x: x + x.sort().indices, DiscontinuityError, ["places of numbers in an order jump"]),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_read_is_refused_with_its_place(number):
    function, kind, words = REFUSED[number]
    with pytest.raises(ExpressionError) as caught:
        TensorFunction(function, (3,)).circuit()
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)


def test_the_width_of_a_module_is_that_of_its_first_layer():
    assert infer_width(mlp(7, 3)) == 7
    assert infer_width(nn.Sequential(nn.LayerNorm((2, 5)), nn.Linear(5, 2))) == 5
    assert infer_width(nn.TransformerEncoderLayer(6, 2)) == 6
    assert infer_width(nn.ReLU()) is None
