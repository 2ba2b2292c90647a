"""Record a training step into a folder that dumpdiff reads: ``dumpdiff.record``.

It needs no configuration and no vendor tool. The framework is the one the model belongs to; it is
imported when recording begins.
"""

from __future__ import annotations

from .options import RecordOptions
from .session import make_recorder

__all__ = ["RecordOptions", "make_recorder"]
