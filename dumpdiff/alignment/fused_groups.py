"""Fused tensors: one tensor of one side holds several of the other.

Examples are q, k and v in one weight, gate and up, all experts of a layer, their biases and
outputs, and the gradients of all of these. The output is the last value of a linear layer, after
its bias.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from ..graph import Flow, Update
from ..model.arrays import Ints
from ..model.trace import BACKWARD, FORWARD
from ..rulebook import Rules
from .matches import Matching
from .numbered_parts import find_numbered_parts
from .values import Fingerprints, compute_distances

#: Parts that a fused tensor without a name may have; more leaves are not taken for its parts.
_MAX_PARTS = 4
#: Canonical kinds of operators that give parts of their input.
CUTTING_KINDS = frozenset({"slice", "split", "unbind"})
#: Canonical kind of the operator that adds a bias.
_BIAS_KIND = "add"
#: Weights of one op or module among which those are looked for that the other side joins.
_MAX_LEAVES_TOGETHER = 8
#: Last parts of a parameter's name, in the module that has its layer and in the one around it.
_MODULE_DEPTHS = (2, 3)
#: Relative error of a sum of squares beyond which its terms are not those of one tensor.
_MAX_SQUARE_ERROR = 1e-3


@dataclass(frozen=True)
class FusedGroup:
    """Classes of both sides that together hold the same elements; one side has just one class."""

    target: tuple[int, ...]
    reference: tuple[int, ...]
    is_numbered: bool = False  #: the names of the parts give their order


@dataclass(frozen=True)
class _Side:
    """One side of a matching."""

    flow: Flow
    kinds: Sequence[str]  #: canonical operator kind of each op
    partners: Ints  #: class -> class of the other side or -1
    is_target: bool
    updates: Mapping[int, Update]  #: of the weights
    gradients: Mapping[int, int]  #: value -> its gradient

    def is_unpaired(self, value: int) -> bool:
        return bool(self.partners[value] < 0)

    def get_target_class(self, value: int) -> int:
        """Return the class of the target that a paired class of this side is."""
        return value if self.is_target else int(self.partners[value])


def find_fused_groups(
    matching: Matching,
    rules: Rules,
    updates: tuple[Mapping[int, Update], Mapping[int, Update]] = ({}, {}),
    gradients: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
) -> tuple[FusedGroup, ...]:
    """Return the fused tensors among the unpaired classes.

    They are found by canonical parameter names, by numbers in names, among the weights of one op or
    module, else by the paired value that they are read with.
    ``updates`` are those of the target's and the reference's weights, ``gradients`` those of their
    values.
    """
    target = _Side(
        matching.target, matching.kinds_t, matching.classes_t, True, updates[0], gradients[0]
    )
    reference = _Side(
        matching.reference, matching.kinds_r, matching.classes_r, False, updates[1], gradients[1]
    )
    weight_groups = []
    for whole_side, part_side in ((target, reference), (reference, target)):
        for fused_class, parts in _iterate_named_leaves(whole_side, part_side, rules):
            weight_groups += _make_groups(whole_side, fused_class, part_side, parts)
        for fused_class, parts in _find_numbered_leaves(whole_side, part_side, matching.tolerance):
            weight_groups += _make_groups(
                whole_side, fused_class, part_side, parts, is_numbered=True
            )
        for fused_class, parts in _iterate_leaves_together(
            whole_side, part_side, matching.tolerance
        ):
            weight_groups += _make_groups(whole_side, fused_class, part_side, parts)
        for fused_class, parts in _iterate_leaves_by_consumers(whole_side, part_side):
            weight_groups += _make_groups(whole_side, fused_class, part_side, parts)
    disjoint_groups = _select_disjoint(weight_groups)
    bias_groups = []
    for group in disjoint_groups:
        bias_groups += _relate_groups(target, reference, group, (_find_bias,))
    disjoint_groups = _select_disjoint([*disjoint_groups, *bias_groups])
    related_groups = []
    for group in disjoint_groups:
        related_groups += _relate_groups(target, reference, group, _RELATED_FINDERS)
    for whole_side, part_side in ((target, reference), (reference, target)):
        for weight, parts in _iterate_sliced_weights(whole_side, part_side):
            for group in _make_groups(whole_side, weight, part_side, parts):
                related_groups += _relate_groups(target, reference, group, _SLICED_FINDERS)
            gradient, part_gradients = _find_sliced_gradient(
                whole_side, weight, part_side, parts, matching.tolerance
            )
            related_groups += _make_groups(whole_side, gradient, part_side, part_gradients)
    return _select_disjoint([*disjoint_groups, *related_groups])


def _make_groups(
    whole_side: _Side,
    fused_class: int,
    part_side: _Side,
    parts: tuple[int, ...],
    *,
    is_numbered: bool = False,
) -> list[FusedGroup]:
    """Return the group of a fused class, none if the parts have other sizes."""
    if not _has_size_of_parts(whole_side.flow, fused_class, part_side.flow, parts):
        return []
    if whole_side.is_target:
        return [FusedGroup((fused_class,), parts, is_numbered)]
    return [FusedGroup(parts, (fused_class,), is_numbered)]


def _iterate_named_leaves(
    whole_side: _Side, part_side: _Side, rules: Rules
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (fused class, classes of its parts) by the names of the rules.

    Layers of an encoder and of a decoder may have one canonical name. Then the parts are of one
    module, the one whose parts together are nearest to the fused class.
    """
    for column in ("parameter", "gradient_of"):
        names = whole_side.flow.classes[column].to_numpy()
        part_classes = _index_unpaired_names(part_side, column, rules)
        for value in np.flatnonzero((whole_side.partners < 0) & (names != "")).tolist():
            for part_names in rules.split_path(rules.resolve_parameter(names[value])):
                choices = _list_part_choices(part_side, column, part_classes, part_names)
                if choices:
                    yield (
                        value,
                        _find_nearest_parts(whole_side.flow, value, part_side.flow, choices),
                    )


def _list_part_choices(
    side: _Side, column: str, classes_by_name: Mapping[str, list[int]], part_names: Sequence[str]
) -> list[tuple[int, ...]]:
    """Return the classes of parts with these canonical names, of each module that has them all."""
    names = side.flow.classes[column]
    parts_of_modules: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for part_name in part_names:
        for value in classes_by_name.get(part_name, ()):
            parts_of_modules[str(names.iat[value]).rsplit(".", 2)[0]][part_name] = value
    choices = [
        tuple(parts[part_name] for part_name in part_names)
        for parts in parts_of_modules.values()
        if len(parts) == len(part_names)
    ]
    if not choices and all(len(classes_by_name.get(name, ())) == 1 for name in part_names):
        return [tuple(classes_by_name[name][0] for name in part_names)]
    return choices


def _iterate_leaves_together(
    whole_side: _Side, part_side: _Side, tolerance: float
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (fused class, classes of its parts) of weights of one op or one module.

    A recurrent cell that is written out multiplies input and state, joined, by one kernel; a layer
    that reads joined tensors may be written as one layer for each of them. The statistics of the
    parts, taken as one tensor, are those of the whole.
    """
    flow, whole_flow = part_side.flow, whole_side.flow
    wholes_of_size: defaultdict[int, list[int]] = defaultdict(list)
    for whole in _list_open_weights(whole_side):
        wholes_of_size[int(whole_flow.sizes[whole])].append(whole)
    fingerprints = Fingerprints.from_table(flow.classes)
    whole_fingerprints = Fingerprints.from_table(whole_flow.classes)
    squares, whole_squares = (np.square(f.norms).tolist() for f in (flow, whole_flow))
    sizes = flow.sizes.tolist()
    for leaves in _list_leaves_together(part_side) if wholes_of_size else ():
        for parts in chain(*(combinations(leaves, n) for n in range(2, _MAX_PARTS + 1))):
            square = sum(squares[part] for part in parts)
            for whole in wholes_of_size.get(sum(sizes[part] for part in parts), ()):
                if not abs(whole_squares[whole] - square) <= _MAX_SQUARE_ERROR * square:
                    continue
                row, joined = np.array([whole]), fingerprints.join(parts)
                distance = compute_distances(whole_fingerprints, row, joined, np.array([0]))
                if distance[0] <= tolerance:
                    yield whole, parts


def _iterate_sliced_weights(
    whole_side: _Side, part_side: _Side
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (weight, weights of the other side that are paired with its slices)."""
    flow = whole_side.flow
    for weight in _list_open_weights(whole_side):
        slices = [
            value
            for op in _list_consumers(flow, weight, FORWARD)
            if whole_side.kinds[op] in CUTTING_KINDS
            for value in flow.writes[op]
        ]
        partners = dict.fromkeys(whole_side.partners[slices].tolist())
        parts = [value for value in partners if value >= 0 and part_side.flow.producers[value] < 0]
        if parts and len(parts) == len(partners):
            yield weight, tuple(parts)


def _find_sliced_gradient(
    whole_side: _Side, weight: int, part_side: _Side, parts: Sequence[int], tolerance: float
) -> tuple[int, tuple[int, ...]]:
    """Return the gradient of a weight that is read in slices, and those of its parts.

    It is a sum of the gradients of all slices, known by its statistics: (-1, ()) if no value has
    those of the parts.
    """
    gradients = _collect_single_values(part_side, parts, _find_leaf_gradients)
    flow = whole_side.flow
    if len(gradients) < len(parts) or not _has_size_of_parts(
        flow, weight, part_side.flow, gradients
    ):
        return -1, ()
    phases = np.asarray(flow.phases)
    is_candidate = (np.asarray(whole_side.partners) < 0) & (flow.sizes == flow.sizes[weight])
    is_candidate &= (flow.producers >= 0) & (phases[flow.producers] == BACKWARD)
    values = np.flatnonzero(is_candidate)
    joined = Fingerprints.from_table(part_side.flow.classes).join(gradients)
    distances = compute_distances(
        Fingerprints.from_table(flow.classes), values, joined, np.zeros_like(values)
    )
    if not len(values) or not distances.min() <= tolerance:
        return -1, ()
    return int(values[distances.argmin()]), gradients


def _list_open_weights(side: _Side) -> list[int]:
    """Return the unpaired parameters with several axes."""
    flow = side.flow
    is_open = (np.asarray(side.partners) < 0) & (flow.producers < 0)
    is_open &= (flow.classes["parameter"] != "").to_numpy()
    return [
        value for value in np.flatnonzero(is_open).tolist() if len(flow.shapes[value] or ()) > 1
    ]


def _list_leaves_together(side: _Side) -> list[tuple[int, ...]]:
    """Return the unpaired weights of each op, and of each module and its modules: a few of them."""
    weights = _list_open_weights(side)
    names = side.flow.list_column("parameter")
    together: defaultdict[object, list[int]] = defaultdict(list)
    for weight in weights:
        for depth in _MODULE_DEPTHS:
            together[depth, str(names[weight]).rsplit(".", depth)[0]].append(weight)
        for op in _list_consumers(side.flow, weight, FORWARD):
            together[op].append(weight)
    leaves = dict.fromkeys(map(tuple, together.values()))
    return [own for own in leaves if 1 < len(own) <= _MAX_LEAVES_TOGETHER]


def _find_nearest_parts(
    whole_flow: Flow, fused_class: int, part_flow: Flow, choices: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the parts whose statistics, taken as those of one tensor, are nearest to the whole."""
    if len(choices) == 1:
        return choices[0]
    whole = Fingerprints.from_table(whole_flow.classes.iloc[[fused_class]])
    row = np.array([0])

    def measure_distance(parts: tuple[int, ...]) -> float:
        table = part_flow.classes.iloc[list(parts)]
        joined = Fingerprints.from_table(table).join(range(len(parts)))
        return float(compute_distances(whole, row, joined, row)[0])

    return min(choices, key=measure_distance)


def _find_numbered_leaves(
    whole_side: _Side, part_side: _Side, tolerance: float
) -> Iterable[tuple[int, tuple[int, ...]]]:
    """Return (fused class, classes of its parts) by the numbers in the names of the parts."""
    leaves_w, leaves_p = (
        np.flatnonzero((side.partners < 0) & (side.flow.producers < 0)).tolist()
        for side in (whole_side, part_side)
    )
    return find_numbered_parts(
        whole_side.flow, leaves_w, part_side.flow, leaves_p, tolerance
    ).items()


def _index_unpaired_names(side: _Side, column: str, rules: Rules) -> Mapping[str, list[int]]:
    """Return canonical name -> the unpaired classes that have it."""
    names = side.flow.classes[column].to_numpy()
    classes_by_name: defaultdict[str, list[int]] = defaultdict(list)
    for value in np.flatnonzero((side.partners < 0) & (names != "")).tolist():
        classes_by_name[rules.resolve_parameter(names[value]) or names[value]].append(value)
    return classes_by_name


def _has_size_of_parts(
    whole_flow: Flow, fused_class: int, part_flow: Flow, parts: Sequence[int]
) -> bool:
    """Return whether there are several parts whose sizes add up to that of the whole."""
    sizes = part_flow.sizes[list(parts)]
    is_known = len(sizes) > 1 and int(sizes.min()) >= 0
    return is_known and int(whole_flow.sizes[fused_class]) == int(sizes.sum())


def _iterate_leaves_by_consumers(
    whole_side: _Side, part_side: _Side
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (fused leaf, its parts): unpaired leaves that are read with the same paired value."""
    part_leaves = _index_leaves_by_value(part_side)
    for value, whole_leaves in _index_leaves_by_value(whole_side).items():
        parts = part_leaves.get(value, [])
        if len(whole_leaves) == 1 and 1 < len(parts) <= _MAX_PARTS:
            yield whole_leaves[0], tuple(parts)


def _index_leaves_by_value(side: _Side) -> Mapping[int, list[int]]:
    """Return paired computed value (as target class) -> unpaired weights that are read with it.

    Only forward ops that read one computed value count. Records of module calls count where no op
    was recorded: those of larger modules hold other leaves.
    """
    op_leaves: defaultdict[int, list[int]] = defaultdict(list)
    module_leaves: defaultdict[int, list[int]] = defaultdict(list)
    levels = side.flow.levels
    is_open_leaf = (np.asarray(side.partners) < 0) & (side.flow.producers < 0)
    for op in np.flatnonzero(side.flow.flag_readers(is_open_leaf)).tolist():
        computed_values, weight = _find_weight_read(side, op)
        if len(computed_values) != 1 or weight < 0 or not side.is_unpaired(weight):
            continue
        leaves_of = op_leaves if levels[op] == "op" else module_leaves
        value_leaves = leaves_of[side.get_target_class(computed_values[0])]
        if weight not in value_leaves:
            value_leaves.append(weight)
    return {**module_leaves, **op_leaves}


def _find_weight_read(side: _Side, op: int) -> tuple[list[int], int]:
    """Return the paired computed values that a forward op reads, and its largest leaf, -1 if none.

    A linear layer in one op reads its bias, too, which is smaller.
    """
    flow = side.flow
    computed_values: list[int] = []
    weight = -1
    if flow.phases[op] != FORWARD:
        return computed_values, weight
    producers, sizes = flow.list_column("producer"), flow.list_column("size")
    for value in flow.reads[op]:
        if producers[value] >= 0:
            if not side.is_unpaired(value):
                computed_values.append(value)
        elif sizes[value] > 1 and (weight < 0 or sizes[value] > sizes[weight]):
            weight = value
    return computed_values, weight


def _relate_groups(
    target: _Side,
    reference: _Side,
    group: FusedGroup,
    finders: Sequence[Callable[[_Side, int], list[int]]],
) -> list[FusedGroup]:
    """Return what finders relate to the leaves of a group, as groups: it is fused as they are."""
    related_groups = []
    for find_related in finders:
        values_t = _collect_single_values(target, group.target, find_related)
        values_r = _collect_single_values(reference, group.reference, find_related)
        if len(group.target) <= len(group.reference):
            whole_side, wholes, part_side, parts = target, values_t, reference, values_r
            n_parts = len(group.reference)
        else:
            whole_side, wholes, part_side, parts = reference, values_r, target, values_t
            n_parts = len(group.target)
        if len(wholes) != 1 or len(set(parts)) != n_parts:
            continue
        if _has_size_of_parts(whole_side.flow, wholes[0], part_side.flow, parts):
            related_groups.append(FusedGroup(values_t, values_r, group.is_numbered))
    return related_groups


def _collect_single_values(
    side: _Side, leaves: Sequence[int], find_related: Callable[[_Side, int], list[int]]
) -> tuple[int, ...]:
    """Return the unpaired related value of each leaf that has exactly one."""
    single_values = []
    for leaf in leaves:
        unpaired_values = [v for v in find_related(side, leaf) if side.is_unpaired(v)]
        if len(unpaired_values) == 1:
            single_values.append(unpaired_values[0])
    return tuple(single_values)


def _find_new_weight(side: _Side, leaf: int) -> list[int]:
    update = side.updates.get(leaf)
    return [update.new_weight] if update is not None and update.new_weight >= 0 else []


def _find_first_moment(side: _Side, leaf: int) -> list[int]:
    return _find_moments(side, leaf, is_second=False)


def _find_second_moment(side: _Side, leaf: int) -> list[int]:
    return _find_moments(side, leaf, is_second=True)


def _find_moments(side: _Side, leaf: int, is_second: bool) -> list[int]:
    """Return the moments of a weight: a second moment has no negative element, a first one has."""
    update = side.updates.get(leaf)
    if update is None:
        return []
    smallest = side.flow.list_column("min")
    return [value for value in update.states if (smallest[value] >= 0) == is_second]


def _find_side_outputs(side: _Side, leaf: int) -> list[int]:
    return find_outputs(side.flow, side.kinds, leaf)


def find_outputs(flow: Flow, kinds: Sequence[str], leaf: int) -> list[int]:
    """Return what forward ops compute from a leaf: of a linear layer the sum with its bias.

    ``kinds`` are the canonical operator kinds of the ops.
    """
    outputs: dict[int, None] = {}
    for op in _list_consumers(flow, leaf, FORWARD):
        for value in flow.writes[op]:
            bias_op = _find_bias_op(flow, kinds, value)
            sums = flow.writes[bias_op] if bias_op >= 0 else (value,)
            outputs.update(dict.fromkeys(sums))
    return list(outputs)


def _find_bias(side: _Side, weight: int) -> list[int]:
    """Return the leaves that are added to a weight's products: by the op itself or after it."""
    flow = side.flow
    biases: dict[int, None] = {}
    for op in _list_consumers(flow, weight, FORWARD):
        if flow.trace.ops["level"].iat[op] != "op":
            continue
        readers = [op]
        for value in flow.writes[op]:
            bias_op = _find_bias_op(flow, side.kinds, value)
            if bias_op >= 0:
                readers.append(bias_op)
        for reader in readers:
            for value in flow.reads[reader]:
                is_leaf = flow.producers[value] < 0 and flow.sizes[value] > 1
                if is_leaf and value != weight:
                    biases[value] = None
    return list(biases)


def _find_bias_op(flow: Flow, kinds: Sequence[str], value: int) -> int:
    """Return the op that adds a smaller leaf to a value and alone reads it, -1 if there is none."""
    consumers = _list_consumers(flow, value, FORWARD)
    if len(consumers) != 1 or kinds[consumers[0]] != _BIAS_KIND:
        return -1
    others = [other for other in flow.reads[consumers[0]] if other != value]
    is_bias = [
        flow.producers[other] < 0 and 1 < flow.sizes[other] < flow.sizes[value] for other in others
    ]
    return consumers[0] if is_bias == [True] else -1


def _find_output_gradients(side: _Side, leaf: int) -> list[int]:
    """Return the gradients of a leaf's outputs.

    Where they are not known, they are the values that backward ops read with the leaf and that
    have the size of an output.
    """
    flow = side.flow
    outputs = _find_side_outputs(side, leaf)
    known_gradients = dict.fromkeys(
        side.gradients[value] for value in outputs if value in side.gradients
    )
    if known_gradients:
        return list(known_gradients)
    output_sizes = {int(flow.sizes[value]) for value in outputs}
    gradients: dict[int, None] = {}
    for op in _list_consumers(flow, leaf, BACKWARD):
        for value in flow.reads[op]:
            if value != leaf and int(flow.sizes[value]) in output_sizes:
                gradients[value] = None
    return list(gradients)


def _find_leaf_gradients(side: _Side, leaf: int) -> list[int]:
    """Return the gradient of a leaf: as known, by name, else by dataflow.

    By dataflow it has the leaf's size and is computed from the gradient of an output and from a
    value that forward ops read with the leaf.
    """
    flow = side.flow
    if leaf in side.gradients:
        return [side.gradients[leaf]]
    name = flow.classes["parameter"].iat[leaf]
    if name:
        named_gradients = np.flatnonzero((flow.classes["gradient_of"] == name).to_numpy()).tolist()
        if named_gradients:
            return list(named_gradients)
    forward_ops = _list_consumers(flow, leaf, FORWARD)
    other_inputs = {value for op in forward_ops for value in flow.reads[op]} - {leaf}
    gradients: dict[int, None] = {}
    for output_gradient in _find_output_gradients(side, leaf):
        for op in _list_consumers(flow, output_gradient, BACKWARD):
            if other_inputs.intersection(flow.reads[op]):
                gradients.update(dict.fromkeys(flow.writes[op]))
    return [value for value in gradients if flow.sizes[value] == flow.sizes[leaf]]


def _list_consumers(flow: Flow, value: int, phase: str) -> list[int]:
    return [op for op in flow.consumers[value] if flow.phases[op] == phase]


#: What is fused as a weight or a bias is.
_RELATED_FINDERS = (
    _find_side_outputs,
    _find_output_gradients,
    _find_leaf_gradients,
    _find_new_weight,
    _find_first_moment,
    _find_second_moment,
)


#: The same of a weight whose slices are weights of the other side.
_SLICED_FINDERS = (_find_leaf_gradients, _find_new_weight, _find_first_moment, _find_second_moment)


def _select_disjoint(groups: Sequence[FusedGroup]) -> tuple[FusedGroup, ...]:
    """Return the groups without those that share a class with an earlier group."""
    used_classes: set[tuple[str, int]] = set()
    disjoint_groups = []
    for group in groups:
        members = {("target", value) for value in group.target}
        members |= {("reference", value) for value in group.reference}
        if members.isdisjoint(used_classes):
            used_classes |= members
            disjoint_groups.append(group)
    return tuple(disjoint_groups)
