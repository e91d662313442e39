"""Two models on the same inputs: how far apart their outputs are, and how much longer one takes."""

from __future__ import annotations

import inspect
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.conversion.folder import load_folder, require_there
from anchorhead.conversion.inputs import example, run
from anchorhead.conversion.pretrained import first_line
from anchorhead.conversion.trial import apart
from anchorhead.digits import counted
from anchorhead.errors import AnchorheadError, FileError, InputError
from anchorhead.file.folder import RECORD
from anchorhead.progress import Progress, telling
from anchorhead.proof.certificate import end_text

REPEATS = 7
BATCH = 32
ROWS, LENGTH = 4, 64
"""Of random inputs, where a model takes so long ones."""


@dataclass(frozen=True)
class Comparison:
    """Over all inputs: the largest difference of outputs, the smallest cosine of corresponding vectors, and times.

    difference is between outputs as they are, which are up to `size`, `normalised` between mean-pooled unit vectors,
    one for each text. Positions that the attention mask hides are left out, and `empty` lines of a file of texts.
    """

    inputs: int
    difference: float
    normalised: float
    cosine: float
    seconds: float
    converted_seconds: float
    size: float
    empty: int = 0

    @property
    def ratio(self) -> float:
        """The second model's time over the first's."""
        return self.converted_seconds / self.seconds

    def as_dict(self) -> dict[str, int | float | str]:
        """Plain values for JSON; infinite differences become strings."""
        return {name: end_text(value) for name, value in vars(self).items()}

    def __str__(self) -> str:
        left = f" ({counted(self.empty, 'empty line')} left out)" if self.empty else ""
        return (
            f"{self.inputs} inputs{left}: outputs differ by at most {self.difference:.2e}, where they are up to "
            f"{self.size:.3g}, unit vectors by {self.normalised:.2e}, smallest cosine {self.cosine:.9f}; time "
            f"{self.ratio:.3f} of the first's ({self.converted_seconds:.4f} s against {self.seconds:.4f} s)"
        )


def compare_folders(
    original: Path, converted: Path, texts: Path | None, progress: bool | Progress = True
) -> Comparison:
    """Loads both and compares them on a file of texts, or on random inputs."""
    for folder in (original, converted):
        require_there(folder)
    if converted.is_dir() and not (converted / RECORD).is_file():
        raise InputError(
            f"{converted} holds no conversion; give the original first, and then what it was converted to."
        )
    lines = [] if texts is None else _lines(texts)
    said = [line for line in lines if line]
    with telling(f"comparing {original} and {converted}", progress) as tell:
        tell("loading")
        first, second = load_folder(original), load_folder(converted)
        kinds = [type(model).__name__ for model in (first, second)]
        if kinds[0] != kinds[1]:
            raise InputError(
                f"{original} holds a {kinds[0]} and {converted} a {kinds[1]}; give a model and its own conversion."
            )
        batches = _random(first) if texts is None else _tokenized(original, first, said)
        tell("running both")
        return replace(compare(first, second, batches), empty=len(lines) - len(said))


def compare(first: nn.Module, second: nn.Module, batches: list[dict[str, Tensor]]) -> Comparison:
    """The comparison over batches of keyword arguments; times are medians of interleaved runs of all batches."""
    difference = normalised = size = 0.0
    cosine, count = 1.0, 0
    with torch.no_grad():
        for batch in batches:
            a, b = (_run(model, name, batch) for model, name in ((first, "first"), (second, "second")))
            if a.shape != b.shape:
                raise InputError(
                    f"The two models return {tuple(a.shape)} and {tuple(b.shape)} on the same input; they are not the "
                    "same model before and after conversion."
                )
            mask = batch.get("attention_mask")
            seen = _seen(a, mask)
            difference = max(difference, float(apart(a[seen], b[seen]).max()))
            size = max(size, float(a[seen].nan_to_num(0.0, 0.0, 0.0).abs().max()))
            pa, pb = (_pooled(v, mask).double() for v in (a, b))
            far, cosines = apart(pa, pb), (pa * pb).sum(-1)
            same = torch.where(far.amax(-1) == 0, 1.0, -1.0).to(cosines)
            normalised = max(normalised, float(far.max()))
            cosine = min(cosine, float(torch.where(cosines.isnan(), same, cosines).min()))
            count += len(a)
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(REPEATS):
            for model, kept in zip((first, second), seconds, strict=True):
                start = time.perf_counter()
                for batch in batches:
                    model(**batch)
                kept.append(time.perf_counter() - start)
    before, after = (statistics.median(kept) for kept in seconds)
    return Comparison(count, difference, normalised, cosine, before, after, size)


def _run(model: nn.Module, name: str, batch: dict[str, Tensor]) -> Tensor:
    try:
        return output(model(**batch))
    except AnchorheadError:
        raise
    except Exception as error:  # whatever a model does with inputs that are not its own
        raise InputError(
            f"The {name} model, a {type(model).__name__}, does not take {', '.join(batch)}: {first_line(error)} "
            "Compare a model with its own conversion, on inputs that it takes."
        ) from error


def output(found: Any) -> Tensor:
    """The main output of a model: its logits or its last hidden state, or what it returned if that is a tensor."""
    for name in ("logits", "last_hidden_state"):
        if getattr(found, name, None) is not None:
            return getattr(found, name)
    if isinstance(found, Tensor):
        return found
    if isinstance(found, tuple | list) and found and isinstance(found[0], Tensor):
        return found[0]
    raise InputError(f"The model returned a {type(found).__name__}, and neither logits nor hidden states are in it.")


def _seen(values: Tensor, mask: Tensor | None) -> Tensor:
    """Which outputs are of tokens and not of padding: all where a mask says nothing of them."""
    if mask is None or values.ndim < 3 or values.shape[:2] != mask.shape:
        return torch.ones(values.shape[:1], dtype=torch.bool, device=values.device)
    return mask.to(values.device, torch.bool)


def _pooled(values: Tensor, mask: Tensor | None) -> Tensor:
    """One unit vector for each input: the mean over its tokens."""
    if values.ndim == 3:
        known = mask is not None and mask.shape == values.shape[:2]
        weights = mask.to(values) if mask is not None and known else values.new_ones(values.shape[:2])
        values = (values * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
    return nn.functional.normalize(values.reshape(len(values), -1).double(), dim=-1)


def _lines(texts: Path) -> list[str]:
    try:
        lines = [line.strip() for line in texts.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{texts} cannot be read: {error}.") from error
    if not any(lines):
        raise InputError(f"{texts} has no texts; write one a line.")
    return lines


def _tokenized(folder: Path, model: nn.Module, lines: list[str]) -> list[dict[str, Tensor]]:
    """Batches of texts; a decoder that stands beside an encoder is given the same tokens."""
    from transformers import AutoTokenizer

    parts = [lines[i : i + BATCH] for i in range(0, len(lines), BATCH)]
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        found = [dict(tokenizer(part, return_tensors="pt", padding=True, truncation=True)) for part in parts]
    except Exception as error:  # whatever the library finds wrong with the folder
        raise FileError(f"{folder} has no tokenizer for texts: {first_line(error)} Leave out --texts.") from error
    both: Any = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if both and "decoder_input_ids" in inspect.signature(model.forward).parameters:
        found = [batch | {"decoder_input_ids": batch["input_ids"]} for batch in found]
    return found


def _random(model: nn.Module) -> list[dict[str, Tensor]]:
    """What a model takes, as when it is watched; shorter inputs where it does not take long ones."""
    with torch.no_grad():
        attempt = lambda item: output(run(model, item))
        found = example(model, attempt, ROWS, LENGTH) or example(model, attempt)
    if found is None or not isinstance(found[0], dict):
        raise InputError("What this model takes is not known from its configuration; give --texts.")
    return [found[0]]
