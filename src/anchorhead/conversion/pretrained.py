"""Models of the transformers library from folders and GGUF files on this machine: nothing is executed or fetched."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from anchorhead.errors import DependencyError, FileError, InputError


def load_pretrained(path: Path) -> nn.Module:
    """The model in a folder of safetensors, or in a GGUF file, in the class that its configuration names."""
    import transformers

    asked: dict[str, Any] = {"local_files_only": True, "output_loading_info": True}
    if path.suffix == ".gguf" and path.is_file():
        absent = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
        if absent:
            raise DependencyError(f"Reading GGUF files needs {absent[0]}: pip install gguf accelerate.")
        return _loaded(transformers.AutoModelForCausalLM, path.parent, path, asked | {"gguf_file": path.name})
    if path.is_file():
        raise FileError(f"{path} is a file; give the folder of the model that it is in, or a GGUF file.")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is not a model of the transformers library: {error}.") from error
    if not list(path.glob("*.safetensors")):
        raise FileError(f"{path} has no safetensors file; other formats can hold code and are not read.")
    names = config.get("architectures") or ["AutoModel"]
    made: Any = getattr(transformers, str(names[0]), transformers.AutoModel)
    return _loaded(made, path, path, asked | {"use_safetensors": True})


def _loaded(made: Any, folder: Path, path: Path, asked: dict[str, Any]) -> nn.Module:
    try:
        model, info = made.from_pretrained(folder, **asked)
    except Exception as error:  # whatever the library finds wrong with the folder
        raise FileError(f"{path} cannot be loaded as {made.__name__}: {first_line(error)}") from error
    missing = sorted(set(info["missing_keys"]) | {str(row[0]) for row in info.get("mismatched_keys", ())})
    if missing:
        raise FileError(
            f"The weights in {path} do not fit {made.__name__}: {len(missing)} tensors are missing or of another "
            f"shape, {', '.join(missing[:3])} among them, and would be random. Give a complete model."
        )
    loaded: nn.Module = model.eval()
    return loaded


def first_line(error: Exception) -> str:
    """What a library says is wrong, as one sentence."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{said[:200].rstrip('.')}."


def from_config(where: Path, name: str, named: Mapping[str, str] | None = None) -> nn.Module:
    """A model of a class of the library as the folder's configuration describes it, whose weights are yet to come.

    named: the functions by which attention is computed, by their place in the configuration, which no file of it has.
    """
    import transformers

    found = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        made_of = f", such as load_converted(path, {name}(original))" if name.isidentifier() else ""
        raise FileError(
            f"{where} names the class {name!r}, which the transformers library does not have. Give an instance of it, "
            f"made from the original model{made_of}."
        )
    made: Any = found
    try:
        config = made.config_class.from_pretrained(where, local_files_only=True)
        for path, function in (named or {}).items():
            *places, last = path.split(".")
            vars(functools.reduce(getattr, places, config))[last] = function
        with _without_drawing():
            model = made(config)
        if (where / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(where, local_files_only=True)
    except Exception as error:  # the library raises whatever its parts raise
        raise FileError(f"{where} cannot be loaded as a {name}: {error}") from error
    loaded: nn.Module = model
    return loaded


def _without_drawing() -> AbstractContextManager[None]:
    """Weights that are filled in later are not drawn at random before."""
    for place in ("transformers.initialization", "transformers.modeling_utils"):
        try:
            found: AbstractContextManager[None] = importlib.import_module(place).no_init_weights()
        except (ImportError, AttributeError):
            continue
        return found
    raise InputError("This version of the transformers library is not known; use one from 4.50 on.")


def forbid_saving(model: nn.Module) -> None:
    """A converted model, a part of one, or a model that it is a part of, is not written by its own library, which would
    leave out the heads."""
    model.register_state_dict_pre_hook(_refuse_around)
    for module in model.modules():
        if hasattr(module, "save_pretrained"):
            vars(module)["save_pretrained"] = _refuse


def _refuse_around(module: nn.Module, *args: Any) -> None:
    """Whatever saves a model asks for its tensors, from within a save_pretrained that is not the module's own."""
    frame = inspect.currentframe()
    while frame is not None:
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_name == "save_pretrained" and library == "transformers":
            raise InputError(
                f"save_pretrained would write this model without the heads of the {type(module).__name__} in it, which "
                "was converted; convert the whole model, and write it with ah.save_converted(model, folder)."
            )
        frame = frame.f_back


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise InputError(
        "save_pretrained would write this model without its heads; write it with ah.save_converted(model, folder), and "
        "let a Trainer write none: TrainingArguments(save_strategy='no')."
    )
