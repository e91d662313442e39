"""The names of a head's numbers, and when they can be evaluated by Horner's rule; read without NumPy and torch."""

from __future__ import annotations

HORNER_DEPTH = {"float64": 500.0, "float32": 60.0}
"""How far intercepts may lie above those at the ends for exp of the difference to be a coefficient in the dtype."""
NUMBERS = ("slopes", "intercepts", "constants", "gains", "gate_slopes", "gate_levels")
"""The tensors of a head; `edges`, the ends of its boxes, go with them."""
