"""The checker needs python-flint and the file: no other package, and for a grid NumPy."""

import json
import os
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

import anchorhead as ah

SOURCE = Path(ah.__file__).parents[1]
OTHERS = ("torch", "numpy", "scipy", "typer", "rich", "safetensors", "threadpoolctl", "matplotlib")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A saved model of each kind, by its kind."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "head": ah.compile("sin(3*x)", (-1, 1), tol=1e-4),
        "network": ah.compile("x*y", (-1, 1), tol=1e-3, method="graph"),
        "prompt": ah.in_context.compile("mean(x)*var(x)", {"x": (-1, 1)}, tol=1e-3),
        "grid": ah.compile("x*y", (-1, 1), tol=0.1, method="grid"),
        "row_map": ah.compile("sin(3*x)", (-1, 1), tol=1e-2, row_map=ah.row_maps.Sparsemax()),
    }
    for kind, model in made.items():
        model.save(folder / kind)
    return {kind: folder / kind for kind in made}


def python(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_checker_imports_the_standard_library_and_flint_alone(files):
    script = """
import sys
before = set(sys.modules)
import anchorhead as ah
ah.verify(sys.argv[1])
ah.verify(sys.argv[2])
ah.verify(sys.argv[3])
ah.verify(sys.argv[4])
found = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(found - set(sys.stdlib_module_names) - {"anchorhead", "flint"}))
"""
    done = python(script, files["head"], files["network"], files["prompt"], files["row_map"])
    assert done.returncode == 0, done.stderr
    assert not [name for name in done.stdout.split() if "cython" not in name]


def without(*names):
    """The command in a Python where some packages cannot be imported."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in names)
    return f"import sys; {hidden}sys.argv[0] = 'anchorhead'; from anchorhead.__main__ import main; main()"


def test_verify_runs_without_the_other_packages(files):
    for kind in ("head", "network"):
        done = python(without(*OTHERS), "verify", files[kind])
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"verified {files[kind]}\nproved: ")
        plain = python(without(*OTHERS), "verify", files[kind], "--json")
        full = python(without(), "verify", files[kind], "--json")
        assert plain.stdout == full.stdout
        assert json.loads(plain.stdout)["verified"] is True


def test_a_grid_needs_numpy_and_says_so(files):
    done = python(without(*OTHERS), "verify", files["grid"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "anchorhead: The proof of a grid is checked with NumPy: pip install numpy.\n"
    done = python(without(*(name for name in OTHERS if name != "numpy")), "verify", files["grid"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("hidden", [OTHERS, ("torch",), ("rich",), ("flint",)])
@pytest.mark.parametrize("command", [["plan", "sin(x)", "-d", "x=0:1"], ["compile", "gelu(x)"], ["show", "nothing"]])
def test_other_commands_say_what_to_install(hidden, command):
    done = python(without(*hidden), *command)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "is not installed: `pip install anchorhead`" in done.stderr
    said = python(without(*hidden), *command, "--json")
    assert json.loads(said.stdout)["error"] == "DependencyError"


def test_help_says_what_can_be_done_without_the_other_packages():
    done = python(without(*OTHERS), "--help")
    assert done.returncode == 0, done.stderr
    assert "verify FILE" in done.stdout
    assert "is not installed" in done.stdout


def test_names_are_there_without_loading_what_they_need():
    script = """
import sys
import anchorhead as ah
from anchorhead import AnchorheadError, errors
assert set(dir(ah)) >= {"compile", "verify", "theorems", "in_context", "load", "plan", "convert"}
assert not {"torch", "numpy", "scipy", "typer", "rich", "flint"} & set(sys.modules)
for name in ah.__all__:
    getattr(ah, name)
from anchorhead import compile, theorems, in_context
try:
    ah.nothing
except AttributeError as error:
    print(error)
"""
    done = python(script)
    assert done.stdout == "module 'anchorhead' has no attribute 'nothing'\n", done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A Python of its own with python-flint and this package; skipped where no package index can be reached."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    flint = f"python-flint=={version('python-flint')}"
    found = subprocess.run([*pip, "install", "--quiet", flint], capture_output=True, text=True, check=False)
    if found.returncode:
        if os.environ.get("CI"):
            pytest.fail(found.stderr)
        pytest.skip(f"python-flint could not be installed: {found.stderr[-300:]}")
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "anchorhead.pth").write_text(f"{SOURCE}\n", encoding="utf-8")
    return pip


def run_in(pip, *arguments):
    command = [pip[0], "-m", "anchorhead", *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean)


@pytest.mark.heavy
def test_the_checker_alone_in_an_environment_of_its_own(alone, files):
    there = json.loads(subprocess.run([*alone, "list", "--format=json"], capture_output=True, check=True).stdout)
    assert {package["name"] for package in there} - {"pip", "setuptools"} == {"python-flint"}
    for kind in ("head", "network"):
        done = run_in(alone, "verify", files[kind])
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"verified {files[kind]}\nproved: ")
    grid, other = run_in(alone, "verify", files["grid"]), run_in(alone, "compile", "gelu(x)")
    assert grid.stderr == "anchorhead: The proof of a grid is checked with NumPy: pip install numpy.\n"
    assert "is not installed: `pip install anchorhead`" in other.stderr
    assert (grid.returncode, other.returncode) == (2, 2)
    numpy = f"numpy=={version('numpy')}"
    subprocess.run([*alone, "install", "--quiet", numpy], capture_output=True, text=True, check=True)
    assert run_in(alone, "verify", files["grid"]).returncode == 0
