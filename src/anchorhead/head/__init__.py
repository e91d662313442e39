"""One head: its numbers, its evaluations, and the methods that fit it."""
