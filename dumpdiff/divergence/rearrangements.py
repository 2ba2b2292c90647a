"""Ops that put the numbers of a value in another order before a difference.

Whole tensors show the order of numbers, statistics do not. But where an op cuts a value into parts,
statistics of the parts show which is which: if both sides cut off the same parts in another order,
what they cut is in another order.

All tensors that hold the same numbers are one value, in whatever order. So a roll, a flip or a cut
and join that only one side makes is no value of its own. It shows where an op computes with the
rearranged numbers, and belongs to the difference there.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from ..alignment.fused_groups import CUTTING_KINDS
from ..comparison.layouts import has_common_order
from ..comparison.metrics import compute_metrics
from ..comparison.whole_tensors import load_pair
from ..graph.gradients import MATRIX_PRODUCT_KINDS
from ..model.arrays import AnyArray, Flags
from ..model.recorded_shapes import drop_unit_axes, have_one_order, load_readable_tensor
from ..model.trace import FORWARD
from ..model.verdict import AGREEING, INTRODUCED
from .joint_graph import GraphSide, JointGraph

#: Elements of a tensor that is read. A larger one would take seconds.
_MAX_ELEMENTS = 1 << 22
#: Share of an error that is left if the elements are sorted: the noise of those before it.
_SORTED_SHARE = 1e-3
#: Relative difference of the squared norm of a value, and of all its parts together. Statistics are
#: float32 sums: up to 3e-6 was measured.
_NORM_ERROR = 1e-4
#: Kinds of ops that combine two values element by element.
_ELEMENT_KINDS = {"add", "sub", "mul", "div", "maximum", "minimum"}
#: Kind of the op that takes elements by indices of their own, row by row.
_GATHERING_KIND = "gather_elements"
#: Word in the layouts with exchanged axes, and values in a row that may have one.
_EXCHANGED, _MAX_CHAIN = "transpose", 32
_PLAIN_LAYOUTS = ("same", "reshape")
#: Unit roundoff of bfloat16. A smaller difference may be one of precision.
_LARGEST_ROUNDOFF = 2.0**-8


def find_rearranging_ops(
    graph: JointGraph, ancestors: Sequence[int], ops: tuple[Sequence[int], Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return the ops of both sides that rearranged what ``ops`` read of agreeing values.

    ``ancestors`` are the nodes of these values. None are returned for a value that the ops of both
    sides read in one order, or of which one side has no whole tensor.
    """
    rearranging_ops: tuple[list[int], list[int]] = ([], [])
    pairs = graph.comparison.pairs
    for node in ancestors:
        if node >= len(pairs) or pairs["metric"].iat[node] != "relative_l2":
            continue
        rows = [
            _find_read_row(side, int(side.classes[node]), side_ops)
            for side, side_ops in zip(graph.sides, ops, strict=True)
        ]
        arrays = [_load(side, row) for side, row in zip(graph.sides, rows, strict=True)]
        if not _are_rearranged(arrays[0], arrays[1]):
            continue
        for side, row, found_ops in zip(graph.sides, rows, rearranging_ops, strict=True):
            op = _find_first_rearrangement(side, int(side.classes[node]), row)
            if op >= 0 and op not in found_ops:
                found_ops.append(op)
    origins = [
        _find_exchange(graph, node) for node in _list_exchanged_operands(graph, ancestors, ops)
    ]
    for origin in (*origins, *_list_rearranged_wholes(graph, ancestors)):
        for side, found_ops in zip(graph.sides, rearranging_ops, strict=True):
            for op in _list_ops_before_exchange(graph, side, origin):
                if op not in found_ops:
                    found_ops.append(op)
    return rearranging_ops


def _list_rearranged_wholes(graph: JointGraph, ancestors: Sequence[int]) -> list[int]:
    """Return the values in another order of which agreeing values are parts or rearrangements."""
    agrees = graph.comparison.pairs["agrees"].to_numpy()
    wholes = dict.fromkeys(
        parent
        for node in ancestors
        for parent in graph.parents[node]
        if parent < len(agrees) and not agrees[parent] and graph.phase[parent] == FORWARD
    )
    return [whole for whole in wholes if is_rearranged(graph, whole)]


def _list_ops_before_exchange(graph: JointGraph, side: GraphSide, origin: int) -> list[int]:
    """Return the ops of one side that lead from the last agreement to a value in another order.

    A weight whose rows have another order is read by the first of them.
    """
    pairs = graph.comparison.pairs
    agrees = pairs["agrees"].to_numpy()
    ops = [side.find_producer(origin)]
    if ops == [-1] and side.classes[origin] >= 0:
        ops = list(side.flow.users[int(side.classes[origin])][:1])
    visited = [origin]
    for node in visited:  # grows while it is read
        for parent in graph.parents[node]:
            differs = parent < len(pairs) and not agrees[parent]
            if differs and parent not in visited and len(visited) < _MAX_CHAIN:
                visited.append(parent)
                ops.append(side.find_producer(parent))
    return sorted({op for op in ops if op >= 0})


def _list_exchanged_operands(
    graph: JointGraph, ancestors: Sequence[int], ops: tuple[Sequence[int], Sequence[int]]
) -> list[int]:
    """Return the values with exchanged axes that are combined with one without, or read as if none.

    Element by element, an operator does not undo the exchange of one of its operands. The other one
    has its size, or is larger or smaller: a bias of scores is the same for each sequence, and all
    masks multiply one mixture. Nor does it undo an exchange that its shape does not show.
    """
    pairs = graph.comparison.pairs
    nodes = [node for node in ancestors if node < len(pairs) and graph.phase[node] == FORWARD]
    layouts = pairs["layout"].to_numpy()[nodes].tolist()
    flow = graph.sides[0].flow
    sizes = [int(flow.sizes[graph.sides[0].classes[node]]) for node in nodes]
    plain_sizes = {
        size for layout, size in zip(layouts, sizes, strict=True) if layout in _PLAIN_LAYOUTS
    }
    return [
        node
        for node, layout, size in zip(nodes, layouts, sizes, strict=True)
        if _EXCHANGED in layout
        and (
            size in plain_sizes
            or any(_is_broadcast(graph, node, ops, plain_size) for plain_size in plain_sizes)
            or _is_hidden_exchange(graph, node, layout)
            or _is_multiplied(graph, node, ops)
            or (plain_sizes and _is_read_by(graph, node, ops, {_GATHERING_KIND}))
        )
    ]


def _is_multiplied(graph: JointGraph, node: int, ops: tuple[Sequence[int], Sequence[int]]) -> bool:
    """Return whether both sides have one shape of a value, and read it in a product of matrices.

    A product that is given a transposed matrix of another shape transposes it back.
    """
    shape, other_shape = map(drop_unit_axes, _get_shapes(graph, node))
    return shape == other_shape and _is_read_by(graph, node, ops, MATRIX_PRODUCT_KINDS)


def _get_shapes(graph: JointGraph, node: int) -> list[tuple[int, ...]]:
    """Return the shapes of the two tensors that were compared."""
    pairs = graph.comparison.pairs
    rows = pairs["target_tensor"].iat[node], pairs["reference_tensor"].iat[node]
    return [
        side.flow.tensors["shape"].iat[int(row)] or ()
        for side, row in zip(graph.sides, rows, strict=True)
    ]


def _is_hidden_exchange(graph: JointGraph, node: int, layout: str) -> bool:
    """Return whether both sides have one shape, and another one if the axes are exchanged."""
    shapes = _get_shapes(graph, node)
    order = [int(axis) for axis in layout.partition("(")[2].rstrip(")").split(",")]
    moved_side = int(not layout.startswith(_EXCHANGED))
    if len(shapes[moved_side]) != len(order):
        return False
    exchanged_shape = tuple(shapes[moved_side][axis] for axis in order)
    other_shape = shapes[1 - moved_side]
    return have_one_order(*shapes) and not have_one_order(exchanged_shape, other_shape)


def _is_broadcast(
    graph: JointGraph, node: int, ops: tuple[Sequence[int], Sequence[int]], plain_size: int
) -> bool:
    """Return whether ops of both sides combine a value with one of another size, element-wise."""
    size = int(graph.sides[0].flow.sizes[graph.sides[0].classes[node]])
    small_size, large_size = sorted((size, plain_size))
    return (
        1 < small_size < large_size
        and large_size % small_size == 0
        and _is_read_by(graph, node, ops, _ELEMENT_KINDS)
    )


def _is_read_by(
    graph: JointGraph,
    node: int,
    ops: tuple[Sequence[int], Sequence[int]],
    kinds: Collection[str],
) -> bool:
    """Return whether ops of both sides that have one of some kinds read a value."""
    return all(
        any(
            int(side.classes[node]) in side.flow.reads[op] and side.kinds[op] in kinds
            for op in side_ops
        )
        for side, side_ops in zip(graph.sides, ops, strict=True)
    )


def _find_exchange(graph: JointGraph, node: int) -> int:
    """Return the first pair with exchanged axes among those that one is computed from, or itself.

    What is computed from i - j in place of j - i, value by value, is that of the other side with
    two axes exchanged.
    """
    layouts = graph.comparison.pairs["layout"].to_numpy()
    visited = [node]
    for current in visited:  # grows while it is read
        for parent in graph.parents[current]:
            is_followed = parent >= len(layouts) or _EXCHANGED in layouts[parent]
            if is_followed and parent not in visited and len(visited) < _MAX_CHAIN:
                visited.append(parent)
    exchanged = [
        value for value in visited if value < len(layouts) and _EXCHANGED in layouts[value]
    ]
    return min(exchanged, key=graph.ranks.__getitem__)


def find_exchanged_parts(
    graph: JointGraph, ancestors: Sequence[int], ops: tuple[Sequence[int], Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return the ops of both sides that computed a value whose parts ``ops`` read exchanged.

    ``ancestors`` are the nodes of agreeing values that the ops read. Two of them are exchanged
    parts if both sides cut them from one value, or one side does and the other one has them without
    an op, and ops of one kind with results of one size read one of them on the target and the other
    one on the reference. Where no op computed the value, the ops are those that cut it.
    """
    nodes_of_whole: defaultdict[int, set[int]] = defaultdict(set)
    for node in ancestors:
        parents = set(graph.parents[node])
        if len(parents) == 1:
            nodes_of_whole[parents.pop()].add(node)
    computing_ops: tuple[list[int], list[int]] = ([], [])
    for whole, parts in nodes_of_whole.items():
        are_cut = [_is_cut(side, sorted(parts), whole) for side in graph.sides]
        are_given = [all(side.find_producer(part) < 0 for part in parts) for side in graph.sides]
        if not any(are_cut) or not all(map(operator.or_, are_cut, are_given)):
            continue
        readers = [
            _collect_readers(side, parts, side_ops)
            for side, side_ops in zip(graph.sides, ops, strict=True)
        ]
        if not _are_exchanged(readers[0], readers[1]):
            continue
        for side, side_ops in zip(graph.sides, computing_ops, strict=True):
            producer = side.find_producer(whole)
            cutting_ops = [side.find_producer(part) for part in sorted(parts)]
            side_ops.extend(op for op in ([producer] if producer >= 0 else cutting_ops) if op >= 0)
    return computing_ops


def find_misread_parts(
    graph: JointGraph, ancestors: Sequence[int], ops: tuple[Sequence[int], Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return the ops of either side that cut a part which only ``ops`` of this side read.

    ``ancestors`` are the nodes of agreeing values that the ops read. Other ops of the other side
    read the same part. So the difference begins where the part was chosen: the keys in place of
    the values of one projection.
    """
    cutting_ops: tuple[list[int], list[int]] = ([], [])
    for node in ancestors:
        for i, side in enumerate(graph.sides):
            other, other_ops = graph.sides[1 - i], ops[1 - i]
            value, other_value = int(side.classes[node]), int(other.classes[node])
            producer = side.find_producer(node)
            if other_value < 0 or producer < 0 or side.kinds[producer] not in CUTTING_KINDS:
                continue
            is_read = any(value in side.flow.reads[op] for op in ops[i])
            other_readers = [
                op for op in other.flow.consumers[other_value] if other.flow.phases[op] == FORWARD
            ]
            is_read_elsewhere = bool(other_readers) and not set(other_readers) & set(other_ops)
            if is_read and is_read_elsewhere and producer not in cutting_ops[i]:
                cutting_ops[i].append(producer)
    return cutting_ops


def find_other_splits(
    graph: JointGraph, ancestors: Sequence[int], unpaired_nodes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the ops that computed a fused tensor of one side, and the other side's parts of it.

    ``ancestors`` are the nodes of agreeing values. A fused tensor agrees with the parts together,
    in whatever order its rows are. If it is split into as many parts of these sizes, and none of
    them, which are among ``unpaired_nodes``, is one of the other side, its rows are in another
    order.
    """
    computing_ops: tuple[list[int], list[int]] = ([], [])
    groups = graph.comparison.pairs["group"]
    for node in ancestors:
        group = groups.iat[node] if node < len(groups) else None
        if group is None:
            continue
        values = (group.target, group.reference)
        producers = [
            side.flow.producers[list(own)].tolist()
            for side, own in zip(graph.sides, values, strict=True)
        ]
        for side, own, other, others in zip(
            graph.sides, values, graph.sides[::-1], values[::-1], strict=True
        ):
            sizes = sorted(other.flow.sizes[list(others)].tolist())
            is_fused = len(own) == 1 < len(others)
            if is_fused and _list_sizes_of_parts(graph, side, node, unpaired_nodes) == sizes:
                for ops, found_ops in zip(computing_ops, producers, strict=True):
                    ops.extend(op for op in found_ops if op >= 0)
    return computing_ops


def _list_sizes_of_parts(
    graph: JointGraph, side: GraphSide, whole: int, nodes: Sequence[int]
) -> list[int]:
    """Return the sizes of the values among some nodes that one side cut, [] if not from a whole.

    Where the cut is not recorded, that one of them comes from the whole is known at least.
    """
    parts = []
    for node in nodes:
        producer = side.find_producer(node)
        if side.classes[node] >= 0 and (producer < 0 or side.kinds[producer] in CUTTING_KINDS):
            parts.append(node)
    if not any(whole in graph.parents[part] for part in parts):
        return []
    return sorted(side.flow.sizes[side.classes[parts]].tolist())


def find_common_sources(
    graph: JointGraph, state: Sequence[str], ancestors_of: Callable[[int], Sequence[int]]
) -> dict[int, int]:
    """Return node -> the last agreeing value that it and another introduced one are computed from.

    Statistics do not show the order of numbers. If several ops that read the results of one op
    diverge there, although they do not depend on each other, a result in another order explains
    all of them. Only values that are compared by statistics count, and differences that no
    rounding makes.
    """
    pairs = graph.comparison.pairs
    is_statistical = (pairs["metric"] == "statistics").tolist()
    errors = pairs["error"].tolist()
    nodes_of_source: defaultdict[int, list[int]] = defaultdict(list)
    for node in range(len(pairs)):
        is_candidate = state[node] == INTRODUCED and graph.phase[node] == FORWARD
        if not is_candidate or not is_statistical[node] or not errors[node] > _LARGEST_ROUNDOFF:
            continue
        sources = {_find_whole(graph, ancestor) for ancestor in ancestors_of(node)}
        for source in sources:
            is_computed = source < len(pairs) and is_statistical[source]
            if is_computed and all(side.find_producer(source) >= 0 for side in graph.sides):
                nodes_of_source[source].append(node)
    places = {node: place for place, node in enumerate(graph.order.tolist())}
    source_of: dict[int, int] = {}
    for source in sorted(nodes_of_source, key=places.__getitem__):
        if len(nodes_of_source[source]) > 1:
            source_of.update(dict.fromkeys(nodes_of_source[source], source))
    return source_of


def _find_whole(graph: JointGraph, node: int) -> int:
    """Return the value that a node is a part of; else the node.

    Only known values may have parts: cut by a recorded op, or read without one.
    """
    parents = graph.parents[node]
    if len(parents) != 1:
        return node
    if all(side.find_producer(node) < 0 for side in graph.sides):
        return parents[0]
    siblings = [child for child in graph.children[parents[0]] if graph.parents[child] == parents]
    for side in graph.sides:
        parts = [sibling for sibling in siblings if side.classes[sibling] >= 0]
        if node in parts and side.classes[parents[0]] >= 0 and _is_cut(side, parts, parents[0]):
            return parents[0]
    return node


def _is_cut(side: GraphSide, parts: Sequence[int], whole: int) -> bool:
    """Return whether nodes are the parts that a value is cut into, all of them.

    Their sizes and squared norms add up to those of the value.
    """
    values = side.classes[[whole, *parts]]
    if (values < 0).any() or len(parts) < 2:
        return False
    sizes, squares = side.flow.sizes[values], np.square(side.flow.norms[values])
    is_close = abs(float(squares[1:].sum() - squares[0])) <= _NORM_ERROR * float(squares[0])
    return is_close and int(sizes[1:].sum()) == int(sizes[0])


def _collect_readers(
    side: GraphSide, nodes: Iterable[int], ops: Sequence[int]
) -> dict[tuple[str, int], set[int]]:
    """Return (kind, elements of the result) -> which of some nodes such ops read."""
    readers: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for op in ops:
        operands = {int(side.nodes[value]) for value in side.flow.operands[op]}
        size = max((int(side.flow.sizes[value]) for value in side.flow.writes[op]), default=0)
        readers[side.kinds[op], size] |= operands.intersection(nodes)
    return dict(readers)


def _are_exchanged(
    target: Mapping[tuple[str, int], set[int]], reference: Mapping[tuple[str, int], set[int]]
) -> bool:
    """Return whether the same nodes are read on both sides, as many by ops alike, but others.

    Where one op of one side is several of the other, ops may read more nodes on one side.
    """
    if set().union(*target.values()) != set().union(*reference.values()):
        return False
    common_keys = target.keys() & reference.keys()
    if any(len(target[key]) != len(reference[key]) for key in common_keys):
        return False
    return any(target[key] != reference[key] for key in common_keys)


def _find_read_row(side: GraphSide, value: int, ops: Sequence[int]) -> int:
    """Return the first tensor by which one of the ops reads a value, -1 if none does."""
    slot_kinds = side.flow.tensors["slot_kind"]
    for op in ops:
        for row in side.flow.get_tensor_ids(op).tolist():
            if side.flow.tensor_class[row] == value and slot_kinds.iat[row] != "output":
                return int(row)
    return -1


def _find_first_rearrangement(side: GraphSide, value: int, read_row: int) -> int:
    """Return the first op before a read that gives a value in another order than its producer.

    -1 if none does.
    """
    flow = side.flow
    written = _load(side, int(flow.list_column("tensor")[value]))
    ops = flow.tensors["op"].to_numpy()
    is_candidate = flow.is_computed & (flow.tensor_class == value) & (ops < ops[read_row])
    is_candidate &= ops != flow.producers[value]
    rows = is_candidate.nonzero()[0]
    for row in rows[ops[rows].argsort(kind="stable")].tolist():
        if _are_rearranged(_load(side, row), written):
            return int(ops[row])
    return -1


def _are_rearranged(first: AnyArray | None, second: AnyArray | None) -> bool:
    """Return whether two whole tensors of one value hold its numbers in different orders.

    False if one is missing, or is a part of a fused tensor.
    """
    if first is None or second is None or first.size != second.size:
        return False
    return not has_common_order(first, second)


def _load(side: GraphSide, row: int) -> AnyArray | None:
    """Return a whole tensor in its recorded shape, None if there is none or it is too large."""
    if row < 0 or side.flow.tensors["size"].iat[row] > _MAX_ELEMENTS:
        return None
    return load_readable_tensor(side.flow.trace, row)


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


def find_undone_orders(graph: JointGraph, state: Sequence[str]) -> frozenset[int]:
    """Return the values that one side holds in another order, which a product undoes.

    No layout explains the order, as that of joined patches, but the product with a weight in this
    order agrees. So the order is no cause of other differences, such as the sum of a gradient over
    several calls. A weight is none of them: see :mod:`.misread_layouts`.
    """
    return frozenset(
        node
        for node in np.flatnonzero(flag_different_tensors(graph)).tolist()
        if state[node] == INTRODUCED
        and any(side.find_producer(node) >= 0 for side in graph.sides)
        and any(_is_agreeing_product(graph, state, node, child) for child in graph.children[node])
        and is_rearranged(graph, node)
    )


def _is_agreeing_product(graph: JointGraph, state: Sequence[str], node: int, child: int) -> bool:
    """Return whether a matrix product that reads a value on either side agrees."""
    if child >= len(graph.comparison.pairs) or state[child] != AGREEING:
        return False
    producers = [(side, side.find_producer(child)) for side in graph.sides]
    return any(
        side.kinds[producer] in MATRIX_PRODUCT_KINDS
        and int(side.classes[node]) in side.flow.operands[producer]
        for side, producer in producers
        if producer >= 0
    )
