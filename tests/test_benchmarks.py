"""Every benchmark runs through in its tiny form and prints its numbers; nothing here asks how fast it was."""

import re
import subprocess
import sys

import pytest

from benchmarks.__main__ import NAMES


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_benchmark_runs_through_and_prints_its_ratios(name):
    if name == "conversion":
        pytest.importorskip("transformers")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--tiny"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    title, *lines = run.stdout.strip().splitlines()
    assert title.startswith(f"== {name}: ")
    assert lines
    assert all(re.search(r"\d", line) for line in lines)


def test_a_name_that_is_no_benchmark_is_refused_with_the_names():
    run = subprocess.run([sys.executable, "-m", "benchmarks", "nope"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "nope is not one of" in run.stderr
    assert all(name in run.stderr for name in NAMES)
