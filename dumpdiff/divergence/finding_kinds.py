"""The kind of a divergence: what sort of thing differs at a location."""

from __future__ import annotations

from collections import Counter

from ..graph.missing_edges import find_bridge
from ..model.arrays import Ints
from ..model.dtypes import UNIT_ROUNDOFF, get_unit_roundoff, is_floating
from ..model.finding import Kind
from ..rulebook import Rules
from .joint_graph import JointGraph
from .locations import Location, SideLocation
from .model_constants import is_constant, is_immediate

#: Kinds of what ops compute.
COMPUTED_KINDS: frozenset[Kind] = frozenset({"introduced", "region", "missing"})
#: Roundoffs of a dtype by which it explains an error.
_DTYPE_ROUNDOFFS = 8


def classify_kind(graph: JointGraph, location: Location, rules: Rules) -> Kind:
    """Return the kind of divergence at a location, see ``model.finding.Kind``."""
    if graph.comparison.pairs["nonfinite_mismatch"].iat[location.node] > 0:
        return "nonfinite"
    if _is_given_to_one(location) and not _belongs_to_model(location, rules):
        return "input"
    if location.target.is_graph_input and location.reference.is_graph_input:
        alignment = graph.comparison.alignment
        kinds = (alignment.target_kinds, alignment.reference_kinds)
        return "constant" if is_constant(location, kinds) else "parameter"
    if find_coarser_dtype(graph, location):
        return "dtype"
    if count_missing_kinds(location):
        return "missing"
    return "region" if location.unpaired_nodes else "introduced"


def is_read_late(kind: Kind, location: Location) -> bool:
    """Return whether a given value is as early as what reads it first: a table, or a target.

    What an op reads first, and labels, are what the run begins with.
    """
    is_target = kind == "input" and "input.0" not in location.reference.slots
    return kind == "constant" or (is_target and _is_floating_input(location))


def _is_floating_input(location: Location) -> bool:
    reference = location.reference
    return is_floating(str(reference.flow.list_column("dtype")[reference.value]))


def count_missing_kinds(location: Location) -> Counter[str]:
    """Count the operator kinds that only the reference has since the last agreement.

    Empty if the target has kinds of its own there, too.
    """
    kinds_t = count_computing_kinds(location.target)
    kinds_r = count_computing_kinds(location.reference)
    if not location.unpaired_nodes or not kinds_t or kinds_t - kinds_r:
        return Counter()
    return kinds_r - kinds_t


def count_computing_kinds(side: SideLocation) -> Counter[str]:
    """Count the kinds of one side's ops that are no layout ops and no records of module calls.

    What lies before the last agreement, an op that may lack a factor, does not count.
    """
    levels = side.flow.trace.ops["level"]
    return Counter(
        kind
        for op, kind in zip(side.ops, side.kinds, strict=True)
        if not side.flow.is_layout[op] and levels.iat[op] == "op" and op not in side.factor_ops
    )


def _is_given_to_one(location: Location) -> bool:
    """Return whether one side was given the value, and the other did not visibly compute it."""
    sides = (location.target, location.reference)
    return any(side.is_graph_input for side in sides) and all(map(_may_be_given, sides))


def _may_be_given(side: SideLocation) -> bool:
    """Return whether nothing but the order of execution says what a value was computed from."""
    if side.is_graph_input:
        return True
    if side.value < 0 or side.flow.producers[side.value] >= 0:
        return False
    bridge = find_bridge(side.flow, side.value)
    return bridge is None or bridge.evidence == "order"


def _belongs_to_model(location: Location, rules: Rules) -> bool:
    """Return whether a graph input belongs to the model and not to the batch.

    It does if it has a parameter's name, is a constant of the graph, or is floating and no op's
    first input. What a loss reads is a target of the batch.
    """
    target, reference = location.target, location.reference
    if target.parameter or reference.parameter:
        return True
    if not _is_floating_input(location):
        return False
    if is_immediate(target) or is_immediate(reference):
        return True
    readers = {*target.kinds, *reference.kinds}
    if any(rules.get_kind_class(kind) == "loss" for kind in readers):
        return False
    return "input.0" not in reference.slots


def find_coarser_dtype(graph: JointGraph, location: Location) -> str:
    """Return the dtype that only one side computed in here, if its rounding explains the error.

    '' if there is none.
    """
    dtype_t = _find_coarsest_dtype(location, location.target, graph.target_classes)
    dtype_r = _find_coarsest_dtype(location, location.reference, graph.reference_classes)
    roundoff_t = get_unit_roundoff(dtype_t) if dtype_t else 0.0
    roundoff_r = get_unit_roundoff(dtype_r) if dtype_r else 0.0
    if roundoff_t == roundoff_r:
        return ""
    error = float(graph.comparison.pairs["error"].iat[location.node])
    if not error <= _DTYPE_ROUNDOFFS * max(roundoff_t, roundoff_r):
        return ""
    return dtype_t if roundoff_t > roundoff_r else dtype_r


def _find_coarsest_dtype(location: Location, side: SideLocation, classes: Ints) -> str:
    """Return the coarsest floating dtype of one side's values here, '' if there is none."""
    dtypes = []
    for node in (*location.unpaired_nodes, location.node):
        value = int(classes[node])
        if value >= 0:
            dtypes.append(str(side.flow.list_column("dtype")[value]))
    floating_dtypes = [dtype for dtype in dtypes if dtype in UNIT_ROUNDOFF]
    return max(floating_dtypes, key=get_unit_roundoff, default="")
