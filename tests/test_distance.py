"""The largest difference of two functions: never below what mpmath sees anywhere, and attained where it says."""

import itertools
import json
import math
import random
import struct
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import second_checker
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mp_functions import REFERENCE, head_at
from safetensors.numpy import load_file, save_file
from scipy import special

import anchorhead as ah
from anchorhead.file.container import digest
from anchorhead.lab.grammar import cases
from attack import files as attacked

mp.mp.dps = 40
NUMBER = st.floats(-4, 4, allow_nan=False).map(lambda v: float(f"{v:.6g}"))


def table_at(low, high, values, interpolation, x):
    """The table at x, from its definition, in fractions; both values where two are equally near."""
    low, high, x = Fraction(low), Fraction(high), Fraction(x)
    place = (x - low) / (high - low) * (len(values) - 1)
    i = min(int(place), len(values) - 2)
    rest = place - i
    left, right = Fraction(values[i]), Fraction(values[i + 1])
    if interpolation == "linear":
        return [left + (right - left) * rest]
    return [left] * (rest <= Fraction(1, 2)) + [right] * (rest >= Fraction(1, 2))


def exactly(value):
    return mp.mpf(value.numerator) / value.denominator


def test_tanh_in_gelu():
    found = ah.distance("gelu_tanh(x)", "gelu(x)", None)
    place = mp.findroot(lambda x: mp.diff(lambda t: REFERENCE["gelu_tanh(x)"](t) - REFERENCE["gelu(x)"](t), x), -2.7)
    true = abs(REFERENCE["gelu_tanh(x)"](place) - REFERENCE["gelu(x)"](place))
    assert found.lower <= true <= found.upper <= 1.001 * found.lower
    assert found.domain == ((-math.inf, math.inf),)
    assert f"{found.lower:.3g}" == "0.000473"
    assert abs(abs(found.at) - abs(place)) < 0.1


PAIRS = [("gelu_tanh(x)", "gelu(x)"), ("silu(x)", "relu(x)"), ("softplus(x)", "relu(x)"), ("mish(x)", "silu(x)"),
         ("tanh(x)", "clip(x, -1, 1)"), ("hardswish(x)", "silu(x)"), ("elu(x)", "leaky_relu(x)"),
         ("sigmoid(x)", "hardsigmoid(x)"), ("softsign(x)", "tanh(x)")]  # fmt: skip


@pytest.mark.parametrize(("f", "g"), PAIRS)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_never_below_what_is_seen(f, g, data):
    low, high = sorted(data.draw(st.tuples(NUMBER, NUMBER).filter(lambda p: p[0] != p[1])))
    found = ah.distance(f, g, (low, high))
    assert found.upper <= 1.0011 * found.lower or found.upper < 1e-20
    assert low <= found.at <= high
    shares = data.draw(st.lists(st.floats(0, 1), min_size=20, max_size=20))
    with mp.workdps(400):  # near zero the two may cancel to 1e-300
        at = mp.mpf(found.at)
        assert abs(REFERENCE[f](at) - REFERENCE[g](at)) >= found.lower * (1 - mp.mpf(10) ** -15)
        for share in shares:
            x = mp.mpf(low) + mp.mpf(share) * (mp.mpf(high) - mp.mpf(low))
            assert abs(REFERENCE[f](x) - REFERENCE[g](x)) <= found.upper


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(NUMBER, min_size=2, max_size=12),
    ends=st.tuples(NUMBER, NUMBER).filter(lambda p: p[0] < p[1]),
    interpolation=st.sampled_from(["linear", "nearest"]),
    shares=st.lists(st.floats(0, 1), min_size=5, max_size=15),
)
def test_tables(values, ends, interpolation, shares):
    low, high = ends
    found = ah.distance(ah.Table(low, high, values, interpolation), "sin(x)")
    assert found.domain == ((low, high),)
    for share in [*shares, 0.0, 1.0]:
        x = min(high, max(low, low + share * (high - low)))
        for value in table_at(low, high, values, interpolation, x):
            assert abs(exactly(value) - mp.sin(mp.mpf(x))) <= found.upper
    at = [exactly(v) for v in table_at(low, high, values, interpolation, found.at)]
    assert max(abs(v - mp.sin(mp.mpf(found.at))) for v in at) >= found.lower * (1 - mp.mpf(10) ** -12)
    assert found.upper <= 1.0011 * found.lower


def test_a_table_of_64_values_and_a_spike_between_them():
    x = np.linspace(-8, 8, 64)
    values = [float(REFERENCE["gelu(x)"](mp.mpf(v))) for v in x]
    table = ah.Table(-8, 8, values)
    found = ah.distance(table, "gelu(x)", (-8, 8))
    true = max(abs(exactly(table_at(-8, 8, values, "linear", p)[0]) - REFERENCE["gelu(x)"](mp.mpf(p)))
               for p in np.linspace(-0.2, 0.2, 801).tolist())  # fmt: skip
    assert found.lower * 0.999 <= true <= found.upper <= 1.001 * found.lower
    assert abs(found.at) < 0.05
    spike = ah.distance(table, "gelu(x) + 0.3*exp(-((x - 0.1234567)/1e-6)**2)", (-8, 8))
    assert 0.299 < spike.lower <= spike.upper < 0.3065
    assert abs(spike.at - 0.1234567) < 1e-6


@settings(max_examples=40, deadline=None)
@given(breaks=st.lists(NUMBER, min_size=2, max_size=6, unique=True), seed=st.integers(0, 10**6), local=st.booleans())
def test_polynomials_in_pieces(breaks, seed, local):
    rng, breaks = random.Random(seed), sorted(breaks)
    rows = [[round(rng.uniform(-2, 2), 3) for _ in range(rng.randint(1, 5))] for _ in breaks[1:]]
    found = ah.distance(ah.Piecewise(breaks, rows, local=local), "exp(x)/10")
    worst = mp.mpf(0)
    for (a, b), row in zip(itertools.pairwise(breaks), rows, strict=True):
        for i in range(41):
            x = mp.mpf(a) + (mp.mpf(b) - mp.mpf(a)) * i / 40
            t = x - mp.mpf(a) if local else x
            worst = max(worst, abs(sum(mp.mpf(c) * t**k for k, c in enumerate(row)) - mp.exp(x) / 10))
    assert worst <= found.upper <= 1.0011 * found.lower
    assert found.lower <= worst * 1.2 or len(rows) > 1


def test_a_model_is_what_runs():
    model = ah.compile("gelu(x)", (-8, 8), tol=1e-5, dtype=torch.float32)
    found = ah.distance(model, "gelu(x)")
    x = torch.linspace(-8, 8, 20001, dtype=torch.float32)
    exact = [REFERENCE["gelu(x)"](mp.mpf(float(v))) for v in x[::20]]
    errors = [abs(mp.mpf(float(y)) - e) for y, e in zip(model(x[::20]), exact, strict=True)]
    assert max(errors) <= found.upper <= 2 * model.certificate.bound
    assert found.rounding > 0
    wide = ah.compile("gelu(x)", tol=1e-7)
    line = ah.distance(wide, "gelu(x)")
    at = mp.mpf(line.at)
    assert line.lower * (1 - 1e-9) <= abs(head_at(wide, at) - REFERENCE["gelu(x)"](at)) <= line.upper
    assert line.upper <= wide.certificate.bound * 1.001


def test_an_edited_model_is_measured_as_it_is():
    model = ah.compile("tanh(x)", (-3, 3), tol=1e-6)
    with torch.no_grad():
        model.head.constants += 0.25
    assert model.certificate.level == "unproved"
    found = ah.distance(model, "tanh(x)")
    assert 0.2499 < found.lower <= found.upper < 0.2502


def test_models_of_several_heads_by_their_certificate():
    model = ah.compile("sin(3*x*y) + exp(-x**2)", (-1, 1), tol=1e-6)
    found = ah.distance(model, "sin(3*x*y) + 1.001*exp(-x**2)")
    assert found.lower <= 1e-3 <= found.upper <= 1.01e-3
    assert found.rounding == model.certificate.bound
    assert any("certificate" in a for a in found.assumptions)


def test_formulas_of_several_variables():
    found = ah.distance("sin(x)*cos(y)", "x*(1 - y**2/2)", {"x": (-1, 1), "y": (-1, 1)})
    worst = max(abs(math.sin(x) * math.cos(y) - x * (1 - y * y / 2))
                for x in np.linspace(-1, 1, 201) for y in np.linspace(-1, 1, 201))  # fmt: skip
    assert worst <= found.upper <= 1.0011 * found.lower
    assert found.variables == ("x", "y")
    same = ah.distance("x*y + exp(x)", "exp(x) + x*y", (-1, 1))
    assert same.upper < 1e-20


@settings(max_examples=15, deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.01, 5), st.floats(0, 5))
def test_a_relative_distance_of_lines_that_part_is_that_of_their_quotient(slope, level, rise, lift):
    found = ah.distance(f"{slope!r}*x + {level!r}", f"{rise!r}*x + {lift!r}", (1, math.inf), relative=True)
    x = np.concatenate([np.geomspace(1, 1e9, 500), [1e15]])
    apart = np.abs((slope * x + level) / (rise * x + lift) - 1).max()
    assert found.lower * (1 - 1e-9) - 1e-12 <= max(apart, abs(slope / rise - 1)) <= found.upper * (1 + 1e-9) + 1e-12
    with pytest.raises(ah.InputError, match="not bounded"):
        ah.distance("1.01*x", "3 + exp(-x)", (1, math.inf), relative=True)


def test_relative():
    found = ah.distance("tanh(x)", "x", (-1, 1), relative=True)
    assert found.lower <= 1 - math.tanh(1) <= found.upper <= 1.0011 * found.lower
    with pytest.raises(ah.ToleranceError, match="zero"):
        ah.distance("cos(x)", "sin(x)", (-1, 1), relative=True)
    model = ah.compile("x**-0.5", (1e-3, 1e3), tol=1e-6, relative=True)
    assert ah.distance(model, "x**-0.5", relative=True).upper <= 1.01 * model.certificate.bound


NUMPY = {name: getattr(np, name) for name in ("sin", "cos", "tanh", "exp", "abs")} | {
    "atan": np.arctan, "asinh": np.arcsinh, "erf": special.erf, "sigmoid": special.expit,
    "gelu": lambda x: x * special.ndtr(x), "silu": lambda x: x * special.expit(x),
    "softplus": lambda x: np.logaddexp(0, x), "relu": lambda x: np.maximum(x, 0),
    "hardtanh": lambda x: np.clip(x, -1, 1), "sqrt": np.sqrt, "log": np.log,
}  # fmt: skip


def values(case, x):
    """The formula by Python itself, in NumPy and SciPy."""
    return eval(case.text, {"__builtins__": {}}, NUMPY | {"x": x})


def test_formulas_that_nobody_chose():
    rng = np.random.default_rng(3)
    chosen = list(cases(12, seed=19))
    for one, other in zip(chosen[::2], chosen[1::2], strict=True):
        low, high = one.low, one.high
        try:
            found = ah.distance(one.text, other.text, (low, high), tol=0.01)
        except ah.SingularityError:
            continue
        x = rng.uniform(low, high, 4000)
        assert np.abs(values(one, x) - values(other, x)).max() <= found.upper * (1 + 1e-9)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distances")
    made = {
        "formulas": ah.distance("gelu_tanh(x)", "gelu(x)"),
        "head": ah.distance(ah.compile("sin(3*x)", (-1, 1), tol=1e-4), "sin(3*x)"),
        "table": ah.distance(ah.Table(-1, 1, [0.3, 0.1, 0.2]), "x**2"),
        "pieces": ah.distance(ah.Piecewise([-math.inf, 0, math.inf], [[0], [0, 1]]), "softplus(x)"),
        "several": ah.distance("x*y", "sin(x*y)", (-1, 1)),
        "limit": ah.distance("tanh(x)", "tanh(x) - sigmoid(x)"),
    }
    for name, distance in made.items():
        distance.save(folder / name)
    return {name: (distance, folder / name) for name, distance in made.items()}


def test_saved_and_verified(saved):
    for distance, path in saved.values():
        checked = ah.verify(path)
        assert (checked.lower, checked.upper, checked.at) == (distance.lower, distance.upper, distance.at)
        assert checked.level == "proved"
        assert checked.boxes == distance.boxes
        with pytest.raises(ah.FileError, match="verify"):
            ah.load(path)
    assert saved["limit"][0].at == math.inf


def altered(path, to, change):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    record, tensors = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["anchorhead"]), load_file(path)
    tensors = {name: value.copy() for name, value in tensors.items()}
    change(record, tensors)
    record["digest"] = digest(record, {name: value.tobytes() for name, value in tensors.items()})
    save_file(tensors, to, metadata={"anchorhead": json.dumps(record)})
    return to


@pytest.mark.parametrize("name", ["formulas", "head", "table", "pieces", "several", "limit"])
def test_false_claims_are_found(saved, tmp_path, name):
    _, path = saved[name]
    changes = [
        lambda r, t: r["claim"].update(upper=r["claim"]["upper"] * 0.99),
        lambda r, t: r["claim"].update(lower=r["claim"]["upper"] * 1.01, upper=r["claim"]["upper"] * 1.02),
        lambda r, t: r["claim"].update(domain=[[-50, 50]] * len(r["claim"]["domain"])),
        lambda r, t: t.update({k: v[: 1 + len(v) // 4] for k, v in t.items() if k in ("edges", "cuts")}),
        lambda r, t: r["curves"].pop(),
        lambda r, t: r["curves"][1].update(formula="1/x"),
    ]
    for i, change in enumerate(changes):
        with pytest.raises((ah.VerificationError, ah.FileError)):
            ah.verify(altered(path, tmp_path / f"{name}{i}", change))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_files_changed_at_random_claim_nothing_false(saved, tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(saved)))
    distance, path = saved[name]
    key = data.draw(st.sampled_from(["lower", "upper", "at", "relative", "domain", "edges", "cuts"]))
    value = data.draw(st.one_of(st.floats(-2, 2), st.booleans(), st.none(), st.text(max_size=3)))

    def change(record, tensors):
        if key in tensors:
            tensors[key][data.draw(st.integers(0, len(tensors[key]) - 1))] = data.draw(st.integers(-2, 2))
        else:
            record["claim"][key] = value

    try:
        checked = ah.verify(altered(path, tmp_path_factory.mktemp("x") / "file", change))
    except ah.AnchorheadError:
        return
    if checked.domain == distance.domain and checked.relative == distance.relative:
        assert checked.lower <= distance.upper
        assert checked.upper >= distance.lower


BAD = [
    (("x", "2*x"), "not bounded"),
    (("x**2", "x**2 + 1"), "bounded domain"),
    (("log(x)", "x"), "not finite"),
    (("x", "x*y"), "bounded domain"),
    (("x", 3), "formula as text"),
    (("x", "x", (-1, 1), "yes"), "True or False"),
    (("x", "x", (1, -1)), "low below high"),
    (([["x"]], "x"), "formulas as texts"),
]


@pytest.mark.parametrize(("arguments", "match"), BAD)
def test_refused_with_a_sentence(arguments, match):
    with pytest.raises(ah.AnchorheadError, match=match):
        ah.distance(*arguments)


@pytest.mark.parametrize(("make", "match"), [
    (lambda: ah.Table(1, 0, [1, 2]), "empty"), (lambda: ah.Table(0, 1, [1]), "2 to"),
    (lambda: ah.Table(0, 1, [1, math.nan]), "finite"), (lambda: ah.Table(0, 1, [1, 2], "cubic"), "linear"),
    (lambda: ah.Table(0, 1, 3), "sequence"), (lambda: ah.Piecewise([0, 0, 1], [[1], [2]]), "rise"),
    (lambda: ah.Piecewise([0, 1], [[1], [2]]), "one more break"), (lambda: ah.Piecewise([0, 1], [[]]), "coefficients"),
    (lambda: ah.distance(ah.Table(0, 1, [1, 2]), "x", (-1, 1)), "goes beyond"),
])  # fmt: skip
def test_tables_that_are_none(make, match):
    with pytest.raises(ah.AnchorheadError, match=match):
        make()


def test_tables_in_files(tmp_path):
    values = np.tanh(np.linspace(-2, 2, 9)).tolist()
    wanted = ah.distance(ah.Table(-2, 2, values), "tanh(x)")
    (tmp_path / "t.json").write_text(json.dumps({"low": -2, "high": 2, "values": values}))
    rows = [f"{x:.6f},{y!r}" for x, y in zip(np.linspace(-2, 2, 9), values, strict=True)]
    (tmp_path / "t.csv").write_text("x,tanh\n" + "\n".join(rows) + "\n")
    for name in ("t.json", "t.csv"):
        found = ah.distance(tmp_path / name, "tanh(x)")
        assert (found.lower, found.upper) == (wanted.lower, wanted.upper)
    (tmp_path / "p.json").write_text(json.dumps({"breaks": [-1, 0, 1], "coefficients": [[0], [0, 1]]}))
    assert ah.distance(tmp_path / "p.json", "relu(x)").upper < 1e-20
    (tmp_path / "bad.csv").write_text("0,1\n1,2\n3,3\n")
    (tmp_path / "bad.json").write_text("{}[")
    for name in ("bad.csv", "bad.json", "none.csv", "t.txt"):
        with pytest.raises(ah.FileError):
            ah.distance(tmp_path / name, "x")


def test_pieces_that_meet_at_an_end_of_the_domain_count():
    for rows, ends in (([[0], [7]], (0, 1)), ([[7], [0]], (1, 2))):
        found = ah.distance(ah.Piecewise([0, 1, 2], rows), "0", ends)
        assert (found.lower, found.at) == (7, 1)
        assert 7 <= found.upper < 7.0001
    assert ah.distance(ah.Table(0, 1, [0, 1], "nearest"), "0", (0, 0.5)).upper >= 1


def test_two_variables_are_two():
    found = ah.distance("x", "y", (0, 1))
    assert found.lower <= 1 <= found.upper < 1.01
    with pytest.raises(ah.InputError, match="bounded domain"):
        ah.distance("x", "y")
    assert ah.distance("x", "0", (0, 1)).upper < 1.01


def test_a_model_and_itself():
    model = ah.compile("gelu(x)", tol=1e-5)
    found = ah.distance(model, model)
    assert found.upper < 1e-18
    assert found.boxes < 20_000


def test_a_piece_at_the_end_counts_beside_a_zero_of_g():
    pieces = ah.Piecewise([-1, 0, 1], [[0, 1, 0.5], [7]])
    with pytest.raises(ah.ToleranceError):
        ah.distance(pieces, "x", (-1, 0), relative=True)
    assert ah.distance(ah.Piecewise([-1, 0], [[0, 1, 0.5]]), "x", (-1, 0), relative=True).upper < 0.51


def test_lines_that_both_approach_are_seen_to_be_the_same():
    found = ah.distance("gelu(x)", "silu(1.702*x)/1.702")
    assert 0.0203 < found.lower <= found.upper < 0.0204
    assert ah.distance("x/3 + exp(-x**2)", "x/3").upper < 1.001


@pytest.mark.parametrize(
    ("f", "g", "distance"),
    [("x", "x + 1e-300", 1e-300), ("1e200*x", "1e200*x + exp(x)", math.e), ("x + 1", "x + 1 + 1e-300", 1e-300)],
)
def test_functions_that_cancel_are_told_apart(f, g, distance, tmp_path):
    found = ah.distance(f, g, (0, 1))
    assert found.lower <= distance * (1 + 1e-12)
    assert distance * (1 - 1e-12) <= found.upper <= 1.001 * found.lower
    assert not found.missed
    found.save(tmp_path / "a.distance")
    assert ah.verify(tmp_path / "a.distance") == found


def test_ends_that_are_further_apart_than_asked_say_so():
    found = ah.distance("sin(x)**2 + cos(x)**2", "1", (0, 1))
    assert found.lower == 0 < found.upper < 1e-20
    assert "further apart than tol=0.001 asks" in str(found)
    assert not ah.distance("x", "x", (0, 1)).missed


@pytest.mark.parametrize("bits", [0, 4097, 106.0, [424], "424"])
def test_bits_of_a_file_are_a_whole_number_within_limits(bits, tmp_path):
    ah.distance("exp(x)", "exp(x/2)**2 + 1e-40", (0, 1)).save(tmp_path / "a.distance")
    parts = attacked.read((tmp_path / "a.distance").read_bytes())
    assert parts.record["bits"] > 106
    parts.record["bits"] = bits
    (tmp_path / "b.distance").write_bytes(attacked.write(parts))
    with pytest.raises(ah.FileError, match="bits"):
        ah.verify(tmp_path / "b.distance")


def test_the_end_of_an_arcsine_counts():
    found = ah.distance("asin(x/3)", "0*x", (-3, 3))
    assert found.lower <= np.pi / 2 <= found.upper
    assert abs(found.at) == 3


WIDE = [
    ("gelu_tanh(x)", "gelu(x)", (-1e4, 1e4), 4.7316357e-4),
    ("gelu_tanh(x)", "gelu(x)", (-1e80, 1e6), 4.7316357e-4),
    ("sqrt(x**2 + 1)", "abs(x)", (-1e4, 1e4), 1.0),
    ("1/x", "1/x + 1e-20", (1e-5, 1), 1e-20),
    ("1/x", "1/(x + 1e-3)", (1e-3, 1e6), 500.0),
]


@pytest.mark.parametrize(("f", "g", "domain", "distance"), WIDE)
def test_a_domain_of_many_scales_takes_few_boxes_that_two_checkers_confirm(f, g, domain, distance, tmp_path):
    found = ah.distance(f, g, domain)
    assert found.lower * (1 - 1e-6) <= distance <= found.upper * (1 + 1e-6) <= 1.0011 * found.lower
    assert found.boxes < 200
    found.save(tmp_path / "a.distance")
    assert ah.verify(tmp_path / "a.distance") == found
    assert second_checker.check(tmp_path / "a.distance").ok


def test_a_model_far_out_is_bounded_by_its_tails():
    model, curve = ah.compile("gelu(x)", tol=1e-6), (-1e9, 1e9)
    assert ah.distance(model.head.numbers, "gelu(x)", curve).boxes < 500


def test_models_of_several_variables_have_distances_where_they_are_proved_alone():
    narrow = ah.compile("sin(3*x*y)", (-1, 1), tol=1e-3)
    wide = ah.compile("sin(3*x*y)", {"y": (-3, 3), "x": (-2, 2)}, tol=1e-2)
    with pytest.raises(ah.InputError, match=r"of x goes beyond \[-1, 1\]"):
        ah.distance(narrow, "sin(3*x*y)", (-2, 2))
    with pytest.raises(ah.InputError, match=r"of x goes beyond \[-1, 1\]"):
        ah.distance("sin(3*x*y) + 0*z", narrow, {"x": (-2, 2), "y": (0, 1), "z": (0, 1)})
    assert ah.distance(wide, narrow).domain == ((-1, 1), (-1, 1))
    with pytest.raises(ah.InputError, match="do not meet"):
        ah.distance(narrow, ah.compile("x*y", {"x": (2, 3), "y": (0, 1)}, tol=1e-1))


def test_the_intervals_of_a_model_are_those_of_its_variables_in_any_order():
    model = ah.compile("x*y", {"x": (0, 1), "y": (50, 60)}, tol=1e-3)
    found = ah.distance("2*y + x", model)
    assert found.domain == ((50, 60), (0, 1))
    assert found.variables == ("y", "x")
    assert "for (y, x)" in str(found)
    assert found.lower <= 120 <= found.upper  # at y = 60, where the difference is 120 - 59x


def test_a_distance_that_rests_on_a_certificate_is_conditional_before_it_is_saved_too(tmp_path):
    found = ah.distance(ah.compile("sin(2*x*y)", (-1, 1), tol=1e-2), "sin(2*x*y)")
    found.save(tmp_path / "distance.safetensors")
    assert found.level == ah.verify(tmp_path / "distance.safetensors").level == "conditional"
