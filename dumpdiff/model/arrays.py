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
