"""Pretrained models: every pointwise nonlinearity becomes softmax attention, with a report of what changed."""
