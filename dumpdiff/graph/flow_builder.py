"""Build the dataflow of one side: complete its statistics, and collapse its tensors by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Ints
from ..model.int_lists import IntLists
from ..model.trace import FORWARD, OPTIMIZER, Trace, flag_words
from ..readers.call_records import is_in_place
from ..rulebook import Rules
from .dataflow import Flow
from .integer_contents import compute_content_checksums
from .statistics import complete_statistics
from .value_classes import assign_classes, count_evidence, flag_doubtful_files


def build_flow(trace: Trace, progress: Callable[[float], None] | None = None) -> Flow:
    """Complete the statistics of a trace and collapse it by value."""
    tensors, problems = complete_statistics(trace, progress)
    updates = (trace.ops["phase"].to_numpy() == OPTIMIZER)[tensors["op"]]
    counters = updates & _flag_counters(trace, tensors)
    low_precision = trace.source.low_precision_statistics
    contents = compute_content_checksums(trace, tensors)
    tensors = tensors.copy(deep=False)  # a column is replaced, none is written to
    tensors["content"] = contents
    tensor_class = assign_classes(
        tensors, low_precision, updates, counters, contents, ops=trace.ops
    )
    is_computed = _flag_computed(trace, tensors)
    read_class = _find_overwritten_values(tensors, tensor_class)
    reads = _collect_reads(len(trace.ops), tensors, read_class)
    is_new = is_computed & (tensor_class >= 0)
    is_new[is_new] = ~reads.flag_members(tensors["op"].to_numpy()[is_new], tensor_class[is_new])
    is_new &= ~_flag_passed_on(trace, tensors, tensor_class, reads)
    new_ops = tensors["op"].to_numpy()[is_new]
    writes = IntLists.from_pairs(len(trace.ops), new_ops, tensor_class[is_new]).remove_repeats()
    classes = _build_class_table(trace, tensors, tensor_class, is_new)
    counter_classes = frozenset(tensor_class[counters].tolist()) - {-1}
    return Flow(
        trace, tensors, classes, tensor_class, is_computed, reads, writes, problems, counter_classes
    )


def mark_shape_reads(flow: Flow, rules: Rules) -> Flow:
    """Return the flow with the reads marked that take only the shape or the dtype of a value.

    A value that an op also reads the numbers of, in another slot, is not marked.
    """
    positions_of = {
        kind: rules.get_shape_positions(kind) for kind in set(flow.trace.ops["kind"].tolist())
    }
    is_reader = flag_words(flow.trace.ops["kind"], lambda kind: bool(positions_of[kind]))
    if not is_reader.any():
        return flow
    kinds = flow.trace.ops["kind"].tolist()
    # a backward record has gradients in its slots, and the output of no op is read by it
    is_call = (flow.trace.ops["forward"] < 0).to_numpy()
    ops = flow.tensors["op"].to_numpy()
    is_input = flow.tensors["slot_kind"].to_numpy() != "output"
    rows = np.flatnonzero((is_reader & is_call)[ops] & is_input & (flow.tensor_class >= 0))
    slots = flow.tensors["slot"].to_numpy()
    shape_reads: set[tuple[int, int]] = set()
    number_reads: set[tuple[int, int]] = set()
    for row in rows.tolist():
        op, argument = int(ops[row]), str(slots[row]).partition(".")[2]
        is_shape = argument.isdecimal() and int(argument) in positions_of[kinds[op]]
        (shape_reads if is_shape else number_reads).add((op, int(flow.tensor_class[row])))
    return replace(flow, shape_reads=frozenset(shape_reads - number_reads))


def _flag_counters(trace: Trace, tensors: pd.DataFrame) -> Flags:
    """Return (tensors,) true for single whole numbers that are updated in memory."""
    is_api_update = flag_words(trace.ops["kind"], is_in_place)[tensors["op"]]
    is_update = is_api_update | (tensors["update_of"].to_numpy() != "")
    numbers = tensors["max"].to_numpy()
    is_count = (tensors["size"] == 1).to_numpy() & (numbers > 0) & (numbers == np.floor(numbers))
    flags: Flags = is_update & is_count & (tensors["slot_kind"].to_numpy() == "output")
    return flags


def _flag_computed(trace: Trace, tensors: pd.DataFrame) -> Flags:
    """Return (tensors,) true for outputs of ops that compute.

    MindSpore writes parameters as ops of kind Parameter; these compute nothing. Neither does an
    update that leaves one repeated number: MindSpore's SGD keeps zeros if it has no momentum.
    """
    is_parameter = (trace.ops["kind"].to_numpy() == "Parameter")[tensors["op"]]
    is_update = (tensors["update_of"].to_numpy() != "") & (tensors["size"] > 1).to_numpy()
    is_unused_state = is_update & (tensors["max"] == tensors["min"]).to_numpy()
    is_output = tensors["slot_kind"].to_numpy() == "output"
    is_computed: Flags = is_output & ~is_parameter & ~is_unused_state
    return is_computed


def _find_overwritten_values(tensors: pd.DataFrame, tensor_class: Ints) -> Ints:
    """Return (tensors,) the class that an op read, also where it overwrote it before it was dumped.

    Such an input is not trusted. If it is a parameter, it was what the last op before read of it.
    """
    read_class = tensor_class.copy()
    names = tensors["parameter"].to_numpy()
    is_output = tensors["slot_kind"].to_numpy() == "output"
    last_values: dict[str, int] = {}
    for row in np.flatnonzero(names != "").tolist():
        if tensor_class[row] >= 0:
            last_values[names[row]] = int(tensor_class[row])
        elif not is_output[row]:
            read_class[row] = last_values.get(names[row], -1)
    return read_class


def _collect_reads(n_ops: int, tensors: pd.DataFrame, read_class: Ints) -> IntLists:
    """Return per op the classes that it reads, in slot order, without repeats."""
    is_read = (tensors["slot_kind"].to_numpy() != "output") & (read_class >= 0)
    ops = tensors["op"].to_numpy()[is_read]
    return IntLists.from_pairs(n_ops, ops, read_class[is_read]).remove_repeats()


def _flag_passed_on(
    trace: Trace, tensors: pd.DataFrame, tensor_class: Ints, reads: IntLists
) -> Flags:
    """Return (tensors,) what a forward call of a module returns and an op before its end has read.

    The module did not compute that: it passes on what it was given, or what an op inside cut from
    it without a record, such as ``chunk``.
    """
    first_readers = np.full(int(tensor_class.max(initial=-1)) + 1, -1)
    first_readers[reads.values[::-1]] = reads.rows[::-1]  # the last assignment, that of the first
    ops = tensors["op"].to_numpy()
    is_module = ((trace.ops["level"] == "module") & (trace.ops["phase"] == FORWARD)).to_numpy()[ops]
    rows = np.flatnonzero(is_module & (tensor_class >= 0))
    readers = first_readers[tensor_class[rows]]
    flags = np.zeros(len(tensors), dtype=bool)
    flags[rows] = (readers >= 0) & (readers < ops[rows])
    return flags


def _build_class_table(
    trace: Trace,
    tensors: pd.DataFrame,
    tensor_class: Ints,
    is_new: Flags,
) -> pd.DataFrame:
    """Return the table described by CLASS_COLUMNS.

    ``is_new`` marks what an op computes and does not read.
    """
    count = int(tensor_class.max(initial=-1)) + 1
    ops = tensors["op"].to_numpy()
    is_module = trace.ops["level"].to_numpy() == "module"
    rows = np.flatnonzero(tensor_class >= 0)
    # a module call repeats what an op inside it produced: prefer the op, then the earliest
    new_rows = np.flatnonzero(is_new)
    new_rows = new_rows[np.lexsort((ops[new_rows], is_module[ops[new_rows]]))][::-1]
    producers = np.full(count, -1)
    producers[tensor_class[new_rows]] = ops[new_rows]
    is_produced = np.zeros(len(tensors), dtype=bool)
    is_produced[new_rows] = ops[new_rows] == producers[tensor_class[new_rows]]
    # the last assignment wins: sort the producer's output, then tensors with a file, to the end
    lacks_file = tensors["file"].to_numpy() == ""
    lacks_file = lacks_file ^ flag_doubtful_files(
        trace.ops, tensors, tensor_class, producers, lacks_file
    )
    best_last = rows[np.lexsort((rows, lacks_file[rows], ~is_produced[rows]))][::-1]
    representatives = np.full(count, -1)
    representatives[tensor_class[best_last]] = best_last
    first_rows = np.full(count, -1)
    first_rows[tensor_class[rows[::-1]]] = rows[::-1]
    columns = {"tensor": representatives}
    for name in ("size", "max", "min", "mean", "norm", "nonfinite", "dtype"):
        columns[name] = tensors[name].to_numpy()[representatives]
    table = pd.DataFrame(columns)
    table["evidence"] = count_evidence(table)
    table["producer"] = producers
    phases = trace.ops["phase"].to_numpy()
    table["phase"] = (
        np.where(producers >= 0, phases[producers], phases[ops[first_rows]]) if count else []
    )
    for column in ("parameter", "gradient_of", "update_of"):
        tensor_names = tensors[column].to_numpy()
        named_rows = rows[tensor_names[rows] != ""]
        if column == "parameter" and len(named_rows):
            # a parameter that the optimizer reads is another value already
            named_rows = named_rows[phases[ops[named_rows]] == FORWARD]
        names = np.full(count, "", dtype=object)
        names[tensor_class[named_rows[::-1]]] = tensor_names[named_rows[::-1]]
        table[column] = pd.Series(names, dtype=object)
    return table
