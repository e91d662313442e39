"""Every way anchorhead says no. Each message says what was asked, why it cannot be, and what to do."""


class AnchorheadError(Exception):
    """Base of every error that anchorhead raises on purpose."""


class InputError(AnchorheadError, ValueError):
    """An argument has a value that no network can be built from."""


class ShapeError(InputError):
    """An argument or an input tensor has the wrong shape."""


class DtypeError(InputError):
    """An input tensor has another dtype than the model."""


class OutsideRangeError(InputError):
    """An input lies outside the domain on which a model is proved, and the model's `outside` says "error"."""


class PrecisionError(AnchorheadError, ArithmeticError):
    """The dtype cannot hold the logits, the range or the tolerance that was asked for."""


class SizeError(AnchorheadError):
    """The network would not fit in memory."""


class StructureError(AnchorheadError):
    """A network holds something other than affine maps and softmax attention."""


class ConversionError(AnchorheadError):
    """A converted model is farther from its original than the proved errors of its heads explain."""


class ExpressionError(InputError):
    """A target is not an expression that anchorhead knows."""


class DiscontinuityError(ExpressionError):
    """The target jumps, so no network of continuous maps is uniformly close to it."""


class SingularityError(AnchorheadError, ArithmeticError):
    """The target is not finite somewhere in the domain."""


class ToleranceError(PrecisionError):
    """The tolerance cannot be proved, or not in this dtype; the message names the best that can be had.

    best: the error that was reached, where one is known.
    """

    best = float("inf")


class VerificationError(AnchorheadError):
    """A file's certificate does not hold for its contents."""


class FileError(AnchorheadError):
    """A file is not one that anchorhead wrote, or is damaged."""


class DependencyError(AnchorheadError, ImportError):
    """A package that this needs is not installed; the message names it."""
