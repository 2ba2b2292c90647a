"""The walk from inputs to outputs: which values agree, and where a difference is introduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..comparison import NO_INFORMATION
from ..comparison.new_weights import find_new_weight_rows
from ..graph import find_common_dtype
from ..model.arrays import Floats
from ..model.dtypes import get_unit_roundoff
from ..model.trace import FORWARD, OPTIMIZER
from ..model.verdict import (
    AGREEING,
    AMPLIFIED,
    INCOMPARABLE,
    INTRODUCED,
    PROPAGATED,
    UNPAIRED,
)
from ..rulebook import Rules
from .error_bounds import (
    build_carried_share_function,
    compute_conditioning,
    compute_elementwise_errors,
)
from .joint_graph import JointGraph
from .recomputation import Recomputation, recompute_op

#: States of values that differ, with consequences.
DIVERGED = (INTRODUCED, AMPLIFIED, PROPAGATED)
#: States of values that were not compared; the walk looks through them.
UNKNOWN = (INCOMPARABLE, UNPAIRED)
#: Evidence of pairs that the optimizer keeps beyond the step, see ``alignment.training_step``.
UPDATE_EVIDENCE = "update"
#: Tolerances up to which an error may be explained by the errors of agreeing inputs and the
#: operator's conditioning. Beyond this a value no longer agrees, whatever its inputs.
_MAX_EXPLAINED_TOLERANCES = 32.0
#: Conditionings by which a diverged error must grow to count as amplified.
_AMPLIFICATION = 10
#: Operators that are run again. After a divergence of every sum the first of them are what matters.
_MAX_RECOMPUTATIONS = 64
#: Ancestors that are kept for the report.
_MAX_REMEMBERED = 32
#: Nodes without comparison that are kept of each side: so many of the first, where the region
#: starts, and so many of the last. A finding names 24 ops of each side, and an op has some results.
MAX_REGION_END = 24


class Ancestry(NamedTuple):
    """The nearest comparable ancestors of a value, and the unpaired nodes in between.

    Errors are NaN if there is no such ancestor.
    """

    worst_agreeing_error: float = np.nan  #: largest error of the ancestors that agree
    worst_diverged_error: float = np.nan  #: largest error of those that do not
    #: largest error of those that agree, times their share of a sum, or as one of a part of them
    carried_error: float = np.nan
    #: largest cancellation of the sums on the way, times their share of a sum
    cancellation: float = 1.0
    ancestors: tuple[int, ...] = ()  #: the nearest of those ancestors, in dataflow order
    #: the nodes in between, in dataflow order: the first and the last of each side
    unpaired_nodes: tuple[int, ...] = ()

    @property
    def has_diverged(self) -> bool:
        """Whether some ancestor does not agree."""
        return not math.isnan(self.worst_diverged_error)


#: Of values without parents: one object for all of them.
_NO_ANCESTRY = Ancestry()


@dataclass(frozen=True)
class Walk:
    """What the walk from inputs to outputs finds out."""

    state: list[str]  #: per node
    allowed_errors: list[float]  #: per pair
    ancestry: list[Ancestry]
    recomputations: dict[int, Recomputation]


def walk_forwards(
    graph: JointGraph,
    rules: Rules,
    cancellation: Floats,
    excused_nodes: frozenset[int] = frozenset(),
) -> Walk:
    """Walk from inputs to outputs, looking through slot pairs: they are judged at the end.

    It looks through ``excused_nodes``, too: these differ, but are no cause of other differences.
    """
    pairs = graph.comparison.pairs
    errors, tolerances = compute_mutual_errors(graph).tolist(), pairs["tolerance"].tolist()
    causal_errors = _exclude_casts(graph, errors)
    is_excused = np.isin(np.arange(len(pairs)), list(excused_nodes))
    is_comparable = (pairs["comparable"] & pairs["slot_pair"].isna() & ~is_excused).tolist()
    is_broken = (pairs["nonfinite_mismatch"] > 0).tolist()
    conditioning = compute_conditioning(graph, rules) * cancellation[: len(pairs)]
    elementwise_errors = compute_elementwise_errors(graph, errors).tolist()
    factors, cancellations = conditioning.tolist(), cancellation.tolist()
    compute_share = build_carried_share_function(graph)
    state = [INCOMPARABLE] * len(pairs) + [UNPAIRED] * (graph.n_nodes - len(pairs))
    allowed_errors = list(tolerances)
    max_cancellations = _list_max_cancellations(graph)
    new_weight_rows = frozenset(find_new_weight_rows(graph.comparison.alignment))
    ancestry = [_NO_ANCESTRY] * graph.n_nodes
    recomputations: dict[int, Recomputation] = {}
    forward_has_diverged = False
    ranks = np.argsort(graph.order).tolist()
    for node in graph.order:
        own_ancestry = _collect_ancestry(
            graph, node, state, ancestry, causal_errors, cancellations, compute_share, ranks
        )
        ancestry[node] = own_ancestry
        if node >= len(pairs) or not is_comparable[node]:
            continue
        error, tolerance, is_forward = errors[node], tolerances[node], graph.phase[node] == FORWARD
        allowed_cancellation = min(max_cancellations[node], own_ancestry.cancellation)
        allowed_error = tolerance * max(cancellations[node], allowed_cancellation)
        has_cause = own_ancestry.has_diverged or (forward_has_diverged and not is_forward)
        if error > allowed_error and not is_broken[node] and not has_cause:
            recomputation = None
            if len(recomputations) < _MAX_RECOMPUTATIONS:
                recomputation = recompute_op(graph, node)
            if recomputation is not None:
                recomputations[node] = recomputation
                if recomputation.is_explained(tolerance, own_ancestry.worst_agreeing_error):
                    state[node], allowed_errors[node] = AGREEING, error
                    continue
            if node not in new_weight_rows:  # its tolerance includes what the gradient's error does
                allowed_error = _extend_allowed_error(
                    allowed_error,
                    max(factors[node] * own_ancestry.carried_error, elementwise_errors[node]),
                    own_ancestry.carried_error,
                    recomputation,
                )
        allowed_errors[node] = allowed_error
        if error <= allowed_error and not is_broken[node]:
            is_informative = allowed_error < NO_INFORMATION or error <= tolerance
            state[node] = AGREEING if is_informative else INCOMPARABLE
        elif own_ancestry.has_diverged:
            growth_limit = _AMPLIFICATION * factors[node] * own_ancestry.worst_diverged_error
            state[node] = AMPLIFIED if error > growth_limit else PROPAGATED
        elif has_cause:
            state[node] = PROPAGATED
        else:
            state[node] = INTRODUCED
            forward_has_diverged |= bool(is_forward)
    return Walk(state, allowed_errors, ancestry, recomputations)


def _list_max_cancellations(graph: JointGraph) -> list[float]:
    """Return (pairs,) the cancellation of inputs up to which it explains the error of a value.

    Adam divides a gradient by its own size. If that is only noise, so is all of the update.
    """
    is_kept = graph.comparison.pairs["evidence"] == UPDATE_EVIDENCE
    phases = graph.phase[: len(is_kept)]
    is_update = is_kept.to_numpy() | (phases == OPTIMIZER)
    limits: list[float] = np.where(is_update, math.inf, _MAX_EXPLAINED_TOLERANCES).tolist()
    return limits


def compute_mutual_errors(graph: JointGraph) -> Floats:
    """Return (pairs,) the errors relative to the larger one of both sides, by their norms.

    A value that is twice the other has an error of 1 or of 1/2, depending on which side is the
    reference. What is judged is the same in both directions.
    """
    pairs, alignment = graph.comparison.pairs, graph.comparison.alignment
    norms_t = alignment.target.norms[pairs["target"].to_numpy()]
    norms_r = alignment.reference.norms[pairs["reference"].to_numpy()]
    has_larger_target = np.isfinite(norms_t) & (norms_r > 0) & (norms_t > norms_r)
    shares = np.ones(len(pairs))
    shares[has_larger_target] = norms_r[has_larger_target] / norms_t[has_larger_target]
    errors: Floats = pairs["error"].to_numpy(dtype=float) * shares
    return errors


def _exclude_casts(graph: JointGraph, errors: list[float]) -> list[float]:
    """Return the errors without those of inputs that only one side has in a coarse dtype.

    If it is coarser than what the run computes in, see ``find_common_dtype``, the cast is the
    difference: what it changes is not explained by an input's error.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    target, reference = alignment.target, alignment.reference
    limit = get_unit_roundoff(find_common_dtype(target, reference))
    dtypes_t, dtypes_r = target.list_column("dtype"), reference.list_column("dtype")
    causal_errors = list(errors)
    rows = zip(pairs["target"].tolist(), pairs["reference"].tolist(), strict=True)
    for node, (t, r) in enumerate(rows):
        roundoff_t, roundoff_r = get_unit_roundoff(dtypes_t[t]), get_unit_roundoff(dtypes_r[r])
        is_input = target.producers[t] < 0 and reference.producers[r] < 0
        if is_input and roundoff_t != roundoff_r and max(roundoff_t, roundoff_r) > limit:
            causal_errors[node] = 0.0
    return causal_errors


def _extend_allowed_error(
    allowed_error: float,
    enlarged_error: float,
    input_error: float,
    recomputation: Recomputation | None,
) -> float:
    """Return what is allowed where inputs agree only to ``input_error``.

    Their error is enlarged as measured, else to the ``enlarged_error`` of the rules.
    """
    if not input_error > 0:
        return allowed_error
    if recomputation is not None and np.isfinite(recomputation.amplification):
        return max(allowed_error, recomputation.amplification * input_error)
    return max(allowed_error, min(_MAX_EXPLAINED_TOLERANCES * allowed_error, enlarged_error))


def _collect_ancestry(
    graph: JointGraph,
    node: int,
    state: list[str],
    ancestry: list[Ancestry],
    errors: list[float],
    cancellations: list[float],
    compute_share: Callable[[int, int], float],
    ranks: list[int],
) -> Ancestry:
    """Return the ancestry of a node; an incomparable parent is replaced by its own ancestry.

    ``ranks`` are the places of the nodes in the order of the graph.
    """
    if not graph.parents[node]:
        return _NO_ANCESTRY
    agreeing_errors, diverged_errors, carried_errors = [], [], []
    cancellation = 1.0
    ancestors: dict[int, None] = {}
    unpaired_nodes: dict[int, None] = {}
    for parent in graph.parents[node]:
        share = compute_share(parent, node)
        if state[parent] in UNKNOWN:
            beyond = ancestry[parent]
            agreeing_errors.append(beyond.worst_agreeing_error)
            diverged_errors.append(beyond.worst_diverged_error)
            carried_errors.append(share * beyond.carried_error)
            parent_cancellation = max(cancellations[parent], beyond.cancellation)
            cancellation = max(cancellation, share * parent_cancellation)
            ancestors.update(dict.fromkeys(beyond.ancestors))
            unpaired_nodes.update(dict.fromkeys((*beyond.unpaired_nodes, parent)))
        else:
            ancestors[parent] = None
            if state[parent] == AGREEING:
                agreeing_errors.append(errors[parent])
                carried_errors.append(share * errors[parent])
            else:
                diverged_errors.append(errors[parent])
    return Ancestry(
        _find_largest(agreeing_errors),
        _find_largest(diverged_errors),
        _find_largest(carried_errors),
        cancellation,
        tuple(sorted(ancestors, key=ranks.__getitem__)[-_MAX_REMEMBERED:]),
        select_region_ends(graph, sorted(unpaired_nodes, key=ranks.__getitem__)),
    )


def select_region_ends(graph: JointGraph, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the first and the last nodes of each side, of nodes in dataflow order.

    One side may have many times the values of the other, and its values may all come later.
    """
    if len(nodes) <= MAX_REGION_END:
        return tuple(nodes)
    kept_nodes: set[int] = set()
    for classes in (graph.target_classes, graph.reference_classes):
        nodes_of_side = [node for node in nodes if classes[node] >= 0]
        kept_nodes.update(nodes_of_side[:MAX_REGION_END])
        kept_nodes.update(nodes_of_side[-MAX_REGION_END:])
    return tuple(node for node in nodes if node in kept_nodes)


def _find_largest(errors: list[float]) -> float:
    if not errors:
        return math.nan
    if len(errors) == 1:
        return errors[0]
    numbers = [error for error in errors if not math.isnan(error)]
    return max(numbers, default=math.nan)
