"""The gradient norms of one run at one step: what was given for every parameter, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.arrays import Floats, Ints
from ..model.trace import Problem


@dataclass(frozen=True)
class Norms:
    """One side. Arrays have one entry per parameter, in the order in which they were given."""

    path: str
    source: str  #: what it was read from, in words
    names: tuple[str, ...]  #: '' where the source names none
    given: Floats  #: as given: squares or roots
    rounding: Floats  #: half of the last printed decimal of each, 0 where none was lost
    sizes: Ints  #: elements of each parameter, -1 if unknown
    vectors: Ints  #: 1 if it has one axis or none, 0 if more, -1 if unknown
    squared: bool | None = None  #: whether the square of the norm was given; None if nothing says
    because: str = ""  #: what ``squared`` rests on
    step: int | None = None  #: of the training, from 1
    total: float = (
        np.nan
    )  #: global gradient norm of the step that the same log prints, before clipping
    total_rounding: float = 0.0
    clip: float = np.nan  #: the limit of the global norm, where the log says it
    undone: float = 1.0  #: by what the norms were multiplied to be those before clipping
    precision: str = ""  #: dtype that the model was computed in, '' if unknown
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.given)

    @property
    def named(self) -> bool:
        """Whether every parameter has a name."""
        return all(self.names) and bool(self.names)

    @property
    def values(self) -> Floats:
        """L2 norms, the root taken."""
        with np.errstate(invalid="ignore"):
            roots = np.sqrt(self.given) if self.squared else self.given
        return np.asarray(roots * self.undone, dtype=float)

    @property
    def slack(self) -> Floats:
        """What the printed digits leave open of each of ``values``, absolute."""
        if not self.squared:
            return self.rounding * self.undone
        with np.errstate(invalid="ignore"):
            root = np.sqrt(
                self.given
            )  # the square is as far from its neighbours below as above, the root is farther
            return np.asarray(
                (root - np.sqrt(np.maximum(self.given - self.rounding, 0))) * self.undone,
                dtype=float,
            )

    @property
    def sum(self) -> float:
        """The norm of all gradients together: the root of the sum of squares."""
        return float(np.sqrt(np.sum(np.square(self.values))))

    def label(self, index: int) -> str:
        """The name of a parameter, or its place in the list."""
        return self.names[index] or f"#{index + 1}"


def norms_of(
    path: str,
    source: str,
    names: tuple[str, ...],
    given: Floats,
    *,
    rounding: Floats | None = None,
    sizes: Ints | None = None,
    vectors: Ints | None = None,
    squared: bool | None = None,
    because: str = "",
) -> Norms:
    """Norms with neutral values for what is not known; ``names`` may be empty."""
    count = len(given)
    return Norms(
        path=path,
        source=source,
        names=names or ("",) * count,
        given=np.asarray(given, dtype=float),
        rounding=np.zeros(count) if rounding is None else np.asarray(rounding, dtype=float),
        sizes=np.full(count, -1, dtype=np.int64)
        if sizes is None
        else np.asarray(sizes, dtype=np.int64),
        vectors=np.full(count, -1, dtype=np.int64)
        if vectors is None
        else np.asarray(vectors, dtype=np.int64),
        squared=squared,
        because=because,
    )
