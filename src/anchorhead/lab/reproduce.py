"""`anchorhead reproduce`: experiments, workers, CSV as results come, figures, one page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anchorhead.errors import FileError, InputError
from anchorhead.lab.experiment import Experiment
from anchorhead.lab.experiments import ALL, named
from anchorhead.lab.folder import results_folder
from anchorhead.lab.ledger import Ledger
from anchorhead.lab.report import Section, page, section
from anchorhead.lab.rows import Rows
from anchorhead.lab.stamp import stamp
from anchorhead.lab.sweep import Watch, sweep
from anchorhead.lab.workers import crew

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
    watch: Watch | None = None,
) -> Reproduction:
    """Runs the experiments (all, or those named) into a folder; a run that was stopped goes on from where it was."""
    chosen = _chosen(only)
    with results_folder(output) as folder:
        ledgers = [Ledger(folder, experiment, experiment.tasks(quick)) for experiment in chosen]
        missing = sum(len(ledger.missing()) for ledger in ledgers)
        if missing or not (workers is None and scheduler is None):
            with crew(workers, scheduler) as found:
                sweep(ledgers, found, watch)
        sections = [_section(ledger, folder) for ledger in ledgers]
        text = page(sections, command_line(output, quick, only), stamp(), quick)
        (folder / PAGE).write_text(text, encoding="utf-8")
    total = sum(len(ledger.tasks) for ledger in ledgers)
    return Reproduction(output / PAGE, tuple(e.name for e in chosen), total, missing)


def _section(ledger: Ledger, folder: Path) -> Section:
    try:
        return section(ledger.experiment, Rows(ledger.rows()), len(ledger.tasks), folder)
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
