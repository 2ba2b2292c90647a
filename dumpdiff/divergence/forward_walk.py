"""The walk from inputs to outputs: which values agree, and where a difference is introduced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..comparison import NO_INFORMATION
from ..comparison.new_weights import find_new_weight_rows
from ..graph import find_common_dtype
from ..model.arrays import Flags, Floats, Objects, wrap_object
from ..model.dtypes import MASK_MAGNITUDE, get_unit_roundoff
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
from .ancestries import Ancestries, find_largest
from .error_bounds import (
    compute_conditioning,
    compute_elementwise_errors,
    compute_logarithm_errors,
)
from .joint_graph import JointGraph
from .kinks import measure_error_beside_kinks
from .recomputation import RecomputationOfSides, recompute_op

#: States of values that differ, with consequences.
DIVERGED = (INTRODUCED, AMPLIFIED, PROPAGATED)
#: Tolerances up to which an error may be explained by the errors of agreeing inputs and the
#: operator's conditioning. Beyond this a value no longer agrees, whatever its inputs.
_MAX_EXPLAINED_TOLERANCES = 32.0
#: Times the error of agreeing inputs that always explains that of a value: a part has a smaller
#: scale than the whole, and two inputs may err alike. A function of a unit far larger than that of
#: what follows gives errors of many tolerances.
_PASSED_ON = 2.0
#: Conditionings by which a diverged error must grow to count as amplified.
_AMPLIFICATION = 10
#: Times one of two values that are both rounding errors may be larger than the other.
_LIKE_SIZES = 10.0
#: Operators that are run again. After a divergence of every sum the first of them are what matters.
_MAX_RECOMPUTATIONS = 64


@dataclass(frozen=True)
class Walk:
    """What the walk from inputs to outputs finds out."""

    state: list[str]  #: per node
    #: node -> its limit, of propagated values that noise explains: they agree if what differs
    #: before them reconverges
    noise_limits: Mapping[int, float]
    allowed_errors: list[float]  #: per pair
    ancestry: Ancestries
    recomputations: dict[int, RecomputationOfSides]


@dataclass(frozen=True)
class _Bounds:
    """How far the values of each pair may differ, by rules and statistics; lists of pairs."""

    errors: list[float]
    tolerances: list[float]
    cancellations: list[float]  #: of the sum that produced it; of all nodes
    max_cancellations: list[float]  #: up to which that of the inputs counts
    have_like_sizes: list[bool]  #: neither side is far larger than the other one
    factors: list[float]  #: by which its producer may enlarge errors
    elementwise_errors: list[float]  #: what single elements of the inputs explain
    logarithm_errors: list[float]  #: what scores explain of their logarithms, without a limit

    def allow_cancellation(self, node: int, inherited_cancellation: float) -> float:
        """Return the tolerance of a pair, times the cancellation in it and before it.

        What is computed from nothing but rounding errors is one, on both sides.
        """
        is_noise = self.tolerances[node] * inherited_cancellation >= NO_INFORMATION
        if not (is_noise and self.have_like_sizes[node]):
            inherited_cancellation = min(self.max_cancellations[node], inherited_cancellation)
        return self.tolerances[node] * max(self.cancellations[node], inherited_cancellation)

    def is_rounding(self, node: int) -> bool:
        """Return whether a pair is a sum of terms that cancel but for their rounding errors."""
        return self.tolerances[node] * self.cancellations[node] >= NO_INFORMATION

    def allow_cancellations(self, inherited_cancellations: Floats) -> Floats:
        """Return (pairs,) the same of all pairs."""
        own_cancellations = np.array(self.cancellations[: len(self.tolerances)])
        inherited_cancellations = np.minimum(self.max_cancellations, inherited_cancellations)
        largest: Floats = np.maximum(own_cancellations, inherited_cancellations)
        return np.array(self.tolerances) * largest


def _build_bounds(graph: JointGraph, rules: Rules, cancellation: Floats) -> _Bounds:
    pairs = graph.comparison.pairs
    errors = compute_mutual_errors(graph).tolist()
    factors = compute_conditioning(graph, rules) * cancellation[: len(pairs)]
    return _Bounds(
        errors,
        pairs["tolerance"].tolist(),
        cancellation.tolist(),
        _list_max_cancellations(graph),
        _list_like_sizes(graph),
        factors.tolist(),
        compute_elementwise_errors(graph, errors).tolist(),
        compute_logarithm_errors(graph, errors).tolist(),
    )


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
    bounds = _build_bounds(graph, rules, cancellation)
    errors, factors = bounds.errors, bounds.factors
    can_be_judged, has_mismatch, is_settled = _flag_pairs(pairs, errors, excused_nodes)
    is_comparable, is_broken = can_be_judged.tolist(), has_mismatch.tolist()
    state = _list_first_states(graph, is_settled)
    allowed_errors = list(bounds.tolerances)
    new_weight_rows = frozenset(find_new_weight_rows(graph.comparison.alignment))
    recomputations: dict[int, RecomputationOfSides] = {}
    noise_limits: dict[int, float] = {}
    forward_has_diverged, causal_errors = False, _exclude_casts(graph, errors)
    ancestries = Ancestries(graph, state, noise_limits, causal_errors, bounds.cancellations)
    is_open = np.append(~is_settled, np.ones(graph.n_nodes - len(pairs), dtype=bool))
    for node in graph.sort_nodes(is_open):
        own_ancestry = ancestries.keep(node)
        if node >= len(pairs) or not is_comparable[node]:
            continue
        error, tolerance = errors[node], bounds.tolerances[node]
        is_forward = graph.phase[node] == FORWARD
        allowed_error = bounds.allow_cancellation(node, own_ancestry.cancellation)
        has_cause = own_ancestry.has_diverged or (forward_has_diverged and not is_forward)
        if error > allowed_error and not is_broken[node] and not has_cause:
            runs = _run_ops_again(graph, node, recomputations)
            worst_error = own_ancestry.worst_agreeing_error
            if any(run and run.is_explained(tolerance, worst_error) for run in runs):
                state[node], allowed_errors[node] = AGREEING, error
                continue
            if node not in new_weight_rows:  # its tolerance includes what the gradient's error does
                input_error = _find_input_error(
                    graph, node, state, causal_errors, own_ancestry.carried_error
                )
                allowed_error = _extend_allowed_error(
                    max(allowed_error, bounds.logarithm_errors[node]),
                    max(factors[node] * input_error, bounds.elementwise_errors[node]),
                    input_error,
                    runs,
                )
            allowed_error = _allow_kinks(graph, node, state, causal_errors, allowed_error)
        allowed_errors[node] = allowed_error
        if error <= allowed_error and not is_broken[node]:
            is_informative = allowed_error < NO_INFORMATION or error <= tolerance
            state[node] = AGREEING if is_informative else INCOMPARABLE
            ancestries.mark_rounding(node, is_first=bounds.is_rounding(node))
            continue
        if not has_cause:
            state[node] = INTRODUCED
            forward_has_diverged |= bool(is_forward)
            continue
        noise = (
            math.nan
            if node in new_weight_rows
            else _find_input_error(graph, node, state, causal_errors, own_ancestry.noise)
        )
        noise_limit = _extend_allowed_error(
            allowed_error, factors[node] * noise, noise, (None, None)
        )
        growth_limit = _AMPLIFICATION * factors[node] * own_ancestry.worst_diverged_error
        state[node] = AMPLIFIED if error > growth_limit else PROPAGATED
        if error <= noise_limit < NO_INFORMATION and not is_broken[node]:
            state[node], noise_limits[node] = PROPAGATED, noise_limit
    cancellations = ancestries.measure_cancellations(np.flatnonzero(is_settled))
    settled_limits = bounds.allow_cancellations(cancellations)
    limits = np.where(is_settled, settled_limits, allowed_errors).tolist()
    return Walk(state, noise_limits, limits, ancestries, recomputations)


def _run_ops_again(
    graph: JointGraph, node: int, recomputations: dict[int, RecomputationOfSides]
) -> RecomputationOfSides:
    """Run the ops of a pair again and keep what they give, unless that was done often enough."""
    if len(recomputations) >= _MAX_RECOMPUTATIONS:
        return None, None
    runs = recompute_op(graph, node, side=0), recompute_op(graph, node, side=1)
    if runs != (None, None):
        recomputations[node] = runs
    return runs


def _flag_pairs(
    pairs: pd.DataFrame, errors: Sequence[float], excused_nodes: frozenset[int]
) -> tuple[Flags, Flags, Flags]:
    """Return (pairs,) which are judged on the way, have a NaN on one side only, and are settled.

    Most pairs are settled: they agree within their tolerance, whatever they were computed from.
    """
    is_judged = pairs["comparable"].to_numpy() & pairs["slot_pair"].isna().to_numpy()
    is_judged[list(excused_nodes)] = False
    has_mismatch = (pairs["nonfinite_mismatch"] > 0).to_numpy()
    is_settled = is_judged & ~has_mismatch & (np.array(errors) <= pairs["tolerance"].to_numpy())
    return is_judged, has_mismatch, is_settled


def _list_first_states(graph: JointGraph, is_settled: Flags) -> list[str]:
    """Return the states of the nodes before the walk."""
    state = np.full(graph.n_nodes, wrap_object(UNPAIRED))
    state[: len(is_settled)] = np.where(
        is_settled, wrap_object(AGREEING), wrap_object(INCOMPARABLE)
    )
    state_list: list[str] = state.tolist()
    return state_list


def _list_max_cancellations(graph: JointGraph) -> list[float]:
    """Return (pairs,) the cancellation of inputs up to which it explains the error of a value.

    Adam divides a gradient by its own size. If that is only noise, so is all of the update.
    """
    is_update = graph.is_kept | (graph.phase[: len(graph.is_kept)] == OPTIMIZER)
    limits: list[float] = np.where(is_update, math.inf, _MAX_EXPLAINED_TOLERANCES).tolist()
    return limits


def _list_like_sizes(graph: JointGraph) -> list[bool]:
    """Return (pairs,) whether the root mean squares of both sides are of one magnitude.

    Exact zeros may stand beside any rounding errors.
    """
    n_pairs = len(graph.comparison.pairs)
    rms_t, rms_r = (side.rms[side.classes[:n_pairs]] for side in graph.sides)
    smaller_rms = np.fmin(rms_t, rms_r)
    have_like_sizes = np.fmax(rms_t, rms_r) <= _LIKE_SIZES * smaller_rms
    flags: list[bool] = (have_like_sizes | (smaller_rms == 0)).tolist()
    return flags


def flag_diverged(states: Objects) -> Flags:
    """Return (nodes,) whether each state is that of a value that differs, with consequences."""
    flags = np.zeros(len(states), dtype=bool)
    for name in DIVERGED:
        flags |= states == name
    return flags


def compute_mutual_errors(graph: JointGraph) -> Floats:
    """Return (pairs,) the errors relative to the larger one of both sides, by their norms.

    A value that is twice the other has an error of 1 or of 1/2, depending on which side is the
    reference; beside zeros it is 1. What is judged is the same in both directions. The norm of what
    holds a masking constant says nothing of the other elements, to which the error is relative.
    """
    pairs, alignment = graph.comparison.pairs, graph.comparison.alignment
    norms_t = alignment.target.norms[pairs["target"].to_numpy()]
    norms_r = alignment.reference.norms[pairs["reference"].to_numpy()]
    has_larger_target = np.isfinite(norms_t) & (norms_r > 0) & (norms_t > norms_r)
    lowest = alignment.target.classes["min"].to_numpy(dtype=float)[pairs["target"].to_numpy()]
    has_larger_target &= ~(lowest < -MASK_MAGNITUDE)
    shares = np.ones(len(pairs))
    shares[has_larger_target] = norms_r[has_larger_target] / norms_t[has_larger_target]
    errors: Floats = pairs["error"].to_numpy(dtype=float) * shares
    errors[(norms_r == 0) & (norms_t > 0) & np.isposinf(errors)] = 1.0
    return errors


def _exclude_casts(graph: JointGraph, errors: list[float]) -> list[float]:
    """Return the errors without those of inputs that only one side has in a coarse dtype.

    If it is coarser than what the run computes in, see ``find_common_dtype``, the cast is the
    difference: what it changes is not explained by an input's error.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    target, reference = alignment.target, alignment.reference
    limit = get_unit_roundoff(find_common_dtype(target, reference))
    values_t, values_r = pairs["target"].to_numpy(), pairs["reference"].to_numpy()
    is_input = (target.producers[values_t] < 0) & (reference.producers[values_r] < 0)
    nodes = np.flatnonzero(is_input)
    dtypes_t = target.classes["dtype"].to_numpy()[values_t[nodes]].tolist()
    dtypes_r = reference.classes["dtype"].to_numpy()[values_r[nodes]].tolist()
    causal_errors = list(errors)
    for node, dtype_t, dtype_r in zip(nodes.tolist(), dtypes_t, dtypes_r, strict=True):
        if dtype_t == dtype_r:
            continue
        roundoff_t, roundoff_r = get_unit_roundoff(dtype_t), get_unit_roundoff(dtype_r)
        if roundoff_t != roundoff_r and max(roundoff_t, roundoff_r) > limit:
            causal_errors[node] = 0.0
    return causal_errors


def _find_input_error(
    graph: JointGraph,
    node: int,
    state: Sequence[str],
    errors: Sequence[float],
    carried_error: float,
) -> float:
    """Return the largest agreeing error of what a gradient is computed with, or the carried one.

    The record of a backward call names the gradients that it reads, but not the values of the
    forward call: the other factor of a product, or the result of a function.
    """
    input_errors = [carried_error]
    for side in graph.sides:
        call = side.value_dependent_calls[node]
        if call >= 0:
            values = [*side.flow.operands[call], *side.flow.writes[call]]
            nodes = side.nodes[values].tolist()
            input_errors += [errors[value] for value in nodes if state[value] == AGREEING]
    return find_largest(input_errors)


def _allow_kinks(
    graph: JointGraph,
    node: int,
    state: Sequence[str],
    errors: Sequence[float],
    allowed_error: float,
) -> float:
    """Return all of the error of a gradient if it is within what is allowed beside kinks."""
    if not errors[node] > allowed_error or graph.phase[node] == FORWARD:
        return allowed_error
    error_beside_kinks = measure_error_beside_kinks(graph, node, state, errors)
    return errors[node] if error_beside_kinks <= allowed_error else allowed_error


def _extend_allowed_error(
    allowed_error: float,
    enlarged_error: float,
    input_error: float,
    runs: RecomputationOfSides,
) -> float:
    """Return what is allowed where inputs agree only to ``input_error``.

    Their error is enlarged as measured on both sides, else to the ``enlarged_error`` of the rules,
    within limits. The op of one side alone is no measure: what the other one adds up at once it may
    compute in several steps. What a rule allows adds to the rounding of the op itself, of which it
    is independent; a measured error has both.
    """
    if not input_error > 0:
        return allowed_error
    amplifications = [run.amplification for run in runs if run and np.isfinite(run.amplification)]
    measured_error = max(amplifications, default=0.0) * input_error
    if len(amplifications) == len(runs):
        return max(allowed_error, measured_error)
    limit = max(_MAX_EXPLAINED_TOLERANCES * allowed_error, _PASSED_ON * input_error)
    return math.hypot(allowed_error, max(measured_error, min(limit, enlarged_error)))
