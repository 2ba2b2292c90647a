"""Gradients that the forward steps after a value give, with one path stopped, scaled or passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import BACKWARD
from ..fault_case import FaultCase, compute_residual
from ..gradient_paths import GradientPaths, PathEdge
from ..hypothesis import Candidate, Hypothesis

#: Ways along which a gradient flows back from ops that read the value itself: of more of them, only
#: single ones are stopped.
_MAX_OWN_EDGES = 6
#: Axes of a gradient whose orders are tried, and elements of which a number is solved for.
_MAX_AXES, _MIN_ELEMENTS = 4, 4
#: Squared share of the difference that a number may leave before it is checked, and the least one
#: that is no stop.
_MAX_REST, _ZERO_FACTOR = 1e-4, 1e-3


def suggest_changed_path(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that what flows back along one path is missing, scaled, or passed straight through.

    All paths together must give the faithful side's gradient.
    """
    if case.phase != BACKWARD or case.faithful.size < 2:
        return
    for paths in case.gradient_paths:
        axes = _find_axes(case, paths)
        if axes is not None:
            yield from _suggest_changes(case, list(paths.iterate_edges()), paths, axes)
            return


def _find_axes(case: FaultCase, paths: GradientPaths) -> tuple[int, ...] | None:
    """Return the order of the axes in which the paths give the faithful side's gradient."""
    gradients = paths.gradients
    if gradients is None or gradients[paths.value].size != case.faithful.size:
        return None
    return next(
        (
            axes
            for axes in _list_axis_orders(paths)
            if case.matches_faithful(_arrange(paths, axes, gradients[paths.value]))
        ),
        None,
    )


def _list_axis_orders(paths: GradientPaths) -> Iterator[tuple[int, ...]]:
    n_axes = paths.array.ndim
    return permutations(range(n_axes)) if n_axes <= _MAX_AXES else iter(())


def _arrange(paths: GradientPaths, axes: tuple[int, ...], flat: Floats) -> AnyArray:
    return flat.reshape(paths.array.shape).transpose(axes)


def is_derivative(case: FaultCase) -> bool:
    """Return whether the faulty side's gradient is what the forward steps give.

    Then the faithful side has changed it, and nothing is missing from the faulty side's.
    """
    for paths in case.gradient_paths:
        gradients = paths.gradients
        if gradients is None or gradients[paths.value].size != case.faulty.size:
            continue
        for axes in _list_axis_orders(paths):
            array = _arrange(paths, axes, gradients[paths.value])
            if compute_residual(array, case.faulty) <= case.limit:
                return True
    return False


def _suggest_changes(
    case: FaultCase, edges: Sequence[PathEdge], paths: GradientPaths, axes: tuple[int, ...]
) -> Iterator[Candidate]:
    def arrange(flat: Floats) -> AnyArray:
        return _arrange(paths, axes, flat).reshape(case.faithful.shape)

    assert paths.gradients is not None
    unchanged = arrange(paths.gradients[paths.value])
    contributions = [arrange(edge.contribution) for edge in edges]
    names = [f"{edge.step.name} ({edge.step.kind})" for edge in edges]
    for name, part in zip(names, contributions, strict=True):
        yield Candidate(
            unchanged - part,
            f"without the gradient that flows back through {name}",
            unchanged=unchanged,
        )
    own = [number for number, edge in enumerate(edges) if edge.is_own]
    if 2 < len(own) <= _MAX_OWN_EDGES:
        for n_missing in range(2, len(own)):
            for numbers in combinations(own, n_missing):
                listed = " and ".join(names[number] for number in numbers)
                yield Candidate(
                    unchanged - np.sum([contributions[number] for number in numbers], axis=0),
                    f"without the gradients that flow back through {listed}",
                    unchanged=unchanged,
                )
    for name, part, edge in zip(names, contributions, edges, strict=True):
        if edge.straight is not None:
            yield Candidate(
                unchanged - part + arrange(edge.straight),
                f"with the gradient passed straight through {name}",
                "differentiates it",
                unchanged=unchanged,
                cause="straight-through",
            )
    difference = (case.faulty - unchanged).reshape(-1)
    for name, part in zip(names, contributions, strict=True):
        yield from _solve_factor(difference, name, part, unchanged)


def _solve_factor(
    difference: Floats, name: str, part: AnyArray, unchanged: AnyArray
) -> Iterator[Candidate]:
    """Yield the number by which what flows back along a path is multiplied, if one explains it."""
    flat = part.reshape(-1)
    coefficient = float(difference @ flat) / float(flat @ flat)
    rest = difference - coefficient * flat
    factor = 1 + coefficient
    is_solved = float(rest @ rest) <= _MAX_REST * float(difference @ difference)
    if flat.size < _MIN_ELEMENTS or not is_solved or abs(factor) < _ZERO_FACTOR:
        return
    yield Candidate(
        unchanged + coefficient * part,
        f"the gradient that flows back through {name} times {factor:.6g}",
        parameters={"factor": factor},
        unchanged=unchanged,
        cause="gradient-scaled",
    )


HYPOTHESES = (Hypothesis("gradient-stopped", suggest_changed_path),)
