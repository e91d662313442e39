"""Compiled models in the formats and modules of others."""
