"""`anchorhead reproduce`: experiments, workers, CSV as results come, figures, one page; and what is shown meanwhile."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from anchorhead.errors import FileError, InputError
from anchorhead.lab.experiment import Experiment, Rows
from anchorhead.lab.experiments import ALL, named
from anchorhead.lab.folder import results_folder, stamp
from anchorhead.lab.ledger import Ledger
from anchorhead.lab.report import page, section
from anchorhead.lab.sweep import State, Watch, crew, sweep
from anchorhead.progress import Progress as Told
from anchorhead.progress import telling

PAGE = "report.html"


@dataclass(frozen=True)
class Reproduction:
    """What a run left: the page, how many tasks there were, how many of them were computed now."""

    page: Path
    experiments: tuple[str, ...]
    tasks: int
    computed: int

    def as_dict(self) -> dict[str, str | int | list[str]]:
        """For programs."""
        return {"page": str(self.page), "experiments": list(self.experiments), "tasks": self.tasks,
                "computed": self.computed}  # fmt: skip

    def __str__(self) -> str:
        kept = f", {self.tasks - self.computed} of them from an earlier run" if self.computed < self.tasks else ""
        many = "s" if len(self.experiments) > 1 else ""
        return f"{len(self.experiments)} experiment{many}, {self.tasks} tasks{kept}\nreport: {self.page}"


def reproduce(
    output: Path,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool | Told = True,
) -> Reproduction:
    """Runs the experiments (all, or those named) into a folder; a run that was stopped goes on from where it was,
    and of one that is finished nothing is drawn anew.

    progress: as for `ah.compile`; on a terminal there is a bar for each experiment.
    """
    chosen = _chosen(only)
    with results_folder(output) as folder:
        ledgers = [Ledger(folder, experiment, experiment.tasks(quick)) for experiment in chosen]
        missing = sum(len(ledger.missing()) for ledger in ledgers)
        if missing or not (workers is None and scheduler is None):
            with shown(progress) as watch, crew(workers, scheduler) as found:
                sweep(ledgers, found, watch)
        begun = command_line(output, quick, only), stamp(), quick
        if missing or not _drawn(folder, page(chosen, [], *begun), _numbers(ledgers)):
            sections = [_section(number, ledger, folder) for number, ledger in enumerate(ledgers, 1)]
            (folder / PAGE).write_text(page(chosen, sections, *begun) + _numbers(ledgers), encoding="utf-8")
    total = sum(len(ledger.tasks) for ledger in ledgers)
    return Reproduction(output / PAGE, tuple(e.name for e in chosen), total, missing)


def _numbers(ledgers: Sequence[Ledger]) -> str:
    """The end of a page of these numbers: their digest, as a comment."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for ledger in ledgers for path, _ in ledger.files))
    return f"<!-- {digest.hexdigest()} -->\n"


def _drawn(folder: Path, empty: str, numbers: str) -> bool:
    """Whether the page there begins as the one without sections, ends with these numbers, and has its files."""
    if not (folder / PAGE).exists():
        return False
    text = (folder / PAGE).read_text(encoding="utf-8", errors="replace")
    files = re.findall(r'href="([^"#]+)"', text)
    known = text.startswith(empty.partition("</nav>")[0]) and text.endswith(numbers)
    return known and all((folder / name).exists() for name in files)


def _section(number: int, ledger: Ledger, folder: Path) -> str:
    try:
        return section(number, ledger.experiment, Rows(ledger.rows()), len(ledger.tasks), folder)
    except (KeyError, ValueError, TypeError) as error:
        raise FileError(
            f"The numbers in {ledger.path} are not those that {ledger.experiment.name} writes ({error!r}). Remove that "
            "file; its tasks will be computed again."
        ) from error


def command_line(output: Path, quick: bool, only: Sequence[str]) -> str:
    """The command that makes the same report, with any number of workers."""
    words = ["anchorhead", "reproduce", *(["--quick"] if quick else []), *(w for n in only for w in ("--only", n))]
    return shlex.join([*words, "-o", str(output)])


def _chosen(only: Sequence[str]) -> list[Experiment]:
    if len(set(only)) < len(only):
        raise InputError("--only names an experiment twice.")
    wanted = {named(name).name for name in only}
    return [e for e in ALL if e.name in wanted or not only]


@contextmanager
def shown(progress: Any) -> Iterator[Watch]:
    """A function to tell how a sweep stands: bars on a terminal, or a line when an experiment is a tenth further."""
    bars = progress is True and sys.stderr is not None and sys.stderr.isatty()
    with telling("running experiments", False if bars else progress) as tell:
        if not bars:
            yield _lines(tell)
            return
        with _bars(Console(stderr=True)) as watch:
            yield watch


@contextmanager
def _bars(console: Console) -> Iterator[Watch]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TextColumn("[dim]{task.fields[now]}"), console=console) as progress:
        bars: dict[str, TaskID] = {}

        def watch(state: State) -> None:
            for name, total in state.total.items():
                if name not in bars:
                    bars[name] = progress.add_task(name, total=total, now="", start=False)
                now = [r.removeprefix(f"{name}: ") for r in state.running if r.startswith(f"{name}: ")]
                if now and not progress.tasks[bars[name]].started:
                    progress.start_task(bars[name])
                progress.update(bars[name], completed=state.done[name], now=" | ".join(_cut(n) for n in now[:2]))

        yield watch


def _cut(text: str) -> str:
    return text if len(text) <= 44 else text[:43] + "…"


def _lines(tell: Told) -> Watch:
    """One line when an experiment is done, or a tenth of all."""
    said: dict[str, int] = {}

    def watch(state: State) -> None:
        for name, total in state.total.items():
            tenth = 10 * state.done[name] // total
            if state.done[name] and tenth > said.get(name, 0):
                said[name] = tenth
                left = sum(state.total.values()) - sum(state.done.values())
                tell(f"{name}: {state.done[name]} of {total}; {left} tasks remain")

    return watch
