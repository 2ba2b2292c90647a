"""Errors of the input, with messages that a user can act on."""

from __future__ import annotations


class DumpError(Exception):
    """The input cannot be used at all.

    The message is one line that names the file, what was expected and what to do.

    The command line prints it and exits with 2. Input that can be skipped is not an error but a
    :class:`dumpdiff.model.trace.Problem`, counted and listed in the result.
    """


class NoFindingsError(DumpError):
    """A comparison has no findings, so that there is nothing to explain.

    Not a failure: ``verdict`` is that of the comparison, aligned or inconclusive.
    """

    def __init__(self, message: str, verdict: str) -> None:
        super().__init__(message)
        self.verdict = verdict
