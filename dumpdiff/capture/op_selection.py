"""Select the ops to dump as a whole: those of the findings, and what explaining them reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..causes import iterate_needed_values, list_finding_op_ids, list_region_op_ids
from ..comparison import Comparison
from ..graph import Flow
from ..model.arrays import Flags
from ..model.defaults import NARROWED_SHARE
from ..model.finding import Finding
from ..model.trace import Trace
from .cost import count_op_bytes, flag_recorded_tensors

_GRADIENT_KIND = "parameters_grad"
#: Kinds of records that are values without an op: a dumper cannot select them by name.
_VALUE_KINDS = ("Parameter", _GRADIENT_KIND)


class _SideSelection:
    """The ops of one side selected so far, and what is left of its budget."""

    def __init__(self, flow: Flow, max_bytes: int | None, max_ops: int | None) -> None:
        self.flow = flow
        self.ops: dict[int, None] = {}
        self.max_ops = len(flow.trace.ops) if max_ops is None else max_ops
        self.is_recordable = _flag_recordable_ops(flow)
        self.op_bytes = count_op_bytes(flow.trace)
        self.gradient_calls = find_gradient_calls(flow)
        self.budget = float(self.op_bytes.sum())
        if max_bytes is not None:
            self.budget = max_bytes
        elif max_ops is None:
            self.budget *= NARROWED_SHARE
        self.has_whole_tensor = _flag_whole_tensors(flow)
        self.covered_values = {-1, *flow.tensor_class[self.has_whole_tensor].tolist()}

    def add_op(self, op: int, *, is_required: bool = False) -> None:
        """Select an op if it fits, or is required, and is not recorded as a whole."""
        rows = self.flow.get_tensor_ids(op)
        is_recorded = self.has_whole_tensor[rows] | (self.flow.tensor_class[rows] < 0)
        is_new = op not in self.ops and self.can_record(op) and not is_recorded.all()
        is_allowed = is_required or self.count_bytes(op) <= self.budget
        if not is_new or not is_allowed or len(self.ops) >= self.max_ops:
            return
        self.budget -= self.count_bytes(op)
        for recorded_op in (*self.gradient_calls.get(op, ()), op):
            self.ops[recorded_op] = None
            values = self.flow.tensor_class[self.flow.get_tensor_ids(recorded_op)]
            self.covered_values.update(values.tolist())

    def can_record(self, op: int) -> bool:
        """Return whether a dumper can be asked for an op, or for a call that brings its record."""
        return bool(self.is_recordable[op]) or op in self.gradient_calls

    def count_bytes(self, op: int) -> int:
        """Return the bytes of an op, and of the calls that bring its record."""
        ops = {op, *self.gradient_calls.get(op, ())} - self.ops.keys()
        return int(self.op_bytes[list(ops)].sum())

    def add_value(self, value: int) -> None:
        """Select the cheapest op that records a value, if there is none yet and it fits."""
        if value in self.covered_values:
            return
        producer = int(self.flow.producers[value])
        phase = self.flow.list_column("phase")[value]
        candidates = [
            op
            for op in (producer, *self.flow.consumers[value])
            if op >= 0 and self.can_record(op) and self.flow.phases[op] == phase
        ]
        candidates = [op for op in candidates if self.count_bytes(op) <= self.budget]
        if candidates:
            self.add_op(min(candidates, key=lambda op: (self.count_bytes(op), op != producer)))


def select_ops(
    comparison: Comparison,
    findings: Sequence[Finding],
    max_bytes: int | None = None,
    max_ops: int | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ops of the target and of the reference to dump, the most important first.

    The ops of the first finding are always among them. Others are added while the bytes of a side
    stay within ``max_bytes``, by default (without ``max_ops``) :data:`NARROWED_SHARE` of all ops.
    Values that the dumps hold already as whole tensors are left out, so that a second round asks
    for what the first did not. Among the ops are records that come with others, and cannot be named
    (:func:`flag_nameable_ops`).
    """
    alignment = comparison.alignment
    sides = [
        _SideSelection(flow, max_bytes, max_ops) for flow in (alignment.target, alignment.reference)
    ]
    for finding in findings:
        for side, ops in zip(sides, list_finding_op_ids(comparison, finding), strict=True):
            for op in ops:
                side.add_op(op, is_required=finding is findings[0])
        for side, ops in zip(sides, list_region_op_ids(comparison, finding), strict=True):
            for op in ops:
                side.add_op(op)
        for number, value in iterate_needed_values(comparison, finding):
            sides[number].add_value(value)
    return tuple(sides[0].ops), tuple(sides[1].ops)


def _flag_whole_tensors(flow: Flow) -> Flags:
    """Return (tensors,) of which a dump of statistics holds the whole tensor.

    Of a dump that holds everything as a whole, none: it is to be repeated with less.
    """
    has_file: Flags = (flow.tensors["file"] != "").to_numpy()
    if has_file[flag_recorded_tensors(flow.trace) & (flow.tensor_class >= 0)].all():
        return np.zeros(len(has_file), dtype=bool)
    return has_file


def _flag_recordable_ops(flow: Flow) -> Flags:
    """Return (ops,) whether a dumper can select an op: no module call around other records."""
    ops = flow.trace.ops
    is_inner = ~np.isin(np.arange(len(ops)), ops["parent"].to_numpy())
    return ((ops["level"] == "op").to_numpy() | is_inner) & flag_nameable_ops(flow.trace)


def flag_nameable_ops(trace: Trace) -> Flags:
    """Return (ops,) whether a dumper can be asked for an op by its name.

    The recorder of dumpdiff is asked for tensors, also those of gradients.
    """
    is_value: Flags = trace.ops["kind"].isin(_VALUE_KINDS).to_numpy()
    if trace.source.format == "manifest":
        is_value = (trace.ops["kind"] == "Parameter").to_numpy()
    return ~is_value


def find_gradient_calls(flow: Flow) -> dict[int, tuple[int, ...]]:
    """Return the record of a module's parameter gradients -> the calls that bring it.

    msprobe records the gradients of a module's parameters if its backward call is asked for, and
    with it the backward calls inside (``params_data_collect`` of mindstudio-probe 26.2). Modules
    that hold other modules are left out: all of these would be recorded, too.
    """
    if flow.trace.source.format != "msprobe":
        return {}
    ops = flow.trace.ops
    names, parents, forward_calls = (ops[key].tolist() for key in ("name", "parent", "forward"))
    modules = np.flatnonzero((ops["level"] == "module").to_numpy()).tolist()
    holding_modules = {parents[op] for op in modules}
    backward_calls: dict[str, int] = {}
    for op in modules:
        module, is_backward, _ = names[op].rpartition(".backward.")
        if is_backward and forward_calls[op] not in holding_modules:
            backward_calls.setdefault(module, op)
    inner_calls: dict[int, list[int]] = {}
    for op, forward_call in enumerate(forward_calls):
        if forward_call >= 0 and parents[forward_call] >= 0:
            inner_calls.setdefault(parents[forward_call], []).append(op)
    gradient_calls = {}
    for record in np.flatnonzero((ops["kind"] == _GRADIENT_KIND).to_numpy()).tolist():
        module = names[record].partition(f".{_GRADIENT_KIND}")[0]
        call = backward_calls.get(module)
        if call is not None:
            inside = inner_calls.get(forward_calls[call], ())
            gradient_calls[record] = (call, *(op for op in inside if op != record))
    return gradient_calls
