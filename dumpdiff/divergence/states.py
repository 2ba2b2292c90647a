"""The state of every value. It has exactly one of ``model.verdict.VALUE_STATES``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..alignment.confidence import CERTAIN
from ..comparison import NO_INFORMATION
from ..graph.missing_edges import is_graph_input
from ..model.arrays import Floats, Objects
from ..model.trace import FORWARD
from ..rulebook import Rules
from .error_bounds import (
    build_share_function,
    build_visibility_function,
    compute_cancellation,
    compute_conditioning,
)
from .joint_graph import JointGraph
from .recomputation import Recomputation, recompute_op

AGREEING = "agreeing"
INTRODUCED = "introduced"
PROPAGATED = "propagated"
AMPLIFIED = "amplified"
ISOLATED = "isolated"
INCOMPARABLE = "incomparable"
RECONVERGED = "reconverged"
UNPAIRED = "unpaired"
#: States of values that differ, with consequences.
_DIVERGED = (INTRODUCED, AMPLIFIED, PROPAGATED)
#: States of values that were not compared; the walk looks through them.
_UNKNOWN = (INCOMPARABLE, UNPAIRED)

#: Tolerances up to which an error may be explained by the errors of agreeing inputs and the
#: operator's conditioning. Beyond this a value no longer agrees, whatever its inputs.
_MAX_EXPLAINED_TOLERANCES = 32.0
#: Conditionings by which a diverged error must grow to count as amplified.
_AMPLIFICATION = 10
#: Operators that are run again. After a divergence of every sum the first of them are what matters.
_MAX_RECOMPUTATIONS = 64
#: Error below which a pair is one tensor: another tensor is not so near by chance.
_NEAR_ERROR = 0.05
#: Evidence of pairs that the optimizer keeps beyond the step, see ``alignment.training_step``.
_UPDATE_EVIDENCE = "update"
#: How often two kinds of operators must give the same result before they count as one.
_MIN_LEARNED = 2
#: Ancestors, and unpaired nodes, that are kept for the report.
_MAX_REMEMBERED = 32


@dataclass(frozen=True)
class Ancestry:
    """The nearest comparable ancestors of a value, and the unpaired nodes in between.

    Errors are NaN if there is no such ancestor.
    """

    worst_agreeing_error: float = np.nan  #: largest error of the ancestors that agree
    worst_diverged_error: float = np.nan  #: largest error of those that do not
    #: largest error of those that agree, times their share of a sum
    carried_error: float = np.nan
    #: largest cancellation of the sums on the way, times their share of a sum
    cancellation: float = 1.0
    ancestors: tuple[int, ...] = ()  #: the first of those ancestors
    unpaired_nodes: tuple[int, ...] = ()  #: the nearest of the nodes in between, in dataflow order

    @property
    def has_diverged(self) -> bool:
        """Whether some ancestor does not agree."""
        return not math.isnan(self.worst_diverged_error)


@dataclass(frozen=True)
class States:
    """The states of the nodes of a joint graph."""

    state: Objects  #: (nodes,) words of ``model.verdict.VALUE_STATES``
    allowed_errors: Floats  #: (pairs,) the error up to which the pair would have agreed
    ancestry: tuple[Ancestry, ...]
    recomputations: Mapping[int, Recomputation]  #: node -> its operator, run again


def classify(graph: JointGraph, rules: Rules) -> States:
    """Determine the state of every node, first from inputs to outputs, then back.

    A value is introduced if

    - its error is beyond its tolerance, and beyond what its operator makes of the errors of its
      agreeing inputs (measured by running it again where that is possible),
    - it is not as near to the exact result as the reference's value, and
    - all its comparable ancestors agree.

    If an ancestor does not agree, the value is propagated; it is amplified if its error exceeds
    theirs by more than ten times the conditioning. Every gradient depends on the whole forward
    pass. On the way back, what does not agree itself but leads only to agreement is reconverged,
    see :func:`_find_reconverged`. Compared values of the forward pass are not, if diverged
    gradients would then have no cause. A compared value reconverges only where the two sides
    compute it in different ways, see :func:`_restore_contradictions`.
    """
    pairs = graph.comparison.pairs
    errors, tolerances = pairs["error"].to_numpy(), pairs["tolerance"].to_numpy()
    cancellation = compute_cancellation(graph)
    walk = _classify_forwards(graph, rules, cancellation)
    allowed_errors = tolerances * cancellation[: len(pairs)]
    noticed_errors = np.where(allowed_errors > errors, allowed_errors, errors)
    exceeds_tolerance = errors > tolerances
    is_final = _flag_final_differences(graph)
    limits = (errors.tolist(), noticed_errors.tolist(), exceeds_tolerance.tolist())
    final_state = _find_reconverged(graph, walk.state, is_final, *limits)
    if _has_unexplained_gradients(graph, final_state):
        for node in range(len(pairs)):
            is_final[node] |= bool(graph.phase[node] == FORWARD)
        final_state = _find_reconverged(graph, walk.state, is_final, *limits)
    final_state = _restore_contradictions(graph, walk, final_state)
    _keep_foreign_values_unpaired(graph, final_state)
    _judge_slot_pairs(graph, walk, final_state)
    return States(
        np.array(final_state, dtype=object),
        np.array(walk.allowed_errors),
        tuple(walk.ancestry),
        walk.recomputations,
    )


@dataclass(frozen=True)
class _Walk:
    """What the walk from inputs to outputs finds out."""

    state: list[str]  #: per node
    allowed_errors: list[float]  #: per pair
    ancestry: list[Ancestry]
    recomputations: dict[int, Recomputation]


def _classify_forwards(graph: JointGraph, rules: Rules, cancellation: Floats) -> _Walk:
    """Walk from inputs to outputs, looking through slot pairs: they are judged at the end."""
    pairs = graph.comparison.pairs
    errors, tolerances = pairs["error"].tolist(), pairs["tolerance"].tolist()
    is_comparable = (pairs["comparable"] & pairs["slot_pair"].isna()).tolist()
    is_broken = (pairs["nonfinite_mismatch"] > 0).tolist()
    conditioning = compute_conditioning(graph, rules) * cancellation[: len(pairs)]
    factors, cancellations = conditioning.tolist(), cancellation.tolist()
    compute_share = build_share_function(graph)
    state = [INCOMPARABLE] * len(pairs) + [UNPAIRED] * (graph.n_nodes - len(pairs))
    allowed_errors = list(tolerances)
    is_update = (pairs["evidence"] == _UPDATE_EVIDENCE).tolist()
    new_weights = [weight.target for weight in graph.comparison.alignment.new_weights]
    is_new_weight = pairs["target"].isin(new_weights).tolist()
    ancestry = [Ancestry()] * graph.n_nodes
    recomputations: dict[int, Recomputation] = {}
    forward_has_diverged = False
    for node in graph.order:
        own_ancestry = _collect_ancestry(
            graph, node, state, ancestry, errors, cancellations, compute_share
        )
        ancestry[node] = own_ancestry
        if node >= len(pairs) or not is_comparable[node]:
            continue
        error, tolerance, is_forward = errors[node], tolerances[node], graph.phase[node] == FORWARD
        # Adam divides a gradient by its own size: if that is only noise, so is the whole step
        max_cancellation = math.inf if is_update[node] else _MAX_EXPLAINED_TOLERANCES
        allowed_cancellation = min(max_cancellation, own_ancestry.cancellation)
        allowed_error = tolerance * max(cancellations[node], allowed_cancellation)
        has_cause = own_ancestry.has_diverged or (forward_has_diverged and not is_forward)
        if error > allowed_error and not is_broken[node] and not has_cause:
            recomputation = None
            if len(recomputations) < _MAX_RECOMPUTATIONS:
                recomputation = recompute_op(graph, node)
            if recomputation is not None:
                recomputations[node] = recomputation
                if recomputation.is_equally_accurate(tolerance, own_ancestry.worst_agreeing_error):
                    state[node], allowed_errors[node] = AGREEING, error
                    continue
            if not is_new_weight[node]:  # its tolerance includes what the gradient's error does
                allowed_error = _extend_allowed_error(
                    allowed_error, factors[node], own_ancestry.carried_error, recomputation
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
    return _Walk(state, allowed_errors, ancestry, recomputations)


def _extend_allowed_error(
    allowed_error: float, factor: float, input_error: float, recomputation: Recomputation | None
) -> float:
    """Return what is allowed where inputs agree only to ``input_error``.

    Their error is enlarged as measured, else by the ``factor`` of the rules.
    """
    if not input_error > 0:
        return allowed_error
    if recomputation is not None and np.isfinite(recomputation.amplification):
        return max(allowed_error, recomputation.amplification * input_error)
    return max(allowed_error, min(_MAX_EXPLAINED_TOLERANCES * allowed_error, factor * input_error))


def _collect_ancestry(
    graph: JointGraph,
    node: int,
    state: list[str],
    ancestry: list[Ancestry],
    errors: list[float],
    cancellations: list[float],
    compute_share: Callable[[int, int], float],
) -> Ancestry:
    """Return the ancestry of a node; an incomparable parent is replaced by its own ancestry."""
    agreeing_errors, diverged_errors, carried_errors = [], [], []
    cancellation = 1.0
    ancestors: dict[int, None] = {}
    unpaired_nodes: dict[int, None] = {}
    for parent in graph.parents[node]:
        share = compute_share(parent, node)
        if state[parent] in _UNKNOWN:
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
        tuple(ancestors)[:_MAX_REMEMBERED],
        tuple(unpaired_nodes)[-_MAX_REMEMBERED:],
    )


def _find_largest(errors: list[float]) -> float:
    return max((error for error in errors if not math.isnan(error)), default=math.nan)


def _flag_final_differences(graph: JointGraph) -> list[bool]:
    """Return (nodes,) true for what is a difference whatever is computed from it.

    These are parameters and inputs that are one tensor beyond doubt, and new weights and optimizer
    state, which are kept beyond the step.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    is_same_tensor = (pairs["confidence"] >= CERTAIN) | (pairs["error"] < _NEAR_ERROR)
    is_update = pairs["evidence"] == _UPDATE_EVIDENCE
    is_final = [False] * graph.n_nodes
    rows = zip(
        pairs["target"].tolist(),
        pairs["reference"].tolist(),
        is_same_tensor.tolist(),
        is_update.tolist(),
        strict=True,
    )
    for node, (t, r, is_same, is_kept) in enumerate(rows):
        is_final[node] = is_kept or (
            is_same
            and is_graph_input(alignment.target, t)
            and is_graph_input(alignment.reference, r)
        )
    return is_final


def _has_unexplained_gradients(graph: JointGraph, state: list[str]) -> bool:
    """Return whether a value diverged, but nothing that it depends on is introduced.

    This happens where gradients diverge because the forward pass does, but the forward pass counts
    as reconverged: what follows in it is equal, or looks equal in a coarse dtype, or its statistics
    look equal.
    """
    introduced_nodes = {node for node, name in enumerate(state) if name == INTRODUCED}
    if any(graph.phase[node] == FORWARD for node in introduced_nodes):
        return False
    explained_nodes: set[int] = set()
    for node in graph.order:
        has_explained_parent = not explained_nodes.isdisjoint(graph.parents[node])
        if has_explained_parent or node in introduced_nodes:
            explained_nodes.add(node)
        elif state[node] in (PROPAGATED, AMPLIFIED):
            return True
    return False


def _find_reconverged(
    graph: JointGraph,
    initial_state: list[str],
    is_final: list[bool],
    errors: list[float],
    noticed_errors: list[float],
    exceeds_tolerance: list[bool],
) -> list[str]:
    """Return the states with reconverged nodes marked.

    A node reconverges if it does not agree, and everything that is computed from it agrees or
    reconverges. For a compared value its error must also be large enough to be noticed: carried to
    some agreeing value below, it must exceed the error that this one has or may have
    (``noticed_errors``). A loss of one number shows little of an error. Neither does a residual
    sum, if the branch is small, in particular in a coarse dtype.

    The last value of a path, such as a loss, never reconverges, and neither does what is
    ``is_final``. A value that agrees only because its inputs have errors (``exceeds_tolerance``)
    counts as agreement only if everything that is computed from it agrees too.
    """
    state = list(initial_state)
    children: list[list[int]] = [[] for _ in range(graph.n_nodes)]
    for node, parents in enumerate(graph.parents):
        for parent in parents:
            children[parent].append(node)
    compute_visibility = build_visibility_function(graph)
    # error of each node from which on some agreeing value below would have noticed it
    noticeable_errors = [math.inf] * graph.n_nodes
    leads_to_agreement = [False] * graph.n_nodes
    for node in reversed(graph.order):
        for child in children[node]:
            visibility = compute_visibility(node, child) if leads_to_agreement[child] else 0.0
            if visibility > 0:
                is_agreeing = state[child] == AGREEING
                limit = noticed_errors[child] if is_agreeing else noticeable_errors[child]
                noticeable_errors[node] = min(noticeable_errors[node], limit / visibility)
        all_agree_below = all(leads_to_agreement[child] for child in children[node])
        if state[node] == AGREEING:
            leads_to_agreement[node] = all_agree_below or not exceeds_tolerance[node]
            continue
        if not children[node] or not all_agree_below or is_final[node]:
            continue
        if state[node] in _UNKNOWN or not errors[node] <= noticeable_errors[node]:
            state[node] = RECONVERGED
            leads_to_agreement[node] = True
    return state


def _restore_contradictions(graph: JointGraph, walk: _Walk, final_state: list[str]) -> list[str]:
    """Return the states without excuses for which there is no evidence.

    A compared value that differs is excused as an intermediate value of another decomposition only
    if one was recorded: other operators, other inputs, or values without a partner before it. If
    both sides compute it by one operator from partners, it stays a difference, and so does what
    follows from it. If nothing follows from it, it is isolated: what was computed from it agrees,
    so the operators did not read the numbers that one record holds.
    """
    state = list(final_state)
    has_consequence = _flag_consequences(graph, walk)
    equivalent_kinds = _learn_equivalent_kinds(graph, walk)
    for node in graph.order:
        if state[node] != RECONVERGED or walk.state[node] not in _DIVERGED:
            continue
        ancestry = walk.ancestry[node]
        is_same = _has_same_operation(graph, ancestry, node, equivalent_kinds)
        if is_same and not ancestry.has_diverged:
            state[node] = INTRODUCED if has_consequence[node] else ISOLATED
        elif any(state[ancestor] in _DIVERGED for ancestor in ancestry.ancestors):
            state[node] = walk.state[node]
    return state


def _flag_consequences(graph: JointGraph, walk: _Walk) -> list[bool]:
    """Return (nodes,) whether a value differs of which the node is a nearest compared ancestor."""
    has_consequence = [False] * graph.n_nodes
    for node, state in enumerate(walk.state):
        if state in _DIVERGED:
            for ancestor in walk.ancestry[node].ancestors:
                has_consequence[ancestor] = True
    return has_consequence


def _learn_equivalent_kinds(graph: JointGraph, walk: _Walk) -> frozenset[tuple[str, str]]:
    """Return the pairs of operator kinds that turn partners into agreeing values more than once."""
    counts: Counter[tuple[str, str]] = Counter()
    for node, state in enumerate(walk.state):
        if state == AGREEING and _has_same_inputs(graph, node):
            counts[_get_producer_kinds(graph, node)] += 1
    return frozenset(kinds for kinds, count in counts.items() if count >= _MIN_LEARNED)


def _has_same_operation(
    graph: JointGraph,
    ancestry: Ancestry,
    node: int,
    equivalent_kinds: frozenset[tuple[str, str]],
) -> bool:
    """Return whether no record shows that the sides compute a pair in different ways."""
    if any(_get_size(graph, unpaired) > 1 for unpaired in ancestry.unpaired_nodes):
        return False
    kind_t, kind_r = _get_producer_kinds(graph, node)
    if not kind_t or not kind_r:
        return True
    is_equivalent = kind_t == kind_r or (kind_t, kind_r) in equivalent_kinds
    return is_equivalent and _has_same_inputs(graph, node)


def _get_producer_kinds(graph: JointGraph, node: int) -> tuple[str, str]:
    """Return the canonical kinds of the producers of a pair, '' where none was recorded."""
    alignment = graph.comparison.alignment
    producer_t = int(alignment.target.producers[graph.target_classes[node]])
    producer_r = int(alignment.reference.producers[graph.reference_classes[node]])
    kind_t = alignment.target_kinds[producer_t] if producer_t >= 0 else ""
    kind_r = alignment.reference_kinds[producer_r] if producer_r >= 0 else ""
    return kind_t, kind_r


def _has_same_inputs(graph: JointGraph, node: int) -> bool:
    """Return whether the producers of a pair read partners, apart from single numbers."""
    alignment = graph.comparison.alignment
    inputs = []
    for flow, classes, nodes in (
        (alignment.target, graph.target_classes, graph.target_nodes),
        (alignment.reference, graph.reference_classes, graph.reference_nodes),
    ):
        producer = int(flow.producers[classes[node]]) if classes[node] >= 0 else -1
        if producer < 0:
            return False
        inputs.append({int(nodes[v]) for v in flow.reads[producer] if flow.sizes[v] > 1})
    return inputs[0] == inputs[1]


def _get_size(graph: JointGraph, node: int) -> int:
    """Return the number of elements of a node's value."""
    alignment = graph.comparison.alignment
    if graph.target_classes[node] >= 0:
        return int(alignment.target.sizes[graph.target_classes[node]])
    return int(alignment.reference.sizes[graph.reference_classes[node]])


def _keep_foreign_values_unpaired(graph: JointGraph, state: list[str]) -> None:
    """Call what no recorded op wrote, and what has no partner, unpaired.

    That its consumers agree does not make it an intermediate value of a decomposition.
    """
    alignment, n_pairs = graph.comparison.alignment, len(graph.comparison.pairs)
    for flow, classes in (
        (alignment.target, graph.target_classes),
        (alignment.reference, graph.reference_classes),
    ):
        is_written = np.zeros(len(flow.classes), dtype=bool)
        is_written[flow.tensor_class[flow.is_computed & (flow.tensor_class >= 0)]] = True
        unpaired = n_pairs + np.flatnonzero(classes[n_pairs:] >= 0)
        for node in unpaired[~is_written[classes[unpaired]]].tolist():
            state[node] = UNPAIRED


def _judge_slot_pairs(graph: JointGraph, walk: _Walk, state: list[str]) -> None:
    """Set the states of slot pairs, which have no influence on others.

    A difference is isolated unless the results of the ops differ, too, or the values differ from
    their own partners: then a finding there explains it.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    agrees, is_comparable = pairs["agrees"].tolist(), pairs["comparable"].tolist()
    for node, pair in graph.comparison.slot_pairs:
        if not is_comparable[node]:
            state[node] = INCOMPARABLE
            continue
        if agrees[node]:
            state[node] = AGREEING
            continue
        related_nodes = {
            int(graph.target_nodes[pair.target]),
            int(graph.reference_nodes[pair.reference]),
        }
        if pair.slot_kind == "input":
            writes_t = list(alignment.target.writes[pair.target_op])
            writes_r = list(alignment.reference.writes[pair.reference_op])
            related_nodes.update(graph.target_nodes[writes_t].tolist())
            related_nodes.update(graph.reference_nodes[writes_r].tolist())
        is_explained = any(walk.state[related] in _DIVERGED for related in related_nodes)
        state[node] = PROPAGATED if is_explained else ISOLATED
