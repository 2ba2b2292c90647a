"""The comparison of one parameter's gradient norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..model.formatting import format_number
from ..model.verdict import Verdict
from .pairs import PairEvidence
from .parameter_path import compute_depth, find_layer, is_vector, strip_layer

#: inconclusive: more than float32 rounding explains, but within the noise of this pair of runs;
#: coarse: printed with too few digits to be compared.
State = Literal[Verdict, "coarse"]

#: Rows are sorted by severity: first those that differ, then the inconclusive ones, then the rest.
#: The base of each state is far above any number of tolerances within a state.
_STATE_SEVERITY: dict[str, float] = {"differ": 2e9, "inconclusive": 1e9}
#: Numbers of tolerances above this count as equal; a value that is not finite comes before them.
_MAX_TOLERANCES, _NONFINITE_SEVERITY = 1e8, 2e8
_MIN_TOLERANCE = 1e-300  #: avoids a division by zero


@dataclass(frozen=True)
class Row:
    """The norms (not squares) of one parameter; of a fused parameter, the norm of all its parts."""

    path: str  #: canonical name, '' if unknown
    target: str  #: name, or '#3' for the third norm of a list; several parts are joined by ' + '
    reference: str
    target_norm: float
    reference_norm: float
    #: Difference relative to the reference, after division by the factor that all norms have in
    #: common; infinite if the reference is 0.
    relative: float
    tolerance: float
    state: State
    evidence: PairEvidence

    def get_norm(self, side: str) -> float:
        """Return the norm of the 'target' or the 'reference'."""
        return self.target_norm if side == "target" else self.reference_norm

    @property
    def label(self) -> str:
        """The canonical name, else the name on one side, else the list numbers, ``#17/#13``."""
        if self.path:
            return self.path
        if not self.target.startswith("#"):
            return self.target
        if not self.reference.startswith("#"):
            return self.reference
        if self.target == self.reference:
            return self.target
        return f"{self.target}/{self.reference}"

    @property
    def summary(self) -> str:
        """One line for a person."""
        line = f"{self.label}: {self.target_norm:.5g} against {self.reference_norm:.5g}"
        if math.isfinite(self.relative):
            line += f", relative difference {format_number(self.relative)}"
        return line

    @property
    def severity(self) -> float:
        """Sort key: the state first, then the difference in multiples of the tolerance."""
        tolerances = self.relative / max(self.tolerance, _MIN_TOLERANCE)
        base = _STATE_SEVERITY.get(self.state, 0.0)
        if not math.isfinite(tolerances):
            return base + _NONFINITE_SEVERITY
        return base + min(tolerances, _MAX_TOLERANCES)

    @property
    def layer(self) -> int | None:
        """The number of the layer, see :func:`find_layer`."""
        return find_layer(self.path)

    @property
    def depth(self) -> int | None:
        """The position in the model, see :func:`compute_depth`."""
        return compute_depth(self.path)

    @property
    def kind(self) -> str:
        """The name without the layer, see :func:`strip_layer`."""
        return strip_layer(self.path)

    @property
    def is_vector(self) -> bool:
        """Whether the parameter has one axis, see :func:`is_vector`."""
        return is_vector(self.path)
