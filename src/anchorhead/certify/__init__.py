"""Proofs that a head is as close to its target as it says, and the independent checker. No torch here."""
