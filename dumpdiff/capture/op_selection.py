"""Select the ops to dump as a whole: those of the findings, and what explaining them reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..causes import iterate_needed_values, list_finding_op_ids
from ..comparison import Comparison
from ..graph import Flow
from ..model.arrays import Flags
from ..model.defaults import NARROWED_SHARE
from ..model.finding import Finding
from .cost import count_op_bytes, flag_recorded_tensors

#: Kinds of records that are values without an op: a dumper cannot select them.
_VALUE_KINDS = ("Parameter", "parameters_grad")


class _SideSelection:
    """The ops of one side selected so far, and what is left of its budget."""

    def __init__(self, flow: Flow, max_bytes: int | None, max_ops: int | None) -> None:
        self.flow = flow
        self.ops: dict[int, None] = {}
        self.max_ops = len(flow.trace.ops) if max_ops is None else max_ops
        self.is_recordable = _flag_recordable_ops(flow)
        self.op_bytes = count_op_bytes(flow.trace)
        self.budget = float(self.op_bytes.sum())
        if max_bytes is not None:
            self.budget = max_bytes
        elif max_ops is None:
            self.budget *= NARROWED_SHARE
        self.covered_values = _list_whole_values(flow)

    def add_op(self, op: int) -> None:
        """Select an op, whatever it costs."""
        values = set(self.flow.tensor_class[self.flow.get_tensor_ids(op)].tolist())
        is_new = op not in self.ops and self.is_recordable[op] and values - self.covered_values
        if not is_new or len(self.ops) >= self.max_ops:
            return
        self.ops[op] = None
        self.budget -= self.op_bytes[op]
        self.covered_values |= values

    def add_value(self, value: int) -> None:
        """Select the cheapest op that records a value, if there is none yet and it fits."""
        if value in self.covered_values:
            return
        producer = int(self.flow.producers[value])
        phase = self.flow.list_column("phase")[value]
        candidates = [
            op
            for op in (producer, *self.flow.consumers[value])
            if op >= 0 and self.is_recordable[op] and self.flow.phases[op] == phase
        ]
        candidates = [op for op in candidates if self.op_bytes[op] <= self.budget]
        if candidates:
            self.add_op(min(candidates, key=lambda op: (self.op_bytes[op], op != producer)))


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
    for what the first did not.
    """
    alignment = comparison.alignment
    sides = [
        _SideSelection(flow, max_bytes, max_ops) for flow in (alignment.target, alignment.reference)
    ]
    for finding in findings:
        for side, ops in zip(sides, list_finding_op_ids(comparison, finding), strict=True):
            for op in ops:
                if finding is findings[0] or side.op_bytes[op] <= side.budget:
                    side.add_op(op)
        for number, value in iterate_needed_values(comparison, finding):
            sides[number].add_value(value)
    return tuple(sides[0].ops), tuple(sides[1].ops)


def _list_whole_values(flow: Flow) -> set[int]:
    """Return the classes of which a dump of statistics holds a whole tensor, and -1: no class.

    Of a dump that holds everything as a whole, only -1: it is to be repeated with less.
    """
    has_file = (flow.tensors["file"] != "").to_numpy()
    if has_file[flag_recorded_tensors(flow.trace) & (flow.tensor_class >= 0)].all():
        return {-1}
    return {-1, *flow.tensor_class[has_file].tolist()}


def _flag_recordable_ops(flow: Flow) -> Flags:
    """Return (ops,) whether a dumper can select an op: no module call around other records."""
    ops = flow.trace.ops
    is_inner = ~np.isin(np.arange(len(ops)), ops["parent"].to_numpy())
    flags: Flags = (ops["level"] == "op").to_numpy() | is_inner
    return flags & ~ops["kind"].isin(_VALUE_KINDS).to_numpy()
