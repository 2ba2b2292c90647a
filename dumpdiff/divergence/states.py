"""The state of every value. It has exactly one of ``model.verdict.VALUE_STATES``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ..alignment.confidence import CERTAIN
from ..alignment.gradient_shares import has_other_use
from ..alignment.slot_pairs import SlotPair
from ..comparison import NO_INFORMATION
from ..comparison.noise import GRADIENT_FACTOR
from ..graph import Flow
from ..graph.missing_edges import find_bridge, find_enclosing_inputs, is_graph_input
from ..model.arrays import Floats, Objects
from ..model.dtypes import is_discrete
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from ..model.verdict import (
    AGREEING,
    AMPLIFIED,
    INCOMPARABLE,
    INTRODUCED,
    ISOLATED,
    PROPAGATED,
    RECONVERGED,
    UNPAIRED,
)
from ..readers.call_records import is_in_place
from ..rulebook import Rules
from .ancestries import UNKNOWN, Ancestries
from .cancellation import compute_cancellation
from .contradictions import is_reversed_difference, restore_contradictions
from .forward_walk import (
    DIVERGED,
    Walk,
    compute_mutual_errors,
    walk_forwards,
)
from .joint_graph import GraphSide, JointGraph
from .rearrangements import find_undone_orders, flag_different_tensors, is_rearranged
from .recomputation import RecomputationOfSides
from .reconvergence import find_reconverged
from .split_scalings import find_scaled_gradients, find_split_scalings
from .step_results import excuse_by_results

#: Canonical kind of a record of the gradient of a parameter.
_PARAMETER_GRADIENT = "grad:parameters"

#: Running sums and products, which may be exclusive.
_SCANS = {"cumsum", "cumprod"}
#: Error below which a pair is one tensor: another tensor is not so near by chance.
_NEAR_ERROR = 0.05
#: Times the largest error that a value depends on, up to which its own follows from that one by
#: statistics: as for values that are amplified, see ``forward_walk``.
_CONSEQUENCE_FACTOR = 10
#: Tolerances that an error may be which agrees, and which nothing else has to confirm: the rounding
#: errors of an op of either side. In a coarse dtype a wrong mask may cause no more.
_BOTH_ROUNDINGS = 2


@dataclass(frozen=True)
class States:
    """The states of the nodes of a joint graph."""

    state: Objects  #: (nodes,) words of ``model.verdict.VALUE_STATES``
    allowed_errors: Floats  #: (pairs,) the error up to which the pair would have agreed
    ancestry: Ancestries
    recomputations: Mapping[int, RecomputationOfSides]  #: node -> its operators, run again
    cancellations: Floats  #: (nodes,) sum|x| / |sum x| of the sum that produced each value


def classify(graph: JointGraph, rules: Rules) -> States:
    """Determine the state of every node, first from inputs to outputs, then back.

    A value is introduced if

    - its error is beyond its tolerance, and beyond what its operator makes of the errors of its
      agreeing inputs (measured by running it again where that is possible),
    - it is not as near to the exact result as the reference's value, and
    - all its comparable ancestors agree.

    If an ancestor does not agree, the value is propagated; it is amplified if its error exceeds
    theirs by more than ten times the conditioning. If the errors of agreeing values before that
    ancestor explain its error, it agrees once the ancestor reconverges. Every gradient depends on
    the whole forward pass. On the way back, what does not agree itself but leads only to agreement
    is reconverged, see :func:`find_reconverged`. If diverged gradients then have no cause, they
    have one in the backward pass; in a coarse dtype, where different values look equal, the forward
    pass did not reconverge. A compared value reconverges only where the two sides compute it in
    different ways, see :func:`restore_contradictions`.
    """
    pairs = graph.comparison.pairs
    errors, tolerances = compute_mutual_errors(graph), pairs["tolerance"].to_numpy()
    cancellation = compute_cancellation(graph)
    excused_pairs = find_split_scalings(graph) | find_scaled_gradients(graph)
    walk = walk_forwards(graph, rules, cancellation, excused_pairs)
    undone_orders = find_undone_orders(graph, walk.state)
    if undone_orders:
        excused_pairs |= undone_orders
        walk = walk_forwards(graph, rules, cancellation, excused_pairs)
    for node in excused_pairs:
        walk.state[node] = RECONVERGED
    allowed_errors = tolerances * cancellation[: len(pairs)]
    # gradients are allowed more than most of them show; the rest would be noticed
    is_gradient = (graph.phase[: len(pairs)] == BACKWARD) & (pairs["metric"] == "statistics")
    usual_errors = allowed_errors / np.where(is_gradient, GRADIENT_FACTOR, 1)
    noticed_errors = np.where(usual_errors > errors, usual_errors, errors)
    exceeds_tolerance = errors > tolerances * (_BOTH_ROUNDINGS if graph.is_precise else 1)
    is_final = _flag_final_differences(graph)
    limits = (errors.tolist(), noticed_errors.tolist(), exceeds_tolerance.tolist())
    final_state = _find_reconverged(graph, walk, is_final, *limits)
    if _has_unexplained_gradients(graph, final_state):
        restored_state = restore_contradictions(graph, walk, final_state)
        excused_nodes = _find_excused_nodes(graph, walk, restored_state)
        if excused_nodes and graph.is_precise:
            excused_nodes |= excused_pairs
            walk = _walk_without(graph, rules, cancellation, walk, excused_nodes)
            final_state = _find_reconverged(graph, walk, is_final, *limits)
        else:
            for node in range(len(pairs)):
                is_final[node] |= bool(graph.phase[node] == FORWARD)
            final_state = _find_reconverged(graph, walk, is_final, *limits)
    final_state = restore_contradictions(graph, walk, final_state)
    excuse_by_results(graph, final_state, is_final, errors, walk.allowed_errors)
    _restore_noisy_nodes(graph, walk, final_state)
    _demote_consequences(graph, final_state, errors)
    _demote_unrecorded_gradients(graph, final_state)
    _demote_inner_masks(graph, final_state)
    _demote_selected_rows(graph, final_state)
    _keep_foreign_values_unpaired(graph, final_state)
    _judge_slot_pairs(graph, walk, final_state, errors.tolist())
    return States(
        np.array(final_state, dtype=object),
        np.array(walk.allowed_errors),
        walk.ancestry,
        walk.recomputations,
        cancellation,
    )


def _find_reconverged(
    graph: JointGraph,
    walk: Walk,
    is_final: list[bool],
    errors: list[float],
    noticed_errors: list[float],
    exceeds_tolerance: list[bool],
) -> list[str]:
    """Return the states with reconverged nodes marked, as if what noise explains agreed.

    It shows only a difference that is larger than what noise may be there.
    """
    state, noticed_errors = list(walk.state), list(noticed_errors)
    for node, limit in walk.noise_limits.items():
        state[node], noticed_errors[node] = AGREEING, limit
    return find_reconverged(graph, state, is_final, errors, noticed_errors, exceeds_tolerance)


def _restore_noisy_nodes(graph: JointGraph, walk: Walk, state: list[str]) -> None:
    """Call what noise explains propagated again where a difference before it has not reconverged.

    Of that which agrees, noise is what was allowed.
    """
    if not walk.noise_limits:
        return
    forward_has_diverged = any(
        name in DIVERGED and phase == FORWARD
        for name, phase in zip(state, graph.phase, strict=True)
    )
    for node in sorted(walk.noise_limits, key=graph.ranks.__getitem__):
        has_cause = any(state[ancestor] in DIVERGED for ancestor in walk.ancestry[node].ancestors)
        if has_cause or (forward_has_diverged and graph.phase[node] != FORWARD):
            state[node] = PROPAGATED
        else:
            walk.allowed_errors[node] = walk.noise_limits[node]


def _find_excused_nodes(graph: JointGraph, walk: Walk, state: list[str]) -> frozenset[int]:
    """Return the compared values of the forward pass that differ and reconverged."""
    nodes = range(len(graph.comparison.pairs))
    return frozenset(
        node
        for node in nodes
        if graph.phase[node] == FORWARD
        and walk.state[node] in DIVERGED
        and state[node] == RECONVERGED
    )


def _walk_without(
    graph: JointGraph,
    rules: Rules,
    cancellation: Floats,
    walk: Walk,
    excused_nodes: frozenset[int],
) -> Walk:
    """Walk again, looking through values of another decomposition, which keep their states.

    A gradient that differs is then introduced where the gradients before it agree.
    """
    second_walk = walk_forwards(graph, rules, cancellation, excused_nodes)
    state = list(second_walk.state)
    for node in excused_nodes:
        state[node] = walk.state[node]
    ancestry = second_walk.ancestry.replace_nodes(excused_nodes, walk.ancestry)
    return replace(second_walk, state=state, ancestry=ancestry)


def _flag_final_differences(graph: JointGraph) -> list[bool]:
    """Return (nodes,) true for what is a difference whatever is computed from it.

    These are parameters and inputs that are one tensor beyond doubt, and new weights and optimizer
    state, which are kept beyond the step. A table of the same numbers in another order is none:
    what is computed from it shows whether the operators undo that order.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    is_same_tensor = (pairs["confidence"] >= CERTAIN) | (pairs["error"] < _NEAR_ERROR)
    values_t, values_r = pairs["target"].to_numpy(), pairs["reference"].to_numpy()
    is_leaf = alignment.target.producers[values_t] < 0
    is_leaf &= alignment.reference.producers[values_r] < 0
    may_be_rearranged = flag_different_tensors(graph)
    is_final = [*graph.is_kept.tolist(), *[False] * (graph.n_nodes - len(pairs))]
    nodes = np.flatnonzero(~graph.is_kept & is_same_tensor.to_numpy() & is_leaf)
    values = (values_t[nodes].tolist(), values_r[nodes].tolist())
    for node, value_t, value_r in zip(nodes.tolist(), *values, strict=True):
        is_final[node] = (
            is_graph_input(alignment.target, value_t)
            and is_graph_input(alignment.reference, value_r)
            and not (may_be_rearranged[node] and is_rearranged(graph, node))
        )
    return is_final


def _has_unexplained_gradients(graph: JointGraph, state: list[str]) -> bool:
    """Return whether a value diverged, but nothing that it depends on is introduced.

    This happens where gradients diverge because the forward pass does, but the forward pass counts
    as reconverged: what follows in it is equal, or looks equal in a coarse dtype, or its statistics
    look equal.
    """
    if PROPAGATED not in state and AMPLIFIED not in state:
        return False
    introduced_nodes = {node for node, name in enumerate(state) if name == INTRODUCED}
    if any(graph.phase[node] == FORWARD for node in introduced_nodes):
        return False
    explained_nodes: set[int] = set()
    for node in graph.order.tolist():
        has_explained_parent = not explained_nodes.isdisjoint(graph.parents[node])
        if has_explained_parent or node in introduced_nodes:
            explained_nodes.add(node)
        elif state[node] in (PROPAGATED, AMPLIFIED):
            return True
    return False


def _demote_consequences(graph: JointGraph, state: list[str], errors: Floats) -> None:
    """Call what statistics introduce after an introduced value propagated.

    Statistics that agree in between do not show that the tensors do. A difference that is much
    larger than all those that it depends on stays introduced: it has a cause of its own.
    """
    if INTRODUCED not in state:
        return
    is_statistical = (graph.comparison.pairs["metric"] == "statistics").to_numpy()
    largest_before = [0.0] * graph.n_nodes
    for node in graph.order.tolist():
        parents = graph.parents[node]
        if parents:
            largest_before[node] = max(largest_before[parent] for parent in parents)
        if state[node] != INTRODUCED:
            continue
        error = float(errors[node])
        if is_statistical[node] and error <= _CONSEQUENCE_FACTOR * largest_before[node]:
            state[node] = PROPAGATED
        largest_before[node] = max(largest_before[node], error)


def _demote_unrecorded_gradients(graph: JointGraph, state: list[str]) -> None:
    """Call gradients propagated that the update reads, no op wrote, and that differ after others.

    The backward pass computes every gradient, also those that its records lack. The state of an
    optimizer is no gradient: an op overwrites it.
    """
    n_pairs = len(graph.comparison.pairs)
    introduced_nodes = [node for node in range(n_pairs) if state[node] == INTRODUCED]
    if not any(graph.phase[node] == BACKWARD for node in introduced_nodes):
        return
    for node in introduced_nodes:
        if all(_is_unrecorded_gradient(side.flow, int(side.classes[node])) for side in graph.sides):
            state[node] = PROPAGATED


def _is_unrecorded_gradient(flow: Flow, value: int) -> bool:
    """Return whether the update reads a value that no recorded op wrote, without overwriting it."""
    if value < 0 or flow.producers[value] >= 0 or flow.list_column("phase")[value] != OPTIMIZER:
        return False
    if len(flow.scaled_gradients.get(value, ())) > 1:
        return False
    first_op = flow.consumers[value][0]
    is_overwritten = is_in_place(str(flow.trace.ops["kind"].iat[first_op]))
    return not is_overwritten or flow.reads[first_op][0] != value


def _demote_inner_masks(graph: JointGraph, state: list[str]) -> None:
    """Call masks and whole numbers propagated that no op wrote, in a module whose inputs differ.

    A recorder leaves out some of the ops that make a mask, such as that of the chosen experts.
    """
    pairs = graph.comparison.pairs
    for node in [node for node in range(len(pairs)) if state[node] == INTRODUCED]:
        inputs = [_find_inputs_of_mask(side, int(side.classes[node])) for side in graph.sides]
        if all(inputs) and any(state[value] in DIVERGED for value in chain(*inputs)):
            state[node] = PROPAGATED


def _demote_selected_rows(graph: JointGraph, state: list[str]) -> None:
    """Call numbers in another order propagated that no op wrote and that are read after a change.

    A matching chooses the rows by what differs. No recorder shows it, nor the indexing.
    """
    n_pairs = len(graph.comparison.pairs)
    is_diverged = np.array([name in DIVERGED for name in state], dtype=bool)
    is_leaf = np.ones(n_pairs, dtype=bool)
    is_read_later = np.ones(n_pairs, dtype=bool)
    for side in graph.sides:
        changed_ops = side.producers[is_diverged & (side.producers >= 0)]
        first_change = changed_ops.min(initial=len(side.flow.reads))
        is_leaf &= side.producers[:n_pairs] < 0
        is_leaf &= (side.flow.classes["parameter"] == "").to_numpy()[side.classes[:n_pairs]]
        is_read_later &= side.flow.first_reads[side.classes[:n_pairs]] > first_change
    for node in np.flatnonzero(is_diverged[:n_pairs] & is_leaf & is_read_later).tolist():
        if state[node] == INTRODUCED and is_rearranged(graph, node):
            state[node] = PROPAGATED


def _find_inputs_of_mask(side: GraphSide, value: int) -> list[int]:
    """Return the nodes that the module which made a discrete value reads; none for other values.

    A module that reads a discrete value of this size may have been given this one.
    """
    flow = side.flow
    dtypes = flow.list_column("dtype")
    is_mask = is_discrete(str(dtypes[value]))
    if not is_mask or flow.producers[value] >= 0 or flow.list_column("parameter")[value]:
        return []
    inputs = find_enclosing_inputs(flow, flow.consumers[value][0], value)
    if any(is_discrete(str(dtypes[x])) and flow.sizes[x] == flow.sizes[value] for x in inputs):
        return []
    return [int(side.nodes[read]) for read in inputs]


def _keep_foreign_values_unpaired(graph: JointGraph, state: list[str]) -> None:
    """Call what no recorded op wrote, and what has no partner, unpaired.

    That its consumers agree does not make it an intermediate value of a decomposition. A tensor
    that was joined from recorded parts is one.
    """
    alignment, n_pairs = graph.comparison.alignment, len(graph.comparison.pairs)
    for flow, classes in (
        (alignment.target, graph.target_classes),
        (alignment.reference, graph.reference_classes),
    ):
        unpaired = n_pairs + np.flatnonzero(classes[n_pairs:] >= 0)
        for node in unpaired[~flow.is_written[classes[unpaired]]].tolist():
            if node not in graph.joined_nodes:
                state[node] = UNPAIRED


def _judge_slot_pairs(
    graph: JointGraph, walk: Walk, state: list[str], errors: Sequence[float]
) -> None:
    """Set the states of slot pairs, which have no influence on others.

    A value may differ from any other by what it may differ from its own partner. A larger
    difference is isolated, or introduced if it is that of a parameter's gradient, unless the
    results of the ops differ, too, or the values differ from their own partners, or what they are
    computed from does: then a finding there explains it, or another decomposition. A result that
    one op changes and the other one does not is introduced if what follows from it differs.
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
        allowed_error = max(
            (walk.allowed_errors[value] for value in related_nodes if value < len(agrees)),
            default=0.0,
        )
        if errors[node] <= allowed_error:
            state[node] = AGREEING if allowed_error < NO_INFORMATION else INCOMPARABLE
            continue
        if pair.slot_kind == "input":
            writes_t = list(alignment.target.writes[pair.target_op])
            writes_r = list(alignment.reference.writes[pair.reference_op])
            related_nodes.update(graph.target_nodes[writes_t].tolist())
            related_nodes.update(graph.reference_nodes[writes_r].tolist())
        if any(walk.state[related] in DIVERGED for related in related_nodes):
            state[node] = PROPAGATED
            continue
        uncompared_states = {*UNKNOWN, RECONVERGED} if _passes_value(graph, pair) else UNKNOWN
        changed_nodes = [n for n in related_nodes if state[n] in uncompared_states]
        changed_nodes = [n for n in changed_nodes if graph.children[n]]
        if pair.slot_kind == "output" and changed_nodes:
            has_consequence = _leads_to_difference(graph, state, changed_nodes)
            state[node] = INTRODUCED if has_consequence else RECONVERGED
            continue
        if pair.slot_kind == "output" and (
            _is_other_scan(graph, pair, state)
            or _is_share_of_gradient(graph, pair)
            or _is_changed_unrecorded(graph, pair)
        ):
            state[node] = RECONVERGED
            continue
        if pair.slot_kind == "input" and (
            _is_applied_again(graph, pair)
            or _share_discrete_results(graph, pair)
            or is_reversed_difference(graph, node)  # squared, as the results agree
        ):
            state[node] = RECONVERGED
            continue
        differing_ancestors = [
            ancestor
            for ancestor in walk.ancestry[node].ancestors
            if walk.state[ancestor] in DIVERGED
        ]
        if any(state[ancestor] in DIVERGED for ancestor in differing_ancestors):
            state[node] = PROPAGATED
        elif not (differing_ancestors and state[node] == RECONVERGED):
            state[node] = INTRODUCED if _is_final_gradient(graph, pair) else ISOLATED


def _passes_value(graph: JointGraph, pair: SlotPair) -> bool:
    """Return whether one of the ops returns a value that it was given, such as one times it."""
    target, reference = graph.sides
    producers = (target.flow.producers[pair.target], reference.flow.producers[pair.reference])
    return producers != (pair.target_op, pair.reference_op)


def _leads_to_difference(graph: JointGraph, state: list[str], nodes: list[int]) -> bool:
    """Return whether a compared value differs that follows from nodes without a comparison."""
    open_nodes, seen_nodes = list(nodes), set(nodes)
    while open_nodes:
        for child in graph.children[open_nodes.pop()]:
            if state[child] in DIVERGED:
                return True
            if state[child] in (*UNKNOWN, RECONVERGED) and child not in seen_nodes:
                seen_nodes.add(child)
                open_nodes.append(child)
    return False


def _is_final_gradient(graph: JointGraph, pair: SlotPair) -> bool:
    """Return whether a slot holds the gradient of a parameter, which no op of a layer reads.

    One side has scaled or clipped the gradient before it was stored.
    """
    target, reference = graph.sides
    kinds = {target.kinds[pair.target_op], reference.kinds[pair.reference_op]}
    return pair.slot_kind == "output" and _PARAMETER_GRADIENT in kinds


def _is_other_scan(graph: JointGraph, pair: SlotPair, state: Sequence[str]) -> bool:
    """Return whether one side's running sum or product leaves out the current element.

    Then the other side moves its result by one place, which is no op in all records: its numbers
    are those of another value of that side.
    """
    target, reference = graph.sides
    kinds = {target.kinds[pair.target_op], reference.kinds[pair.reference_op]}
    nodes = (target.nodes[pair.target], reference.nodes[pair.reference])
    return len(kinds) == 1 and kinds <= _SCANS and any(state[node] == AGREEING for node in nodes)


def _is_share_of_gradient(graph: JointGraph, pair: SlotPair) -> bool:
    """Return whether a slot holds the gradient of a value that only one side uses elsewhere."""
    alignment = graph.comparison.alignment
    outputs = []
    for flow, op in (
        (alignment.target, pair.target_op),
        (alignment.reference, pair.reference_op),
    ):
        call = int(flow.trace.ops["forward"].iat[op])
        outputs.append(flow.writes[call][0] if call >= 0 and flow.writes[call] else -1)
    output_t, output_r = outputs
    if output_t < 0 or alignment.partners.get(output_t) != output_r:
        return False
    flows = (alignment.target, alignment.reference)
    return has_other_use(flows, alignment.partner_columns, output_t)


def _is_changed_unrecorded(graph: JointGraph, pair: SlotPair) -> bool:
    """Return whether an unrecorded op makes of one value the partner of the other one.

    No recorder of APIs shows the minus of -x, which the other side may have applied before.
    """
    target, reference = graph.sides
    ends = ((target, pair.target), (reference, pair.reference))
    for (side, value), (other_side, other_value) in (ends, ends[::-1]):
        partner = int(other_side.classes[side.nodes[value]])
        bridge = find_bridge(other_side.flow, partner) if partner >= 0 else None
        if bridge is not None and bridge.parents == (other_value,):
            return True
    return False


def _is_applied_again(graph: JointGraph, pair: SlotPair) -> bool:
    """Return whether one side applies an operator to its own result, and the other one does not.

    A maximum over 9 elements is one over 5 of one over 5. That the op reads this result has to be
    recorded as an edge: equal numbers would not show that a recorder did not exchange two values.
    """
    target, reference = graph.sides
    return _reads_own_kind(
        target, pair.target_op, pair.target_tensor, int(graph.reference_nodes[pair.reference])
    ) or _reads_own_kind(
        reference, pair.reference_op, pair.reference_tensor, int(graph.target_nodes[pair.target])
    )


def _share_discrete_results(graph: JointGraph, pair: SlotPair) -> bool:
    """Return whether all that two ops have in common are truth values, or places.

    Different numbers may have these in common. What is no padding follows from the tokens as well
    as from the attention mask of a batch, and the largest number is in the place of its logarithm.
    """
    dtypes_t, dtypes_r = (
        {
            int(side.nodes[value]): str(side.flow.list_column("dtype")[value])
            for value in side.flow.writes[op]
        }
        for side, op in zip(graph.sides, (pair.target_op, pair.reference_op), strict=True)
    )
    common_dtypes = [dtype for node, dtype in dtypes_t.items() if node in dtypes_r]
    dtypes = common_dtypes or [*dtypes_t.values(), *dtypes_r.values()]
    return bool(dtypes) and all(map(is_discrete, dtypes))


def _reads_own_kind(side: GraphSide, op: int, tensor: int, node: int) -> bool:
    """Return whether ops of the kind of ``op`` compute what it reads from the value of a node."""
    sources = side.flow.tensors["source_tensor"]
    ops = side.flow.tensors["op"]
    while (source := int(sources.iat[tensor])) >= 0:
        producer = int(ops.iat[source])
        if side.kinds[producer] != side.kinds[op]:
            return False
        inputs = [
            row
            for row in side.flow.get_tensor_ids(producer)
            if side.flow.tensors["slot_kind"].iat[row] == "input"
            and side.flow.tensor_class[row] >= 0
        ]
        if len(inputs) != 1:
            return False
        tensor = int(inputs[0])
        if side.nodes[side.flow.tensor_class[tensor]] == node:
            return True
    return False
