"""A pause of Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_gc(*, is_last: bool = False) -> Iterator[None]:
    """Run the body without cyclic garbage collection.

    Tables and graphs are many objects without cycles; to traverse them again and again takes a
    third more time. ``is_last`` says that the process ends after the body: what the body leaves is
    not traversed then either, which would take 1 s for 100,000 calls.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_last:
            gc.freeze()
        if enabled:
            gc.enable()
