"""Experiments: the paper's, and the stress tests."""
