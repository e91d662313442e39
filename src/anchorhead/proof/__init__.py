"""Proofs that a model is as close to its target as it says: boxes, tails, rounding, flow. No torch here."""
