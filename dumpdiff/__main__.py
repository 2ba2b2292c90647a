"""``python -m dumpdiff``: the command line, where the console script is not on the path."""

from .cli import run

run()
