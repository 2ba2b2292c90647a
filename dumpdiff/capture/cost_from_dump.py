"""How large a dump that a configuration asks for will be, if the run is like one that was dumped."""

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
    """The cost of a step and rank, and how many steps were asked for."""

    like: str  #: the dump that it was reckoned from
    step: Cost
    steps: int | None  #: None: every step there will be
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"like {self.like}: {self.step} a step and rank"
        if self.steps is not None and self.steps > 1:
            text += f"; {self.steps} steps: {self.step.multiply(self.steps)}"
        return "\n".join([text, *self.notes])


def estimate_mindspore_cost(config: Mapping[str, Any], trace: Trace, like: str) -> ExpectedCost:
    """What MindSpore would write for a valid configuration; ``trace`` is of the dump ``like``, of any format.

    Names in ``kernels`` are looked up in a dump of MindSpore; of another they select nothing that could be counted, and
    a note says so.
    """
    common = config["common_dump_settings"]
    is_recorded = flag_recorded_tensors(trace) & np.isin(
        trace.tensors["role"].to_numpy(), _INPUT_OUTPUT[common["input_output"]]
    )
    notes: tuple[str, ...] = ()
    if common["kernels"] and common["dump_mode"] == 1:
        if trace.source.format == "mindspore":
            kernels = [parse_kernel(entry) for entry in common["kernels"]]
            is_recorded &= flag_tensors_of_ops(
                trace, [any(one.selects(name) for one in kernels) for name in trace.ops["name"]]
            )
        else:
            notes = (f"{like} knows no kernels of MindSpore: counted as if all were dumped",)
    saved = common.get("saved_data", "tensor")
    step = estimate_cost(
        trace,
        "mindspore",
        statistics=None if saved == "tensor" else is_recorded,
        whole_tensors=None if saved == "statistic" else is_recorded,
    )
    iterations = parse_iterations(common["iteration"])
    steps = None if iterations.selects_all else sum(last - first + 1 for first, last in iterations.ranges)
    return ExpectedCost(like, step, steps, notes)


def estimate_msprobe_cost(options: msprobe.Options, trace: Trace, like: str) -> ExpectedCost:
    """What msprobe would write; ``trace`` is of the dump ``like``. A scope is counted as if it were all."""
    names = trace.ops["name"].tolist()
    is_recorded = flag_recorded_tensors(trace)
    if trace.source.format == "msprobe" and options.names:
        is_recorded &= flag_tensors_of_ops(trace, [any(part in name for part in options.names) for name in names])
    is_recorded &= flag_tensors_of_mode(trace, options.data_mode)
    whole_tensors = is_recorded if options.task == "tensor" else None
    if options.tensor_list:
        whole_tensors = is_recorded & flag_tensors_of_ops(
            trace, [any(part in name for part in options.tensor_list) for name in names]
        )
    steps = sum(_count_steps(text) for text in options.steps) if options.steps else None
    notes = ("a scope is counted as if it were everything",) if options.scope else ()
    return ExpectedCost(like, estimate_cost(trace, "msprobe", statistics=is_recorded, whole_tensors=whole_tensors), steps, notes)


def flag_tensors_of_ops(trace: Trace, ops: list[bool]) -> Flags:
    """(tensors,) true for the tensors of the ops so marked."""
    flags: Flags = np.array(ops, dtype=bool)[trace.tensors["op"].to_numpy()]
    return flags


def flag_tensors_of_mode(trace: Trace, modes: tuple[str, ...]) -> Flags:
    """msprobe's data_mode: passes and sides not mentioned are left out, if any of their kind is mentioned."""
    flags = np.ones(len(trace.tensors), dtype=bool)
    phases = trace.ops["phase"].to_numpy()[trace.tensors["op"].to_numpy()]
    for column, values in (
        (phases, (FORWARD, BACKWARD)),
        (trace.tensors["role"].to_numpy(), ("input", "output")),
    ):
        selected_values = [value for value in values if value in modes]
        if selected_values:
            flags &= np.isin(column, selected_values) | ~np.isin(column, values)
    return flags


def _count_steps(text: str) -> int:
    first, _, last = text.partition("-")
    return int(last or first) - int(first) + 1
