"""Torch modules and Python functions, read as expressions and circuits by torch.export."""
