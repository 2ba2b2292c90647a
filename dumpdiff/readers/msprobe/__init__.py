"""msprobe dumps (the ``mindstudio-probe`` distribution): dump.json and the files beside it, of either framework."""

from .reader import FORMAT, find, read

__all__ = ["FORMAT", "find", "read"]
