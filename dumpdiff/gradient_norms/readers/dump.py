"""Gradient norms out of a dump: which tensor is the gradient of a parameter is read off the dataflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ... import readers
from ...graph import flow_of, gradients
from ...model.errors import DumpError
from ...readers.parts import Part, choose
from ...rulebook import Rules
from ..side import Norms, norms_of


def parts_of(path: str) -> list[Part]:
    """What dumps a path holds; none if it holds something else."""
    return [part for reader in readers.FORMATS for part in reader.find(Path(path))]


def read(path: str, parts: list[Part], step: int | None, rules: Rules) -> Norms:
    """The norms of the first step and rank of a dump, or of the training's step ``step``: dumps count from 0.

    Raises DumpError if the dump has no such step, or no gradient of a parameter.
    """
    steps = sorted({part.step for part in parts if part.step is not None})
    if step is not None and steps:
        if step - 1 not in steps:
            said = ", ".join(str(number + 1) for number in steps[:12])
            raise DumpError(
                f"{path}: has no step {step}; it has step{'s' if len(steps) > 1 else ''} {said} (from 1)"
            )
        parts = [part for part in parts if part.step == step - 1]
    part = choose(parts, parts, roles=("dump", "same dump"))[0]
    trace = readers.read(part)
    flow = flow_of(trace)
    of = gradients(flow, [rules.kind(kind) for kind in trace.ops["kind"]]).of
    names, sizes, norms = flow.column("parameter"), flow.sizes, flow.column("norm")
    shapes, tensor = trace.tensors["shape"].to_numpy(), flow.column("tensor")
    weights = [value for value in range(len(names)) if names[value] and flow.producers[value] < 0]
    nonfinite = flow.column(
        "nonfinite"
    )  # a norm that is NaN because the gradient is says something
    known = [v for v in weights if v in of and (np.isfinite(norms[of[v]]) or nonfinite[of[v]] == 1)]
    if not known:
        why = (
            "it names no parameters"
            if not weights
            else f"of {len(weights)} parameters none has a gradient in it"
        )
        raise DumpError(
            f"{path}: {why}; dump the backward pass of the whole step, or save gradients"
        )
    missing = len(weights) - len(known)
    values = np.array([norms[of[value]] for value in known])
    framework = {"mindspore": "MindSpore", "pytorch": "PyTorch"}.get(
        trace.source.framework, trace.source.framework
    )
    found = norms_of(
        path,
        f"gradients in a dump of {framework}",
        tuple(names[value] for value in known),
        values,
        rounding=values * trace.source.resolution,
        sizes=sizes[known],
        vectors=np.array([_is_vector(shapes[int(tensor[value])]) for value in known]),
        squared=False,
        because="norms of the gradients themselves",
    )
    return replace(
        found,
        step=None if part.step is None else part.step + 1,
        precision=flow.coarsest,
        notes=(f"the dump holds no gradient of {missing} of {len(weights)} parameters",)
        if missing
        else (),
        problems=trace.problems,
    )


def _is_vector(shape: tuple[int, ...] | None) -> int:
    return -1 if shape is None else int(len(shape) < 2)
