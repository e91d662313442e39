"""Modules that stand in several places of a model, as a layer that is run twice: noted by path, and put there again.

A model that is built anew has modules of its own in all places, so that heads would stand in one of them only.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from anchorhead.errors import FileError


def shared(model: nn.Module) -> dict[str, str]:
    """The other paths of modules that stand in several places, and the first of each; not what is inside them."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if not any(path.startswith(f"{other}.") for other in found) and first.setdefault(id(module), path) != path:
            found[path] = first[id(module)]
    return found


def share(model: nn.Module, names: Mapping[str, str]) -> None:
    """Puts modules in the other places where they stood; a model that shares others is refused."""
    for path, of in names.items():
        owner, _, name = path.rpartition(".")
        try:
            model.get_submodule(path)
            model.get_submodule(owner)._modules[name] = model.get_submodule(of)
        except AttributeError as error:
            raise FileError(f"{path} was saved as another name of {of}, and the model has none: {error}.") from error
    for path, of in sorted(shared(model).items() - names.items()):
        raise FileError(
            f"{path} is {of} in this model, and was a module of its own in the one that was saved; give an instance "
            "that is like it: load_converted(path, module)."
        )
