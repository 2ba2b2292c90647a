"""Differences that need no cause: values of another decomposition, which agree again after it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import product

import numpy as np

from ..alignment.confidence import GUESSES
from ..comparison.metrics import compute_metrics
from ..comparison.whole_tensors import load_pair
from ..graph import Flow
from ..model.arrays import Flags, Floats, Ints
from ..model.trace import BACKWARD, FORWARD
from ..model.verdict import AGREEING, INTRODUCED, ISOLATED, RECONVERGED
from .ancestries import UNKNOWN
from .error_bounds import build_visibility_function
from .forward_walk import DIVERGED, Walk, flag_diverged
from .joint_graph import JointGraph
from .split_scalings import multiplies_one_value
from .unread_gradients import find_gradients_of_inputs, find_unread_gradients

_EXTREMES = ["max", "min"]
#: Share of a tensor's scale up to which two statistics are one number with its sign. Signs show in
#: the first digit; noise and the rounding of bfloat16 do not.
_SIGN_ERROR = 0.01
#: How often two kinds of operators must give the same result before they count as one.
_MIN_LEARNED = 2
#: Kinds whose gradient is not unique where inputs are equal: PyTorch shares it between both inputs
#: of a maximum, and MindSpore gives all to one.
_TIED_KINDS = frozenset({"max", "min", "maximum", "minimum"})

#: Tolerances of a gradient by which the noise of its statistics may exceed it: the tolerance is
#: four of the dtype (see ``comparison.noise``), and noise at most 64 of these.
_NOISE_TOLERANCES = 16
_FILL_KIND, _SOFTMAX_KIND, _EPSILON = "masked_fill", "softmax", "epsilon"
#: Absolute error of a score that changes its probability by this share of it.
_SHOWN_SCORE = 1e-3
#: Share of an error that is left if the elements are sorted: the noise of those before it.
_SORTED_SHARE = 1e-3
#: Kinds whose inputs cannot be exchanged.
_ORDERED_KINDS = frozenset({"sub", "div"})


def find_reconverged(
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
    sum, if the branch is small, in particular in a coarse dtype. A value that may follow from it by
    the order of execution only shows nothing if others follow by the record: the target of a loss,
    which a batch gave, would agree whatever was predicted.

    What a value is computed back into counts as computed from it, as in x + (q - x) = q, where the
    difference leads to a value that was there before.

    The last value of a path, such as a loss, never reconverges, and neither does what is
    ``is_final``. Of a value of the forward pass, only the forward pass counts: gradients that read
    it may differ for another reason. In a coarse dtype, where different values look equal, they
    count as well. A value that agrees only because its inputs have
    errors (``exceeds_tolerance``) counts as agreement only if everything that is computed from it
    agrees too.

    A value without a partner is compared at its ends, too, if some agreeing tensor is computed from
    it and nothing that was compared of what is computed from it differs: a wrong value would show
    there. What else is computed from it may be without a partner, as the steps of a recurrent cell
    or a branch of the gradients. A single number is no such end. The same holds for a value that
    differs from its partner only in the order of its numbers, as images and their patches.
    """
    state = list(initial_state)
    is_precise = graph.is_precise
    compute_visibility = build_visibility_function(graph)
    returned_nodes = _find_returned_nodes(graph)
    removing_results = _find_removing_results(graph, state, returned_nodes)
    has_differences = any(name in DIVERGED for name in state)
    unused_nodes = find_gradients_of_inputs(graph) if has_differences else set()
    unread_sums = find_unread_gradients(graph, state, unused_nodes) if has_differences else {}
    # what these ops give back was there before, so it comes earlier in the order
    returned_ends = {end for results in removing_results.values() for end in results}
    # error of each node from which on some agreeing value below would have noticed it
    noticeable_errors = [math.inf] * graph.n_nodes
    agrees = np.array(state, dtype=object) == AGREEING
    agrees[: len(exceeds_tolerance)] &= ~np.array(exceeds_tolerance, dtype=bool)
    agrees[len(exceeds_tolerance) :] = False
    leads_to_agreement: list[bool] = agrees.tolist()
    ranks = graph.ranks
    for node in reversed(graph.sort_nodes(~agrees)):
        if _leads_nowhere(graph, node, state, unused_nodes):
            unused_nodes.add(node)
        sums = unread_sums.get(node, {})
        ends = _list_ends(graph, node, state, returned_nodes, unused_nodes)
        if is_precise and graph.phase[node] == FORWARD and state[node] != AGREEING:
            ends = _select_forward_ends(graph, state, ends)
        ends = [end for end in ends if not _is_wrong_guess(graph, state, node, end)]
        ends = ends or removing_results.get(node, []) or list(sums)
        agreeing_ends = [
            end
            for end in ends
            if leads_to_agreement[end]
            and (ranks[end] > ranks[node] or end in returned_ends or end in sums)
        ]
        recorded_ends = [end for end in agreeing_ends if end not in graph.guessed_nodes]
        for end in recorded_ends or agreeing_ends:
            visibility = compute_visibility(node, end) * sums.get(end, 1.0)
            if visibility > 0:
                limit = noticed_errors[end] if state[end] == AGREEING else noticeable_errors[end]
                noticeable_errors[node] = min(noticeable_errors[node], limit / visibility)
        all_agree_below = len(agreeing_ends) == len(ends)
        if state[node] == AGREEING:
            leads_to_agreement[node] = all_agree_below
            continue
        if not ends or not all_agree_below or is_final[node]:
            continue
        if state[node] in UNKNOWN or not errors[node] <= noticeable_errors[node]:
            state[node] = RECONVERGED
            leads_to_agreement[node] = True
    _mark_compared_at_ends(graph, state, leads_to_agreement, returned_nodes)
    return state


def _list_ends(
    graph: JointGraph,
    node: int,
    state: Sequence[str],
    returned_nodes: Mapping[int, set[int]],
    unused_nodes: Collection[int],
) -> list[int]:
    """Return what is computed from a node and has consequences.

    A child without a partner has none if it leads back to the node only, as a copy does that has
    its numbers. One from which nothing new is computed has none if it has no partner and is unused,
    or if ops compute from it what was there before: of x / 2, where(x == y, x / 2, x) shows that
    nothing comes of it. Then x is the end, in place of x / 2.
    """
    ends: dict[int, None] = {}
    for child in graph.children[node]:
        only_leads_back = set(graph.children[child]) == {node}
        if state[child] in UNKNOWN and (child in unused_nodes or only_leads_back):
            continue
        if state[child] not in UNKNOWN or graph.children[child]:
            ends[child] = None
        elif child in returned_nodes:
            ends.update(dict.fromkeys(sorted(returned_nodes[child] - {node})))
        else:
            ends[child] = None
    return list(ends)


def _is_wrong_guess(graph: JointGraph, state: Sequence[str], node: int, end: int) -> bool:
    """Return whether only the order of execution says that an agreeing end follows from a node.

    It was there before the node, as its rank says. So a constant of zeros that no recorded op made
    is taken for the result of the op before it.
    """
    is_guess = end in graph.guessed_nodes and state[end] == AGREEING
    return is_guess and bool(graph.ranks[end] <= graph.ranks[node])


def _leads_nowhere(
    graph: JointGraph, node: int, state: Sequence[str], unused_nodes: Collection[int]
) -> bool:
    """Return whether nothing follows from a gradient but gradients that no parameter needs."""
    if state[node] not in UNKNOWN or graph.phase[node] != BACKWARD:
        return False
    children = graph.children[node]
    return bool(children) and all(child in unused_nodes for child in children)


def _select_forward_ends(graph: JointGraph, state: Sequence[str], ends: list[int]) -> list[int]:
    """Return the ends of a forward value that tell whether it is right; all, if none is known.

    Gradients read it, too, and may differ for another reason. What reads a value without a partner,
    of which only one side has one here, was not recorded: the other ends tell more.
    """
    forward_ends = [end for end in ends if graph.phase[end] == FORWARD]
    unknown_ends = [end for end in forward_ends if state[end] in UNKNOWN]
    lost_ends = [end for end in unknown_ends if not graph.children[end]]
    if len({bool(graph.target_classes[end] >= 0) for end in lost_ends}) == 1:
        forward_ends = [end for end in forward_ends if end not in lost_ends] or forward_ends
    return forward_ends or ends


def _mark_compared_at_ends(
    graph: JointGraph,
    state: list[str],
    leads_to_agreement: Sequence[bool],
    returned_nodes: Mapping[int, set[int]],
) -> None:
    """Mark values without comparison as reconverged where an agreeing tensor depends on them.

    Of a value that differs in the order of its numbers, the order is what was not compared.
    The second pass follows ops that give back values which were there before them: the slices of
    what was stacked, or a sum with a term of zeros. The value that such an op reads has no other
    trace than those.
    """
    sizes = _measure_sizes(graph)
    names = np.array(state, dtype=object)
    agrees, differs = names == AGREEING, flag_diverged(names)
    is_covered = (agrees & leads_to_agreement & (sizes > 1)).tolist()
    touches_difference = differs.tolist()
    for node in _find_uncompared_gradients(graph, state, sizes.tolist()):
        touches_difference[node] = True
    is_compared = agrees | differs
    rearranged_nodes = _find_rearranged_nodes(graph, state, is_covered)
    for node in rearranged_nodes:
        touches_difference[node] = is_compared[node] = False
    open_nodes = graph.sort_nodes(~is_compared)[::-1]
    for is_second_pass in (False, True):
        for node in open_nodes:
            ends: Sequence[int] = graph.children[node]
            if is_second_pass and node in returned_nodes:
                ends = [*ends, *returned_nodes[node]]
            touches_difference[node] |= any(touches_difference[end] for end in ends)
            if touches_difference[node] or not any(is_covered[end] for end in ends):
                continue
            is_covered[node] = True
            if state[node] in UNKNOWN or node in rearranged_nodes:
                state[node] = RECONVERGED


def _find_rearranged_nodes(
    graph: JointGraph,
    state: list[str],
    is_covered: Sequence[bool],
) -> set[int]:
    """Return the nodes of the same numbers in another order from which an agreeing one follows."""
    return {
        node
        for node in np.flatnonzero(flag_different_tensors(graph)).tolist()
        if state[node] == INTRODUCED
        and any(is_covered[end] for end in graph.children[node])
        and is_rearranged(graph, node)
    }


def _find_uncompared_gradients(
    graph: JointGraph, state: list[str], sizes: Sequence[int]
) -> set[int]:
    """Return the nodes that may be the gradient of a parameter that found no partner.

    These are the gradients that a record names, and of the other side the results of that size that
    nothing is computed from. They are ends that should have been compared. A gradient with the
    numbers of another one that agrees was compared: the two biases of a recurrent layer have one
    gradient, and the other side may have one bias.
    """
    alignment = graph.comparison.alignment
    n_pairs = len(graph.comparison.pairs)
    uncompared_nodes: set[int] = set()
    for flow, classes, other_classes in (
        (alignment.target, graph.target_classes, graph.reference_classes),
        (alignment.reference, graph.reference_classes, graph.target_classes),
    ):
        names = flow.list_column("gradient_of")
        named_nodes = [
            node
            for node in range(n_pairs, graph.n_nodes)
            if classes[node] >= 0 and names[classes[node]]
        ]
        agreeing_nodes = [
            node
            for node in (range(n_pairs) if named_nodes else ())
            if names[classes[node]] and state[node] == AGREEING
        ]
        agreeing_numbers = _read_numbers(flow, classes[agreeing_nodes])
        is_known = [
            bool(np.isclose(agreeing_numbers, numbers, alignment.tolerance, 0).all(axis=1).any())
            for numbers in _read_numbers(flow, classes[named_nodes])
        ]
        named_nodes = [node for node, known in zip(named_nodes, is_known, strict=True) if not known]
        missing_sizes = {sizes[node] for node in named_nodes}
        uncompared_nodes.update(named_nodes)
        for node in range(n_pairs, graph.n_nodes):
            is_result = other_classes[node] >= 0 and not graph.children[node]
            if is_result and graph.phase[node] == BACKWARD and sizes[node] in missing_sizes:
                uncompared_nodes.add(node)
    return {node for node in uncompared_nodes if state[node] in UNKNOWN}


def _read_numbers(flow: Flow, values: Ints) -> Floats:
    """Return (values, 4) their sizes, extremes and norms."""
    return flow.classes[["size", "max", "min", "norm"]].to_numpy(dtype=float)[values]


def _find_returned_nodes(graph: JointGraph) -> dict[int, set[int]]:
    """Return node -> the values that ops compute from it and that another op computed before.

    MindSpore's Assign returns what it stores, which equal numbers alone do not show of one number.
    """
    alignment = graph.comparison.alignment
    returned_nodes: defaultdict[int, set[int]] = defaultdict(set)
    for flow, nodes in (
        (alignment.target, graph.target_nodes),
        (alignment.reference, graph.reference_nodes),
    ):
        ops = flow.tensors["op"].to_numpy()
        rows = np.flatnonzero(flow.is_computed & (flow.tensor_class >= 0))
        classes = flow.tensor_class[rows]
        is_returned = flow.producers[classes] != ops[rows]
        returned_rows = zip(
            ops[rows[is_returned]].tolist(), classes[is_returned].tolist(), strict=True
        )
        for op, value in returned_rows:
            for source in flow.reads[op]:
                if source != value:
                    returned_nodes[int(nodes[source])].add(int(nodes[value]))
        for op in np.flatnonzero(flow.trace.ops["kind"].to_numpy() == "Assign").tolist():
            for stored, value in product(flow.reads[op], flow.writes[op]):
                if flow.sizes[value] == 1 and flow.norms[stored] == flow.norms[value]:
                    returned_nodes[int(nodes[value])].add(int(nodes[stored]))
    return returned_nodes


def _find_removing_results(
    graph: JointGraph,
    state: list[str],
    returned_nodes: Mapping[int, set[int]],
) -> dict[int, list[int]]:
    """Return node -> the values of its size that ops compute from it and that were there before.

    Only nodes that differ and that nothing else is computed from have any.
    """
    if not any(name in DIVERGED for name in state):
        return {}
    sizes = _measure_sizes(graph).tolist()
    results: dict[int, list[int]] = {}
    for node, returned in returned_nodes.items():
        if state[node] not in DIVERGED or graph.children[node]:
            continue
        results[node] = sorted(end for end in returned if sizes[end] == sizes[node])
    return results


def _measure_sizes(graph: JointGraph) -> Ints:
    """Return (nodes,) the number of elements of each value."""
    alignment = graph.comparison.alignment
    sizes = np.zeros(graph.n_nodes, dtype=np.int64)
    for flow, classes in (
        (alignment.reference, graph.reference_classes),
        (alignment.target, graph.target_classes),
    ):
        has_value = classes >= 0
        sizes[has_value] = flow.sizes[classes[has_value]]
    return sizes


def restore_contradictions(graph: JointGraph, walk: Walk, final_state: list[str]) -> list[str]:
    """Return the states without excuses for which there is no evidence.

    A compared value that differs is excused as an intermediate value of another decomposition only
    if one was recorded: other operators, other inputs, or values without a partner before it. If
    both sides compute it by one operator from partners, it stays a difference, and so does what
    follows from it. If nothing follows from it, it is isolated: what was computed from it agrees,
    so the operators did not read the numbers that one record holds. That the scores of a softmax
    are partners shows nothing if their statistics do not show the scores. A gradient is not
    isolated if its statistics differ by what may be noise: that of a root near zero multiplies
    errors which its input does not show.
    """
    state = list(final_state)
    is_reconverged = np.array(state, dtype=object) == RECONVERGED
    excused_nodes = [
        node for node in graph.sort_nodes(is_reconverged) if walk.state[node] in DIVERGED
    ]
    if not excused_nodes:
        return state
    has_consequence = _flag_consequences(graph, walk)
    equivalent_kinds = _learn_equivalent_kinds(graph, walk)
    for node in excused_nodes:
        ancestry = walk.ancestry[node]
        is_same = _has_same_operation(graph, walk, node, equivalent_kinds)
        if is_same and not ancestry.has_diverged:
            if not has_consequence[node]:
                state[node] = RECONVERGED if _may_be_noise(graph, node) else ISOLATED
            elif not _reads_hidden_scores(graph, node):
                state[node] = INTRODUCED
        elif any(state[ancestor] in DIVERGED for ancestor in ancestry.ancestors):
            state[node] = walk.state[node]
    return state


def _may_be_noise(graph: JointGraph, node: int) -> bool:
    """Return whether the statistics of a gradient differ by no more than noise ever does."""
    pair = graph.comparison.pairs.iloc[node]
    is_gradient = graph.phase[node] == BACKWARD and pair["metric"] == "statistics"
    return is_gradient and bool(pair["error"] <= _NOISE_TOLERANCES * pair["tolerance"])


def _flag_consequences(graph: JointGraph, walk: Walk) -> list[bool]:
    """Return (nodes,) whether a value differs of which the node is a nearest compared ancestor."""
    has_consequence = [False] * graph.n_nodes
    for node, state in enumerate(walk.state):
        if state in DIVERGED and node not in walk.noise_limits:
            for ancestor in walk.ancestry[node].ancestors:
                has_consequence[ancestor] = True
    return has_consequence


def _learn_equivalent_kinds(graph: JointGraph, walk: Walk) -> frozenset[tuple[str, str, str]]:
    """Return the kinds of two operators that turn agreeing values into agreeing ones repeatedly.

    Each with the phase: x * x is x ** 2, but the gradients of both differ. Partners that do not
    agree show nothing: dividing by a root is multiplying by an inverse root.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for node, state in enumerate(walk.state):
        is_evidence = state == AGREEING and not walk.ancestry[node].has_diverged
        if is_evidence and _has_same_inputs(graph, node, walk.state):
            counts[(*_get_producer_kinds(graph, node), graph.phase[node])] += 1
    return frozenset(kinds for kinds, count in counts.items() if count >= _MIN_LEARNED)


def _has_same_operation(
    graph: JointGraph,
    walk: Walk,
    node: int,
    equivalent_kinds: frozenset[tuple[str, str, str]],
) -> bool:
    """Return whether no record shows that the sides compute a pair in different ways.

    Equal numbers in another order, which no layout explains, show one. So do inputs whose axes are
    in another order, other scalar arguments before other operators, a - b before b - a, the
    gradient of a maximum, and an operator of one side only, if no number says that its result is
    the other side's value.
    """
    if is_rearranged(graph, node) or _has_exchanged_axes(graph, node):
        return False
    if is_reversed_difference(graph, node) or _is_shared_at_ties(graph, node):
        return False
    has_other_numbers = _has_other_numbers(graph, node) and _has_other_readers(graph, node)
    if has_other_numbers or _is_gradient_of_difference(graph, walk, node):
        return False
    if any(_get_size(graph, unpaired) > 1 for unpaired in walk.ancestry[node].unpaired_nodes):
        return False
    kind_t, kind_r = _get_producer_kinds(graph, node)
    if not kind_t or not kind_r:
        is_unrecorded = bool(kind_t or kind_r)
        return not (is_unrecorded and graph.comparison.pairs["evidence"].iat[node] in GUESSES)
    is_equivalent = kind_t == kind_r or (kind_t, kind_r, graph.phase[node]) in equivalent_kinds
    return is_equivalent and _has_same_inputs(graph, node, walk.state)


def flag_different_tensors(graph: JointGraph) -> Flags:
    """Return (pairs,) whether two whole tensors differ; all others are not rearranged."""
    pairs = graph.comparison.pairs
    is_whole = pairs["metric"].to_numpy() == "relative_l2"
    flags: Flags = is_whole & ~(pairs["error"].to_numpy() <= pairs["tolerance"].to_numpy())
    return flags


def is_rearranged(graph: JointGraph, node: int) -> bool:
    """Return whether two whole tensors hold the same numbers in another order.

    The files are read: recorded statistics would not show that one of them holds something else.
    """
    pairs = graph.comparison.pairs
    tolerance = float(pairs["tolerance"].iat[node])
    if pairs["metric"].iat[node] != "relative_l2" or pairs["error"].iat[node] <= tolerance:
        return False
    a, b = load_pair(graph.comparison.alignment, pairs, node)
    if a is None or b is None or a.size != b.size:
        return False
    sorted_error = compute_metrics(np.sort(a, axis=None), np.sort(b, axis=None), 0).relative_l2
    return bool(sorted_error <= max(tolerance, _SORTED_SHARE * pairs["error"].iat[node]))


def _is_shared_at_ties(graph: JointGraph, node: int) -> bool:
    """Return whether a pair is a gradient that is not unique where both inputs are equal."""
    return graph.phase[node] == BACKWARD and set(_get_producer_kinds(graph, node)) <= _TIED_KINDS


def is_reversed_difference(graph: JointGraph, node: int) -> bool:
    """Return whether both sides subtract, and the statistics of one value are the other's negated.

    The norm may have any sign. What follows shows whether the sign is right.
    """
    if _get_producer_kinds(graph, node) != ("sub", "sub"):
        return False
    rows = [side.flow.classes.iloc[int(side.classes[node])] for side in graph.sides]
    numbers, others = (row[_EXTREMES].to_numpy(dtype=float) for row in rows)
    slack = _SIGN_ERROR * np.abs(numbers).max()
    is_same = np.abs(numbers - others).max() <= slack
    is_negated = np.abs(numbers + others[::-1]).max() <= slack
    means, norms = ([float(row[name]) for row in rows] for name in ("mean", "norm"))
    is_negated &= not abs(means[0] + means[1]) > slack  # some dumps have no means
    is_negated &= abs(norms[0] - norms[1]) <= _SIGN_ERROR * norms[0]
    return bool(is_negated and not is_same)


def _has_exchanged_axes(graph: JointGraph, node: int) -> bool:
    """Return whether the producers of a pair read tensors with axes in another order."""
    shapes_of_sides = []
    for side in graph.sides:
        flow = side.flow
        producer = side.find_producer(node)
        if producer < 0:
            return False
        rows = flow.get_tensor_ids(producer)
        rows = rows[(flow.tensors["slot_kind"].to_numpy()[rows] == "input")]
        shapes = [shape for shape in flow.tensors["shape"].iloc[rows] if shape]
        shapes_of_sides.append(shapes)
    shapes_t, shapes_r = shapes_of_sides
    return len(shapes_t) == len(shapes_r) and any(
        shape_t != shape_r and sorted(shape_t) == sorted(shape_r)
        for shape_t, shape_r in zip(shapes_t, shapes_r, strict=True)
    )


def _has_other_numbers(graph: JointGraph, node: int) -> bool:
    """Return whether the producers of a pair take other numbers."""
    checks = (_has_other_scalars, multiplies_one_value, _has_other_fill)
    return any(is_other(graph, node) for is_other in checks)


def _has_other_scalars(graph: JointGraph, node: int) -> bool:
    """Return whether the producers of a pair have scalar arguments that differ.

    What another epsilon does to a norm, no other operator takes back.
    """
    target, reference = graph.sides
    scalars = graph.comparison.scalars[graph.comparison.scalars["argument"] != _EPSILON]
    is_of_pair = scalars["target_op"] == target.find_producer(node)
    is_of_pair &= scalars["reference_op"] == reference.find_producer(node)
    return bool(is_of_pair.any())


def _is_gradient_of_difference(graph: JointGraph, walk: Walk, node: int) -> bool:
    """Return whether the pair of forward values differs that a pair of gradients belongs to.

    It is another quantity, such as the queries times another part of the scale, and so is its
    gradient.
    """
    if graph.phase[node] != BACKWARD:
        return False
    return any(
        walk.state[int(side.nodes[value])] in (*DIVERGED, RECONVERGED)
        for side, values_of in zip(graph.sides, graph.values_of_gradients, strict=True)
        for value in values_of.get(int(side.classes[node]), ())
    )


def _reads_hidden_scores(graph: JointGraph, node: int) -> bool:
    """Return whether a softmax reads scores whose statistics show only what masks filled in.

    The scores of rows that a later mask takes away, as those of padding, may be any.
    """
    kind_t, kind_r = _get_producer_kinds(graph, node)
    if not kind_t == kind_r == _SOFTMAX_KIND:
        return False
    pairs = graph.comparison.pairs
    for side in graph.sides:
        scores = [int(side.nodes[value]) for value in side.flow.reads[side.find_producer(node)]]
        for read in [score for score in scores if score < len(pairs)]:
            error_scale = pairs["tolerance"].iat[read] * side.rms[side.classes[read]]
            # an unknown scale, such as that of infinite numbers, shows no score either
            if pairs["metric"].iat[read] == "statistics" and not error_scale <= _SHOWN_SCORE:
                return True
    return False


def _has_other_fill(graph: JointGraph, node: int) -> bool:
    """Return whether both sides fill whole numbers under a mask, each with another number.

    What counts pixels of no class as the first class, and leaves them out, is what counts them as
    one class more, and drops it.
    """
    if _get_producer_kinds(graph, node) != (_FILL_KIND, _FILL_KIND):
        return False
    numbers = []
    for side in graph.sides:
        tensors = side.flow.tensors
        rows = side.flow.get_tensor_ids(side.find_producer(node))
        table = tensors.iloc[rows]
        numbers.append(table["max"][table["constant"] & (table["size"] == 1)].tolist())
    return all(numbers) and numbers[0] != numbers[1]


def _has_other_readers(graph: JointGraph, node: int) -> bool:
    """Return whether no operator of both sides computes a pair alike from this one, in its phase.

    One side multiplies by -1 for 1 / (1 + exp(-x)), the other one by 1 for a sigmoid. A gradient
    that is doubled until it is clipped goes through the same operators on both sides.
    """
    n_pairs = len(graph.comparison.pairs)
    for reader in graph.children[node]:
        if reader < n_pairs and graph.phase[reader] == graph.phase[node]:
            kind_t, kind_r = _get_producer_kinds(graph, reader)
            if kind_t == kind_r and not _is_compensated(graph, node, reader):
                return False
    return True


def _is_compensated(graph: JointGraph, node: int, reader: int) -> bool:
    """Return whether the operators that read a forward pair read it with other things.

    Where one side scales the queries, the other one scales queries and keys by the root; a - 2 b is
    a - (-2) b in another order.
    """
    if graph.phase[node] != FORWARD:
        return False
    operands_of_sides = []
    for side in graph.sides:
        producer = side.find_producer(reader)
        operands = side.flow.operands[producer] if producer >= 0 else []
        operands_of_sides.append([int(side.nodes[value]) for value in operands])
    operands_t, operands_r = operands_of_sides
    if node not in operands_t or node not in operands_r:
        return False
    is_in_order = _get_producer_kinds(graph, reader)[0] in _ORDERED_KINDS
    has_other_place = operands_t.index(node) != operands_r.index(node)
    return sorted(operands_t) != sorted(operands_r) or (is_in_order and has_other_place)


def _get_producer_kinds(graph: JointGraph, node: int) -> tuple[str, str]:
    """Return the canonical kinds of the producers of a pair, '' where none was recorded.

    The node of a fused tensor has several values on one side, and no producer there.
    """
    kinds = []
    for side in graph.sides:
        value = int(side.classes[node])
        producer = int(side.flow.producers[value]) if value >= 0 else -1
        kinds.append(side.kinds[producer] if producer >= 0 else "")
    kind_t, kind_r = kinds
    return kind_t, kind_r


def _has_same_inputs(graph: JointGraph, node: int, states: Sequence[str]) -> bool:
    """Return whether the producers of a pair read partners, apart from single numbers.

    A gradient follows from what its forward call read, too, which has to agree: ``states`` are
    those of the nodes.
    """
    inputs = []
    for side in graph.sides:
        flow, nodes, value = side.flow, side.nodes, side.classes[node]
        producer = int(flow.producers[value]) if value >= 0 else -1
        if producer < 0:
            return False
        values = list(flow.reads[producer])
        call = int(flow.trace.ops["forward"].iat[producer])
        if call >= 0:
            call_inputs = [value for value in flow.operands[call] if flow.sizes[value] > 1]
            if any(states[nodes[value]] in DIVERGED for value in call_inputs):
                return False
            values += call_inputs
        inputs.append({int(nodes[value]) for value in values if flow.sizes[value] > 1})
    return inputs[0] == inputs[1]


def _get_size(graph: JointGraph, node: int) -> int:
    """Return the number of elements of a node's value."""
    alignment = graph.comparison.alignment
    if graph.target_classes[node] >= 0:
        return int(alignment.target.sizes[graph.target_classes[node]])
    return int(alignment.reference.sizes[graph.reference_classes[node]])
