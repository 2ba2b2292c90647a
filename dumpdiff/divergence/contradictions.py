"""Differences that count as values of another decomposition, although no record shows one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ..alignment.confidence import GUESSES
from ..graph.missing_edges import has_missing_producer
from ..model.trace import BACKWARD, FORWARD
from ..model.verdict import AGREEING, INTRODUCED, ISOLATED, RECONVERGED
from .forward_walk import DIVERGED, Walk
from .joint_graph import GraphSide, JointGraph
from .rearrangements import is_rearranged
from .split_scalings import multiplies_one_value

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
#: Kinds whose inputs cannot be exchanged.
_ORDERED_KINDS = frozenset({"sub", "div"})


def restore_contradictions(graph: JointGraph, walk: Walk, final_state: list[str]) -> list[str]:
    """Return the states without excuses for which there is no evidence.

    A compared value that differs is excused as an intermediate value of another decomposition only
    if one was recorded: other operators, other inputs, or values without a partner before it. If
    both sides compute it by one operator from partners, it stays a difference, and so does what
    follows from it. If nothing follows from it, it is isolated: what was computed from it agrees,
    so the operators did not read the numbers that one record holds, unless the pair was only a
    guess and other operators read it on either side. That the scores of a softmax
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
    consequences = _list_consequences(walk)
    equivalent_kinds = _learn_equivalent_kinds(graph, walk)
    for node in excused_nodes:
        ancestry = walk.ancestry[node]
        is_same = _has_same_operation(graph, walk, node, equivalent_kinds)
        if is_same and not ancestry.has_diverged:
            if not consequences[node]:
                is_excused = _may_be_noise(graph, node) or _is_no_partner(graph, node)
                state[node] = RECONVERGED if is_excused else ISOLATED
            elif not _reads_hidden_scores(graph, node) and not _leads_to_no_partners(
                graph, node, consequences, final_state
            ):
                state[node] = INTRODUCED
        elif any(state[ancestor] in DIVERGED for ancestor in ancestry.ancestors):
            state[node] = walk.state[node]
    return state


def _may_be_noise(graph: JointGraph, node: int) -> bool:
    """Return whether the statistics of a gradient differ by no more than noise ever does.

    So may whole tensors that no recorded op computed: what their inputs' errors are is not known.
    """
    pair = graph.comparison.pairs.iloc[node]
    is_uncertain = pair["metric"] == "statistics" or all(
        side.find_producer(node) < 0 for side in graph.sides
    )
    is_gradient = graph.phase[node] == BACKWARD and is_uncertain
    return is_gradient and bool(pair["error"] <= _NOISE_TOLERANCES * pair["tolerance"])


def _is_no_partner(graph: JointGraph, node: int) -> bool:
    """Return whether a pair was a guess that what reads it does not confirm: two other values."""
    is_guess = graph.comparison.pairs["evidence"].iat[node] in GUESSES
    return is_guess and _has_other_readers(graph, node)


def _leads_to_no_partners(
    graph: JointGraph, node: int, consequences: Mapping[int, list[int]], state: Sequence[str]
) -> bool:
    """Return whether a guessed pair leads to no difference but excused pairs of other values.

    One side multiplies what it adds up by weights, the other side both factors by their roots: the
    weights and the roots are no partners, nor are the products.
    """
    if graph.comparison.pairs["evidence"].iat[node] not in GUESSES:
        return False
    return all(
        state[other] == RECONVERGED and not consequences[other] and _is_no_partner(graph, other)
        for other in consequences[node]
    )


def _list_consequences(walk: Walk) -> Mapping[int, list[int]]:
    """Return node -> the values that differ and of which it is a nearest compared ancestor.

    What may be noise is none.
    """
    consequences: defaultdict[int, list[int]] = defaultdict(list)
    for node, state in enumerate(walk.state):
        if state in DIVERGED and node not in walk.noise_limits:
            for ancestor in walk.ancestry[node].ancestors:
                consequences[ancestor].append(node)
    return consequences


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
    if any(graph.sizes[unpaired] > 1 for unpaired in walk.ancestry[node].unpaired_nodes):
        return False
    kind_t, kind_r = _get_producer_kinds(graph, node)
    if not kind_t or not kind_r:
        is_unrecorded = bool(kind_t or kind_r)
        return not (is_unrecorded and graph.comparison.pairs["evidence"].iat[node] in GUESSES)
    is_equivalent = kind_t == kind_r or (kind_t, kind_r, graph.phase[node]) in equivalent_kinds
    return is_equivalent and _has_same_inputs(graph, node, walk.state)


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
    a - (-2) b in another order. So is 1 - (a - (1 - b)), where only the other side computes 2 - a.
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
        reads_node = [node in operands for operands in operands_of_sides]
        return any(reads_node) and _is_apart(graph.sides[reads_node.index(False)], node, reader)
    is_in_order = _get_producer_kinds(graph, reader)[0] in _ORDERED_KINDS
    has_other_place = operands_t.index(node) != operands_r.index(node)
    return sorted(operands_t) != sorted(operands_r) or (is_in_order and has_other_place)


def _is_apart(side: GraphSide, node: int, reader: int) -> bool:
    """Return whether a side's record shows all that a pair is computed from, and no other pair.

    Neither its operands nor what these are computed from is the other pair, perhaps cast.
    """
    flow, producer = side.flow, side.find_producer(reader)
    operands = flow.operands[producer] if producer >= 0 else ()
    for value in operands:
        source = int(flow.producers[value])
        earlier_values = flow.operands[source] if source >= 0 else ()
        if has_missing_producer(flow, value) or node in side.nodes[list(earlier_values)]:
            return False
    return bool(operands)


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
