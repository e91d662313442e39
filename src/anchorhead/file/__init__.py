"""Model files: written, read without trust, and checked. No torch here but where a model is made of one."""
