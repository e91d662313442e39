"""Gates as attention: what their heads are proved to keep together, in every dtype, with no interval declared."""

import copy
import json
import math
import os

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mp_functions import REFERENCE
from torch import nn

import anchorhead as ah
from anchorhead.conversion.convert import REACH
from anchorhead.errors import VerificationError
from anchorhead.file.folder import record_bytes, record_digest
from anchorhead.model.activation import GateHead
from anchorhead.proof.composed import composed

os.environ.setdefault("HF_HUB_OFFLINE", "1")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FORMULAS = ["silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "mish", "softplus"]


class Silu(nn.Module):
    """silu(u)·v, and nothing else."""

    def forward(self, u, v):
        return F.silu(u) * v


_made = {}


def gate(name, dtype):
    """The heads of a gate in a model of that dtype, as conversion places them."""
    if (name, dtype) not in _made:
        from anchorhead.conversion.convert import _Heads
        from anchorhead.conversion.sites import Site

        own = torch.float64 if dtype == torch.float64 else torch.float32
        roles = _Heads([1e-6], lambda text: None).at(Site("call", "", "g", f"{name}(x)", True), own)
        _made[name, dtype] = GateHead(f"{name}(x)", roles, dtype)
    return _made[name, dtype]


arguments = st.one_of(
    st.floats(-40, 40),
    st.builds(lambda e, s: s * 2.0**e, st.floats(-20, 15), st.sampled_from([-1.0, 1.0])),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMULAS), st.sampled_from(DTYPES), arguments, st.floats(-100, 100))
def test_gates_keep_their_bound_against_mpmath(name, dtype, u, v):
    placed = gate(name, dtype)
    x, y = torch.tensor([u], dtype=dtype), torch.tensor([v], dtype=dtype)
    found = placed(x, y).item()
    with mpmath.workprec(200):
        exact = REFERENCE[f"{name}(x)"](mpmath.mpf(x.item())) * mpmath.mpf(y.item())
        bound = placed.bound
        allowed = (bound.error + bound.rounding * (1 + abs(x.item()))) * abs(y.item())
        allowed += bound.relative * abs(exact) + bound.least
        if abs(exact) + allowed < torch.finfo(dtype).max:
            assert abs(found - exact) <= allowed


@pytest.mark.parametrize("name", FORMULAS)
def test_a_gate_written_out_is_two_heads_and_agrees(name):
    """In float64, where a softmax keeps what its certificate says, times the gains, which are about one."""
    placed = copy.deepcopy(gate(name, torch.float64))
    u, v = torch.linspace(-300, 300, 2001, dtype=torch.float64), torch.linspace(3, -3, 2001, dtype=torch.float64)
    literal = placed.literal()
    heads = placed.compiled
    allowed = 1e-12 + sum(model.literal_certificate().bound for model in list(heads.values())[1:])
    assert (literal(u, v) - placed(u, v)).abs().max() <= 10 * allowed
    assert set(heads) == ({"activation"} if name in ("sigmoid", "tanh") else {"activation", "product"})
    assert sum(p.numel() for p in placed.parameters()) > 0
    ah.walk(nn.Sequential(_Both(literal)), torch.stack([u, v], -1))


class _Both(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, x):
        return self.gate(x[..., 0], x[..., 1])


@settings(max_examples=100, deadline=None)
@given(arguments)
def test_a_product_head_is_its_argument_bit_by_bit_in_float32(u):
    """Why it is evaluated as one: c·tanh(u/c), correctly rounded, is u."""
    head = gate("silu", torch.float32).compiled["product"]
    x = torch.tensor([u], dtype=torch.float32)
    if abs(x.item()) > 1e-20:
        assert torch.equal(head(x), x)


def test_products_are_proved_as_far_as_is_said():
    claim = gate("silu", torch.float32).claims["product"]
    assert claim.high == REACH == 2.0**15
    assert claim.approximation <= 2.0**-27
    assert gate("silu", torch.float32).keys == 4
    assert gate("gelu", torch.float32).keys <= 14


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_in_place_of_glu_and_squared_relu(dtype):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    x = (100 * torch.randn(40, 4)).to(dtype)

    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 12), nn.Linear(6, 2)

        def forward(self, x):
            return self.last(F.glu(self.first(x), dim=1))

    squared = transformers.activations.ReLUSquaredActivation()
    for model, kind in (
        (nn.Sequential(nn.Linear(4, 12), nn.GLU(), nn.Linear(6, 2)), "gate"),
        (Called(), "gate"),
        (nn.Sequential(nn.Linear(4, 12), squared, nn.Linear(12, 2)), "square"),
    ):
        original = model.to(dtype)
        converted = ah.convert(original, inputs=x)
        assert converted.report.pure
        assert [r.kind for r in converted.report.replaced] == [kind]
        expected = original(x).double()
        assert (converted(x).double() - expected).abs().max() <= 16 * torch.finfo(dtype).eps * expected.abs().max()


def test_reports_follow_the_dtype_that_the_model_has_now(tmp_path):
    model = nn.Sequential(nn.Linear(4, 12), nn.GELU(), nn.Linear(12, 2))
    converted = ah.convert(model)
    row = converted.report.replaced[0]
    assert (row.dtype, row.relative, row.heads[0].dtype) == ("float32", 0.0, "float32")
    for dtype, unit in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        other = copy.deepcopy(converted).to(dtype)
        now = other.report.replaced[0]
        assert (now.dtype, now.heads) == (str(dtype).removeprefix("torch."), row.heads)
        assert unit <= now.relative <= 1.01 * unit
        assert f"rounding, of stored slopes and in {now.dtype}, adds" in str(other.report)
        x = torch.linspace(-30, 30, 4001).to(dtype)
        apart = (other[1](x).double() - F.gelu(x.double())).abs()
        allowed = (
            now.error + now.rounding * (1 + x.double().abs()) + now.relative * F.gelu(x.double()).abs() + now.least
        )
        assert (apart <= allowed).all()
        assert apart.max() > row.error  # which the cast alone exceeds
    double = copy.deepcopy(converted).double()
    assert double.report.replaced[0].heads[0].dtype == "float64"
    x = torch.linspace(-30, 30, 1001, dtype=torch.float64)
    assert (double[1](x) - F.gelu(x)).abs().max() <= row.error
    ah.save_converted(double, tmp_path / "double")
    assert ah.verify(tmp_path / "double").level == "proved"
    assert ah.load_converted(tmp_path / "double", model.double()).report == double.report
    assert converted.report.replaced[0] == row  # of which the others were copies


def test_reports_say_when_numbers_are_no_longer_those_proved():
    converted = ah.convert(Silu(), inputs=(torch.randn(4), torch.randn(4)))
    with torch.no_grad():
        converted.silu_head.head.gains[1] += 1e-3
    assert "unproved" in str(converted.report)
    assert converted.report.as_dict()["replaced"][0]["error"] is None


def llama(transformers, dtype=torch.float32, layers=3):
    """Gates reach ±300, and each block's output is as large as the residual stream."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=176, num_hidden_layers=layers, vocab_size=500,
                                      num_attention_heads=4, max_position_embeddings=1100)  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight.mul_(480)
            layer.mlp.down_proj.weight.mul_(0.1)
    return model.to(dtype)


def test_a_llama_with_gates_of_300_is_the_same_by_default():
    transformers = pytest.importorskip("transformers")
    model, ids = llama(transformers), torch.randint(0, 500, (2, 500), generator=torch.Generator().manual_seed(0))
    reached = []
    hooks = [layer.mlp.gate_proj.register_forward_hook(lambda m, a, out: reached.append(out.abs().max().item()))
             for layer in model.model.layers]  # fmt: skip
    with torch.no_grad():
        expected = model(ids).logits
    for hook in hooks:
        hook.remove()
    assert min(reached) > 300
    converted = ah.convert(model)
    assert all(row.keys <= 8 for row in converted.report.replaced)
    with torch.no_grad():
        found = converted(ids).logits
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    wanted = {"max_new_tokens": 100, "do_sample": False, "pad_token_id": 0, "eos_token_id": None,
              "attention_mask": torch.ones_like(ids[:1, :9])}  # fmt: skip
    generated = converted.generate(ids[:1, :9], **wanted)
    assert generated.shape[1] == 109
    assert torch.equal(generated, model.generate(ids[:1, :9], **wanted))


def test_a_llama_in_bfloat16_rounds_where_torch_does():
    transformers = pytest.importorskip("transformers")
    model = llama(transformers, torch.bfloat16)
    ids = torch.randint(0, 500, (2, 500), generator=torch.Generator().manual_seed(0))
    converted = ah.convert(model)
    assert {row.dtype for row in converted.report.replaced} == {"bfloat16"}
    with torch.no_grad():
        expected, found = model(ids).logits, converted(ids).logits
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() >= 0.98
    assert (found - expected).abs().max() <= 2.0**-5 * expected.abs().max()


@pytest.fixture
def folder(tmp_path):
    converted = ah.convert(Silu(), inputs=(torch.randn(4), torch.randn(4)))
    ah.save_converted(converted, tmp_path / "out")
    return tmp_path / "out"


def test_the_second_checker_agrees(folder):
    second = pytest.importorskip("second_checker")
    for file in sorted((folder / "heads").iterdir()):
        assert second.check(file).checked


def edited(folder, change):
    record = json.loads((folder / "anchorhead.json").read_text())
    change(record)
    record["digest"] = record_digest(record)
    (folder / "anchorhead.json").write_bytes(record_bytes(record))


def test_folders_hold_every_head_of_a_gate_and_each_is_checked(folder):
    found = ah.verify(folder)
    assert list(found.heads["silu"]) == ["activation", "product"]
    assert found.heads["silu"]["product"].relative
    text = str(found)
    assert "silu, product: proved: |model/(x) - 1|" in text
    back = ah.load_converted(folder, Silu())
    u, v = torch.randn(50) * 100, torch.randn(50)
    assert (back(u, v) - F.silu(u) * v).abs().max() < 1e-4


@pytest.mark.parametrize("field", ["error", "rounding", "relative", "least"])
def test_composed_bounds_in_a_report_are_computed_again(folder, field):
    edited(folder, lambda record: record["report"]["replaced"][0].update({field: 0.0}))
    with pytest.raises(VerificationError, match=f"something else of the heads at silu .*{field}"):
        ah.verify(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entry: entry["heads"].pop("product"), "were expected"),
        (lambda entry: entry["heads"].update(product=entry["heads"]["activation"]), "not an odd head"),
        (lambda entry: entry.update(kind="square"), "is not its product with x"),
        (lambda entry: entry.update(kind="anything"), "no kind of place"),
    ],
)
def test_heads_that_do_not_compose_are_refuted(folder, change, said):
    edited(folder, lambda record: change(record["heads"][0]))
    with pytest.raises(VerificationError, match=said):
        ah.verify(folder)


def test_a_float32_head_claims_nothing_in_a_float64_model():
    with pytest.raises(VerificationError, match="cannot keep its claim"):
        composed("gate", gate("silu", torch.float32).claims, "float64", "")


def test_bounds_of_a_gate_count_everything():
    """The bound of the head, the product twice, the rounding of a multiplication."""
    placed = gate("gelu", torch.float32)
    head, product = placed.claims["activation"], placed.claims["product"]
    bound = placed.bound
    assert bound.error >= head.approximation
    gains = max(map(abs, head.head.gains))
    assert bound.rounding >= head.rounding + 2 * product.approximation * gains
    assert bound.rounding <= 1.001 * (head.rounding + 2 * product.approximation * gains)
    assert math.isclose(bound.relative, 2.0**-24, rel_tol=1e-6)
    assert composed("gate", placed.claims, "bfloat16", "").relative >= 2 * 2.0**-8


class Both(nn.Module):
    """Two linear layers, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.n = nn.Linear(6, 6), nn.Linear(6, 6), 0


class TwoGates(Both):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.a(x)) * torch.sigmoid(self.b(x))


class ThreeGates(Both):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.b(x)) * F.silu(self.a(x)) * F.gelu(x)


class TimesNumber(Both):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.a(x)) * x.shape[0]


class TimesMask(Both):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.a(x)) * (x > 0)


class IntoBuffer(Both):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).detach()
        out = torch.empty_like(h)
        torch.mul(F.silu(h), h, out=out)
        return out


@pytest.mark.parametrize("kind", [TwoGates, ThreeGates, TimesNumber, TimesMask, IntoBuffer])
def test_whatever_a_gate_multiplies_stays(kind) -> None:
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(8, 6)
    converted = ah.convert(model, inputs=x)
    with torch.no_grad():
        assert (converted(x) - model(x)).abs().max() < 1e-5


class Counts(Both):
    def forward(s, x: torch.Tensor) -> torch.Tensor:
        s.n += 1
        return F.elu(s.a(x)) * s.n


def test_a_state_that_a_trace_would_freeze_is_kept() -> None:
    model, x = Counts(), torch.randn(8, 6)
    converted = ah.convert(model, inputs=x)
    for _ in range(3):
        assert (converted(x) - model(x)).abs().max() < 1e-4


@pytest.mark.parametrize("inputs", [torch.full((8, 6), math.nan), torch.zeros(0, 6)])
def test_a_comparison_of_nothing_is_none(inputs) -> None:
    report = ah.convert(TwoGates(), inputs=inputs).report
    assert not report.watched
    assert not report.pure
    assert "finite" in report.unwatched


def test_backward_hooks_stay() -> None:
    model, calls = nn.Sequential(nn.Linear(3, 3), nn.GELU()), []
    model[1].register_full_backward_hook(lambda module, before, after: calls.append(1))
    ah.convert(model, inputs=torch.randn(2, 3))(torch.randn(2, 3)).sum().backward()
    assert calls


class Squares(nn.Module):
    def __init__(self, square):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.square = nn.Linear(8, 16), nn.Linear(16, 8), square

    def forward(self, x):
        h = F.relu(self.a(x))
        if self.square == "pow":
            return self.b(h**2)
        return self.b(h.square() if self.square == "method" else torch.square(h))


@pytest.mark.parametrize("square", ["pow", "method", "function"])
def test_a_square_of_a_ramp_that_a_forward_calls_is_one_place(square, tmp_path):
    x = 100 * torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    model = Squares(square)
    converted = ah.convert(model, inputs=x)
    (row,) = converted.report.replaced
    assert (row.kind, row.formula, row.feeds, converted.report.pure) == ("square", "relu(x)**2", "b", True)
    assert torch.allclose(converted(x), model(x), rtol=1e-5)
    ah.save_converted(converted, tmp_path)
    assert torch.equal(ah.load_converted(tmp_path, model)(x), converted(x))
