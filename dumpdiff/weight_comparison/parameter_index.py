"""An index of the parameters of the reference, to find those that are in another place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..model.arrays import Floats, Ints
from .distance import compute_row_limit
from .parameter_rows import ParameterRows

_SAMPLE_ROWS = 4  #: rows in which other parameters of the reference are searched
_SAMPLE_COLUMNS = 64  #: elements of each of these rows


@dataclass(frozen=True)
class ParameterIndex:
    """The parameters of the reference by shape, to find swapped weights."""

    parameters: Mapping[tuple[int, int], Sequence[ParameterRows]]
    _samples: dict[tuple[int, int], Floats] = field(default_factory=dict)

    @staticmethod
    def from_parameters(parameters: Iterable[ParameterRows]) -> ParameterIndex:
        """Return an index of all parameters of a comparison."""
        by_shape: dict[tuple[int, int], list[ParameterRows]] = {}
        for parameter in parameters:
            shape = len(parameter.reference_rows), parameter.reference.shape[1]
            by_shape.setdefault(shape, []).append(parameter)
        return ParameterIndex(by_shape)

    def find_held_parameter(self, parameter: ParameterRows) -> ParameterRows | None:
        """Return the other parameter of the reference that the target holds in this place.

        Returns None if there is none. It is found by a few elements, and must be twice as close as
        the parameter itself.
        """
        rows = _select_sample_rows(parameter)
        elements = parameter.target.read_values(parameter.target_rows[rows])
        elements = elements[:, :_SAMPLE_COLUMNS].ravel()
        if np.ptp(elements) == 0 or not np.isfinite(elements).all():
            return None
        candidates = self.parameters.get(parameter.shape, ())
        if not candidates:
            return None
        samples = self._read_samples(parameter.shape, candidates, rows)
        distances = np.linalg.norm(samples - elements, axis=1)
        own_distances = [
            distance
            for distance, candidate in zip(distances.tolist(), candidates, strict=True)
            if candidate.path == parameter.path
        ]
        limit = compute_row_limit(parameter.target, parameter.reference)
        limit *= float(np.linalg.norm(elements))
        limit = min(limit, min(own_distances, default=0.0) / 2)
        nearest = int(np.argmin(distances))
        is_near = distances[nearest] <= limit
        if not is_near or candidates[nearest].path == parameter.path:
            return None
        return candidates[nearest]

    def _read_samples(
        self, shape: tuple[int, int], parameters: Sequence[ParameterRows], rows: Ints
    ) -> Floats:
        """Return a few elements of each parameter of a shape: (parameters, elements)."""
        if shape not in self._samples:
            samples = []
            for parameter in parameters:
                values = parameter.reference.read_values(parameter.reference_rows[rows])
                samples.append(values[:, :_SAMPLE_COLUMNS].ravel())
            self._samples[shape] = np.array(samples)
        return self._samples[shape]


def _select_sample_rows(parameter: ParameterRows) -> Ints:
    """Return some evenly spaced rows; more if rows are short."""
    count = max(_SAMPLE_ROWS, _SAMPLE_ROWS * _SAMPLE_COLUMNS // max(1, parameter.shape[1]))
    return np.unique(np.linspace(0, parameter.shape[0] - 1, count).astype(np.int64))
