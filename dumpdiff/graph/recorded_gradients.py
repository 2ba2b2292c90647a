"""Gradients as API dumps record them: a backward record names its forward call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Flags, Ints
from ..model.dtypes import is_floating
from ..model.int_lists import IntLists
from ..model.trace import FORWARD, flag_words
from .dataflow import Flow
from .gradients import Gradients, flag_detours

#: Share of the root mean square above which the mean of gradients is not zero: in bfloat16 it is
#: rounding up to 4e-3; of one gradient of -1/n in each row of c classes it is 1 / sqrt(c).
_ZERO_SUM_SHARE = 0.005


def collect_recorded_gradients(flow: Flow) -> Gradients:
    """Return the gradients of a dump whose backward records name their forward call.

    Such a record has the gradients of the call's arguments in order, but not of all arguments.
    """
    gradient_of = dict(flow.recorded_gradients)
    is_argument = _flag_arguments(flow)
    inputs_of = _collect_arguments(flow, is_argument & ~flow.is_output)
    outputs_of = _collect_arguments(flow, is_argument & flow.is_output)
    returned = _find_recorded_returns(flow, inputs_of, outputs_of)
    for value, gradient_calls in _index_split_gradients(returned).items():
        own_gradient = gradient_of.get(value)
        if own_gradient is None or own_gradient not in gradient_calls:
            continue
        if _is_share(flow, gradient_calls, own_gradient):
            del gradient_of[value]
    has_several_readers = _count_forward_readers(flow) > 1
    # an op that adds zeros writes what it reads: its gradient is that of one reader
    for value in np.flatnonzero(has_several_readers & (flow.producers < 0)).tolist():
        gradient_of.pop(value, None)
    for value, gradient in np.stack(flow.named_gradients, axis=1).tolist():
        if has_several_readers[value]:
            gradient_of[value] = gradient  # any other one is that of one reader
        else:
            gradient_of.setdefault(value, gradient)
    for value, gradient in find_returned_gradients(flow).items():
        gradient_of.setdefault(value, gradient)
    first_outputs = outputs_of.values[outputs_of.starts[returned.calls]]
    return Gradients(gradient_of, _index_by_edge(flow, first_outputs, returned))


@dataclass(frozen=True)
class _Returns:
    """Gradients that backward records return for arguments of their forward calls, in order."""

    calls: Ints  #: (returns,) forward call
    values: Ints  #: (returns,) class of the argument
    gradients: Ints  #: (returns,) class of its gradient


def _find_recorded_returns(flow: Flow, inputs_of: IntLists, outputs_of: IntLists) -> _Returns:
    """Return what the backward records return; the arguments are lists by op."""
    calls = flow.trace.ops["forward"].to_numpy()
    records = np.flatnonzero((calls >= 0) & (flow.writes.counts > 0))
    records = records[outputs_of.counts[calls[records]] > 0]
    has_class = inputs_of.values >= 0
    inputs_of = IntLists.from_pairs(
        len(inputs_of), inputs_of.rows[has_class], inputs_of.values[has_class]
    )
    matches, values, gradients = _match_inputs_to_gradients(
        flow, inputs_of.take(calls[records]), outputs_of.take(records)
    )
    records = records[matches]
    is_kept = (gradients >= 0) & flow.writes.flag_members(records, gradients)
    is_cross_entropy = flag_words(
        flow.trace.ops["kind"], lambda kind: kind.endswith(".cross_entropy")
    )
    for position in np.flatnonzero(is_kept & is_cross_entropy[calls[records]]).tolist():
        is_kept[position] = not _is_of_log_probabilities(flow, int(gradients[position]))
    return _Returns(calls[records[is_kept]], values[is_kept], gradients[is_kept])


def _index_split_gradients(returned: _Returns) -> dict[int, dict[int, list[int]]]:
    """Return value -> gradient -> the calls it flows back through, where a value has several."""
    if not len(returned.values):
        return {}
    places = returned.values * (int(returned.gradients.max()) + 1) + returned.gradients
    first = np.unique(places, return_index=True)[1]
    values, n_gradients = np.unique(returned.values[first], return_counts=True)
    is_split = np.isin(returned.values, values[n_gradients > 1])
    columns = (returned.values, returned.gradients, returned.calls)
    calls_of: defaultdict[int, defaultdict[int, list[int]]]
    calls_of = defaultdict(lambda: defaultdict(list))
    for value, gradient, call in zip(*(c[is_split].tolist() for c in columns), strict=True):
        calls_of[value][gradient].append(call)
    return {value: dict(gradient_calls) for value, gradient_calls in calls_of.items()}


def _count_forward_readers(flow: Flow) -> Ints:
    """Return (classes,) how many ops of the forward pass read a value, without module calls."""
    is_reader = flow.flag_phase(FORWARD) & ~flow.is_module
    lists = flow.reads
    return np.bincount(lists.values[is_reader[lists.rows]], minlength=len(flow.classes))


def _is_of_log_probabilities(flow: Flow, gradient: int) -> bool:
    """Return whether the gradient that a cross entropy returns is not that of its logits.

    PyTorch's function consists of two, and its record has what the last one returns. The softmax of
    a row adds up to one, as its labels do, so the gradients of its logits add up to zero.
    """
    mean = float(flow.list_column("mean")[gradient])
    return abs(mean) > _ZERO_SUM_SHARE * flow.rms[gradient]


def find_returned_gradients(flow: Flow) -> dict[int, int]:
    """Return parameter -> its gradient, of parameters that a module returns to be used outside.

    So a bias is added later. The backward record of the module has the gradients of its outputs.
    """
    is_parameter = (flow.classes["parameter"] != "").to_numpy()
    output_rows = np.flatnonzero(flow.is_output & (flow.tensor_class >= 0))
    returned_rows = output_rows[is_parameter[flow.tensor_class[output_rows]]]
    forward_calls = flow.trace.ops["forward"].to_numpy()
    if not np.isin(flow.tensors["op"].to_numpy()[returned_rows], forward_calls).any():
        return {}
    is_argument = _flag_arguments(flow)
    is_input = flow.tensors["slot_kind"].to_numpy() == "input"
    outputs_of = _collect_arguments(flow, is_argument & flow.is_output)
    inputs_of = _collect_arguments(flow, is_argument & is_input)
    has_class = inputs_of.values >= 0
    gradients_of = IntLists.from_pairs(
        len(inputs_of), inputs_of.rows[has_class], inputs_of.values[has_class]
    )
    records = np.flatnonzero(forward_calls >= 0)
    calls = forward_calls[records]
    is_returned = (outputs_of.values >= 0) & is_parameter[outputs_of.values]
    returns_parameter = np.zeros(len(outputs_of), dtype=bool)
    returns_parameter[outputs_of.rows[is_returned]] = True
    records, calls = records[returns_parameter[calls]], calls[returns_parameter[calls]]
    _, values, gradients = _match_inputs_to_gradients(
        flow, outputs_of.take(calls), gradients_of.take(records)
    )
    is_kept = (values >= 0) & is_parameter[values]
    return dict(zip(values[is_kept].tolist(), gradients[is_kept].tolist(), strict=True))


def _match_inputs_to_gradients(
    flow: Flow, inputs_of: IntLists, gradients_of: IntLists
) -> tuple[Ints, Ints, Ints]:
    """Return (row, input, gradient) of equal size as columns, in the order of the gradients.

    ``inputs_of`` and ``gradients_of`` have a list for each row. Where the lists are equally long,
    the positions say which input it is, elsewhere the size, if only one input has it.
    """
    n_inputs = inputs_of.counts
    has_equal_counts = n_inputs == gradients_of.counts
    rows = gradients_of.rows
    positions = np.arange(len(rows)) - gradients_of.starts[rows]
    # the inputs that each gradient may be of: the one at its position, or all
    first = inputs_of.starts[rows] + np.where(has_equal_counts[rows], positions, 0)
    counts = np.where(has_equal_counts[rows], 1, n_inputs[rows])
    owners = np.repeat(np.arange(len(rows)), counts)
    offsets = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    candidates = inputs_of.values[first[owners] + offsets]
    is_fitting = flow.sizes[candidates] == flow.sizes[gradients_of.values[owners]]
    owners, candidates = owners[is_fitting], candidates[is_fitting]
    is_only = np.bincount(owners, minlength=len(rows))[owners] == 1
    owners, candidates = owners[is_only], candidates[is_only]
    return rows[owners], candidates, gradients_of.values[owners]


def _is_share(flow: Flow, gradient_calls: Mapping[int, Sequence[int]], gradient: int) -> bool:
    """Return whether a gradient flows back through one of several consumers only.

    Then it is less than the sum over all of them. ``gradient_calls`` maps each gradient to the
    calls that it flows back through. A gradient that flows back through a module that contains all
    other calls is the sum.
    """
    other_calls = [
        call
        for other_gradient, calls in gradient_calls.items()
        if other_gradient != gradient
        for call in calls
    ]
    return not any(_contains_all(flow, module, other_calls) for module in gradient_calls[gradient])


def _contains_all(flow: Flow, module: int, calls: Sequence[int]) -> bool:
    """Return whether all calls are the module or ran in it."""
    return all(call == module or module in flow.iterate_enclosing_calls(call) for call in calls)


def _flag_arguments(flow: Flow) -> Flags:
    """Return (tensors,) true for the positional floating tensors of ops."""
    tensors = flow.tensors
    is_argument = ~tensors["constant"].to_numpy()
    is_argument &= flag_words(tensors["slot"], lambda slot: slot.rpartition(".")[2].isdecimal())
    is_argument &= flag_words(tensors["dtype"], is_floating)
    return is_argument


def _collect_arguments(flow: Flow, is_argument: Flags) -> IntLists:
    """Return per op the classes of these tensors of it, -1 for unknown ones.

    Those of which it reads only the shape are left out: no gradient flows back to them.
    """
    rows = np.flatnonzero(is_argument)
    ops, values = flow.tensors["op"].to_numpy()[rows], flow.tensor_class[rows]
    reads_elements = ~flow.flag_shape_reads(ops, values)
    return IntLists.from_pairs(len(flow.trace.ops), ops[reads_elements], values[reads_elements])


def _index_by_edge(
    flow: Flow, outputs: Ints, returned: _Returns
) -> dict[tuple[int, int, bool], int]:
    """Return the gradients by edge, the first of each; keys as in :class:`Gradients`.

    ``outputs`` (returns,) are the first outputs of the calls.
    """
    places = (outputs + 1) * len(flow.classes) + returned.values
    first = np.sort(np.unique(places, return_index=True)[1])
    outputs, values = outputs[first], returned.values[first]
    has_detour = flag_detours(flow, outputs, values)
    keys = zip(outputs.tolist(), values.tolist(), has_detour.tolist(), strict=True)
    return dict(zip(keys, returned.gradients[first].tolist(), strict=True))
