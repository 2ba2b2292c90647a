"""Tables of sines and cosines with other frequencies: scaled positions, long contexts.

Each column is cos(p f) or sin(p f) of the positions p. Its frequency f is solved for, one number
from all positions, so no list of scaling rules is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats, Ints
from ...model.trace import FORWARD
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor
from .rotary import read_table

#: Difference of sin^2 + cos^2 from one that is rounding.
_MAX_PAIR_ERROR = 1e-5
#: Largest difference of a column from its wave: bfloat16 tables are off by 4e-3.
_MAX_DIFFERENCE = 1e-2
#: Largest difference of a float32 table from its waves of a base.
_MAX_BASE_DIFFERENCE = 1e-5
#: Relative difference of two factors of frequencies that are equal; the frequency of a slow cosine
#: is known to about this from float32 rows.
_EQUAL_FACTORS = 3e-3
#: A cosine whose angles stay below this is 1 to rounding: its frequency is not known.
_MIN_ANGLE = 1e-2
#: Largest angle that is far from the turning points of a wave, except the one at angle 0.
_MAX_FIRST_ANGLE = 0.5
#: Fewest pixels or patches of a side of an image that has positions.
_MIN_SIDE = 3
#: Fewest columns of known frequency.
_MIN_COLUMNS = 2


@dataclass(frozen=True, eq=False)
class _Waves:
    """A table by columns: functions and frequencies."""

    is_sine: list[bool]
    frequencies: Floats
    positions: Ints  #: (rows, columns); those of an image count its rows, or its columns

    @property
    def is_known(self) -> Flags:
        """Whether the frequency of each column is known."""
        last_positions = self.positions.max(axis=0)
        turns = np.abs(self.frequencies) * last_positions >= _MIN_ANGLE
        is_known: Flags = np.array(self.is_sine) | turns
        return is_known

    def compute(self, frequencies: Floats) -> Floats:
        """Return the table (rows, columns) with these frequencies."""
        angles = self.positions * frequencies
        return np.where(self.is_sine, np.sin(angles), np.cos(angles))


def suggest_frequencies(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the columns of a table have other frequencies, or rotate the other way."""
    rows = read_table(case.faithful)
    if case.phase != FORWARD or rows is None:
        return
    faulty_rows = case.faulty.reshape(rows.shape)
    waves, faulty_waves = _read_waves(rows), _read_waves(faulty_rows)
    if waves is None or faulty_waves is None or waves.is_sine != faulty_waves.is_sine:
        return
    is_known = waves.is_known & faulty_waves.is_known
    if is_known.sum() < _MIN_COLUMNS or np.any(waves.positions != faulty_waves.positions):
        return
    factors = faulty_waves.frequencies[is_known] / waves.frequencies[is_known]
    is_changed = np.abs(factors - 1) > _EQUAL_FACTORS
    if not is_changed.any():
        return
    changed_factors = factors[is_changed]
    other_base = _suggest_base(case, (waves, faulty_waves), (rows, faulty_rows))
    if other_base is not None:
        yield other_base
    frequencies = faulty_waves.frequencies
    factor = float(np.median(changed_factors))
    description = f"other frequencies in {int(is_changed.sum())} of {len(is_known)} columns"
    if np.allclose(changed_factors, -1, atol=_EQUAL_FACTORS):
        cause, description = "rope-direction", "a rotation in the other direction"
    else:
        cause = "rope-scaling"
        is_one_factor = np.ptp(changed_factors) <= _EQUAL_FACTORS * abs(factor)
        if is_changed.all() and is_one_factor:
            # the fastest waves are known best, and count most in the sum of squares
            factor = fit_factor(waves.frequencies, faulty_waves.frequencies)
            description = f"positions {factor:.4g} times the {case.faithful_side}'s"
            frequencies = factor * waves.frequencies
        elif is_one_factor:
            description = f"{description}, multiplied by {factor:.4g}"
    yield Candidate(
        waves.compute(frequencies).reshape(case.faithful.shape),
        description,
        parameters={"factor": factor},
        unchanged=waves.compute(waves.frequencies).reshape(case.faithful.shape),
        cause=cause,
    )


def _suggest_base(
    case: FaultCase, waves: tuple[_Waves, _Waves], rows: tuple[AnyArray, AnyArray]
) -> Candidate | None:
    """Return the candidate with another base; ``waves``, ``rows``: faithful, then faulty.

    None unless both tables have frequencies base ** -(k / n), k = 0, 1, ..., with one n.
    """
    own_bases, faulty_bases = (
        _find_bases(table, table_rows) for table, table_rows in zip(waves, rows, strict=True)
    )
    for n_steps, base in own_bases.items():
        faulty_base = faulty_bases.get(n_steps)
        if faulty_base is not None and faulty_base != base:
            own_table, faulty_table = (
                table.compute(_compute_powers(table, table_base, n_steps))
                for table, table_base in zip(waves, (base, faulty_base), strict=True)
            )
            return Candidate(
                faulty_table.reshape(case.faithful.shape),
                f"frequencies of base {faulty_base:.6g}",
                f"has base {base:.6g}",
                parameters={"theta": faulty_base},
                unchanged=own_table.reshape(case.faithful.shape),
                cause="rope-theta",
            )
    return None


def _find_bases(waves: _Waves, rows: AnyArray) -> dict[int, float]:
    """Return n -> base of a table with frequencies base ** -(k / n), k = 0, 1, ...

    n is the number of frequencies, or one less: then the last frequency is 1 / base.
    """
    steps = _number_frequencies(waves)
    bases: dict[int, float] = {}
    for n_steps in (int(steps.max()) + 1, int(steps.max())):
        is_used = (steps > 0) & waves.is_known
        if n_steps < 1 or not is_used.any() or waves.frequencies.min() <= 0:
            continue
        # the fastest of the columns is known best
        logarithms = -np.log(waves.frequencies[is_used]) * n_steps / steps[is_used]
        base = float(f"{np.exp(logarithms[np.argmin(steps[is_used])]):.3g}")
        table = waves.compute(_compute_powers(waves, base, n_steps))
        if np.abs(table - rows).max() <= _MAX_BASE_DIFFERENCE:
            bases[n_steps] = base
    return bases


def _number_frequencies(waves: _Waves) -> Ints:
    """Return k of each column: 0 of the fastest frequency, which sines and cosines share."""
    n_sines = sum(waves.is_sine)
    is_shared = 2 * n_sines == len(waves.is_sine)
    numbers = np.zeros(len(waves.is_sine), dtype=np.int64)
    counts = {True: 0, False: 0}
    for column, is_sine in enumerate(waves.is_sine):
        numbers[column] = counts[is_sine] if is_shared else column
        counts[is_sine] += 1
    return numbers


def _compute_powers(waves: _Waves, base: float, n_steps: int) -> Floats:
    powers: Floats = base ** (-_number_frequencies(waves) / n_steps)
    return powers


def is_wave_table(array: AnyArray) -> bool:
    """Return whether an array is a table of sines and cosines of positions."""
    rows = read_table(array)
    return rows is not None and _read_waves(rows) is not None


def holds_both_waves(array: AnyArray) -> bool:
    """Return whether an array is a table with columns of sines and columns of cosines.

    Positions that do not count from 0 or 1 on, such as relative ones, are recognized by pairs of
    columns, neighbors or of two halves: sin^2 + cos^2 = 1.
    """
    rows = read_table(array)
    if rows is None:
        return False
    waves = _read_waves(rows)
    if waves is not None:
        return len(set(waves.is_sine)) > 1
    half = rows.shape[1] // 2
    pairs = ((rows[:, ::2], rows[:, 1::2]), (rows[:, :half], rows[:, half:]))
    return rows.shape[1] % 2 == 0 and any(
        bool(np.all(np.abs(first**2 + second**2 - 1) < _MAX_PAIR_ERROR)) and np.ptp(first) > 1
        for first, second in pairs
    )


def _read_waves(rows: AnyArray) -> _Waves | None:
    """Return the table as waves, with positions from 0 or 1 on; None if it is none."""
    for first_position in (0, 1):
        waves = []
        for column in rows.T:
            wave = _read_column_of_image(column, first_position)
            if wave is None:
                break
            waves.append(wave)
        if len(waves) == rows.shape[1]:
            is_sine, frequencies, positions = zip(*waves, strict=True)
            return _Waves(list(is_sine), np.array(frequencies), np.stack(positions, axis=1))
    return None


def _read_column_of_image(column: AnyArray, first_position: int) -> tuple[bool, float, Ints] | None:
    """Return (whether it is a sine, frequency, positions) of a column; None if it is no wave.

    The positions count the rows of the table, or the rows or the columns of a square image of which
    each row of the table is a pixel or a patch; https://arxiv.org/abs/2010.11929, appendix D.4.
    """
    positions = np.arange(len(column))
    readings = [(column, positions)]
    side = math.isqrt(len(column))
    if side * side == len(column) and side >= _MIN_SIDE:
        image = column.reshape(side, side)
        for lines, own_positions in ((image, positions // side), (image.T, positions % side)):
            if np.ptp(lines, axis=1).max() <= _MAX_BASE_DIFFERENCE:
                readings.append((lines[:, 0], own_positions))
    waves = []
    for line, own_positions in readings:
        wave = _read_column(line, first_position)
        if wave is not None:
            is_sine, frequency = wave
            angles = frequency * (first_position + own_positions)
            difference = np.abs((np.sin if is_sine else np.cos)(angles) - column).max()
            waves.append((float(difference), is_sine, frequency, first_position + own_positions))
    return min(waves, key=lambda entry: entry[0])[1:] if waves else None


def _read_column(column: AnyArray, first_position: int) -> tuple[bool, float] | None:
    """Return (whether it is a sine, frequency) of a column; None if it is no wave."""
    positions = np.arange(first_position, first_position + len(column))
    start = 1 - first_position  # row of position 1
    for is_sine in (False, True):
        if first_position == 0 and abs(column[0] - (0 if is_sine else 1)) > _MAX_DIFFERENCE:
            continue
        for first_angle in _list_angles(float(column[start]), is_sine):
            frequency = first_angle
            for row in range(start + 1, len(column)):
                frequency = _refine(frequency, float(column[row]), int(positions[row]), is_sine)
            wave = np.sin(positions * frequency) if is_sine else np.cos(positions * frequency)
            if np.abs(wave - column).max() <= _MAX_DIFFERENCE:
                return is_sine, frequency
    return None


def _list_angles(value: float, is_sine: bool) -> list[float]:
    """Return the angles between -pi and pi with this sine, or between 0 and pi with this cosine."""
    clipped = float(np.clip(value, -1, 1))
    if not is_sine:
        return [float(np.arccos(clipped))]
    angle = float(np.arcsin(clipped))
    return [angle, float(np.copysign(np.pi, angle)) - angle]


def _refine(frequency: float, value: float, position: int, is_sine: bool) -> float:
    """Return the frequency whose angle at a position is nearest to the one before."""
    expected = frequency * position
    angles = _list_angles(value, is_sine)
    if not is_sine:
        angles = [angles[0], -angles[0]]
    turns = [angle + 2 * np.pi * round((expected - angle) / (2 * np.pi)) for angle in angles]
    best = min(turns, key=lambda angle: abs(angle - expected))
    is_turning_point = abs(value) > 1 - _MAX_DIFFERENCE**2 / 2
    if is_turning_point and abs(expected) > _MAX_FIRST_ANGLE:
        return frequency  # the angle is known badly here
    return best / position


def suggest_first_position(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that a table of sines and cosines begins at another position.

    A sine and a cosine of one frequency are a number of length one that turns by one angle from row
    to row. The positions may go down, as those of relative distances do; frequencies are positive.
    """
    rows = read_table(case.faithful)
    if case.phase != FORWARD or rows is None or case.faulty.size != rows.size or len(rows) < 3:
        return
    faulty_rows = case.faulty.reshape(rows.shape)
    for join, split in _list_pairings(rows.shape[1]):
        turns, faulty_turns = join(rows), join(faulty_rows)
        if max(np.abs(np.abs(each) - 1).max() for each in (turns, faulty_turns)) > _MAX_DIFFERENCE:
            continue
        steps = turns[1:] * turns[:-1].conj()
        angles = np.angle(steps.mean(axis=0))
        if np.abs(steps - np.exp(1j * angles)).max() > _MAX_DIFFERENCE:
            continue
        between = np.angle((faulty_turns * turns.conj()).mean(axis=0))
        slow_columns = np.flatnonzero(np.abs(angles) * len(rows) >= _MIN_ANGLE)
        if len(slow_columns) < _MIN_COLUMNS:
            continue
        slowest = slow_columns[np.argmin(np.abs(angles[slow_columns]))]
        offset = round(float(between[slowest] / abs(angles[slowest])))
        if not 0 < abs(offset) < len(rows):
            continue
        turned = turns * np.exp(1j * offset * np.abs(angles))
        yield Candidate(
            split(turned).reshape(case.faithful.shape),
            f"positions shifted by {offset}",
            parameters={"shift": float(offset)},
            unchanged=case.faithful,
            cause="position-offset",
        )
        return


def _list_pairings(
    width: int,
) -> Iterator[tuple[Callable[[AnyArray], AnyArray], Callable[[AnyArray], AnyArray]]]:
    """Yield functions that join sines and cosines to complex numbers, and that split them again.

    They alternate, or are the halves of a row; either of them may come first.
    """
    if width % 2:
        return
    alternating = (slice(0, None, 2), slice(1, None, 2))
    halves = (slice(0, width // 2), slice(width // 2, None))
    for first, second in (alternating, halves):
        for sines, cosines in ((first, second), (second, first)):

            def join(rows: AnyArray, sines: slice = sines, cosines: slice = cosines) -> AnyArray:
                joined: AnyArray = rows[:, cosines] + 1j * rows[:, sines]
                return joined

            def split(turns: AnyArray, sines: slice = sines, cosines: slice = cosines) -> AnyArray:
                rows = np.empty((len(turns), width))
                rows[:, cosines], rows[:, sines] = turns.real, turns.imag
                return rows

            yield join, split


HYPOTHESES = (
    Hypothesis("rope-scaling", suggest_frequencies),
    Hypothesis("position-offset", suggest_first_position),
)
