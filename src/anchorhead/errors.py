"""Every way anchorhead says no. Each message says what was asked, why it cannot be, and what to do."""

from collections.abc import Callable
from typing import Self, TypeVar

Answer = TypeVar("Answer")


class AnchorheadError(Exception):
    """Base of every error that anchorhead raises on purpose. `why`: the reason alone, where it is known apart.

    >>> ah.compile("floor(x)", (0, 2))
    Traceback (most recent call last):
        ...
    anchorhead.errors.DiscontinuityError: ...
    """

    why = ""


class InputError(AnchorheadError, ValueError):
    """An argument has a value that no network can be built from.

    >>> ah.compile("x", (1, -1))
    Traceback (most recent call last):
        ...
    anchorhead.errors.InputError: ...
    """


class ShapeError(InputError):
    """An argument or an input tensor has the wrong shape.

    >>> ah.theorems.single_head([[1.0]], [0.0, 1.0], low=0, high=1, anchors=8)
    Traceback (most recent call last):
        ...
    anchorhead.errors.ShapeError: ...
    """


class MissingPartError(InputError, AttributeError):
    """A model of this kind has no such part; `hasattr` is false of it.

    >>> hasattr(ah.compile("sin(x + y)", (-1, 1), tol=1e-1, method="grid"), "mechanism")
    False
    """


class DtypeError(InputError):
    """An input tensor has another dtype than the model.

    >>> ah.compile("tanh(x)")(torch.zeros(1))
    Traceback (most recent call last):
        ...
    anchorhead.errors.DtypeError: ...
    """


class OutsideRangeError(InputError):
    """An input lies outside the domain on which a model is proved, and the model's `outside` says "error".

    >>> ah.compile("exp(x)", (-1, 1), outside="error")(torch.full((1,), 2.0, dtype=torch.float64))
    Traceback (most recent call last):
        ...
    anchorhead.errors.OutsideRangeError: ...
    """


class PrecisionError(AnchorheadError, ArithmeticError):
    """The dtype cannot hold the logits, the range or the tolerance that was asked for.

    >>> ah.theorems.single_head([[1.0]], [0.0], low=-1, high=1, anchors=4096, dtype=torch.float16)
    Traceback (most recent call last):
        ...
    anchorhead.errors.PrecisionError: ...
    """


class SizeError(AnchorheadError):
    """The network would not fit in memory.

    >>> ah.theorems.two_layer(lambda x: x, tokens=9, features=9, levels=9)
    Traceback (most recent call last):
        ...
    anchorhead.errors.SizeError: ...
    """


class StructureError(AnchorheadError):
    """A network holds something other than affine maps and softmax attention.

    >>> ah.walk(torch.nn.ReLU(), torch.zeros(3))
    Traceback (most recent call last):
        ...
    anchorhead.errors.StructureError: ...
    """


class ConversionError(AnchorheadError):
    """A converted model is farther from its original than the proved errors of its heads explain."""


class ExpressionError(InputError):
    """A target is not an expression that anchorhead knows. `why` is known of what was traced.

    >>> ah.compile("import os")
    Traceback (most recent call last):
        ...
    anchorhead.errors.ExpressionError: ...
    """


class DiscontinuityError(ExpressionError):
    """The target jumps, so no network of continuous maps is uniformly close to it.

    >>> ah.compile("floor(x)", (0, 2))
    Traceback (most recent call last):
        ...
    anchorhead.errors.DiscontinuityError: ...
    """


class SingularityError(AnchorheadError, ArithmeticError):
    """The target is not finite somewhere in the domain. `why` is known of a target of one variable.

    >>> ah.compile("1/x", (-1, 1))
    Traceback (most recent call last):
        ...
    anchorhead.errors.SingularityError: ...
    """

    @classmethod
    def because(cls, why: str, advice: str) -> Self:
        """With the reason, and what to do about it."""
        found = cls(f"{why}{advice}")
        found.why = why
        return found


class ToleranceError(PrecisionError):
    """The tolerance cannot be proved, or not in this dtype; the message names the best that can be had.

    best: the error that was reached, where one is known.

    >>> ah.compile("sin(3*x)", (-1, 1), tol=1e-6, method="smooth", limit=3)
    Traceback (most recent call last):
        ...
    anchorhead.errors.ToleranceError: ...
    """

    best = float("inf")


class VerificationError(AnchorheadError):
    """A file's certificate does not hold for its contents.

    >>> import pathlib, tempfile
    >>> model, path = ah.compile("tanh(x)"), pathlib.Path(tempfile.mkdtemp()) / "tanh.safetensors"
    >>> with torch.no_grad():
    ...     _ = next(model.parameters()).mul_(2.0)
    >>> model.save(path)
    >>> ah.verify(path)
    Traceback (most recent call last):
        ...
    anchorhead.errors.VerificationError: ...
    """


class FileError(AnchorheadError):
    """A file is not one that anchorhead wrote, or is damaged.

    >>> ah.load("nothing.safetensors")
    Traceback (most recent call last):
        ...
    anchorhead.errors.FileError: ...
    """


class Stopped(AnchorheadError):
    """A command was stopped by Ctrl-C; the message says where."""


class DependencyError(AnchorheadError, ImportError):
    """A package that this needs is not installed; the message names it."""


def asked(call: Callable[..., Answer], *given: object, name: str, at: str, advice: str) -> Answer:
    """What a callable of the user's returns. What it raises becomes an InputError that names it, `at` what it was
    called for, and what it should be."""
    try:
        return call(*given)
    except AnchorheadError:
        raise
    except Exception as error:  # whatever the caller's own code raises
        said = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        why = f": {said}" if said else ""
        raise InputError(f"{name} raised {type(error).__name__} for {at}{why}. {advice}") from error
