"""A target as lines and steps, and the numbers with which a network computes them. No torch here."""
