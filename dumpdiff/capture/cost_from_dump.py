"""Estimate the cost of a dump configuration for a run that is similar to a dumped one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.arrays import Flags
from ..model.errors import DumpError
from ..model.trace import BACKWARD, FORWARD, Trace, flag_words
from . import msprobe
from .cost import Cost, count_forward_calls, estimate_cost, flag_recorded_tensors
from .mindspore.iteration import parse_iterations
from .mindspore.kernels import parse_kernel
from .msprobe.selection import (
    find_near_names,
    flag_low_risk_ops,
    flag_named_ops,
    flag_selected_ops,
    flag_structure_ops,
)

#: What MindSpore writes if statistic_category is missing.
_DEFAULT_STATISTICS = ("max", "min", "l2norm")
#: Summary mode of msprobe -> numbers in a record: Max, Min, Mean and Norm, and a checksum of md5;
#: xor has a checksum only, which is as long as the names of the four.
_N_NUMBERS = {"statistics": 4, "md5": 5, "xor": 0}
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
    Raises DumpError with the nearest names if ``kernels`` selects nothing.
    """
    common, e2e = config["common_dump_settings"], config.get("e2e_dump_settings", {})
    is_recorded = flag_recorded_tensors(trace) & np.isin(
        trace.tensors["slot_kind"].to_numpy(), _INPUT_OUTPUT[common["input_output"]]
    )
    notes: list[str] = []
    if common["kernels"] and common["dump_mode"] == 1:
        if trace.source.format == "mindspore":
            is_recorded &= flag_tensors_of_ops(trace, _flag_kernels(trace, common["kernels"], like))
        else:
            notes.append(f"{like} is not a dump of MindSpore: kernels is ignored, every op counts")
    if common["dump_mode"] == 2:
        notes.append("which cells the script marks is not known: every op counts")
    saved = common.get("saved_data", "tensor")
    step = estimate_cost(
        trace,
        "mindspore",
        statistics=None if saved == "tensor" else is_recorded,
        whole_tensors=None if saved == "statistic" else is_recorded,
        n_statistics=len(common.get("statistic_category", _DEFAULT_STATISTICS)),
        max_elements=2 * e2e["sample_num"] if e2e.get("sample_mode") == 1 else None,
    )
    iterations = parse_iterations(common["iteration"])
    steps = None
    if not iterations.selects_all:
        steps = sum(last - first + 1 for first, last in iterations.ranges)
    return ExpectedCost(like, step, steps, tuple(notes))


def _flag_kernels(trace: Trace, entries: Sequence[str], like: str) -> Flags:
    """Return (ops,) which the entries select. Raises DumpError for the first that selects none."""
    flags = np.zeros(len(trace.ops), dtype=bool)
    for entry in entries:
        kernel = parse_kernel(entry)
        is_selected = flag_words(trace.ops["name"], kernel.selects)
        if not is_selected.any():
            near_names = find_near_names(kernel.text, trace)
            raise DumpError(f"kernels {entry!r} selects nothing in {like}{near_names}")
        flags |= is_selected
    return flags


def estimate_msprobe_cost(options: msprobe.Options, trace: Trace, like: str) -> ExpectedCost:
    """Return the cost of a dump that msprobe writes; ``trace`` is the trace of the dump ``like``.

    Names, levels and scopes can only be looked up in a dump of msprobe. With any other dump, every
    op counts, and a note says so. Raises DumpError with the nearest names if ``list``, ``scope`` or
    ``tensor_list`` select nothing.
    """
    is_recorded = flag_recorded_tensors(trace)
    notes: list[str] = []
    is_known = trace.source.format == "msprobe"
    if is_known:
        is_recorded &= flag_tensors_of_ops(trace, flag_selected_ops(options, trace))
        notes += _describe_unrecorded_calls(options, trace, like)
    elif options.names or options.scope or options.level != "mix":
        notes.append(f"{like} is not a dump of msprobe: level, list and scope are ignored")
    n_stacks = count_forward_calls(trace, is_recorded)  # whatever the mode selects of these calls
    is_recorded &= flag_tensors_of_mode(trace, options.data_mode)
    whole_tensors = is_recorded if options.task == "tensor" else None
    if options.tensor_list and is_known:
        named_ops = flag_named_ops(trace, options.tensor_list)
        whole_tensors = is_recorded & flag_tensors_of_ops(trace, named_ops)
    steps = sum(_count_steps(text) for text in options.steps) if options.steps else None
    step = estimate_cost(
        trace,
        "msprobe",
        statistics=is_recorded,
        whole_tensors=whole_tensors,
        n_statistics=_N_NUMBERS[options.summary_mode],
        n_calls=int(flag_structure_ops(options, trace).sum()),
        n_stacks=n_stacks,
        framework=options.framework,
    )
    return ExpectedCost(like, step, steps, tuple(notes))


def _describe_unrecorded_calls(options: msprobe.Options, trace: Trace, like: str) -> list[str]:
    """Return what the configuration records and the dump does not hold, as a sentence."""
    level = str(trace.source.details.get("level", "mix"))
    if level not in ("mix", options.level):
        return [f"{like} is a dump of level {level}: calls of other levels are not counted"]
    is_selected = bool(options.names or options.scope)
    records_all = options.level != "L0" and (options.risk_level == "ALL" or is_selected)
    if records_all and not flag_low_risk_ops(trace).any():
        return [
            f"{like} holds no calls of low risk (view, cat, ...), which this configuration records "
            "too: a dump with --risk-level ALL tells how many"
        ]
    return []


def flag_tensors_of_ops(trace: Trace, ops: Flags) -> Flags:
    """Return flags (tensors,): true for the tensors of the ops that are true in ``ops``."""
    flags: Flags = ops[trace.tensors["op"].to_numpy()]
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
