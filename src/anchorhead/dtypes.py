"""What dtypes can hold: the two of certified heads, and two that models around them have; read without torch."""

from __future__ import annotations

NAMES = ("float64", "float32")
"""Of heads and compiled models."""
BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
UNIT = {name: 2.0**-bits for name, bits in BITS.items()}
"""The unit roundoff."""
LEAST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
"""What is smaller may become zero."""
LARGEST_FLOAT = {"float64": 2.0**1023 * (2 - 2.0**-52), "float32": 2.0**127 * (2 - 2.0**-23)}
LARGEST = {"float64": 2.0**1000, "float32": 2.0**120}
"""What no sum that a model forms may reach in absolute value, so that nothing in it overflows."""
