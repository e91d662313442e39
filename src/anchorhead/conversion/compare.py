"""Two models on the same inputs: how far apart their outputs are, and how much longer one takes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.conversion.folder import load_folder
from anchorhead.errors import FileError, InputError
from anchorhead.progress import Progress, telling

REPEATS = 7
BATCH = 32


@dataclass(frozen=True)
class Comparison:
    """Over all inputs: the largest difference of outputs, the smallest cosine of corresponding vectors, and times.

    difference is between outputs as they are, which are up to `size`, `normalised` between mean-pooled unit vectors,
    one for each text. Positions that the attention mask hides are left out.
    """

    inputs: int
    difference: float
    normalised: float
    cosine: float
    seconds: float
    converted_seconds: float
    size: float

    @property
    def ratio(self) -> float:
        """The converted model's time over the original's."""
        return self.converted_seconds / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.inputs} inputs: outputs differ by at most {self.difference:.2e}, where they are up to "
            f"{self.size:.3g}, unit vectors by {self.normalised:.2e}, smallest cosine {self.cosine:.9f}; time "
            f"{self.ratio:.3f} of the original's ({self.converted_seconds:.4f} s against {self.seconds:.4f} s)"
        )


def compare_folders(
    original: Path, converted: Path, texts: Path | None, progress: bool | Progress = True
) -> Comparison:
    """Loads both and compares them on a file of texts, or on random inputs."""
    with telling(f"comparing {original} and {converted}", progress) as tell:
        tell("loading")
        first, second = load_folder(original), load_folder(converted)
        batches = _tokenized(original, texts) if texts is not None else _random(first)
        tell("running both")
        return compare(first, second, batches)


def compare(first: nn.Module, second: nn.Module, batches: list[dict[str, Tensor]]) -> Comparison:
    """The comparison over batches of keyword arguments; times are medians of interleaved runs of all batches."""
    difference = normalised = size = 0.0
    cosine, count = 1.0, 0
    with torch.no_grad():
        for batch in batches:
            a, b = (_run(model, batch) for model in (first, second))
            if a.shape != b.shape:
                raise InputError(
                    f"The two models return {tuple(a.shape)} and {tuple(b.shape)} on the same input; they are not the "
                    "same model before and after conversion."
                )
            mask = batch.get("attention_mask")
            seen = _seen(a, mask)
            difference = max(difference, float((a - b)[seen].abs().max()))
            size = max(size, float(a[seen].abs().max()))
            pa, pb = (_pooled(v, mask) for v in (a, b))
            normalised = max(normalised, float((pa - pb).abs().max()))
            cosine = min(cosine, float((pa.double() * pb.double()).sum(-1).min()))
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


def _run(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    try:
        return output(model(**batch))
    except (IndexError, RuntimeError, TypeError) as error:
        raise InputError(f"A model does not take the inputs of the other: {error}") from error


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
        weights = torch.ones(values.shape[:2]) if mask is None else mask.to(values.dtype)
        values = (values * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
    return nn.functional.normalize(values.reshape(len(values), -1).double(), dim=-1)


def _tokenized(folder: Path, texts: Path) -> list[dict[str, Tensor]]:
    try:
        lines = [line.strip() for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{texts} cannot be read: {error}.") from error
    if not lines:
        raise InputError(f"{texts} has no texts; write one a line.")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    parts = [lines[i : i + BATCH] for i in range(0, len(lines), BATCH)]
    return [dict(tokenizer(part, return_tensors="pt", padding=True, truncation=True)) for part in parts]


def _random(model: nn.Module) -> list[dict[str, Tensor]]:
    config: Any = getattr(model, "config", None)
    draw = torch.Generator().manual_seed(0)
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary:
        return [{"input_ids": torch.randint(0, vocabulary, (4, 64), generator=draw)} for _ in range(4)]
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    if isinstance(size, int):
        return [{"pixel_values": torch.randn(4, channels, size, size, generator=draw)}]
    raise InputError("What this model takes is not known from its configuration; give --texts.")
