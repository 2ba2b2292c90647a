"""Estimate the cost of a dump configuration for a run that is similar to a dumped one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.arrays import Flags
from ..model.trace import BACKWARD, FORWARD, Trace
from . import msprobe
from .cost import Cost, estimate_cost, flag_recorded_tensors
from .mindspore.iteration import parse_iterations
from .mindspore.kernels import parse_kernel

_INPUT_OUTPUT = {0: ("input", "output", "parameter"), 1: ("input", "parameter"), 2: ("output",)}


@dataclass(frozen=True)
class ExpectedCost:
    """The cost per step and rank, and the number of selected steps."""

    like: str  #: the dump that the estimate is based on
    step: Cost
    steps: int | None  #: None: every step of the run
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"based on {self.like}: {self.step} per step and rank"
        if self.steps is not None and self.steps > 1:
            text += f"; {self.steps} steps: {self.step.multiply(self.steps)}"
        return "\n".join([text, *self.notes])


def estimate_mindspore_cost(config: Mapping[str, Any], trace: Trace, like: str) -> ExpectedCost:
    """Return the cost of a dump that MindSpore writes for a valid configuration.

    ``trace`` is the trace of the dump ``like``, of any format. The names in ``kernels`` can only be
    looked up in a dump of MindSpore. With any other dump, every op counts, and a note says so.
    """
    common = config["common_dump_settings"]
    is_recorded = flag_recorded_tensors(trace) & np.isin(
        trace.tensors["slot_kind"].to_numpy(), _INPUT_OUTPUT[common["input_output"]]
    )
    notes: tuple[str, ...] = ()
    if common["kernels"] and common["dump_mode"] == 1:
        if trace.source.format == "mindspore":
            kernels = [parse_kernel(entry) for entry in common["kernels"]]
            is_recorded &= flag_tensors_of_ops(
                trace,
                [any(kernel.selects(name) for kernel in kernels) for name in trace.ops["name"]],
            )
        else:
            notes = (f"{like} is not a dump of MindSpore: kernels is ignored, every op counts",)
    saved = common.get("saved_data", "tensor")
    step = estimate_cost(
        trace,
        "mindspore",
        statistics=None if saved == "tensor" else is_recorded,
        whole_tensors=None if saved == "statistic" else is_recorded,
    )
    iterations = parse_iterations(common["iteration"])
    steps = None
    if not iterations.selects_all:
        steps = sum(last - first + 1 for first, last in iterations.ranges)
    return ExpectedCost(like, step, steps, notes)


def estimate_msprobe_cost(options: msprobe.Options, trace: Trace, like: str) -> ExpectedCost:
    """Return the cost of a dump that msprobe writes; ``trace`` is the trace of the dump ``like``.

    A scope is ignored: every op counts.
    """
    is_recorded = flag_recorded_tensors(trace)
    if trace.source.format == "msprobe" and options.names:
        is_recorded &= _flag_tensors_by_name(trace, options.names)
    is_recorded &= flag_tensors_of_mode(trace, options.data_mode)
    whole_tensors = is_recorded if options.task == "tensor" else None
    if options.tensor_list:
        whole_tensors = is_recorded & _flag_tensors_by_name(trace, options.tensor_list)
    steps = sum(_count_steps(text) for text in options.steps) if options.steps else None
    notes = ("scope is ignored: every op counts",) if options.scope else ()
    return ExpectedCost(
        like,
        estimate_cost(trace, "msprobe", statistics=is_recorded, whole_tensors=whole_tensors),
        steps,
        notes,
    )


def _flag_tensors_by_name(trace: Trace, parts: tuple[str, ...]) -> Flags:
    """Return flags (tensors,): true for ops whose names contain any of these parts."""
    names = trace.ops["name"].tolist()
    return flag_tensors_of_ops(trace, [any(part in name for part in parts) for name in names])


def flag_tensors_of_ops(trace: Trace, ops: list[bool]) -> Flags:
    """Return flags (tensors,): true for the tensors of the ops that are true in ``ops``."""
    flags: Flags = np.array(ops, dtype=bool)[trace.tensors["op"].to_numpy()]
    return flags


def flag_tensors_of_mode(trace: Trace, modes: tuple[str, ...]) -> Flags:
    """Return flags (tensors,): true for what msprobe's ``data_mode`` selects.

    If ``modes`` names a phase, the other phase is excluded; the same holds for inputs and outputs.
    """
    flags = np.ones(len(trace.tensors), dtype=bool)
    phases = trace.ops["phase"].to_numpy()[trace.tensors["op"].to_numpy()]
    for column, values in (
        (phases, (FORWARD, BACKWARD)),
        (trace.tensors["slot_kind"].to_numpy(), ("input", "output")),
    ):
        selected_values = [value for value in values if value in modes]
        if selected_values:
            flags &= np.isin(column, selected_values) | ~np.isin(column, values)
    return flags


def _count_steps(text: str) -> int:
    """Return the number of steps in '5' or '5-8'."""
    first, _, last = text.partition("-")
    return int(last or first) - int(first) + 1
