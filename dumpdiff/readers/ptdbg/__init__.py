"""ptdbg_ascend dumps: JSON Lines in files called .pkl, of every era."""

from .reader import FORMAT, find, read

__all__ = ["FORMAT", "find", "read"]
