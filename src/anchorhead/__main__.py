"""The command `anchorhead`, also as `python -m anchorhead`.

All commands are those of `cli.py`, which needs everything that the package installs. Checking a file needs python-flint
and nothing else, so where the rest is missing `anchorhead verify` runs without it (`file/command.py`); any other
command then says in a sentence what to install.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from anchorhead.errors import AnchorheadError, DependencyError, Stopped

PACKAGES = {"flint": "python-flint", "sklearn": "scikit-learn"}
"""What is installed under another name than it is imported by."""

HELP = """usage: anchorhead verify [--json] FILE

Here {missing} is not installed, and one command runs without it:

  verify FILE   check the proof in a saved model, or of every head of a converted one (anchorhead verify --help)

`pip install anchorhead` brings what the other commands need."""
"""What --help says where only files can be checked."""


def main() -> None:
    """Runs the command; an AnchorheadError is one sentence on stderr and exit code 2, Ctrl-C one and 130."""
    try:
        try:
            _run(sys.argv[1:])
        except ModuleNotFoundError as missing:
            raise _needed(missing) from missing
        except KeyboardInterrupt as stop:
            raise Stopped(str(stop) or "Stopped.") from None
        except BrokenPipeError:  # who reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
    except AnchorheadError as error:
        code = 130 if isinstance(error, Stopped) else 2
        if "--json" in sys.argv:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
            sys.exit(code)
        sentence = f"anchorhead: {error}"
        print(f"\x1b[31m{sentence}\x1b[0m" if sys.stderr.isatty() else sentence, file=sys.stderr)
        sys.exit(code)


def _run(arguments: Sequence[str]) -> None:
    try:
        from anchorhead.cli import app
    except ModuleNotFoundError as missing:
        if arguments[:1] == ["--help"]:
            print(HELP.format(missing=_package(missing)))
            return
        if arguments[:1] != ["verify"]:
            raise _needed(missing) from missing
        from anchorhead.file.command import run

        run(arguments[1:])
    else:
        app(prog_name="anchorhead")


def _package(missing: ModuleNotFoundError) -> str:
    """What is to be installed."""
    package = str(missing.name).partition(".")[0]
    return PACKAGES.get(package, package)


def _needed(missing: ModuleNotFoundError) -> DependencyError:
    return DependencyError(
        f"This needs {_package(missing)}, which is not installed: `pip install anchorhead` brings all "
        "that the commands need. `anchorhead verify FILE` alone needs python-flint, and for a grid's proof NumPy."
    )


if __name__ == "__main__":
    main()
