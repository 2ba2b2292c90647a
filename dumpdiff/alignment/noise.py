"""The distance up to which two tensors may be the same, estimated from the pair of dumps."""

from __future__ import annotations

import numpy as np

from ..graph import Flow, find_common_dtype
from ..model.arrays import Floats
from ..model.dtypes import get_unit_roundoff
from .values import Candidates, Fingerprints, find_candidates, find_second_smallest

#: Unit roundoffs of the prior: 1.6e-2 for bfloat16, 2e-3 for float16.
_PRIOR_ROUNDOFFS = 4
#: Smallest prior, for float32: what the order of summation alone changes in the statistics of some
#: thousand elements.
_MIN_PRIOR = 3e-6
#: The prior is at least this many times the resolution of the recorded numbers ...
_PRIOR_RESOLUTIONS = 8
#: ... if it is coarser than this: finer numbers are as exact as float32.
_COARSE_RESOLUTION = 2e-7
#: The measured tolerance stays within half the prior and this many times the prior.
_MAX_PRIORS = 8
#: Measured tolerance in lower quartiles of the distances. The quartile, because after a divergence
#: most values differ.
_QUARTILES = 16
#: How many times farther the second nearest class must be before a distance counts as noise.
_CLEAR_RATIO = 10
#: Informative statistics (of 4) that a class needs before its distance counts.
_MIN_EVIDENCE = 3
#: Distances needed for an estimate; with fewer the prior is used.
_MIN_DISTANCES = 8


def estimate_prior(target: Flow, reference: Flow) -> float:
    """Return the tolerance to expect before looking at the values.

    It is four unit roundoffs of the coarsest dtype that either side computes in, see
    :func:`find_common_dtype`, and at least eight times the resolution of the recorded numbers.
    """
    roundoff = get_unit_roundoff(find_common_dtype(target, reference))
    resolution = max(target.trace.source.resolution, reference.trace.source.resolution)
    prior = max(_PRIOR_ROUNDOFFS * roundoff, _MIN_PRIOR)
    if resolution > _COARSE_RESOLUTION:
        prior = max(prior, _PRIOR_RESOLUTIONS * resolution)
    return prior


def find_agreeing_classes(target: Flow, reference: Flow) -> tuple[float, Candidates]:
    """Return the distance of statistics within which two tensors may be the same, and all such.

    The distance is sixteen times the lower quartile of the distances between mutual nearest
    neighbors without another close candidate, and between half and eight times the prior. See
    ``values.compute_distances``.
    """
    prior = estimate_prior(target, reference)
    prints_t = Fingerprints.from_table(target.classes)
    prints_r = Fingerprints.from_table(reference.classes)
    candidates = find_candidates(prints_t, prints_r, _MAX_PRIORS * prior)
    tolerance = prior
    distances = _list_clear_distances(target, reference, prints_t, prints_r, candidates)
    if len(distances) >= _MIN_DISTANCES:
        measured = _QUARTILES * np.quantile(distances, 0.25)
        tolerance = float(np.clip(measured, prior / 2, _MAX_PRIORS * prior))
    return tolerance, candidates.take(candidates.distance <= tolerance)


def _list_clear_distances(
    target: Flow,
    reference: Flow,
    prints_t: Fingerprints,
    prints_r: Fingerprints,
    candidates: Candidates,
) -> Floats:
    """Return the distances of mutual nearest neighbors without another close candidate."""
    # candidates are sorted by target, then distance: the first row of a target is its nearest
    nearest_rows = np.unique(candidates.target, return_index=True)[1]
    nearest_r = np.full(len(prints_r.size), np.inf)
    np.minimum.at(nearest_r, candidates.reference, candidates.distance)
    second_t = find_second_smallest(candidates.target, candidates.distance, len(prints_t.size))
    second_r = find_second_smallest(candidates.reference, candidates.distance, len(prints_r.size))
    targets, references = candidates.target[nearest_rows], candidates.reference[nearest_rows]
    distances = candidates.distance[nearest_rows]
    is_clear = distances <= nearest_r[references]
    is_clear &= (target.producers[targets] >= 0) & (reference.producers[references] >= 0)
    is_clear &= second_t[targets] > _CLEAR_RATIO * distances
    is_clear &= second_r[references] > _CLEAR_RATIO * distances
    is_clear &= prints_t.evidence[targets] >= _MIN_EVIDENCE
    is_clear &= prints_r.evidence[references] >= _MIN_EVIDENCE
    clear_distances: Floats = distances[is_clear]
    return clear_distances
