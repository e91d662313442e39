"""The interactive page: a head's numbers, and a browser that evaluates them."""
