"""A long sequence against many anchors fits in little memory."""

import pytest

from benchmarks.length import extra_memory


@pytest.mark.heavy
def test_sixteen_thousand_anchors_take_under_a_gigabyte():
    added, error, bound = extra_memory(10_000, 16_384)
    assert added < 1.0
    assert error <= bound
