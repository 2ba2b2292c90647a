"""Norms in text: printed by a log, or written down by a person."""

from .logs import EXPECTED, find_logs, read_printed_norms

__all__ = ["EXPECTED", "find_logs", "read_printed_norms"]
