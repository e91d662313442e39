"""Runs the command as `python -m anchorhead`."""

from anchorhead.cli import main

main()
