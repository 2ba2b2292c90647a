"""Rotary position embedding: the other layout of pairs, another base, other positions.

These are recognized in the tables and in their use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ...comparison.narrow_dtypes import round_to_dtype
from ...model.arrays import AnyArray, Floats
from ...model.trace import FORWARD
from ...operators.rotary import PAIR_LAYOUTS, make_rotary_angles
from ..fault_case import FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import minimize
from .row_selection import format_position_offset

#: Layout of the pairs -> the other one.
_OTHER_LAYOUT = {"halves": "interleaved", "interleaved": "halves"}
_OFFSETS = (1, -1, 2, -2)
#: Largest difference of a table's first column: bfloat16 tables are off by 4e-3.
_MAX_COLUMN_DIFFERENCE = 1e-2
#: Relative difference of the sums of squares of cosines and sines: twice that of bfloat16.
_TABLE_ERROR = 2e-2
#: Bases among which that of a table is searched; the common one is tried first.
_LOG_BASES = np.log(np.logspace(2, 8, 61))
_COMMON_BASE = 1e4
#: Relative distance of a column from a power of a base, and decimals that tell powers apart.
_POWER_DISTANCE, _POWER_DECIMALS = 1e-4, 9
#: Fewest positions of a table, and the largest entry, with some rounding.
_MIN_POSITIONS, _MAX_ENTRY = 3, 1 + 1e-3


@dataclass(frozen=True)
class _Table:
    """How a table of cosines or sines, (positions, size), is computed."""

    function: str  #: cos or sin
    n_positions: int
    size: int
    base: float
    interleaved: bool
    first_position: int

    def compute_frequencies(self) -> Floats:
        """Return the inverse frequency of each pair."""
        frequencies: Floats = self.base ** (-2.0 * np.arange(self.size // 2) / self.size)
        return frequencies

    def compute(self, frequencies: AnyArray | None = None) -> Floats:
        """Return the table, of its own or of other frequencies."""
        if frequencies is None:
            frequencies = self.compute_frequencies()
        positions = np.arange(self.first_position, self.first_position + self.n_positions)
        angles = make_rotary_angles(positions, frequencies, self.interleaved)
        return np.cos(angles) if self.function == "cos" else np.sin(angles)


def suggest_table(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a table of cosines or sines with another layout, position, base or precision."""
    rows = read_table(case.faithful)
    if case.phase != FORWARD or rows is None:
        return
    table = _fit_table(rows, case.limit)
    if table is None:
        return
    unchanged = table.compute()
    layout = "interleaved" if table.interleaved else "halves"
    yield _make_layout_candidate(
        unchanged,
        replace(table, interleaved=not table.interleaved).compute(),
        _OTHER_LAYOUT[layout],
    )
    for offset in _OFFSETS:
        yield Candidate(
            replace(table, first_position=table.first_position + offset).compute(),
            *format_position_offset(offset, table.first_position),
            parameters={"offset": float(offset)},
            unchanged=unchanged,
            cause="position-offset",
        )
    base = _fit_base(table, case.faulty.reshape(rows.shape))
    yield Candidate(
        replace(table, base=base).compute(),
        f"rotary base {base:.6g}",
        f"has {table.base:.6g}",
        parameters={"theta": base, "other_theta": table.base},
        unchanged=unchanged,
        cause="rope-theta",
    )
    for dtype in ("bfloat16", "float16"):
        frequencies = round_to_dtype(table.compute_frequencies().astype(np.float32), dtype)
        yield Candidate(
            table.compute(frequencies.astype(np.float64)),
            f"inverse frequencies rounded to {dtype}",
            unchanged=unchanged,
            cause="low-precision",
        )


def suggest_angles(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another base of frequencies, or of angles: before cosines and sines are taken."""
    if case.phase != FORWARD or not case.consumer_kinds & {"cos", "sin"}:
        return
    powers = _read_powers(case.faithful)
    faulty_powers = _read_powers(case.faulty)
    if powers is None or faulty_powers is None or powers.base == faulty_powers.base:
        return
    ratio = faulty_powers.base / powers.base
    yield Candidate(
        case.faithful * ratio**-powers.exponents,
        f"rotary base {faulty_powers.base:.6g}",
        f"has {powers.base:.6g}",
        parameters={"theta": faulty_powers.base, "other_theta": powers.base},
        unchanged=case.faithful,
        cause="rope-theta",
    )


@dataclass(frozen=True, eq=False)
class _Powers:
    """Columns that are multiples of base ** -exponents."""

    base: float
    exponents: Floats  #: k / n of each column: 0, 1 / n, 2 / n, ...


def _read_powers(array: AnyArray) -> _Powers | None:
    """Return the powers of which each row of an array is a multiple; None if it has none.

    Rows may hold each power twice, for both numbers of a rotated pair.
    """
    if array.ndim == 0 or array.dtype.kind != "f" or not array.size:
        return None
    rows = array.reshape(-1, array.shape[-1])
    row = rows[np.argmax(np.abs(rows[:, 0]))]
    if not row[0] > 0 or not np.all(row > 0):
        return None
    columns = row / row[0]
    powers = np.unique(columns.round(_POWER_DECIMALS))[::-1]
    n_powers = len(powers)
    if n_powers < 2 or columns.max() > 1 + _POWER_DISTANCE:
        return None
    positions = np.argmin(np.abs(columns[:, None] - powers), axis=1)
    exponents = positions / n_powers
    exact_base = float(columns.min()) ** (-n_powers / (n_powers - 1))
    base = float(f"{exact_base:.3g}")
    differences = (
        base / exact_base - 1,
        np.abs(columns * base**exponents - 1).max(),
        compute_residual(np.outer(rows[:, 0], columns), rows),
    )
    return None if max(map(abs, differences)) > _POWER_DISTANCE else _Powers(base, exponents)


def read_table(array: AnyArray) -> AnyArray | None:
    """Return the array as (positions, size); None if it cannot be a table.

    A table has at least three positions and entries in -1..1; leading axes of length 1 are removed.
    """
    if array.dtype.kind != "f" or array.ndim < 2:
        return None
    if array.shape[-1] % 2:
        return None
    if int(np.prod(array.shape[:-2])) != 1:
        return None
    rows = array.reshape(array.shape[-2:])
    if len(rows) < _MIN_POSITIONS or not np.abs(rows).max() <= _MAX_ENTRY:
        return None
    return rows


def _fit_table(rows: AnyArray, limit: float) -> _Table | None:
    """Return the table that gives these rows; a common base is tried first."""
    n_positions, size = rows.shape
    for function in ("cos", "sin"):
        for first_position in (0, 1):
            # The angle of the first pair is the position itself, whatever the base: this rules out
            # all other matrices.
            angles = np.arange(first_position, first_position + n_positions)
            column = np.cos(angles) if function == "cos" else np.sin(angles)
            if np.abs(rows[:, 0] - column).max() > _MAX_COLUMN_DIFFERENCE:
                continue
            for interleaved in (False, True):
                table = _Table(
                    function, n_positions, size, _COMMON_BASE, interleaved, first_position
                )
                if _measure_distance(table, _COMMON_BASE, rows) <= limit:
                    return table
                base = _fit_base(table, rows)
                if _measure_distance(table, base, rows) <= limit:
                    return replace(table, base=base)
    return None


def _fit_base(table: _Table, rows: AnyArray) -> float:
    """Return the base with which a table is nearest to ``rows``, to four digits."""

    def measure_log_base(log_base: float) -> float:
        return _measure_distance(table, float(np.exp(log_base)), rows)

    return float(f"{np.exp(minimize(measure_log_base, _LOG_BASES)):.4g}")


def _measure_distance(table: _Table, base: float, rows: AnyArray) -> float:
    """Return the relative L2 of a table with another base against ``rows``."""
    scale = float(np.linalg.norm(rows)) or 1.0
    return float(np.linalg.norm(replace(table, base=base).compute() - rows)) / scale


def suggest_other_layout(case: FaultCase) -> Iterator[Candidate]:
    """Suggest pairs of the other layout in rotated(x), rotated(x) sin or x cos + rotated(x) sin."""
    faithful = case.faithful
    if not case.is_forward_value or faithful.ndim < 2:
        return
    if faithful.shape[-1] % 2:
        return
    tables = _list_tables(case)
    table_pairs = _pair_tables(tables)
    for operand in list(case.find_same_size_operands()):
        for x in _iterate_head_layouts(operand.array, faithful.shape):
            for unchanged, predicted, layout in _rotate_in_both_layouts(
                case, x, tables, table_pairs
            ):
                yield _make_layout_candidate(unchanged, predicted, layout)


def _make_layout_candidate(unchanged: AnyArray, predicted: AnyArray, layout: str) -> Candidate:
    """Return the candidate with rotary pairs in ``layout``, if the faithful side has the other."""
    return Candidate(
        predicted,
        f"rotary layout = {layout}",
        f"has {_OTHER_LAYOUT[layout]}",
        unchanged=unchanged,
        cause="rope-layout",
    )


def _list_tables(case: FaultCase) -> list[AnyArray]:
    """Return the operands that can be tables of cosines or sines for the output."""
    tables = []
    for operand in case.operands:
        if not operand.is_floating or read_table(operand.array) is None:
            continue
        if _broadcasts_to(operand.array.shape, case.faithful.shape):
            tables.append(operand.array)
    return tables


def _pair_tables(tables: Sequence[AnyArray]) -> list[tuple[AnyArray, AnyArray]]:
    """Return the tables of which one can hold the cosines of the angles, and one their sines."""
    pairs = []
    for cos, sin in permutations(tables, 2):
        try:
            squares = cos**2 + sin**2
        except ValueError:  # other shapes
            continue
        if np.ptp(squares) <= _TABLE_ERROR * squares.max():
            pairs.append((cos, sin))
    return pairs


def _iterate_head_layouts(x: AnyArray, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """Yield an operand in the shape of the output.

    (batch, sequence, heads x size) is also split into heads that are moved forward.
    """
    yield x.reshape(shape)
    if len(shape) == 4:
        head_shape = (shape[0], shape[2], shape[1], shape[3])
        yield np.swapaxes(x.reshape(head_shape), 1, 2)


def _rotate_in_both_layouts(
    case: FaultCase,
    x: AnyArray,
    tables: Sequence[AnyArray],
    table_pairs: Sequence[tuple[AnyArray, AnyArray]],
) -> Iterator[tuple[AnyArray, AnyArray, str]]:
    """Yield (faithful side's value, the same in the other layout, that layout).

    The value is any step of a rotation.
    """
    for cos in tables:
        if case.matches_faithful(x * cos):
            for layout in PAIR_LAYOUTS:
                yield x * cos, x * _convert_table(cos, layout), layout
    for layout, other_layout in _OTHER_LAYOUT.items():
        rotated, other_rotated = PAIR_LAYOUTS[layout](x), PAIR_LAYOUTS[other_layout](x)
        if case.matches_faithful(rotated):
            yield rotated, other_rotated, other_layout
        for sin in tables:
            if case.matches_faithful(rotated * sin):
                other_sin = _convert_table(sin, other_layout)
                yield rotated * sin, other_rotated * sin, other_layout
                yield rotated * sin, other_rotated * other_sin, other_layout
        for cos, sin in table_pairs:
            unchanged = x * cos + rotated * sin
            if not case.matches_faithful(unchanged):
                continue
            other_cos, other_sin = (_convert_table(table, other_layout) for table in (cos, sin))
            yield unchanged, x * cos + other_rotated * sin, other_layout
            yield unchanged, x * other_cos + other_rotated * other_sin, other_layout


def _convert_table(values: AnyArray, layout: str) -> AnyArray:
    """Return a table of one layout in the other; each angle is present twice."""
    half = values.shape[-1] // 2
    if layout == "interleaved":
        return np.repeat(values[..., :half], 2, axis=-1)
    return np.concatenate([values[..., ::2], values[..., ::2]], axis=-1)


def _broadcasts_to(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(small, large) == large
    except ValueError:
        return False


#: About the tables themselves.
TABLE_HYPOTHESES = (
    Hypothesis("rope-theta", suggest_table),
    Hypothesis("rope-theta", suggest_angles),
)

HYPOTHESES = (*TABLE_HYPOTHESES, Hypothesis("rope-layout", suggest_other_layout))
