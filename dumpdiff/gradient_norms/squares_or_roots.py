"""Both sides in one reading: a bare list may hold squares or roots, and does not say which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Floats
from ..rulebook import Rules
from .pairs import Pairing, pair
from .side import Norms

_CLEARLY = 3.0  #: times nearer must the sides be, for one reading of a list (squares or roots) to be the right one
_FAR = 10.0  #: logarithmic distance of what has no partner, or is not finite on one side


@dataclass(frozen=True)
class Paired:
    """Two sides of which it is known whether squares were given, and which norms belong together."""

    target: Norms
    reference: Norms
    pairing: Pairing

    def values(self) -> tuple[Floats, Floats, Floats]:
        """Per couple: the target's norm, the reference's, and what digits leave open of both together, absolute."""
        target, open_target = _together(
            self.target, [couple.target for couple in self.pairing.couples]
        )
        reference, open_reference = _together(
            self.reference, [couple.reference for couple in self.pairing.couples]
        )
        return target, reference, open_target + open_reference

    def apart(self) -> float:
        """The median distance of the pairs, as a logarithm; what is alone is far."""
        target, reference, slack = self.values()
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.maximum(np.abs(np.log(target / reference)) - slack / reference, 0)
        far = np.where(np.isfinite(far), far, _FAR)
        lost = max(len(self.pairing.target_alone), len(self.pairing.reference_alone))
        return float(np.median([*far.tolist(), *[_FAR] * lost])) if len(far) + lost else _FAR


def paired(target: Norms, reference: Norms, rules: Rules) -> Paired:
    """The two sides paired; where one may hold squares or roots, in the reading under which they agree better."""
    readings = [(mine, theirs) for mine in _readings(target) for theirs in _readings(reference)]
    if target.squared is None and reference.squared is None:
        readings.pop()  # both squares: as good as both roots, and their pairs are the same
    tried = [Paired(*sides, pair(*sides, rules)) for sides in readings]
    first = tried[0]  # as roots
    best = min(tried, key=Paired.apart)
    return first if best.apart() * _CLEARLY > first.apart() else best


def _readings(side: Norms) -> list[Norms]:
    """A side as what it may hold, roots first."""
    if side.squared is not None:
        return [side]
    return [
        replace(side, squared=squared, because=f"taken as {what}: so the sides agree best")
        for squared, what in ((False, "roots"), (True, "squares"))
    ]


def _together(side: Norms, groups: Sequence[tuple[int, ...]]) -> tuple[Floats, Floats]:
    """The norm of each group of rows as one parameter, and what digits leave open of it."""
    values, slack = side.values, side.slack
    first = [rows[0] for rows in groups]
    norms, left_open = values[first], slack[first]
    for at, rows in enumerate(groups):
        if len(rows) > 1:
            parts, open_ = values[list(rows)], slack[list(rows)]
            norms[at] = norm = np.sqrt(np.sum(parts**2))
            left_open[at] = np.sum(parts * open_) / norm if norm else np.sum(open_)
    return norms, left_open
