"""Norms that a log prints, or that somebody wrote down."""

from .logs import EXPECTED, logs_of, read

__all__ = ["EXPECTED", "logs_of", "read"]
