"""Rows that are reduced group by group, otherwise: bags of embeddings, messages, tokens.

The sum in place of the mean, padding counted, the maximum. One group may be the tokens of a
sequence, the items of a bag, or the edges that lead to a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....model.arrays import AnyArray, Flags
from ....operators.row_groups import REDUCTIONS, RowGroups
from ...fault_case import FaultCase, Operand, compute_residual
from ...region import Region, Step
from .change import Change, list_floating_inputs

#: Relative L2 within which a reduction gives a recorded output.
_EQUAL_DISTANCE = 1e-5
#: Tensors of rows that are tried for one step, and elements of each.
_MAX_SOURCES, _MAX_ELEMENTS = 6, 1 << 18
#: Fewest rows of the groups together, and fewest elements of the result.
_MIN_ROWS, _MIN_ELEMENTS = 4, 8
_NOUNS = {
    "sum": "the sum",
    "mean": "the mean",
    "max": "the maximum",
    "min": "the minimum",
    "root": "the sum, divided by the root of their number,",
}


@dataclass(frozen=True, eq=False)
class _Source:
    """Rows in groups, with the whole numbers from which they were looked up, if any."""

    name: str
    groups: RowGroups
    numbers: AnyArray | None = None


@dataclass(frozen=True, eq=False)
class _Form:
    """One reduction of some rows."""

    text: str
    output: AnyArray


def list_row_reductions(case: FaultCase, region: Region) -> Iterator[Change]:
    """Reduce the rows of each group otherwise, or other rows of it."""
    operands = case.list_shared_operands()
    for number, step in enumerate(region.steps):
        if step.output.ndim < 2 or step.output.size < _MIN_ELEMENTS:
            continue
        for source in _list_sources(region, number, operands):
            if not _has_own_form(source, operands, step):
                continue
            forms = list(_list_forms(source, operands))
            own_form = next((form for form in forms if _is_output(form, step)), None)
            if own_form is None:
                continue
            for form in forms:
                if compute_residual(form.output, own_form.output) > _EQUAL_DISTANCE:
                    output = form.output.reshape(step.output.shape)
                    contrast = f"takes {own_form.text}"
                    yield Change(number, output, "pooling", form.text, contrast)


def _has_own_form(source: _Source, operands: Sequence[Operand], step: Step) -> bool:
    """Return whether the first column of the output is a reduction: this rules most sources out."""
    groups = source.groups
    width = groups.rows.shape[1]
    narrow_source = replace(source, groups=replace(groups, rows=groups.rows[:, :1]))
    column = step.output.reshape(-1, width)[:, :1]
    return any(
        compute_residual(form.output, column) <= _EQUAL_DISTANCE
        for form in _list_forms(narrow_source, operands)
    )


def _is_output(form: _Form, step: Step) -> bool:
    return compute_residual(form.output, step.output) <= _EQUAL_DISTANCE


def _list_sources(region: Region, number: int, operands: Sequence[Operand]) -> Iterator[_Source]:
    """Yield the rows of which a step's output may be a reduction, the nearest first."""
    step = region.steps[number]
    named_arrays = [
        (item.name.rpartition("/")[2], item.array)
        for earlier in reversed(region.steps[: number + 1])
        for _, item in list_floating_inputs(earlier)
        if not item.is_parameter
    ]
    named_arrays += [
        (operand.name.rpartition("/")[2], operand.array)
        for operand in operands
        if operand.agrees and not operand.parameter and operand.is_floating
    ]
    numbers = [
        operand.array
        for operand in operands
        if operand.array.dtype.kind in "iu" and operand.array.size >= _MIN_ROWS
    ]
    tables = [operand for operand in operands if operand.parameter and len(operand.shape) == 2]
    n_sources = 0
    seen: list[AnyArray] = []
    for source in (
        *_list_axes(named_arrays, numbers, step.output),
        *_list_segments(named_arrays, numbers, step.output),
        *_list_lookups(tables, numbers, step.output),
    ):
        rows = source.groups.rows
        if any(rows.shape == other.shape and np.array_equal(rows, other) for other in seen):
            continue
        seen.append(rows)
        n_sources += 1
        if n_sources > _MAX_SOURCES:
            return
        yield source


def _list_axes(
    named_arrays: Sequence[tuple[str, AnyArray]], numbers: Sequence[AnyArray], output: AnyArray
) -> Iterator[_Source]:
    """Yield tensors (groups, length, width): the second axis is reduced."""
    for name, array in named_arrays:
        if array.ndim != 3 or array.shape[0] * array.shape[1] < _MIN_ROWS:
            continue
        n_groups, length, width = array.shape
        if length < 2 or n_groups * width != output.size or array.size > _MAX_ELEMENTS:
            continue
        own_numbers = next((ids for ids in numbers if ids.shape == (n_groups, length)), None)
        groups = np.repeat(np.arange(n_groups), length)
        rows = RowGroups(array.reshape(-1, width), groups, n_groups)
        yield _Source(name, rows, None if own_numbers is None else own_numbers.reshape(-1))


def _list_segments(
    named_arrays: Sequence[tuple[str, AnyArray]], numbers: Sequence[AnyArray], output: AnyArray
) -> Iterator[_Source]:
    """Yield tensors (rows, width) with the number of the group of each row."""
    for name, array in named_arrays:
        if array.ndim != 2 or output.size % array.shape[1] or array.size > _MAX_ELEMENTS:
            continue
        n_groups = output.size // array.shape[1]
        for ids in numbers:
            is_fitting = ids.size == len(array) and ids.min() >= 0 and ids.max() < n_groups
            if is_fitting and len(np.unique(ids)) > 1:
                yield _Source(name, RowGroups(array, ids.reshape(-1), n_groups))


def _list_lookups(
    tables: Sequence[Operand], numbers: Sequence[AnyArray], output: AnyArray
) -> Iterator[_Source]:
    """Yield the rows of a table that an op looks up and reduces at once."""
    for table in tables:
        n_rows, width = table.shape
        for ids in numbers:
            is_fitting = ids.ndim == 2 and ids.size * width <= _MAX_ELEMENTS
            if not is_fitting or len(ids) * width != output.size:
                continue
            if ids.min() >= 0 and ids.max() < n_rows:
                groups = np.repeat(np.arange(len(ids)), ids.shape[1])
                rows = table.array[ids.reshape(-1)]
                yield _Source(table.name, RowGroups(rows, groups, len(ids)), ids.reshape(-1))


def _list_forms(source: _Source, operands: Sequence[Operand]) -> Iterator[_Form]:
    """Yield the reductions of all rows, then of those that count; the simplest first."""
    groups = source.groups
    everything = np.ones(len(groups.rows), dtype=bool)
    sets = [(f"all rows of {source.name}", everything), *_list_counted(source, operands)]
    for rows_text, is_counted in sets:
        for reduction in REDUCTIONS:
            text = f"{_NOUNS[reduction]} of {rows_text}"
            yield _Form(text, groups.reduce(reduction, is_counted))
    lengths = np.unique(groups.count(everything))
    if len(lengths) > 1:
        return
    for rows_text, is_counted in sets[1:]:
        total = groups.reduce("sum", is_counted)
        yield _Form(f"the sum of {rows_text}, divided by {lengths[0]:g}", total / lengths[0])


def _list_counted(source: _Source, operands: Sequence[Operand]) -> Iterator[tuple[str, Flags]]:
    """Yield (text, flags) of the rows that count: those of a mask, or those that are no padding."""
    n_rows = len(source.groups.rows)
    seen: list[bytes] = []
    if source.numbers is not None:
        flags = source.numbers != 0
        if flags.any() and not flags.all():
            seen.append(flags.tobytes())
            yield f"the rows of {source.name} that are no padding (number 0)", flags
    for operand in operands:
        array = operand.array
        if array.size != n_rows or array.dtype.kind not in "bf":
            continue
        flags = array.reshape(-1) != 0
        is_mask = flags.any() and not flags.all() and np.array_equal(array.reshape(-1), flags)
        if is_mask and flags.tobytes() not in seen:
            seen.append(flags.tobytes())
            yield f"the rows of {source.name} that a mask keeps ({operand.name})", flags
