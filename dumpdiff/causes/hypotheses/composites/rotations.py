"""Rotary embeddings inside a region: another base, direction or layout, or none for some inputs.

The tables of cosines and sines, and what they rotate, are recognized by their values. So it does
not matter where the region ends: after the rotation, or at the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from ....model.arrays import AnyArray, Floats
from ....model.trace import FORWARD
from ...comparison_index import UNKNOWN_SOURCE
from ...fault_case import FaultCase, compute_residual, have_same_elements
from ...parameter_fit import minimize
from ...region import Region, Step, StepInput
from .change import Change, list_floating_inputs

#: Bases among which that of a table is searched.
_LOG_BASES = np.log(np.logspace(2, 8, 25))
#: Factors of the positions among which that of a table is searched.
_LOG_FACTORS = np.log(np.logspace(-2, 2, 41))
#: Significant digits of a base, or a factor, that is searched.
_SEARCHED_DIGITS = 4
#: Fewest positions of a table, and difference from cosine and sine that is rounding.
_MIN_POSITIONS, _MAX_DIFFERENCE = 3, 1e-5


@dataclass(frozen=True, eq=False)
class _Tables:
    """Cosines and sines of one set of angles (positions, frequencies)."""

    cos: StepInput
    sin: StepInput
    frequencies: Floats
    first_position: int

    def compute(self, frequencies: Floats) -> Mapping[int, AnyArray]:
        """Return both tables with other frequencies, by their values."""
        n_positions = self.cos.array.size // len(self.frequencies)
        positions = np.arange(self.first_position, self.first_position + n_positions)
        angles = np.outer(positions, frequencies)
        return {self.cos.value: np.cos(angles), self.sin.value: np.sin(angles)}


@dataclass(frozen=True, eq=False)
class _Rotation:
    """One value that is rotated."""

    x: StepInput
    number: int  #: of the step that gives the rotated value


def list_rotations(case: FaultCase, region: Region) -> Iterator[Change]:
    """Rotate by other angles, in the other direction or layout, or leave rotations out."""
    if case.phase != FORWARD:
        return
    tables = _find_tables(region)
    if tables is None:
        return
    rotations = _find_rotations(region, tables)
    if not rotations:
        return
    number = len(region.steps) - 1
    output = region.steps[number].output
    for count, in_halves in product(range(1, len(rotations) + 1), (None, True, False)):
        for chosen in combinations(rotations, count):
            names = " and of ".join(rotation.x.name for rotation in chosen)
            outputs = {
                rotation.number: _arrange_pairs(rotation.x.array, in_halves).reshape(
                    region.steps[rotation.number].output.shape
                )
                for rotation in chosen
            }
            first, *_ = outputs
            yield Change(
                first,
                outputs.pop(first),
                "rope-missing",
                f"no rotary embedding of {names}",
                "has it",
                further_outputs=outputs,
            )
    yield Change(
        number,
        output,
        "rope-direction",
        "a rotary embedding that turns the other way",
        replaced_values={tables.sin.value: -tables.sin.array},
    )
    yield from _change_layout(region, rotations)
    yield from _change_base(case, region, tables)
    yield from _change_positions(case, region, tables)


def _change_layout(region: Region, rotations: list[_Rotation]) -> Iterator[Change]:
    """Rotate pairs of the other layout; scores do not depend on the order of the result."""
    number = len(region.steps) - 1
    width = rotations[0].x.array.shape[-1]
    if len(rotations) < 2 or any(item.x.array.shape[-1] != width for item in rotations):
        return
    for in_halves, layout, other_layout in (
        (True, "interleaved", "halves"),
        (False, "halves", "interleaved"),
    ):
        yield Change(
            number,
            region.steps[number].output,
            "rope-layout",
            f"rotary layout = {layout}",
            f"has {other_layout}",
            replaced_values={
                item.x.value: _arrange_pairs(item.x.array, in_halves) for item in rotations
            },
        )


def _arrange_pairs(array: AnyArray, in_halves: bool | None) -> AnyArray:
    """Return an array with the pairs of its last axis from neighbors to halves, or back.

    None: as they are. The two frameworks may store the weights of the other layout.
    """
    width = array.shape[-1]
    if in_halves is None or width % 2:
        return array
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
    arranged: AnyArray = array[..., order if in_halves else np.argsort(order)]
    return arranged


def _change_base(case: FaultCase, region: Region, tables: _Tables) -> Iterator[Change]:
    n_frequencies = len(np.unique(tables.frequencies.round(6)))
    exponents = -np.log(np.maximum(tables.frequencies, 1e-30))
    own_log_base = float(exponents.max()) * n_frequencies / max(n_frequencies - 1, 1)
    if n_frequencies < 2 or not own_log_base > 0:
        return

    def compute_tables(log_base: float) -> Mapping[int, AnyArray]:
        return tables.compute(np.exp(-exponents * log_base / own_log_base))

    number = len(region.steps) - 1
    for base in _search_number(case, region, compute_tables, _LOG_BASES):
        yield Change(
            number,
            region.steps[number].output,
            "rope-theta",
            f"rotary base {base:.6g}",
            f"has {np.exp(own_log_base):.6g}",
            {"theta": base},
            replaced_values=compute_tables(float(np.log(base))),
        )


def _change_positions(case: FaultCase, region: Region, tables: _Tables) -> Iterator[Change]:
    """Multiply all positions by a number."""

    def compute_tables(log_factor: float) -> Mapping[int, AnyArray]:
        return tables.compute(np.exp(log_factor) * tables.frequencies)

    number = len(region.steps) - 1
    for factor in _search_number(case, region, compute_tables, _LOG_FACTORS):
        yield Change(
            number,
            region.steps[number].output,
            "rope-scaling",
            f"positions {factor:.4g} times the {case.faithful_side}'s",
            parameters={"factor": factor},
            replaced_values=compute_tables(float(np.log(factor))),
        )


def _search_number(
    case: FaultCase,
    region: Region,
    compute_tables: Callable[[float], Mapping[int, AnyArray]],
    log_numbers: AnyArray,
) -> Iterable[float]:
    """Return the number whose tables explain the faulty value best: with few digits, with more.

    ``compute_tables`` takes its logarithm.
    """

    def measure(log_number: float) -> float:
        predicted = region.run_with_values(compute_tables(log_number))
        return float("inf") if predicted is None else compute_residual(predicted, case.faulty)

    number = float(np.exp(minimize(measure, log_numbers, n_rounds=16)))
    return dict.fromkeys(float(f"{number:.{n}g}") for n in (1, 2, _SEARCHED_DIGITS))


def _find_tables(region: Region) -> _Tables | None:
    """Return the cosines and sines of positions that steps of a region read; None if none do."""
    inputs = [
        item
        for step in region.steps
        for _, item in list_floating_inputs(step)
        if not item.is_parameter and item.array.ndim >= 2 and item.value >= 0
    ]
    for sin in inputs:
        rows = sin.array.reshape(-1, sin.array.shape[-1])
        if len(rows) < _MIN_POSITIONS or rows.size != sin.array.size or np.abs(rows).max() > 1:
            continue
        for cos in inputs:
            is_pair = cos.array.shape == sin.array.shape and cos.value != sin.value
            if not is_pair or np.abs(cos.array**2 + sin.array**2 - 1).max() > _MAX_DIFFERENCE:
                continue
            for first_position in (0, 1):
                tables = _read_tables(cos, sin, first_position)
                if tables is not None:
                    return tables
    return None


def _read_tables(cos: StepInput, sin: StepInput, first_position: int) -> _Tables | None:
    """Return the tables if their rows are those of the positions from a first one on."""
    width = cos.array.shape[-1]
    cosines, sines = cos.array.reshape(-1, width), sin.array.reshape(-1, width)
    row = 1 - first_position
    frequencies = np.arctan2(sines[row], cosines[row])
    positions = np.arange(first_position, first_position + len(cosines))
    angles = np.outer(positions, frequencies)
    difference = max(np.abs(np.cos(angles) - cosines).max(), np.abs(np.sin(angles) - sines).max())
    if difference > len(cosines) * _MAX_DIFFERENCE or frequencies.min() <= 0:
        return None
    return _Tables(cos, sin, frequencies, first_position)


def _find_rotations(region: Region, tables: _Tables) -> list[_Rotation]:
    """Return what is multiplied by the cosines, with the step that adds the other product."""
    cosines = _find_derived_values(region, tables.cos.value)
    rotations: list[_Rotation] = []
    for number, step in enumerate(region.steps):
        if step.kind != "mul" or len(step.inputs) != 2:
            continue
        for table, x in (step.inputs, step.inputs[::-1]):
            if table.value not in cosines or x.value in cosines or x.is_parameter:
                continue
            rotated = _find_sum(region, number, x)
            is_new = all(rotation.x.value != x.value for rotation in rotations)
            if rotated is not None and is_new:
                rotations.append(_Rotation(x, rotated))
    return rotations


def _find_sum(region: Region, number: int, x: StepInput) -> int | None:
    """Return the number of the step that adds a product to another one; None if none does."""
    for consumer in region.consumers[number]:
        step = region.steps[consumer]
        if step.kind in ("add", "sub") and step.output.shape == x.array.shape:
            return consumer
    return None


def _find_derived_values(region: Region, value: int) -> set[int]:
    """Return a value and what steps compute of it alone, such as the table joined with itself."""
    derived_values = {value}
    for step in region.steps:
        read_values = {item.value for _, item in list_floating_inputs(step)}
        if read_values and read_values <= derived_values:
            derived_values.add(step.value)
    return derived_values


def list_exchanged_inputs(case: FaultCase, region: Region) -> Iterator[Change]:
    """Exchange two of the queries, keys and values of attention."""
    for number, step in enumerate(region.steps):
        if step.kind == "attention":
            yield from _exchange_fused(case, number, step)
    for scores in region.steps:
        if scores.kind != "matmul" or len(scores.inputs) < 2:
            continue
        probabilities = _find_probabilities(region, scores)
        for number, step in enumerate(region.steps):
            if step.kind != "matmul" or len(step.inputs) < 2:
                continue
            weights, v = step.inputs[:2]
            if weights.value not in probabilities:
                continue
            q, k = scores.inputs[:2]
            transposed_k = np.swapaxes(k.array, -1, -2)
            if transposed_k.shape != v.array.shape:
                continue
            yield Change(
                number,
                step.output,
                _name_exchange(case, (q, k, v), (k, v)),
                _describe_exchange(k, v),
                replaced_values={k.value: np.swapaxes(v.array, -1, -2), v.value: transposed_k},
            )


def _exchange_fused(case: FaultCase, number: int, step: Step) -> Iterator[Change]:
    names = ("queries", "keys", "values")
    tensors = list_floating_inputs(step)[: len(names)]
    for (i, (first, a)), (j, (second, b)) in combinations(enumerate(tensors), 2):
        if a.array.shape != b.array.shape:
            continue
        inputs = step.list_arrays()
        inputs[first], inputs[second] = inputs[second], inputs[first]
        output = step.compute(inputs)
        if output is not None:
            cause = _name_exchange(case, [item for _, item in tensors], (a, b))
            yield Change(number, output, cause, f"{names[i]} and {names[j]} exchanged")


def _describe_exchange(k: StepInput, v: StepInput) -> str:
    if UNKNOWN_SOURCE in (k.name, v.name):
        return "keys and values exchanged"
    return f"keys and values exchanged ({k.name}, {v.name})"


def _name_exchange(
    case: FaultCase, inputs: Sequence[StepInput], exchanged: Sequence[StepInput]
) -> str:
    """Return split-order if one projection computes all inputs, or the two; else input-order."""
    size = sum(item.array.size for item in inputs)
    elements = np.concatenate([item.array.reshape(-1) for item in exchanged])
    for operand in (*case.operands, *case.faulty_operands):
        n_elements = int(np.prod(operand.shape))
        if n_elements == size:
            return "split-order"
        is_part = n_elements == elements.size and operand.is_floating
        if is_part and have_same_elements(operand.array, elements):
            return "split-order"
    return "input-order"


def _find_probabilities(region: Region, scores: Step) -> set[int]:
    """Return the values that follow from scores through a softmax."""
    derived_values, probabilities = {scores.value}, set()
    for step in region.steps:
        inputs = {item.value for item in step.inputs}
        if step.kind == "softmax" and inputs & derived_values:
            probabilities.add(step.value)
        if inputs & derived_values:
            derived_values.add(step.value)
        if inputs & probabilities and step.kind in ("dropout", "cast"):
            probabilities.add(step.value)
    return probabilities
