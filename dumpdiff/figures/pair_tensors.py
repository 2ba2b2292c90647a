"""Both whole tensors of a pair, in one shape and order."""

from __future__ import annotations

import numpy as np

from ..causes.comparison_index import ComparisonIndex, ValuePair
from ..causes.finding_arrays import load_arrays
from ..comparison.layouts import find_common_layout
from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.recorded_shapes import load_shaped_tensor

#: Elements of the largest tensor that is drawn, 512 MiB of float32: reading it takes two seconds.
MAX_ELEMENTS = 1 << 27


def load_pair_tensors(
    index: ComparisonIndex, value_pair: ValuePair
) -> tuple[AnyArray, AnyArray] | None:
    """Return both whole tensors of a pair in one shape and order.

    None if one of them is missing, unreadable or too large.
    """
    if value_pair.group is not None:
        return load_arrays(index, value_pair)
    sources = list(zip(index.flows, value_pair.tensors, strict=True))
    sizes = [int(flow.tensors["size"].iat[tensor]) for flow, tensor in sources]
    try:
        if max(sizes) > MAX_ELEMENTS:
            return None
        target, reference = (load_shaped_tensor(flow.trace, tensor) for flow, tensor in sources)
    except (DumpError, KeyError, OSError, ValueError):
        return None
    if target.size != reference.size:
        return None
    if value_pair.layout not in ("same", "reshape"):
        with np.errstate(all="ignore"):
            _, target, reference = find_common_layout(target, reference)
    return target.reshape(reference.shape), reference
