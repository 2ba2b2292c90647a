"""The tensors of a checkpoint: path -> :class:`Checkpoint`, in any format, recognized by content.

Nothing is unpickled, no framework is needed, and no tensor is read before it is requested.
"""

from .checkpoint import Checkpoint, Entry, Extent, Rank, Window
from .formats import open_checkpoint as open

__all__ = ["Checkpoint", "Entry", "Extent", "Rank", "Window", "open"]
