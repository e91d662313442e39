"""The experiments, in the order of the report. A new one is a file here and a name below."""

from __future__ import annotations

from anchorhead.errors import InputError
from anchorhead.lab.experiment import Experiment
from anchorhead.lab.experiments import (
    beta,
    boundaries,
    cost,
    in_context,
    length,
    maps,
    programs,
    prompts,
    rates,
    row_maps,
    sequences,
    training,
)

FILES = (rates, maps, sequences, beta, boundaries, length, in_context, prompts, programs, row_maps, training, cost)
ALL: tuple[Experiment, ...] = tuple(Experiment.of(file) for file in FILES)


def named(name: str) -> Experiment:
    """The experiment of that name."""
    for experiment in ALL:
        if experiment.name == name:
            return experiment
    raise InputError(f"There is no experiment {name!r}; there are {', '.join(e.name for e in ALL)}.")
