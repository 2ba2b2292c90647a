"""ptdbg_ascend dumps: JSON Lines in files called .pkl, of every era."""

from .reader import FORMAT, find_parts, read_part

__all__ = ["FORMAT", "find_parts", "read_part"]
