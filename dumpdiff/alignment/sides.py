"""What the alignment needs to know of one side, and what follows from that side alone.

Large dumps are prepared at the same time, each in the process that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph import (
    Flow,
    Gradients,
    Update,
    find_gradients,
    find_updated_weights,
    find_updates,
    mark_shape_reads,
)
from ..graph.module_paths import locate_ops
from ..graph.value_parents import collect_parents
from ..model.arrays import Ints
from ..model.int_lists import IntLists
from ..rulebook import Rules
from .mapping_evidence import canonicalize_kinds


@dataclass(frozen=True)
class PreparedSide:
    """One side of an alignment."""

    flow: Flow  #: with the reads marked that take only a shape
    kinds: list[str]  #: canonical operator kind of each op
    scopes: list[str]  #: canonical module path of each op, '' if unknown
    gradients: Gradients
    updates: Mapping[int, Update]  #: by weight
    updated_weights: Ints  #: (classes,) the weight that each value updates, -1 if none is known
    parents: IntLists  #: per class: the classes that it was computed from


def prepare_side(flow: Flow, rules: Rules, *, is_target: bool) -> PreparedSide:
    """Return what the alignment needs of a side. A mapping file renames APIs of the target."""
    flow = mark_shape_reads(flow, rules)
    kinds = canonicalize_kinds(flow, rules, target=is_target)
    gradients = find_gradients(flow, kinds)
    updates = find_updates(flow, gradients.by_value)
    updated_weights = find_updated_weights(flow, gradients.by_value, updates)
    scopes, parents = locate_ops(flow, rules), collect_parents(flow)
    return PreparedSide(flow, kinds, scopes, gradients, updates, updated_weights, parents)
