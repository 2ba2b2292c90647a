"""Whole tensors in the shapes that the dump records: files of reshaped outputs hold others."""

from __future__ import annotations

import numpy as np

from .arrays import AnyArray
from .errors import DumpError
from .trace import Trace


def load_shaped_tensor(trace: Trace, tensor: int) -> AnyArray:
    """Return the whole tensor in its recorded shape.

    Raises DumpError if the file is unreadable, KeyError if only statistics were recorded.
    """
    array = trace.array(tensor)
    shape = trace.tensors["shape"].iat[tensor]
    if shape is not None and array.shape != shape and array.size == np.prod(shape, dtype=np.int64):
        return array.reshape(shape)
    return array


def load_readable_tensor(trace: Trace, tensor: int) -> AnyArray | None:
    """Return the whole tensor in its recorded shape; None if it has no file, or a damaged one."""
    try:
        return load_shaped_tensor(trace, tensor)
    except (DumpError, KeyError, OSError, ValueError):
        return None
