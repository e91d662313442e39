"""What a model takes: given, built from its configuration, or drawn from its forward's signature and its layers.

Nothing says for certain what a module takes, so inputs that were not given are tried, the likeliest first, and the
first that the model runs on is taken.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from anchorhead.errors import AnchorheadError, InputError

Found = TypeVar("Found")
LENGTH = 8
TRIES = 24
SIZES = (32, 64, 224)
"""Of images, where the model does not say."""


def run(model: nn.Module, item: Any) -> Any:
    """The model on a tensor, a tuple of arguments, or a dictionary of keyword arguments."""
    if isinstance(item, Mapping):
        return model(**item)
    return model(*item) if isinstance(item, tuple | list) else model(item)


def tried(model: nn.Module, item: Any, what: str) -> Any:
    """The same for an input that was given; what the model raises becomes a sentence."""
    try:
        return run(model, item)
    except AnchorheadError:
        raise
    except Exception as error:  # whatever a model does with inputs that it does not know
        raise InputError(
            f"The model does not take the {what} of type {type(item).__name__}, or its forward fails on it "
            f"({type(error).__name__}: {error}). Give tensors, tuples of arguments, or dictionaries of keyword "
            "arguments."
        ) from error


def example(
    model: nn.Module, attempt: Callable[[Any], Found], rows: int = 2, length: int = LENGTH
) -> tuple[Any, Found] | None:
    """The first inputs with which an attempt succeeds, with what it gave; None if all fail. rows, length: how many
    inputs, and of how many tokens, where the model's configuration says what it takes."""
    for item in itertools.islice(_candidates(model, _Draw(model, rows, length)), TRIES):
        try:
            return item, attempt(item)
        except Exception:  # another candidate may fit
            continue
    return None


def _candidates(model: nn.Module, draw: _Draw) -> Iterator[Any]:
    pretrained: Any = next((m for m in model.modules() if hasattr(m, "main_input_name") and hasattr(m, "config")), None)
    if pretrained is not None:
        yield from _from_config(model, pretrained.config, draw)
        if pretrained is not model:
            yield from ((item,) for item in _from_config(pretrained, pretrained.config, draw))  # one dictionary
    required = _required(model)
    for values in _by_layers(model, draw):
        yield (values,) * max(1, required)


def _from_config(model: Any, config: Any, draw: _Draw) -> Iterator[dict[str, Tensor]]:
    """Of a model of the transformers library, or around one: its main input, a decoder's tokens, and what else its
    forward names."""
    names = set(inspect.signature(model.forward).parameters)
    parts = [config, *(getattr(config, n, None) for n in ("text_config", "vision_config", "audio_config", "decoder"))]

    def asked(*keys: str) -> Any:
        return next((v for part in parts for k in keys if (v := getattr(part, k, None)) is not None), None)

    known: dict[str, Tensor] = {}
    vocabulary = asked("vocab_size")
    if vocabulary:
        known["input_ids"] = known["decoder_input_ids"] = draw.tokens(vocabulary)
        known["attention_mask"] = torch.ones_like(known["input_ids"])
    size, channels = asked("image_size"), asked("num_channels") or 3
    if size:
        height, width = size if isinstance(size, tuple | list) else (size, size)
        known["pixel_values"] = draw.numbers(draw.rows, channels, height, width)
    mels, frames = asked("num_mel_bins"), asked("max_source_positions")
    if mels and frames:
        known["input_features"] = draw.numbers(draw.rows, mels, 2 * frames)
    known["input_values"] = draw.numbers(draw.rows, 4000)
    if not getattr(config, "is_encoder_decoder", False):
        known.pop("decoder_input_ids", None)
    fitting = {name: value for name, value in known.items() if name in names}
    main = getattr(model, "main_input_name", "input_ids")
    if fitting:
        yield fitting
        yield {name: value for name, value in fitting.items() if name in (main, "decoder_input_ids")}
    dummy = getattr(model, "dummy_inputs", None)
    if isinstance(dummy, Mapping):
        yield dict(dummy)


class _Draw:
    """Numbers and tokens, the same every time, where the model is and in its dtype."""

    def __init__(self, model: nn.Module, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.generator = torch.Generator().manual_seed(0)
        held = list(model.parameters())
        real = [p for p in held if p.is_floating_point()]
        first = next(iter(real or [p for p in held if p.is_complex()]), torch.zeros(()))
        self.dtype, self.device = first.dtype, first.device

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device, self.dtype)

    def tokens(self, count: int) -> Tensor:
        return torch.randint(0, count, (self.rows, self.length), generator=self.generator).to(self.device)


def _by_layers(model: nn.Module, draw: _Draw) -> Iterator[Tensor]:
    """What the first layers take: as sequences, as rows, as images; numbers of no layer for a model without any."""
    for module in model.modules():
        make = next((make for kind, make in SHAPES.items() if isinstance(module, kind)), None)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            yield draw.tokens(module.num_embeddings)
        elif make is not None:
            for shape in make(module):
                yield draw.numbers(*shape)
    for width in (8, 16):
        yield draw.numbers(2, LENGTH, width)


def _rows(width: int) -> list[tuple[int, ...]]:
    return [(2, LENGTH, width), (LENGTH, width)]


def _images(module: Any, axes: int) -> list[tuple[int, ...]]:
    return [(2, module.in_channels, *(size,) * axes) for size in SIZES]


SHAPES: dict[type[nn.Module], Callable[[Any], list[tuple[int, ...]]]] = {
    nn.Linear: lambda m: _rows(m.in_features),
    nn.Bilinear: lambda m: _rows(m.in1_features),
    nn.MultiheadAttention: lambda m: _rows(m.embed_dim),
    nn.RNNBase: lambda m: _rows(m.input_size),
    nn.LayerNorm: lambda m: [(2, LENGTH, *m.normalized_shape)],
    nn.Conv1d: lambda m: _images(m, 1),
    nn.Conv2d: lambda m: _images(m, 2),
    nn.Conv3d: lambda m: _images(m, 3),
    nn.BatchNorm1d: lambda m: [(LENGTH, m.num_features)],
    nn.BatchNorm2d: lambda m: [(2, m.num_features, 32, 32)],
}


def _required(model: nn.Module) -> int:
    """How many arguments a forward must have."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in kinds for p in parameters)
