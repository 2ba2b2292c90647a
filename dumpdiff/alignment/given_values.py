"""Pairs of given floating values, parts of the batch, that are read beside values which are paired.

Where two batches differ, no number shows the partner, and a loss may be one op on one side and
several on the other. But both sides read it together with a value that they have in common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product

import numpy as np

from ..graph import Flow
from ..graph.missing_edges import is_graph_input
from ..model.arrays import Ints
from ..model.dtypes import MASK_MAGNITUDE, is_floating
from ..model.trace import FORWARD, flag_words
from . import confidence
from .matches import Matching

#: (target class of the value beside it, shape of the given value)
_Place = tuple[int, tuple[int, ...]]


def pair_given_values(matching: Matching) -> bool:
    """Pair given values of one shape, if alone of it both are read beside the partners of a pair.

    Returns whether any pair was added. Parameters, constants, single numbers, whole numbers and
    masks are left out, also masks that are added to scores, and zeros in their place.
    """
    own_classes = np.arange(len(matching.classes_t))
    targets_t = np.where(matching.classes_t < 0, -1, own_classes)
    places_t = _index_places(matching.target, targets_t)
    places_r = _index_places(matching.reference, matching.classes_r)
    pairs = []
    for place, values_t in places_t.items():
        values_r = places_r.get(place, set())
        if len(values_t) == 1 and len(values_r) == 1:
            pairs.append((next(iter(values_t)), next(iter(values_r))))
    progress = False
    for t, r in matching.sort_pairs(pairs):
        progress |= matching.pair(t, r, "structure", confidence.REMAINING_INPUT)
    return progress


def _index_places(flow: Flow, targets: Ints) -> Mapping[_Place, set[int]]:
    """Return place -> given values without a partner; ``targets``: each class as the target's."""
    places: defaultdict[_Place, set[int]] = defaultdict(set)
    is_open = (targets < 0) & (flow.producers < 0) & (flow.sizes > 1)
    is_open &= flag_words(flow.classes["dtype"], is_floating)
    lowest, highest = (np.asarray(flow.list_column(name), float) for name in ("min", "max"))
    is_open &= (lowest < highest) & (lowest > -MASK_MAGNITUDE)
    is_open &= np.asarray(flow.list_column("parameter"), dtype=object) == ""
    is_open &= ~flow.tensors["constant"].to_numpy()[flow.classes["tensor"].to_numpy()]
    levels = flow.levels
    for op in np.flatnonzero(flow.flag_readers(is_open)).tolist():
        if flow.phases[op] != FORWARD or levels[op] != "op":
            continue
        values = flow.reads[op]
        given = [value for value in values if is_open[value] and is_graph_input(flow, value)]
        companions = [int(targets[value]) for value in values if targets[value] >= 0]
        for value, companion in product(given, companions):
            places[companion, flow.shapes[value] or ()].add(value)
    return places
