"""Gradient norms from a dump; the dataflow tells which tensor is the gradient of a parameter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ... import readers
from ...graph import build_flow, find_gradients
from ...model.errors import DumpError
from ...readers.parts import Part, choose_parts
from ...rulebook import Rules
from ..norms import Norms, build_norms

_FRAMEWORK_NAMES = {"mindspore": "MindSpore", "pytorch": "PyTorch"}
#: Steps that are listed in a message, at most.
_MAX_LISTED_STEPS = 12


def find_dump_parts(path: str) -> list[Part]:
    """Return the dumps in a path; empty if it contains something else."""
    return readers.list_parts(Path(path))


def read_dump_norms(path: str, parts: list[Part], step: int | None, rules: Rules) -> Norms:
    """Read the gradient norms of the first rank of a dump, at a step or the first one.

    ``step`` counts from 1, the steps of a dump from 0. Raises DumpError if the dump has no such
    step, or no gradient of a parameter.
    """
    parts = _select_step(path, parts, step)
    part = choose_parts(parts, parts, side_names=("dump", "same dump"))[0]
    trace = readers.read_part(part)
    flow = build_flow(trace)
    kinds = [rules.resolve_kind(kind) for kind in trace.ops["kind"]]
    gradients = find_gradients(flow, kinds).by_value
    names, norms = flow.list_column("parameter"), flow.list_column("norm")
    nonfinite = flow.list_column("nonfinite")
    parameters = []
    parameters_with_norm = []
    for value, name in enumerate(names):
        if not name or flow.producers[value] >= 0:
            continue
        parameters.append(value)
        gradient = gradients.get(value)
        # A norm that is NaN because the gradient is not finite is used, too.
        if gradient is not None and (np.isfinite(norms[gradient]) or nonfinite[gradient] == 1):
            parameters_with_norm.append(value)
    if not parameters_with_norm:
        problem = "it names no parameters"
        if parameters:
            problem = f"it contains no gradient of its {len(parameters)} parameters"
        raise DumpError(
            f"{path}: {problem}; dump the backward pass of the whole step, or save gradients"
        )
    values = np.array([norms[gradients[parameter]] for parameter in parameters_with_norm])
    shapes, tensors = trace.tensors["shape"].to_numpy(), flow.list_column("tensor")
    vector_flags = [_flag_vector(shapes[int(tensors[value])]) for value in parameters_with_norm]
    framework = _FRAMEWORK_NAMES.get(trace.source.framework, trace.source.framework)
    notes = []
    n_missing = len(parameters) - len(parameters_with_norm)
    if n_missing:
        notes.append(f"the dump holds no gradient of {n_missing} of {len(parameters)} parameters")
    dump_norms = build_norms(
        path,
        f"gradients in a dump of {framework}",
        tuple(names[value] for value in parameters_with_norm),
        values,
        raw_rounding=values * trace.source.resolution,
        sizes=flow.sizes[parameters_with_norm],
        vector_flags=np.array(vector_flags),
        squared=False,
        squared_reason="norms of the gradients themselves",
    )
    return replace(
        dump_norms,
        step=None if part.step is None else part.step + 1,
        precision=flow.coarsest_dtype,
        is_recorded=True,
        notes=tuple(notes),
        problems=trace.problems,
    )


def _select_step(path: str, parts: list[Part], step: int | None) -> list[Part]:
    """Return the parts of a step that counts from 1; all if no step is given or known."""
    parts_by_step: dict[int, list[Part]] = {}
    for part in parts:
        if part.step is not None:
            parts_by_step.setdefault(part.step + 1, []).append(part)
    if step is None or not parts_by_step:
        return parts
    if step not in parts_by_step:
        steps = sorted(parts_by_step)
        plural = "s" if len(steps) > 1 else ""
        listed_steps = ", ".join(map(str, steps[:_MAX_LISTED_STEPS]))
        raise DumpError(f"{path}: has no step {step}; it has step{plural} {listed_steps} (from 1)")
    return parts_by_step[step]


def _flag_vector(shape: tuple[int, ...] | None) -> int:
    """Return 1 for a shape of at most one axis, 0 for more, -1 if it is unknown."""
    return -1 if shape is None else int(len(shape) < 2)
