"""Names for the arrays that functions take and return, by what one element is."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]  #: ids, counts, sizes; -1 for none
Flags: TypeAlias = NDArray[np.bool_]
Hashes: TypeAlias = NDArray[np.uint64]
Objects: TypeAlias = NDArray[np.object_]  #: strings, tuples
AnyArray: TypeAlias = NDArray[Any]  #: a tensor, in its own dtype


def wrap_object(value: Any) -> Objects:
    """Return a value as an array without axes, for functions that fill or choose.

    Of a string itself, ``np.full`` and ``np.where`` make a further one for each element.
    """
    return np.array(value, dtype=object)


def view_numbers(numbers: AnyArray) -> memoryview:
    """Return a view of an array for loops, whose elements are Python numbers.

    A list would hold an object for each of them, and an array is several times as slow.
    """
    return np.ascontiguousarray(numbers).data
