"""The adversary: whole chains from a text to a running model, compared with an evaluation that shares no code.

`python -m attack` draws targets that people might write, compiles, saves, verifies, loads and runs them, and compares
with mpmath; it also mutates files and demands that what is still called proved is true. See `__main__.py`.
"""
