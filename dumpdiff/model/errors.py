"""What can go wrong with the input, said in words a user can act on."""

from __future__ import annotations


class DumpError(Exception):
    """The input cannot be used at all: one line that names the file, what was expected and what to do.

    The CLI prints it and exits with 2. What can be skipped is no error but a
    :class:`dumpdiff.trace.Problem`, counted and listed in the result.
    """
