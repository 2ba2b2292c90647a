"""The statistics and sketches of the tensors of one step.

Many tensors of a step are small: biases, norms, masks. To measure one of them alone costs the
interpreter far more than the arithmetic, so those of one size wait and are measured together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..model.arrays import AnyArray
from ..model.sketches import CELLS, N_STATISTICS, measure_array, measure_rows

#: Elements of small tensors that wait: 8 MiB at most, if they are of float64.
_MAX_WAITING = 1 << 20


@dataclass
class Measurements:
    """What was measured of tensors, by their numbers in the recording."""

    #: number of a tensor -> (196,) statistics and sketch, or (4,) statistics
    numbers: dict[int, AnyArray] = field(default_factory=dict)
    #: (elements, dtype) -> small tensors that were not measured yet: number, flat copy
    _waiting: dict[tuple[int, np.dtype[np.generic]], list[tuple[int, AnyArray]]] = field(
        default_factory=dict
    )
    _n_waiting: int = 0  #: elements of them
    #: (number with numbers, number without, how many of the numbers)
    _copies: list[tuple[int, int, int | None]] = field(default_factory=list)

    def add(self, number: int, array: AnyArray) -> None:
        """Measure a tensor; its memory may be written to afterwards.

        Of a complex tensor only the magnitudes are compared, so it has statistics alone.
        """
        if array.dtype.kind == "c":
            self.numbers[number] = measure_array(np.abs(array))[:N_STATISTICS]
        elif array.size > CELLS:
            self.numbers[number] = measure_array(array)
        else:
            group = self._waiting.setdefault((array.size, array.dtype), [])
            group.append((number, array.flatten()))
            self._n_waiting += array.size
            if self._n_waiting > _MAX_WAITING:
                self._measure_waiting()

    def copy(self, source: int, number: int, *, has_sketch: bool) -> None:
        """Give a tensor the numbers of one with the same elements; of another order, statistics."""
        self._copies.append((source, number, None if has_sketch else N_STATISTICS))

    def finish(self) -> dict[int, AnyArray]:
        """Return the numbers of all tensors."""
        self._measure_waiting()
        for source, number, count in self._copies:
            self.numbers[number] = self.numbers[source][:count]
        self._copies.clear()
        return self.numbers

    def _measure_waiting(self) -> None:
        for group in self._waiting.values():
            rows = measure_rows(np.stack([flat for _, flat in group]))
            self.numbers.update(zip((number for number, _ in group), rows, strict=True))
        self._waiting.clear()
        self._n_waiting = 0
