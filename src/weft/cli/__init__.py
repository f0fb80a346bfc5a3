"""The command line.  Verbs import what they need when they run, so that ``weft --help`` starts at once."""

from weft.cli.app import main

__all__ = ["main"]
