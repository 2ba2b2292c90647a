"""The gradient norms of one run at one step, as its source gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Floats, Ints
from ..model.trace import Problem

#: Up to this norm, squares are summed as they are: 1e8 squares stay within float64 (1.8e308).
_MAX_UNSCALED = 1e150


@dataclass(frozen=True)
class Norms:
    """The norms of one side. Arrays have one entry per parameter, in the order of the source."""

    path: str
    source: str  #: description of the input, e.g. 'a list'
    names: tuple[str, ...]  #: '' for a parameter without a name
    raw_values: Floats  #: as written in the source: norms or their squares
    raw_rounding: Floats  #: half of the last printed decimal of each raw value; 0 if exact
    sizes: Ints  #: elements of each parameter, -1 if unknown
    vector_flags: Ints  #: 1 for a parameter of at most one axis, 0 for more axes, -1 if unknown
    squared: bool | None = None  #: whether raw values are squares; None if unknown
    squared_reason: str = ""  #: why ``squared`` has its value
    step: int | None = None  #: step of the training, from 1
    global_norm: float = np.nan  #: the same step's global norm before clipping, from the same log
    global_norm_rounding: float = 0.0  #: half of the last printed decimal of ``global_norm``
    #: Format of a framework that lists the parameters in the order of its model, '' if unknown.
    list_format: str = ""
    clip_limit: float = np.nan  #: limit of the global norm, if the log contains it
    clip_correction: float = 1.0  #: factor that turns clipped norms into norms before clipping
    precision: str = ""  #: dtype in which the model was computed, '' if unknown
    #: Of the gradients in a dump of the backward pass. What changes them before the update, such as
    #: an average over micro-batches, is not in them.
    is_recorded: bool = False
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.raw_values)

    @property
    def has_names(self) -> bool:
        """Whether every parameter has a name."""
        return bool(self.names) and all(self.names)

    @property
    def values(self) -> Floats:
        """L2 norms before clipping."""
        with np.errstate(invalid="ignore"):
            roots = np.sqrt(self.raw_values) if self.squared else self.raw_values
        return np.asarray(roots * self.clip_correction, dtype=float)

    @property
    def value_rounding(self) -> Floats:
        """Upper bound of the rounding error of each of ``values``, absolute."""
        if not self.squared:
            return self.raw_rounding * self.clip_correction
        with np.errstate(invalid="ignore"):
            # The square root is concave, so the error is larger towards smaller values.
            roots = np.sqrt(self.raw_values)
            lower_roots = np.sqrt(np.maximum(self.raw_values - self.raw_rounding, 0))
            return np.asarray((roots - lower_roots) * self.clip_correction, dtype=float)

    @property
    def combined_norm(self) -> float:
        """The L2 norm of all gradients: the root of the sum of squared norms."""
        return combine_norms(self.values)

    def label(self, index: int) -> str:
        """Return the name of a parameter, or its number in the list, e.g. ``#3``."""
        return self.names[index] or f"#{index + 1}"


def choose_scale(norms: Floats) -> float:
    """Return a power of two; norms are divided by it before they are squared.

    It is 1 unless their squares could overflow.
    """
    largest = float(np.max(norms[np.isfinite(norms)], initial=0.0))
    if largest < _MAX_UNSCALED:
        return 1.0
    _, exponent = math.frexp(largest)
    return math.ldexp(1.0, exponent - 1)


def combine_norms(norms: Floats) -> float:
    """Return the root of the sum of squared norms."""
    scale = choose_scale(norms)
    return scale * float(np.sqrt(np.sum(np.square(norms / scale))))


def build_norms(
    path: str,
    source: str,
    names: tuple[str, ...],
    raw_values: Floats,
    *,
    raw_rounding: Floats | None = None,
    sizes: Ints | None = None,
    vector_flags: Ints | None = None,
    squared: bool | None = None,
    squared_reason: str = "",
) -> Norms:
    """Build norms with neutral values for what is unknown; ``names`` may be empty."""
    count = len(raw_values)
    unknown = np.full(count, -1, dtype=np.int64)
    if raw_rounding is None:
        raw_rounding = np.zeros(count)
    if sizes is None:
        sizes = unknown
    if vector_flags is None:
        vector_flags = unknown
    return Norms(
        path=path,
        source=source,
        names=names or ("",) * count,
        raw_values=np.asarray(raw_values, dtype=float),
        raw_rounding=np.asarray(raw_rounding, dtype=float),
        sizes=np.asarray(sizes, dtype=np.int64),
        vector_flags=np.asarray(vector_flags, dtype=np.int64),
        squared=squared,
        squared_reason=squared_reason,
    )
