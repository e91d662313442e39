"""The functions of the approximation literature: proved, within so many keys; and functions that nobody chose."""

import functools

import mpmath as mp
import pytest
import second_checker
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.lab.grammar import cases
from benchmarks.several import CASES

UNIT = (-1, 1)
PEAK = "1/(1+1000*(x-0.3)**2)"
TABLE = [
    ("cos(20*x)", UNIT, 1e-6, 16, lambda x: mp.cos(20 * x)),
    ("cos(20*x)", UNIT, 1e-10, 22, lambda x: mp.cos(20 * x)),
    ("sin(50*x)", UNIT, 1e-6, 48, lambda x: mp.sin(50 * x)),
    ("sin(1000*x)", UNIT, 1e-3, 200, lambda x: mp.sin(1000 * x)),
    ("sin(x**2)", (0, 6), 1e-6, 26, lambda x: mp.sin(x**2)),
    ("sin(40*x**2)", (0, 1), 1e-4, 30, lambda x: mp.sin(40 * x**2)),
    ("abs(x)**3", UNIT, 1e-6, 8, lambda x: abs(x) ** 3),
    ("exp(-abs(x))", (-3, 3), 1e-10, 14, lambda x: mp.exp(-abs(x))),
    (PEAK, UNIT, 1e-6, 40, lambda x: 1 / (1 + 1000 * (x - mp.mpf(3) / 10) ** 2)),
    (PEAK, UNIT, 1e-10, 70, lambda x: 1 / (1 + 1000 * (x - mp.mpf(3) / 10) ** 2)),
    ("atan(30*x)", UNIT, 1e-6, 24, lambda x: mp.atan(30 * x)),
    ("atan(30*x)", UNIT, 1e-10, 44, lambda x: mp.atan(30 * x)),
    ("asin(x)", UNIT, 1e-6, 60, mp.asin),
    ("sqrt(1 - x**2)", UNIT, 1e-6, 60, lambda x: mp.sqrt(1 - x * x)),
    ("acosh(x)", (1, 2), 1e-6, 36, mp.acosh),
    ("x**-0.5", (0.01, 100), 1e-6, 30, lambda x: 1 / mp.sqrt(x)),
    ("x**-0.5", (0.01, 100), 1e-10, 55, lambda x: 1 / mp.sqrt(x)),
    (
        "exp(x)*sin(3*x)*tanh(5*cos(30*x))",
        UNIT,
        1e-6,
        80,
        lambda x: mp.exp(x) * mp.sin(3 * x) * mp.tanh(5 * mp.cos(30 * x)),
    ),
]
ACKLEY = "-20*exp(-0.2*sqrt((x**2 + y**2)/2)) - exp((cos(2*pi*x) + cos(2*pi*y))/2) + e + 20"
ENDING = [
    (ACKLEY, (-5, 5), 1e-2, 120, lambda x, y: (
        -20 * mp.exp(-mp.sqrt((x * x + y * y) / 2) / 5)
        - mp.exp((mp.cos(2 * mp.pi * x) + mp.cos(2 * mp.pi * y)) / 2) + mp.e + 20
    )),
    ("sqrt(x**2 + y**2)", UNIT, 1e-2, 20, lambda x, y: mp.sqrt(x * x + y * y)),
    ("asin(x*y)", UNIT, 5e-2, 20, lambda x, y: mp.asin(x * y)),
]  # fmt: skip


@functools.cache
def compiled(index):
    text, domain, tol, *_ = TABLE[index]
    return ah.compile(text, domain, tol=tol)


@pytest.mark.heavy
@pytest.mark.parametrize("index", range(len(TABLE)), ids=lambda i: f"{TABLE[i][0]} {TABLE[i][2]:g}")
@settings(max_examples=40)
@given(share=st.floats(0, 1))
def test_functions_of_the_literature_are_proved_with_few_keys(index, share):
    _, (low, high), tol, keys, exact = TABLE[index]
    model = compiled(index)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= tol
    assert model.resources.keys <= keys
    x = torch.tensor([min(max(low + share * (high - low), low), high)], dtype=torch.float64)
    with mp.workdps(40):
        assert abs(model(x).item() - exact(mp.mpf(x.item()))) <= model.certificate.bound


@pytest.mark.heavy
@settings(max_examples=100)
@given(near=st.floats(0, 52), right=st.booleans())
def test_steep_keys_at_an_end_round_by_no_more_than_is_proved(near, right):
    model = compiled(next(i for i, row in enumerate(TABLE) if row[0] == "asin(x)"))
    x = torch.tensor([(1 - 2.0**-near) * (1 if right else -1)], dtype=torch.float64)
    head = model.claim.head
    with mp.workprec(200):
        lines = zip(head.slopes, head.intercepts, head.constants, head.gains, strict=True)
        at = mp.mpf(x.item())
        keys = [(s * at + c, v + g * at) for s, c, v, g in lines]
        top = max(score for score, _ in keys)
        weights = [mp.exp(score - top) for score, _ in keys]
        exact = mp.fdot(weights, [value for _, value in keys]) / mp.fsum(weights)
        for found in (model(x), model.literal()(x)):
            assert abs(found.item() - exact) <= model.certificate.rounding


@functools.cache
def ending(index):
    text, side, tol, *_ = ENDING[index]
    return ah.compile(text, {"x": side, "y": side}, tol=tol)


@pytest.mark.heavy
@pytest.mark.parametrize("index", range(len(ENDING)), ids=lambda i: ENDING[i][0])
@settings(max_examples=60)
@given(place=st.tuples(st.floats(-1, 1), st.floats(-1, 1)), small=st.integers(0, 60))
def test_functions_that_end_where_their_argument_does_are_proved(index, place, small):
    _, (low, _), tol, keys, exact = ENDING[index]
    model = ending(index)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= tol
    assert model.resources.keys <= keys
    for scale in (-low, -low * 2.0**-small):  # also close to where slopes have no bound
        x = torch.tensor(place, dtype=torch.float64) * scale
        with mp.workdps(40):
            assert abs(model(x).item() - exact(*map(mp.mpf, x.tolist()))) <= model.certificate.bound


@pytest.mark.heavy
@pytest.mark.parametrize("index", [2, 3, 14])
def test_networks_of_doublings_are_saved_and_checked(index, tmp_path):
    model = compiled(index)
    model.save(tmp_path / "model")
    assert ah.verify(tmp_path / "model").bound <= TABLE[index][2]
    x = torch.linspace(*TABLE[index][1], 100, dtype=torch.float64).reshape(4, 25)  # every number by itself
    assert model(x).shape == x.shape
    assert torch.equal(ah.load(tmp_path / "model")(x), model(x))
    assert not ah.diagnose(model, x).findings
    verdict = second_checker.check(tmp_path / "model")
    assert verdict.status == "holds", verdict.reason


@pytest.mark.heavy
@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_functions_that_nobody_chose_are_not_refused(tol):
    for case in cases(8, seed=4):
        model = ah.compile(case.text, (case.low, case.high), tol=tol * case.scale)
        assert model.certificate.level == "proved", case
        assert model.certificate.bound <= tol * case.scale, case


@pytest.mark.heavy
def test_functions_of_several_variables_are_not_refused():
    for name in ("himmelblau", "rastrigin", "ackley", "corner_peak", "continuous", "payoff"):
        formula, domain, scale, relative = CASES[name]
        model = ah.compile(formula, domain, tol=relative * scale)
        assert model.certificate.bound <= relative * scale, name


@pytest.mark.heavy
@pytest.mark.parametrize(("text", "domain"), [("clip(x, -1, 1)", (-2, 2)), ("tanh(80*x)", UNIT), ("sin(3*x)", UNIT)])
def test_more_keys_are_never_worse(text, domain):
    bounds = [ah.compile(text, domain, keys=keys).certificate.bound for keys in (3, 4, 8, 12)]
    assert bounds == sorted(bounds, reverse=True)


@pytest.mark.parametrize("limit", [0, -3, 2.5, True, "many"])
def test_a_limit_is_a_whole_number(limit):
    with pytest.raises(ah.InputError, match="limit="):
        ah.compile("sin(x)", UNIT, limit=limit)


@pytest.mark.parametrize(
    ("target", "limit", "more"),
    [
        ("sin(50*x)", 10, {"tol": 1e-6}),
        ("sin(3*x)", 3, {"tol": 1e-6, "method": "gated"}),
        ("sin(3*x)", 20, {"tol": 1e-2, "method": "nearest"}),
        ("sin(3*x*y)", 3, {"tol": 1e-6}),
        ("sin(x + y)", 3, {"tol": 1e-2, "method": "grid"}),
    ],
)
def test_no_model_has_more_keys_than_the_limit(target, limit, more):
    with pytest.raises(ah.ToleranceError, match=f"{limit}"):
        ah.compile(target, UNIT, limit=limit, **more)


@pytest.mark.heavy
def test_networks_have_no_limit_unless_one_is_given():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 512), torch.nn.GELU(), torch.nn.Linear(512, 1)).double()
    assert ah.compile(layers, UNIT, tol=1e-10).resources.keys > 4096


def test_anchors_that_would_be_too_many_are_counted_in_the_refusal():
    with pytest.raises(ah.ToleranceError, match=r"takes 30\d{3} keys with method 'nearest', and 16384"):
        ah.compile("sin(3*x)", UNIT, tol=1e-4, method="nearest")


def interrupted_at(text, times):
    """A progress that is interrupted the so-many-th time that a line holds this text."""
    seen = []

    def progress(line):
        seen.append(text in line)
        if sum(seen) == times:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_search_gives_the_smallest_head_that_was_proved():
    lines = []
    whole = ah.compile("atan(30*x)", UNIT, tol=1e-6, method="gated", progress=lines.append)
    proofs = sum("proving" in line for line in lines)
    assert proofs > 1  # there is something to interrupt between two proofs
    model = ah.compile("atan(30*x)", UNIT, tol=1e-6, method="gated", progress=interrupted_at("proving", proofs))
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= 1e-6
    assert model.resources.keys >= whole.resources.keys


def test_an_interruption_before_any_proof_ends_the_call_and_says_how_far_it_came():
    for target, text in (("cos(20*x)", "keys"), ("sin(50*x)*x*y", "keys")):
        with pytest.raises(KeyboardInterrupt, match="searched for"):
            ah.compile(target, UNIT, tol=1e-6, progress=interrupted_at(text, 1))


def test_a_head_in_hand_is_given_when_other_routes_are_interrupted():
    model = ah.compile("cos(20*x)", UNIT, tol=1e-10, progress=interrupted_at("through the graph", 1))
    assert model.method == "gated"
    assert model.certificate.bound <= 1e-10


def test_the_graph_takes_every_number_by_itself_also_where_it_is_asked_for():
    model = ah.compile("exp(-sin(3*x)**2)", UNIT, tol=1e-4, method="graph")
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    assert (model(x) - (-((3 * x).sin() ** 2)).exp()).abs().max() <= model.certificate.bound
