"""What a model computes apart from its tensors: the code of its classes and the plain settings of its modules.

A folder holds tensors and heads, and no code. What was seen and measured when a model was converted holds for the code
that ran then, so a digest of that is kept for every class: the source of its forward and of what that calls in the same
package, without comments and layout, functions that modules hold, how many hooks they have, and numbers, texts and
truth values that are attributes. Where a folder is loaded into other code, the report claims nothing of what ran.
"""

from __future__ import annotations

import ast
import hashlib
import types
from typing import Any

from torch import fx, nn

from anchorhead.conversion.forward_source import parsed, sources

ASIDE = {"training", "name_or_path"}
"""Settings that say in which mode a model is, and where it came from."""
SIZES = {"vocab_size"}
"""What the shape of a tensor says, which loading compares; modules keep another number when embeddings are resized."""
ASIDE_HOOKS = {"output_capturing_hook", "make_inputs_require_grads"}
"""Of the transformers library: one notes what layers return once hidden states or attention weights were asked for, and
stays; one marks embeddings as wanting gradients, for gradient checkpointing. Neither changes a number."""
PLAIN = (bool, int, float, str, type(None))


def code_digests(model: nn.Module) -> dict[str, str]:
    """For each class of a model's modules a digest of its code, and of the settings of all modules of that class."""
    kinds: dict[type, str] = {}
    found: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        kind = type(module)
        if kind not in kinds:
            kinds[kind] = _of_class(module)
        found.setdefault(kind.__name__, [kinds[kind]]).append(f"{path}: {_settings(module)}")
    return {name: hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] for name, texts in found.items()}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Classes whose code or settings are others."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _of_class(module: nn.Module) -> str:
    if isinstance(module, fx.GraphModule):
        return str(module.code)
    read = [ast.unparse(tree) for tree, _ in sources(module)]
    own = type(module).__module__.startswith("torch.")
    return "\n".join(read) or ("" if own else function_text(type(module).forward))


def function_text(function: Any) -> str:
    """The source of a function, or what it was compiled to."""
    tree = parsed(function)
    if tree is not None:
        return ast.unparse(tree)
    code = getattr(function, "__code__", None)
    return repr(function)[:60].partition(" at ")[0] if code is None else f"{code.co_code.hex()} {code.co_names}"


def _settings(module: nn.Module) -> str:
    """Plain attributes, functions among them, and the number of hooks."""
    own = {name: value for name, value in vars(module).items() if name == "forward" or name[0] != "_"}
    said = [
        f"{name}={text}" for name, value in sorted(own.items()) if name not in ASIDE | SIZES and (text := _said(value))
    ]
    before, after = hook_counts(module)
    return f"{', '.join(said)} {before} {after}"


def hook_counts(module: nn.Module) -> tuple[int, int]:
    """How many hooks there are before and after a forward, but for those that change nothing."""
    held = (module._forward_pre_hooks, module._forward_hooks)
    before, after = (sum(not _is_aside(hook) for hook in hooks.values()) for hooks in held)
    return before, after


def _is_aside(hook: Any) -> bool:
    own = (getattr(hook, "__module__", None) or "").startswith("transformers.")
    return own and getattr(hook, "__name__", "") in ASIDE_HOOKS


def _said(value: Any) -> str:
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, types.FunctionType | types.MethodType):
        return function_text(value)
    return ", ".join(filter(None, map(_said, value))) if isinstance(value, list | tuple) else ""
