"""Folders of the transformers library, read without a network and without pickle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from anchorhead.conversion.convert import convert
from anchorhead.conversion.folder import RECORD, load_converted, save_converted
from anchorhead.conversion.report import ConversionReport
from anchorhead.errors import FileError

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
)


def convert_folder(
    source: Path, target: Path, tol: float, ranges: tuple[float, float], progress: Callable[[str], None] | None
) -> ConversionReport:
    """Converts a model folder into another, tokenizer included, and returns the report."""
    if target.resolve() == source.resolve():
        raise FileError(f"{target} is the original; give another folder for the converted model.")
    model = load_folder(source)
    made = convert(model, tol, ranges=ranges, progress=progress)
    save_converted(made, target)
    for name in TOKENIZER:
        if (source / name).is_file():
            shutil.copy2(source / name, target / name)
    report: Any = made.report
    return report


def load_folder(folder: Path) -> nn.Module:
    """The model in a folder, original or converted, in the class that its configuration names."""
    if (folder / RECORD).is_file():
        return load_converted(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{folder} is not a model of the transformers library: {error}.") from error
    if not list(folder.glob("*.safetensors")):
        raise FileError(f"{folder} has no safetensors file; other formats can hold code and are not read.")
    import transformers

    names = config.get("architectures") or ["AutoModel"]
    made: Any = getattr(transformers, str(names[0]), transformers.AutoModel)
    asked = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    try:
        model, info = made.from_pretrained(folder, **asked)
    except Exception as error:  # whatever the library finds wrong with the folder
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FileError(f"{folder} cannot be loaded as {made.__name__}: {reason[:200]}.") from error
    missing = sorted(set(info["missing_keys"]) | {str(row[0]) for row in info.get("mismatched_keys", ())})
    if missing:
        raise FileError(
            f"The weights in {folder} do not fit {made.__name__}: {len(missing)} tensors are missing or of another "
            "shape, "
            f"{', '.join(missing[:3])} among them, and would be random. Give a complete model."
        )
    loaded: nn.Module = model.eval()
    return loaded
