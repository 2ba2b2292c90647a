"""Reader of ptdbg_ascend dumps (0.1 to 6.0): PyTorch calls as JSON lines in a ``.pkl`` file."""

from .lines import is_index_file
from .reader import FORMAT, find_parts, read_part

__all__ = ["FORMAT", "find_parts", "is_index_file", "read_part"]
