"""The walk from inputs to outputs: which values agree, and where a difference is introduced."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import filterfalse

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
from .ancestries import Ancestries
from .error_bounds import compute_conditioning, compute_elementwise_errors
from .joint_graph import JointGraph
from .recomputation import Recomputation, recompute_op

#: States of values that differ, with consequences.
DIVERGED = (INTRODUCED, AMPLIFIED, PROPAGATED)
#: Evidence of pairs that the optimizer keeps beyond the step, see ``alignment.training_step``.
UPDATE_EVIDENCE = "update"
#: Tolerances up to which an error may be explained by the errors of agreeing inputs and the
#: operator's conditioning. Beyond this a value no longer agrees, whatever its inputs; but it may
#: differ as much as each of them may.
_MAX_EXPLAINED_TOLERANCES = 32.0
#: Conditionings by which a diverged error must grow to count as amplified.
_AMPLIFICATION = 10
#: Operators that are run again. After a divergence of every sum the first of them are what matters.
_MAX_RECOMPUTATIONS = 64


@dataclass(frozen=True)
class Walk:
    """What the walk from inputs to outputs finds out."""

    state: list[str]  #: per node
    allowed_errors: list[float]  #: per pair
    ancestry: Ancestries
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
    is_excused = np.isin(np.arange(len(pairs)), list(excused_nodes))
    is_comparable = (pairs["comparable"] & pairs["slot_pair"].isna() & ~is_excused).tolist()
    is_broken = (pairs["nonfinite_mismatch"] > 0).tolist()
    conditioning = compute_conditioning(graph, rules) * cancellation[: len(pairs)]
    elementwise_errors = compute_elementwise_errors(graph, errors).tolist()
    factors, cancellations = conditioning.tolist(), cancellation.tolist()
    settled_nodes = _list_settled_nodes(errors, tolerances, is_comparable, is_broken)
    state = _list_first_states(graph, settled_nodes)
    allowed_errors = list(tolerances)
    max_cancellations = _list_max_cancellations(graph)
    new_weight_rows = frozenset(find_new_weight_rows(graph.comparison.alignment))
    recomputations: dict[int, Recomputation] = {}
    forward_has_diverged = False
    ancestries = Ancestries(graph, state, _exclude_casts(graph, errors), cancellations)
    for node in filterfalse(settled_nodes.__contains__, graph.order):
        own_ancestry = ancestries.keep(node)
        if node >= len(pairs) or not is_comparable[node]:
            continue
        error, tolerance, is_forward = errors[node], tolerances[node], graph.phase[node] == FORWARD
        inherited_cancellation = min(max_cancellations[node], own_ancestry.cancellation)
        allowed_error = tolerance * max(cancellations[node], inherited_cancellation)
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
                    max(
                        (allowed_errors[x] for x in own_ancestry.ancestors if state[x] == AGREEING),
                        default=0.0,
                    ),
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
    own_cancellations = ancestries.list_cancellations(settled_nodes)
    for node, own_cancellation in zip(settled_nodes, own_cancellations, strict=True):
        inherited_cancellation = min(max_cancellations[node], own_cancellation)
        allowed_errors[node] = tolerances[node] * max(cancellations[node], inherited_cancellation)
    return Walk(state, allowed_errors, ancestries, recomputations)


def _list_settled_nodes(
    errors: Sequence[float],
    tolerances: Sequence[float],
    is_comparable: Sequence[bool],
    is_broken: Sequence[bool],
) -> dict[int, None]:
    """Return the nodes that agree whatever they were computed from: within their tolerance."""
    columns = enumerate(zip(errors, tolerances, is_comparable, is_broken, strict=True))
    return {
        node: None
        for node, (error, tolerance, comparable, broken) in columns
        if error <= tolerance and comparable and not broken
    }


def _list_first_states(graph: JointGraph, settled_nodes: Collection[int]) -> list[str]:
    """Return the states of the nodes before the walk."""
    n_pairs = len(graph.comparison.pairs)
    state = [AGREEING if node in settled_nodes else INCOMPARABLE for node in range(n_pairs)]
    return state + [UNPAIRED] * (graph.n_nodes - n_pairs)


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
    allowed_input_error: float,
    enlarged_error: float,
    input_error: float,
    recomputation: Recomputation | None,
) -> float:
    """Return what is allowed where inputs agree only to ``input_error``.

    Their error is enlarged as measured, else to the ``enlarged_error`` of the rules, within limits.
    """
    if not input_error > 0:
        return allowed_error
    if recomputation is not None and np.isfinite(recomputation.amplification):
        return max(allowed_error, recomputation.amplification * input_error)
    limit = max(_MAX_EXPLAINED_TOLERANCES * allowed_error, allowed_input_error)
    return max(allowed_error, min(limit, enlarged_error))
