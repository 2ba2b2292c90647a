"""How far apart two tensors that are the same may lie in this very pair of dumps: estimated, not assumed."""

from __future__ import annotations

import numpy as np

from ..graph import Flow
from ..model.dtypes import unit_roundoff
from .values import Fingerprints, candidates

_PRIOR_UNITS = 4  # see prior(): 4 u is 1.6e-2 for bfloat16, 2e-3 for float16
_SINGLE = 3e-6  # floor for float32: what summation order alone makes of statistics of some thousand elements


def prior(target: Flow, reference: Flow) -> float:
    """What to expect before looking: four unit roundoffs of the least exact dtype that computes on either side.

    Never less than eight times the resolution of the recorded numbers.
    """
    units = max(unit_roundoff(target.coarsest), unit_roundoff(reference.coarsest))
    resolution = max(target.trace.source.resolution, reference.trace.source.resolution)
    return max(_PRIOR_UNITS * units, _SINGLE, 8 * resolution if resolution > 2e-7 else 0.0)


def matching_tolerance(target: Flow, reference: Flow) -> float:
    """The distance of statistics (see values.distance) within which two tensors may be taken for the same.

    Sixteen times the lower quartile of the distances between mutual nearest neighbours that nothing else comes near,
    kept within half to eight times the prior. The lower quartile, because after a divergence most are apart.
    """
    expected = prior(target, reference)
    t, r = Fingerprints.of(target.classes), Fingerprints.of(reference.classes)
    found = candidates(t, r, 8 * expected)
    if not len(found.target):
        return expected
    first = np.unique(found.target, return_index=True)[1]
    nearest_r = np.full(len(r.size), np.inf)
    np.minimum.at(nearest_r, found.reference, found.distance)
    second = np.full(len(t.size), np.inf)
    later = np.ones(len(found.target), dtype=bool)
    later[first] = False
    np.minimum.at(second, found.target[later], found.distance[later])
    best = found.distance[first]
    mutual = best <= nearest_r[found.reference[first]]
    computed = target.classes["producer"].to_numpy()[found.target[first]] >= 0
    clear = (
        mutual
        & computed
        & (second[found.target[first]] > 10 * best)
        & (t.evidence[found.target[first]] >= 3)
    )
    if clear.sum() < 8:
        return expected
    return float(np.clip(16 * np.quantile(best[clear], 0.25), expected / 2, 8 * expected))
