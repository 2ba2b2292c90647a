"""What each value of one side was computed from, as far as its record shows it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..model.arrays import Ints
from ..model.int_lists import IntLists
from ..model.trace import FORWARD, OPTIMIZER
from .dataflow import Flow
from .missing_edges import find_enclosing_inputs, flag_missing_producers

#: Values that are searched for the next recorded gradient; a longer search leaves the layer.
_MAX_SEARCHED_VALUES = 64


def collect_parents(flow: Flow) -> IntLists:
    """Return per class the classes it was computed from: the operands of its producer.

    What a module returns and no recorded op computed, such as the ``cat`` at its end, comes from
    the results inside that no op reads, and from those operands that are no smaller. The gradient
    that a backward record was given comes from the gradients of what its value feeds.
    """
    n_classes = len(flow.classes)
    is_computed = flow.producers >= 0
    computed_values = np.flatnonzero(is_computed)
    operands_of = flow.operands.take(flow.producers[computed_values])
    children = computed_values[operands_of.rows]
    inner_children, inner_results = _list_inner_results(flow)
    is_operand = ~np.isin(children, inner_children)
    is_operand |= flow.sizes[operands_of.values] >= flow.sizes[children]
    children = np.append(children[is_operand], inner_children)
    operands = np.append(operands_of.values[is_operand], inner_results)
    has_parents = np.zeros(n_classes, dtype=bool)
    has_parents[children] = True
    value_list = np.array(list(flow.recorded_gradients), dtype=np.int64)
    gradients = np.array(list(flow.recorded_gradients.values()), dtype=np.int64)
    is_given = ~is_computed[gradients]
    given_edges = _list_next_gradients(flow, value_list[is_given], gradients[is_given])
    has_parents[given_edges[0]] = True
    parameters, gradients = flow.named_gradients
    is_open = ~has_parents[gradients]
    named_edges = _list_next_gradients(flow, parameters[is_open], gradients[is_open])
    further_children, further_parents = np.append(given_edges, named_edges, axis=1)
    children = np.concatenate([children, further_children])
    parents_of = np.concatenate([operands, further_parents])
    terms, sums = np.array(list(_iterate_zero_terms(flow)), dtype=np.int64).reshape(-1, 2).T
    contributions, totals = _collect_contributions(flow)
    known_parents = IntLists.from_pairs(n_classes, children, parents_of)
    further = IntLists.from_pairs(
        n_classes, np.append(sums, totals), np.append(terms, contributions)
    ).remove_repeats()
    is_new = ~known_parents.flag_members(further.rows, further.values)
    return IntLists.from_pairs(
        n_classes,
        np.append(children, further.rows[is_new]),
        np.append(parents_of, further.values[is_new]),
    )


def _list_inner_results(flow: Flow) -> tuple[Ints, Ints]:
    """Return values that modules computed, and for each a result inside that no op reads."""
    lists, is_forward = flow.writes, flow.flag_phase(FORWARD)
    is_returned = flow.is_module[lists.rows] & is_forward[lists.rows]
    is_returned &= (flow.producers[lists.values] == lists.rows) & (flow.sizes[lists.values] > 1)
    values_of = IntLists.from_pairs(len(lists), lists.rows[is_returned], lists.values[is_returned])
    unread_of = flow.unread_inner_results
    values, results, _ = _cross(values_of, unread_of.rows, unread_of.values)
    is_part = is_forward[flow.producers[results]] & (flow.sizes[results] <= flow.sizes[values])
    return values[is_part], results[is_part]


def _list_next_gradients(flow: Flow, values: Ints, gradients: Ints) -> Ints:
    """Return (2, n) gradients, and what each was computed from, see :func:`_find_next_gradients`.

    ``gradients`` are those of ``values``. Most follow from the results of the next ops.
    """
    users_of = flow.users.take(values)
    is_forward = flow.flag_phase(FORWARD)[users_of.values]
    users, rows = users_of.values[is_forward], users_of.rows[is_forward]
    outputs_of = flow.writes.take(users)
    outputs, rows = outputs_of.values, rows[outputs_of.rows]
    gradient_of = _index_recorded_gradients(flow)
    is_far = np.zeros(len(values), dtype=bool)  # a result has no recorded gradient
    is_far[rows[gradient_of[outputs] < 0]] = True
    is_near = ~is_far[rows]
    rows, parents = rows[is_near], gradient_of[outputs[is_near]]
    is_other = parents != gradients[rows]
    near_lists = IntLists.from_pairs(len(values), rows[is_other], parents[is_other])
    lists = [near_lists.remove_repeats()]
    far_rows = np.flatnonzero(is_far)
    far_lists = [
        _find_next_gradients(flow, value, gradient)
        for value, gradient in zip(
            values[far_rows].tolist(), gradients[far_rows].tolist(), strict=True
        )
    ]
    lists.append(IntLists.from_lists(far_lists))
    all_rows = np.append(lists[0].rows, far_rows[lists[1].rows])
    all_parents = np.append(lists[0].values, lists[1].values)
    order = np.argsort(all_rows, kind="stable")
    return np.stack([gradients[all_rows[order]], all_parents[order]])


def _index_recorded_gradients(flow: Flow) -> Ints:
    """Return (classes,) the recorded gradient of each class, -1 if there is none."""
    gradient_of = np.full(len(flow.classes), -1)
    gradient_of[list(flow.recorded_gradients)] = list(flow.recorded_gradients.values())
    return gradient_of


def _iterate_zero_terms(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield (term, sum) of ops of the optimizer whose result is one of the values that they read.

    In a first step the moments are 0, so the sum of the decayed moment and the gradient is the
    value that the gradient's term is, and no edge leads there from the other term. A term that
    came later may depend on the sum and is left out.
    """
    for op in np.flatnonzero(flow.is_layout).tolist():
        if flow.phases[op] != OPTIMIZER or len(flow.reads[op]) < 2:
            continue
        rows = flow.get_tensor_ids(op)
        results = set(flow.tensor_class[rows[flow.is_computed[rows]]].tolist()) - {-1}
        if len(results) != 1:
            continue
        total = results.pop()
        for term in flow.reads[op]:
            if term != total and 0 <= flow.producers[term] < flow.producers[total]:
                yield term, total


def _collect_contributions(flow: Flow) -> tuple[Ints, Ints]:
    """Return gradients that no recorded op reads, and for each a gradient it was added to.

    The latter is the gradient of what the forward call read, or of what that was cut from. The
    gradient of a parameter is not added to another.
    """
    is_named = (flow.classes["gradient_of"] != "").to_numpy()
    calls = flow.trace.ops["forward"].to_numpy()
    is_record = (calls >= 0) & ~flow.flag_phase(FORWARD)
    lists = flow.writes
    is_unread = is_record[lists.rows] & (flow.first_consumers[lists.values] < 0)
    is_unread &= ~is_named[lists.values]
    unread_of = IntLists.from_pairs(len(lists), lists.rows[is_unread], lists.values[is_unread])
    records = np.flatnonzero(unread_of.counts)
    positions, values = _list_parameter_gradients(flow, calls[records])
    gradients, totals, rows = _cross(unread_of.take(records), positions, values)
    is_part = flow.sizes[gradients] == flow.sizes[totals]
    parts = (gradients[is_part], totals[is_part], rows[is_part])
    positions, values = _find_gradient_sources(flow, calls[records])
    contributions = _cross(unread_of.take(records), positions, values)
    gradients, totals, rows = (
        np.append(*columns) for columns in zip(parts, contributions, strict=True)
    )
    order = np.argsort(rows, kind="stable")
    is_other = gradients[order] != totals[order]
    return gradients[order][is_other], totals[order][is_other]


def _cross(lists: IntLists, rows: Ints, values: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (element, value, row): each value with each element of the list of its row."""
    elements_of = lists.take(rows)
    pairs = elements_of.rows
    return elements_of.values, values[pairs], rows[pairs]


def _list_parameter_gradients(flow: Flow, calls: Ints) -> tuple[Ints, Ints]:
    """Return (position in ``calls``, named gradient of a parameter that the call reads).

    A parameter that several calls read, as the steps of a recurrence, has a part from each. The
    gradient of one parameter is no part of that of another.
    """
    gradient_of = np.full(len(flow.classes), -1)
    for parameter, name in enumerate(flow.list_column("parameter")):
        if name:
            gradient_of[parameter] = flow.gradients_of_parameters.get(name, -1)
    operands_of = flow.operands.take(calls)
    gradients = gradient_of[operands_of.values]
    return operands_of.rows[gradients >= 0], gradients[gradients >= 0]


def _find_gradient_sources(flow: Flow, calls: Ints) -> tuple[Ints, Ints]:
    """Return (position in ``calls``, recorded gradient of what the call, or its module, read).

    The inputs of its module count where the record lacks what an input of the call was cut from.
    """
    gradient_of = _index_recorded_gradients(flow)
    operands_of = flow.operands.take(calls)
    positions, gradients = operands_of.rows, gradient_of[operands_of.values]
    is_open = (gradients < 0) & flow.may_lack_producer[operands_of.values]
    is_open &= flow.trace.ops["parent"].to_numpy()[calls[positions]] >= 0
    open_values, open_positions = operands_of.values[is_open], positions[is_open]
    lacks_producer = flag_missing_producers(flow, open_values)
    further_positions, further_gradients = [], []
    for value, position in zip(
        open_values[lacks_producer].tolist(), open_positions[lacks_producer].tolist(), strict=True
    ):
        for source in find_enclosing_inputs(flow, int(calls[position]), value):
            further_positions.append(position)
            further_gradients.append(int(gradient_of[source]))
    positions = np.append(positions, np.array(further_positions, dtype=np.int64))
    gradients = np.append(gradients, np.array(further_gradients, dtype=np.int64))
    return positions[gradients >= 0], gradients[gradients >= 0]


def _find_next_gradients(flow: Flow, value: int, gradient: int) -> list[int]:
    """Return the other gradients of the outputs of the forward ops that read a value.

    An output without a recorded gradient is replaced by what is computed from it.
    """
    next_gradients: dict[int, None] = {}
    visited = {value}
    stack = [value]
    while stack and len(visited) < _MAX_SEARCHED_VALUES:
        for op in flow.users[stack.pop()]:
            if flow.phases[op] != FORWARD:
                continue
            for output in flow.writes[op]:
                if output in flow.recorded_gradients:
                    next_gradients[flow.recorded_gradients[output]] = None
                elif output not in visited:
                    visited.add(output)
                    stack.append(output)
    next_gradients.pop(gradient, None)
    return list(next_gradients)
