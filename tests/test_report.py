"""The table of nodes: what is proved of what every head writes, and of what arrives of it at the output."""

import pytest
import torch

import anchorhead as ah

X, W = {"x": (-15, 15), "y": (-15, 15)}, {"x": (-3, 3), "y": (-3, 3)}
SHAPES = [
    ("sin(x*y/50) + z**2/100", {**X, "z": (-15, 15)}, 1e-4),
    ("sin(x*y) + (x - y)**2", W, 1e-3),
    ("exp(-x*y/20)*tanh(y) + x", W, 1e-3),
    ("max(x*y, x, y**2)/(2 + sin(x))", W, 1e-2),
    (["x*y", "1000*x*y*z", "z"], {**W, "z": (0, 0.25)}, 1e-2),
]


def norm():
    return torch.nn.LayerNorm(4, eps=1e-1).double()


@pytest.fixture(params=[*range(len(SHAPES)), "norm", "sorted"], ids=str)
def model(request):
    if request.param == "norm":
        return ah.compile(norm(), (-4, 4), tol=1e-2)
    if request.param == "sorted":
        return ah.compile(lambda x: torch.sort(x).values, (torch.full((3,), -2.0), torch.full((3,), 2.0)), tol=1e-3)
    target, domain, tol = SHAPES[request.param]
    return ah.compile(target, domain, tol=tol)


def drawn(model, count=4000):
    low, high = torch.tensor(model.certificate.domain, dtype=torch.float64).T
    u = torch.rand(count, len(low), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)] * len(low))
    return low + (high - low) * torch.cat([u, corners])


def written(model):
    """Rows with their layer and the mechanism's heads that they are of, by the target that they say."""
    heads = [head for head in model.mechanism.heads if head.kind != "carry"]
    rest = list(heads)
    for row in model.report.nodes:
        of_row = [h for h in rest if h.layer == row.layer and h.keys == row.keys and row.function in said(h)]
        of_row = of_row[: row.heads]
        assert len(of_row) == row.heads, (row, rest)
        rest = [h for h in rest if h not in of_row]
        yield row, of_row
    assert not rest


def said(head):
    return {head.function, "u·v" if head.kind == "times" and head.function == "u" else f"({head.function})·v",
            *(["max"] if head.kind == "largest" else [])}  # fmt: skip


def run(model, x, put=None):
    """Outputs, and what every head writes, with the numbers of some put in their places."""
    network, circuit = model.network.layered, model.circuit
    state, found = x, {}
    for layer, part in enumerate(network.sequence):
        state = part(state)
        names = model.mechanism.states[layer]
        state = state.clone()
        for at, name in enumerate(names):
            if (name, layer) in (put or {}):
                state[:, at] = put[name, layer]
            found[name, layer] = state[:, at]
    assert circuit.inputs == model.mechanism.inputs
    return network.last(state), found


def test_the_table_bounds_what_heads_write_and_what_of_it_arrives(model):
    x = drawn(model)
    truth = model.mechanism.run(x).written
    outputs, found = run(model, x)
    assert torch.equal(outputs, model(x).reshape(outputs.shape))
    for row, heads in written(model):
        errors = [float((found[h.name, h.layer] - truth[h.name, h.layer]).abs().max()) for h in heads]
        assert max(errors) <= row.error
        right = {(h.name, h.layer): truth[h.name, h.layer] for h in heads}
        moved = (run(model, x, right)[0] - outputs).abs().max()
        assert moved <= row.contribution, row.label
        wrong = {h.name: found[h.name, h.layer] for h in heads}  # and so it moves the program itself
        assert (model.mechanism.run(x, patched=wrong).outputs - model.mechanism.run(x).outputs).abs().max() <= (
            row.contribution * (1 + 1e-9) + 1e-12
        )


def test_the_table_has_the_errors_of_the_mechanism(model):
    for row, heads in written(model):
        assert row.error == max(head.error for head in heads)
    total = sum(row.own for row in model.report.nodes)
    assert model.certificate.bound / 3 <= total * len(model.certificate.outputs)
    assert all(row.own <= row.contribution * (1 + 1e-9) for row in model.report.nodes)
