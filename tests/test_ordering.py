"""What torch sorts is sorted by maxima and minima, in a circuit as in the compiled model; what it cannot be is said."""

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhead as ah
from anchorhead.model.layered import exact_wires
from anchorhead.tracing.module import TensorFunction
from anchorhead.tracing.ordering import comparators

ORDERED = {
    "sort": (lambda x: torch.sort(x).values, (5,)),
    "sort of rows, falling": (lambda x: x.sort(0, descending=True).values, (3, 2)),
    "stable": (lambda x: torch.sort(x, stable=True, dim=-1)[0], (4,)),
    "msort": (lambda x: torch.msort(x.flatten()), (4,)),
    "topk": (lambda x: torch.topk(x, 2).values, (5,)),
    "the smallest two": (lambda x: x.topk(2, largest=False)[0], (4,)),
    "median": (torch.median, (5,)),
    "median of an even number": (lambda x: x.median(-1).values, (4,)),
    "kthvalue": (lambda x: x.kthvalue(2, -1, keepdim=True).values, (4,)),
    "range": (lambda x: x.sort().values[..., -1] - x.sort().values[..., 0], (3,)),
}


@pytest.mark.parametrize("count", range(1, 10))
def test_the_network_sorts_every_row_of_zeros_and_ones(count):
    for row in itertools.product((0, 1), repeat=count):
        found = list(row)
        for i, j in comparators(count):
            assert i < j
            found[i], found[j] = min(found[i], found[j]), max(found[i], found[j])
        assert found == sorted(row)


@pytest.mark.parametrize("name", ORDERED)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), ties=st.booleans())
def test_the_circuit_is_torchs_own_result(name, seed, ties):
    function, shape = ORDERED[name]
    circuit = TensorFunction(function, shape).circuit()
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x.round() if ties else x
    expected = function(x)
    assert circuit.output_shape == expected.shape
    torch.testing.assert_close(exact_wires(circuit, x)[1], expected.reshape(-1), rtol=0, atol=0)


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4))
def test_a_compiled_sort_keeps_its_bound(numbers):
    model = sorting()
    x = torch.tensor(numbers, dtype=torch.float64)
    assert (model(x) - x.sort().values).abs().max() <= model.certificate.bound
    assert model.resources.heads == 10  # five comparators


@cache
def sorting():
    return ah.compile(lambda x: torch.sort(x).values, (-1, 1), tol=1e-3, shape=(4,))


@pytest.mark.parametrize("function", [
    lambda x: x + torch.sort(x).indices, lambda x: x * x.topk(4).indices, lambda x: x[..., x.median(-1).indices],
])  # fmt: skip
def test_the_places_of_numbers_are_refused_where_they_are_used(function):
    with pytest.raises(ah.DiscontinuityError, match="places of numbers in an order jump"):
        ah.compile(function, (-1, 1), tol=1e-3, shape=(4,))
