"""The compiler gives the same bytes on every processor, with every BLAS, thread count and hash seed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from processors import SETTINGS, environment

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anchorhead"
BETWEEN = [
    *(path for path in (SOURCE / "head").glob("*.py") if "import torch" not in path.read_text(encoding="utf-8")),
    *(path for folder in ("circuit", "proof", "file", "compiler") for path in (SOURCE / folder).glob("*.py")),
    *(SOURCE / "enclosure" / name for name in ("arrays.py", "exact.py", "variation.py", "softmax_range.py")),
]
"""What computes a number that a file holds."""
LIBRARY = set(
    "exp exp2 expm1 log log2 log10 log1p pow power float_power sin cos tan sinh cosh tanh asin acos atan asinh acosh "
    "atanh arcsin arccos arctan arcsinh arccosh arctanh erf erfc gamma lgamma hypot cbrt dist geomspace logspace dot "
    "vdot inner matmul tensordot einsum convolve polyfit linalg random".split()
)
"""What a processor or a library may round in its own way; numpy.linalg's error is none of it."""


@pytest.mark.heavy
def test_files_are_the_same_bytes_on_every_processor() -> None:
    """Each setting takes instructions away from the libraries, changes their threads and the order of hashing."""
    found = []
    for setting in SETTINGS:
        command = [sys.executable, str(ROOT / "tests" / "every_machine_cases.py")]
        run = subprocess.run(command, env=environment(setting), capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        found.append(run.stdout.splitlines())
    assert len(found[0]) > 10
    assert found[0] == found[1] == found[2]


@pytest.mark.heavy
def test_processors_may_share_the_cache_of_fused_kernels(tmp_path: Path) -> None:
    """torch keeps generated loops on disk without the width of the vectors they were written for."""
    run = "import torch, anchorhead as ah; h = ah.convert(torch.nn.Sequential(torch.nn.Linear(1, 1), " \
          "torch.nn.GELU(), torch.nn.Linear(1, 1)))[1]; x = torch.linspace(-9, 9, 40_001); " \
          "print((h(x) - h.head(x)).abs().max().item())"  # fmt: skip
    for setting in ("middle", "newer", "middle"):
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False,
                              env=environment(setting) | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) <= 2e-6


def test_settings_do_imitate_other_processors() -> None:
    """NumPy's exp, or the C library's, differs between them: otherwise the test above shows nothing."""
    probe = "import math, numpy as np; x = np.linspace(-5, 5, 10001); print(hash(np.exp(x).tobytes()), " \
            "hash(tuple(map(math.exp, x.tolist()))))"  # fmt: skip
    runs = [subprocess.run([sys.executable, "-c", probe], env=environment(s) | {"PYTHONHASHSEED": "0"}, check=True,
                           capture_output=True, text=True).stdout for s in SETTINGS]  # fmt: skip
    if environment(SETTINGS[0])["NPY_DISABLE_CPU_FEATURES"] == "":
        pytest.skip("this processor has nothing that could be taken away")
    assert len(set(runs)) > 1


@pytest.mark.parametrize("path", BETWEEN, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_between_a_target_and_its_file_rounds_by_processor(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.BinOp):
            assert not isinstance(node.op, ast.MatMult), f"line {node.lineno}: BLAS sums in an order of its own"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = f"{node.value.id}.{node.attr}"
            assert node.value.id not in ("np", "math") or node.attr not in LIBRARY or _is_error(path, node), (
                f"line {node.lineno}: {found}; anchorhead.arithmetic has one that is the same everywhere"
            )
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not any(name.split(".")[0] == "scipy" for name in names), f"line {node.lineno}: SciPy calls LAPACK"


def _is_error(path: Path, node: ast.Attribute) -> bool:
    lines = path.read_text(encoding="utf-8").splitlines()
    return node.attr == "linalg" and "linalg.LinAlgError" in lines[node.lineno - 1]
