"""Relations that no value of the other run proves: replicated, summed, left out or concatenated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Flow, collect_recorded_gradients
from ..model.arrays import Flags
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER
from ..readers.call_records import is_in_place
from .batch_slices import BatchSlices
from .kinds import list_kind_keys
from .other_run import OtherRun
from .partial_sums import list_reductions, list_summand_patterns
from .relation import Relation, add_parts, join_parts
from .relations import RowRelations
from .sibling_tensors import Siblings

#: Relative difference up to which a parameter of one rank is a whole parameter of the other run.
_PARAMETER_ERROR = 1e-4
#: Ops between a partial sum and the collective that adds it up: a cast, a bias, a dropout.
_MAX_OPS_BEFORE_SUM = 3


@dataclass(frozen=True)
class CompleteRelations:
    """The relation of every row, None if it means something on one rank only."""

    relations: tuple[Relation | None, ...]
    separate_modules: tuple[str, ...]  #: modules that each rank has of its own, such as experts


def complete_relations(
    siblings: Siblings, other: OtherRun, slices: BatchSlices, row_relations: RowRelations
) -> CompleteRelations:
    """Decide the relations that no value of the other run proves."""
    relations = list(row_relations.relations)
    separate_scopes = _find_separate_scopes(siblings, other, relations)
    is_left_out = _flag_loss_gradients(siblings, slices)
    is_left_out |= _flag_separate_rows(siblings, separate_scopes)
    for row in np.flatnonzero(is_left_out).tolist():
        relations[row] = None
    is_closed = is_left_out | siblings.is_constant
    slice_pattern = _find_slice_pattern(siblings, slices, relations)
    if slice_pattern is not None:
        _cut_repeated_gradients(siblings, slices, slice_pattern, is_closed, relations)
        _cut_equal_slices(siblings, slices, slice_pattern, other, is_closed, relations)
    _replicate_equal_values(siblings, is_closed, relations)
    _sum_named_gradients(siblings, slices, relations)
    _sum_recorded_gradients(siblings, slices, is_closed, relations)
    _sum_reduced_values(siblings, row_relations.is_proved, relations)
    _replicate_updates(siblings, relations)
    _replicate_by_size(siblings, other, is_closed, relations)
    for row in np.flatnonzero(~is_closed & ~siblings.is_discrete).tolist():
        if relations[row] is not None:
            continue
        if siblings.sizes[row].max() == 1:
            relations[row] = _add_numbers(siblings, slices, row_relations.groups[0], row)
            continue
        factor = slices.factor if siblings.may_be_gradient[row] else 1.0
        relations[row] = join_parts(tuple(siblings.labels[row].tolist()), factor)
    return CompleteRelations(tuple(relations), tuple(sorted(separate_scopes)))


def _flag_loss_gradients(siblings: Siblings, slices: BatchSlices) -> Flags:
    """Return (tensors,) the gradients of single numbers where the batch is cut into slices.

    The loss of a slice and the loss of the batch have other gradients: 1/2 and 1.
    """
    if slices.count < 2:
        return np.zeros(len(siblings.rows), dtype=bool)
    flags: Flags = (siblings.phases == BACKWARD) & (siblings.sizes.max(axis=1) == 1)
    return flags


def _find_separate_scopes(
    siblings: Siblings, other: OtherRun, relations: list[Relation | None]
) -> set[str]:
    """Return the modules that each rank has of its own, such as the experts of a rank.

    They are those whose parameters are each a whole parameter of the other run.
    """
    scopes = set()
    for row, name in enumerate(siblings.collect_base("parameter").tolist()):
        is_open = relations[row] is None and not siblings.is_constant[row]
        if not name or not is_open or len(set(siblings.labels[row].tolist())) == 1:
            continue
        errors = np.full(siblings.n_ranks, _PARAMETER_ERROR)
        entries = other.index.find(siblings.sizes[row], siblings.statistics[row], errors)
        if (entries >= 0).all():
            scopes.add(name.rpartition(".")[0])
    return scopes


def _flag_separate_rows(siblings: Siblings, scopes: set[str]) -> Flags:
    """Return (tensors,) what belongs to modules that each rank has of its own.

    Their gradients are added to the gradient norm on each rank in an order of its own.
    """
    is_parameter = siblings.collect_base("parameter") != ""
    is_gathered = (is_parameter & ~siblings.is_present.all(axis=1)).any()
    if not scopes and not is_gathered:
        return np.zeros(len(siblings.rows), dtype=bool)
    flow = siblings.flows[siblings.base]
    ops = flow.tensors["op"].to_numpy()
    is_pass = np.isin(flow.phases, (FORWARD, BACKWARD))
    is_addition = flow.trace.ops["kind"].str.lower().str.contains("add").to_numpy()
    is_separate = flow.trace.ops["scope"].isin(scopes).to_numpy()
    flags: Flags = (siblings.sizes.max(axis=1) == 1) & (is_addition & ~is_pass)[ops]
    flags |= is_separate[ops]
    flags &= ~siblings.is_constant
    return flags


def _find_slice_pattern(
    siblings: Siblings, slices: BatchSlices, relations: Sequence[Relation | None]
) -> tuple[int, ...] | None:
    """Return which ranks have the same slice of the batch; None: unknown, or it is not cut."""
    if slices.count < 2:
        return None
    if slices.count == siblings.n_ranks:
        return tuple(range(siblings.n_ranks))
    patterns: Counter[tuple[int, ...]] = Counter()
    for relation in relations:
        if relation is not None and not relation.is_sum and len(relation.parts) == slices.count:
            patterns[relation.pattern] += 1
    return max(patterns, key=patterns.__getitem__, default=None)


def _cut_repeated_gradients(
    siblings: Siblings,
    slices: BatchSlices,
    slice_pattern: tuple[int, ...],
    is_closed: Flags,
    relations: list[Relation | None],
) -> None:
    """Take gradients of one repeated number for slices.

    They are what the mean of the loss gives each token: equal on all ranks, and yet not shared.
    """
    if slices.factor == 1.0:
        return
    highs, lows = siblings.statistics[:, 0, 0], siblings.statistics[:, 0, 1]
    is_repeated = (highs == lows) & (highs != 0) & siblings.may_be_gradient
    for row in np.flatnonzero(is_repeated & ~is_closed & _flag_equal(siblings)).tolist():
        relation = relations[row]
        if relation is None or relation.is_replicated:
            relations[row] = join_parts(slice_pattern, slices.factor)


def _cut_equal_slices(
    siblings: Siblings,
    slices: BatchSlices,
    slice_pattern: tuple[int, ...],
    other: OtherRun,
    is_closed: Flags,
    relations: list[Relation | None],
) -> None:
    """Take values that are equal on all ranks by mistake for slices: one batch was read twice.

    The other run has values of the size of all slices, and none of the shape of one. Integers that
    are computed, as an order of rows, count from 0 on each rank.
    """
    is_pass = siblings.is_backward | (siblings.phases == FORWARD)
    is_pass &= ~siblings.is_discrete | siblings.is_given_id
    shapes = siblings.collect_base("shape").tolist()
    for row in np.flatnonzero(is_pass & ~is_closed & _flag_equal(siblings)).tolist():
        size = int(siblings.sizes[row].max()) * slices.count
        if relations[row] is not None or shapes[row] is None or size not in other.sizes:
            continue
        if tuple(sorted(shapes[row])) not in other.sorted_shapes:
            factor = slices.factor if siblings.may_be_gradient[row] else 1.0
            relations[row] = join_parts(slice_pattern, factor)


def _flag_equal(siblings: Siblings) -> Flags:
    """Return (tensors,) whether all ranks have the same numbers, more than one."""
    flags: Flags = (siblings.labels == siblings.labels[:, :1]).all(axis=1)
    flags &= siblings.sizes.max(axis=1) > 1
    return flags


def _replicate_equal_values(
    siblings: Siblings, is_closed: Flags, relations: list[Relation | None]
) -> None:
    """Take values that are equal on all ranks for replicated."""
    for row in np.flatnonzero(~is_closed).tolist():
        pattern = tuple(siblings.labels[row].tolist())
        if relations[row] is None and len(set(pattern) - {-1}) == 1:
            relations[row] = join_parts(pattern)


def _sum_named_gradients(
    siblings: Siblings, slices: BatchSlices, relations: list[Relation | None]
) -> None:
    """Take different gradients of a replicated parameter for partial sums.

    If the optimizer reads the gradient of the last micro-batch, that is the total.
    """
    patterns = list_summand_patterns(siblings).tolist()
    relation_of: dict[str, Relation] = {}
    for row, name in enumerate(siblings.collect_base("parameter").tolist()):
        relation = relations[row]
        if name and relation is not None and not relation.is_sum:
            relation_of.setdefault(name, relation)
    for row, name in enumerate(siblings.collect_base("gradient_of").tolist()):
        if not name or relations[row] is not None or name not in relation_of:
            continue
        pattern = tuple(patterns[row])
        # ranks with the same part of the parameter have summands of the same gradient
        relations[row] = add_parts(pattern, relation_of[name].pattern, slices.factor) or join_parts(
            pattern, slices.factor
        )


def _sum_recorded_gradients(
    siblings: Siblings, slices: BatchSlices, is_closed: Flags, relations: list[Relation | None]
) -> None:
    """Take different gradients of a replicated value for partial sums.

    Such are the gradients of gathered keys and values, and of a weight that is used twice.
    """
    flow = siblings.flows[siblings.base]
    if not flow.records_calls:
        return
    values = flow.tensor_class[siblings.rows[:, siblings.base]]
    relation_of: dict[int, Relation] = {}
    for row, value in enumerate(values.tolist()):
        relation = relations[row]
        if relation is not None and not relation.is_sum:
            relation_of.setdefault(value, relation)
    gradients = collect_recorded_gradients(flow)
    shared_value_of: dict[int, int] = {}
    value_pairs = [*gradients.by_value.items()]
    value_pairs += [(value, gradient) for (_, value, _), gradient in gradients.by_edge.items()]
    for value, gradient in value_pairs:
        if value in relation_of:
            shared_value_of.setdefault(gradient, value)
    is_open = siblings.is_backward & ~is_closed & siblings.is_present.all(axis=1)
    for row in np.flatnonzero(is_open).tolist():
        if relations[row] is None and int(values[row]) in shared_value_of:
            pattern = tuple(siblings.labels[row].tolist())
            groups = relation_of[shared_value_of[int(values[row])]].pattern
            relations[row] = add_parts(pattern, groups, slices.factor)


def _sum_reduced_values(
    siblings: Siblings, is_proved: Flags, relations: list[Relation | None]
) -> None:
    """Take what a reduction reads for partial sums, where nothing else is known.

    Of slices of the batch, they have the factor of the result. That the same value of other layers
    is replicated is no evidence if the ranks differ.
    """
    is_open = ~is_proved & (siblings.labels != siblings.labels[:, :1]).any(axis=1)
    for row, output in list_reductions(siblings):
        groups = tuple(siblings.labels[output].tolist())
        result_relation = relations[output]
        factor = 1.0 if result_relation is None else result_relation.factor
        relation = add_parts(tuple(siblings.labels[row].tolist()), groups, factor)
        equal_rows = siblings.list_equal_rows(row).tolist()
        for equal_row in equal_rows:
            known_relation = relations[equal_row]
            if known_relation is not None and known_relation.is_sum:
                relation = known_relation
        for equal_row in equal_rows:
            known_relation = relations[equal_row]
            is_contradicted = known_relation is not None and known_relation.is_replicated
            if known_relation is None or (is_open[equal_row] and is_contradicted):
                relations[equal_row] = relation


def _replicate_updates(siblings: Siblings, relations: list[Relation | None]) -> None:
    """Take all that updates a replicated weight for replicated, also if the ranks differ there.

    The weight is what an op of the optimizer updates in place. All that it is computed from, and
    has its shape, is followed.
    """
    flow = siblings.flows[siblings.base]
    kinds = flow.trace.ops["kind"]
    is_in_optimizer = (flow.trace.ops["phase"] == OPTIMIZER).to_numpy()
    is_update = kinds.map(is_in_place).to_numpy(dtype=bool) & is_in_optimizer
    values = flow.tensor_class[siblings.rows[:, siblings.base]]
    is_open = (siblings.phases == OPTIMIZER) & (siblings.sizes.max(axis=1) > 1)
    is_open &= ~_flag_equal(siblings) & (values >= 0)
    replicated_values = set()
    for row, relation in enumerate(relations):
        if relation is not None and relation.is_replicated:
            replicated_values.add(int(values[row]))
        is_open[row] &= relation is None or relation.is_sum
    open_values = set(values[is_open].tolist())
    for op in np.flatnonzero(is_update).tolist():
        reads, results = flow.reads[op], flow.writes[op]
        is_weight = reads and reads[0] in replicated_values and flow.norms[reads[0]] > 0
        if not is_weight or not open_values.intersection(results):
            continue
        updating_values = _collect_updating_values(flow, results[0], open_values)
        for row in np.flatnonzero(is_open & np.isin(values, list(updating_values))).tolist():
            relations[row] = join_parts((0,) * siblings.n_ranks)


def _collect_updating_values(flow: Flow, new_weight: int, open_values: set[int]) -> set[int]:
    """Return the values of the size of a new weight that the optimizer computes it from."""
    collected: set[int] = set()
    pending = [new_weight]
    while pending:
        value = pending.pop()
        if value in collected or value not in open_values:
            continue
        collected.add(value)
        producer = int(flow.producers[value])
        neighbors = [op for op in (producer, *flow.consumers[value]) if op >= 0]
        for op in neighbors:
            if flow.phases[op] == OPTIMIZER:
                candidates = (*flow.reads[op], *flow.writes[op])
                pending += [read for read in candidates if flow.sizes[read] == flow.sizes[value]]
    return collected


def _replicate_by_size(
    siblings: Siblings, other: OtherRun, is_closed: Flags, relations: list[Relation | None]
) -> None:
    """Take values for replicated that the other run has of the same kind and size on one rank.

    Only of the forward pass, and not those that are soon added up over ranks.
    """
    is_open = np.array([relation is None for relation in relations]) & ~is_closed
    is_open &= siblings.is_present.all(axis=1) & (siblings.sizes.max(axis=1) > 1)
    is_open &= ~siblings.is_discrete & ~_flag_equal(siblings)
    is_open &= (siblings.phases == FORWARD) & ~siblings.is_backward & ~_flag_summands(siblings)
    if not is_open.any() or not other.is_whole:
        return
    keys = list_kind_keys(siblings)
    for row in np.flatnonzero(is_open).tolist():
        size = int(siblings.sizes[row].max())
        if other.sizes_of_kinds.get(keys[row], set()) == {size}:
            relations[row] = join_parts((0,) * siblings.n_ranks)


def _flag_summands(siblings: Siblings) -> Flags:
    """Return (tensors,) what a collective reads, or reads what is computed from it."""
    flow = siblings.flows[siblings.base]
    summands: set[int] = set()
    for op in np.flatnonzero(flow.trace.ops["phase"] == COMMUNICATION).tolist():
        summands.update(flow.reads[op])
    values = set(summands)
    for _ in range(_MAX_OPS_BEFORE_SUM):
        producers = {int(flow.producers[value]) for value in values} - {-1}
        values = {read for op in producers for read in flow.reads[op]} - summands
        summands |= values
    flags: Flags = np.isin(flow.tensor_class[siblings.rows[:, siblings.base]], list(summands))
    return flags


def _add_numbers(
    siblings: Siblings, slices: BatchSlices, group: tuple[int, ...], row: int
) -> Relation | None:
    """Return how single numbers that no value of the other run proves are combined.

    Numbers of the optimizer are summands (of norms); those of a pass over slices of the batch are
    averaged. Others mean something on one rank only.
    """
    pattern = tuple(siblings.labels[row].tolist())
    is_pass = siblings.phases[row] in (FORWARD, BACKWARD)
    if is_pass and slices.factor == 1.0:
        return None
    return add_parts(pattern, group, slices.factor if is_pass else 1.0)
