"""The values of the configurations that modules hold, and which of them may change after a conversion.

A forward may read its configuration whenever it runs, so every plain value of one is noted when a conversion ends. What
was proved of heads holds for any configuration, head by head and call by call. What was seen while the model ran holds
for the operations that ran then, and a folder is rebuilt from the configuration. So a value may change freely if the
operations on data stay those that were seen, and the folder holds it: in configurations of the transformers library

  what is returned   `use_cache`, `return_dict`, `output_attentions` and others that begin with `output_`;
  tokens and labels  ids of special tokens, with which integers are compared, and names of labels;
  generation         what `GenerationConfig` names and the configuration did not have, which `generate` reads;
  aside              where a model came from, which library wrote it, the dtype that a file is loaded in.

How attention and experts are computed, as `eager` or `sdpa`, may change as well: these are names for one formula, so
the folder is not refused. But other operations run then, and some models leave out a softcap in one of them, so what
was seen is not claimed until the model was watched again. All other values are of the model, as its layers are.
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.conversion.called_code import PLAIN
from anchorhead.errors import FileError

NAMES = {"config", "cfg", "args", "hparams", "settings", "options"}
"""Attributes that hold a configuration, whatever it is."""
CLASSES = ("config", "args", "hparams", "settings")
"""How the names of classes of configurations end."""
APART = {"report", "generation_config"}
ASIDE = {
    "model_type",
    "transformers_version",
    "architectures",
    "name_or_path",
    "dtype",
    "torch_dtype",
    "task_specific_params",
}
LABELS = {"id2label", "label2id", "num_labels", "problem_type", "return_dict", "use_return_dict"}
FUNCTION = "_implementation_internal"
COMPUTED = {"eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4",
            "batched_mm", "grouped_mm", "None"}  # fmt: skip
"""Functions of the library for one formula."""
OWN = ("_output_attentions",)
"""What the library keeps under a name of its own."""
DEEP = 4
LONG = 60

Values = dict[str, Any]
Configured = dict[str, Values]
"""By path of a module and name of its attribute, the plain values there; one dictionary where they share an object."""


def configured(model: nn.Module) -> Configured:
    """The values of all configurations in a model."""
    there = dict(_held(model))
    known = _by_object(there)
    return {key: known[id(held)] for key, held in there.items()}


def _by_object(there: dict[str, Any]) -> dict[int, Values]:
    """The values of each of some configurations, read once, by the object's id."""
    once = {id(held): held for held in there.values()}
    return {key: values(held) for key, held in once.items()}


def _held(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in APART and _is_settings(name, value):
                yield (f"{path}.{name}" if path else name), value


def _is_settings(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return name in NAMES and not isinstance(value, Tensor)
    if isinstance(value, (*PLAIN, type, nn.Module, Tensor, types.FunctionType)) or not hasattr(value, "__dict__"):
        return False
    named = name in NAMES or type(value).__name__.lower().endswith(CLASSES)
    return named or dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace | argparse.Namespace)


def values(settings: Any, prefix: str = "", deep: int = 0) -> Values:
    """The plain values of a configuration by name, those of configurations within it by path."""
    found: Values = {}
    held = settings if isinstance(settings, Mapping) else vars(settings)
    for name, value in list(held.items()):
        if str(name).startswith("_") and name not in OWN and not str(name).endswith(FUNCTION):
            continue
        if not isinstance(value, Mapping) and _is_settings(str(name), value) and deep < DEEP:
            found |= values(value, f"{prefix}{name}.", deep + 1)
        elif name not in ASIDE and not isinstance(value, Tensor):
            found[f"{prefix}{name}"] = _plain(value, deep)
    return found


def _plain(value: Any, deep: int) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Mapping) and deep < DEEP:
        pairs = sorted(value.items(), key=lambda pair: (isinstance(pair[0], str), str(pair[0]).zfill(9)))
        return {key: _plain(part, deep + 1) for key, part in pairs if isinstance(key, PLAIN)}  # a file has them sorted
    if isinstance(value, list | tuple) and deep < DEEP:
        return [_plain(part, deep + 1) for part in value]
    return str(value) if isinstance(value, torch.dtype | torch.device) else f"a {type(value).__name__}"


def config_changes(model: nn.Module, before: Configured, state: frozenset[str]) -> list[str]:
    """Which values are others, in words, but for those that may change; state: names that forwards assign."""
    found = []
    for key, held, name, was, now in differences(model, before):
        if name.rpartition(".")[2] not in state and not is_free(held, name, was, now):
            said = f"{now!r:.{LONG}} now, and was {was!r:.{LONG}}"
            found.append(f"{key}.{_public(name)} is {said}" if held is not None else f"{key} is gone")
    return list(dict.fromkeys(found))


def differences(model: nn.Module, before: Configured) -> Iterator[tuple[str, Any, str, Any, Any]]:
    """For each value that is another: where its configuration is, that object, the name, what it was and is."""
    there, done = dict(_held(model)), set[tuple[int, int]]()
    known = _by_object(there)
    for key, was in before.items():
        held = there.get(key)
        pair = id(was), id(held)
        if pair in done:
            continue
        done.add(pair)
        now = {} if held is None else known[id(held)]
        for name in sorted({*was, *now}):
            if repr(was.get(name)) != repr(now.get(name)):
                yield key, held, name, was.get(name), now.get(name)


def is_free(settings: Any, name: str, was: Any, now: Any) -> bool:
    """Whether a value of a configuration of the transformers library only chooses what is returned or how."""
    last = name.rpartition(".")[2]
    if not (hasattr(settings, "model_type") and hasattr(settings, "save_pretrained")):
        return False
    if last.endswith(FUNCTION):
        return str(now) in COMPUTED
    token = last.endswith(("_token_id", "_token_ids")) and last.partition("_")[0] in TOKENS
    generates = last == "use_cache" or (was is None and last in _generation())  # a model may have a temperature
    return last in LABELS or last.lstrip("_").startswith("output_") or token or generates


TOKENS = {"pad", "bos", "eos", "sep", "cls", "mask", "unk", "decoder", "forced"}


@functools.cache
def _generation() -> frozenset[str]:
    import transformers  # there, since a configuration of it is

    return frozenset(name for name in vars(transformers.GenerationConfig()) if name[0] != "_")


def _public(name: str) -> str:
    return name.removesuffix("_internal").replace("._", ".").removeprefix("_")


def functions_named(noted: Configured, *, once: bool = True) -> dict[str, str]:
    """By which functions attention and experts are computed, by the first configuration of a module that names them, or
    by all of them."""
    first = {id(held): key for key, held in reversed(noted.items())}
    return {f"{key}.{name}": value for key, held in noted.items() if not once or first[id(held)] == key
            for name, value in held.items() if name.endswith(FUNCTION) and "." not in name and value}  # fmt: skip


def computed(name: str) -> str:
    """What a function of the library computes, by the path of its name: attention, experts."""
    place, _, last = name.rpartition(".")
    what = last.removesuffix(FUNCTION).strip("_")
    return f"{'attention' if what == 'attn' else what} ({place})"


def switched(model: nn.Module, before: Configured) -> dict[str, str]:
    """Values that were changed and may be, as texts that Python reads, by path."""
    rows = differences(model, before)
    return {f"{key}.{name}": repr(now) for key, held, name, was, now in rows if is_free(held, name, was, now)}


def switch(model: Any, changed: Any) -> None:
    """Sets values as `switched` gave them; raises a FileError for anything else."""
    if not isinstance(changed, dict):
        raise FileError(f"The folder's switched values are no object of names and texts, but {changed!r:.60}.")
    for path, text in changed.items():
        try:
            *places, name = str(path).split(".")
            held = functools.reduce(getattr, places, model)
            if not is_free(held, name, None, value := ast.literal_eval(text)):
                raise ValueError("that is no switch")
            vars(held)[name] = value
        except (AttributeError, ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise FileError(f"The folder sets {path!r:.80}, which the model does not have: {error}.") from error


def own_values(noted: Configured, model: nn.Module) -> dict[str, dict[str, str]]:
    """The values that are of the model, as texts, of each configuration once; for a folder."""
    there, once = dict(_held(model)), {id(held): (key, held) for key, held in reversed(noted.items())}
    return {key: _own(there[key], held) for key, held in sorted(once.values(), key=lambda pair: pair[0])}


def other_values(before: Any, model: nn.Module) -> list[str]:
    """Names of values that are others than a folder has."""
    there = dict(_held(model))
    now = {key: _own(there[key], values(there[key])) if key in there else {} for key in before}
    return [f"{key}.{name}" for key, was in before.items() for name in sorted({*was, *now[key]})
            if was.get(name) != now[key].get(name)]  # fmt: skip


def _own(settings: Any, noted: Values) -> dict[str, str]:
    """But for what is free, and for the functions that compute attention, which are held elsewhere."""
    return {name: repr(value) for name, value in noted.items()
            if not is_free(settings, name, None, value) and not name.endswith(FUNCTION)}  # fmt: skip


def built_with(noted: Configured) -> dict[str, str]:
    """Which functions a model's own configuration named when it was built, by their place in it."""
    return {name: value for name, value in noted.get("config", {}).items() if name.endswith(FUNCTION) and value}


def as_converted(model: Any, before: Configured) -> Any:
    """A copy of the model's configuration with the values that were noted, from which its layers are built."""
    made = copy.deepcopy(model.config)
    for key, held, name, was, now in differences(model, before):
        if key == "config" and is_free(held, name, was, now):
            *places, last = name.split(".")
            vars(functools.reduce(getattr, places, made))[last] = was
    return made
