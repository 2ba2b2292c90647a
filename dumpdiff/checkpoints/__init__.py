"""What a checkpoint holds: path -> :class:`Checkpoint`, in any of the formats, recognised by content.

Nothing is unpickled, no framework is needed, and no tensor is read before it is asked for.
"""

from .checkpoint import Checkpoint, Entry, Extent, Rank, Window
from .formats import open_checkpoint as open

__all__ = ["Checkpoint", "Entry", "Extent", "Rank", "Window", "open"]
