"""Reader of msprobe dumps (``mindstudio-probe`` 1.0 to 26.2): dump.json and the files next to it.

Both frameworks, PyTorch and MindSpore, write the same files.
"""

from .dump_json import is_index_file
from .reader import FORMAT, find_parts, read_part

__all__ = ["FORMAT", "find_parts", "is_index_file", "read_part"]
