"""A target as one graph, from text or a traced torch module; it evaluates in torch and in balls.

Nothing here imports torch until `tensors` or `trace` is asked for, so a checker can use the rest without it.
"""

from anchorhead.expression.graph import Expression, Node
from anchorhead.expression.parse import parse

__all__ = ["Expression", "Node", "parse"]
