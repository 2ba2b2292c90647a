"""What a run's own global norm tells about its local norms.

It tells squares from roots, norms before clipping from those after it, and complete lists from
incomplete ones.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...model.formatting import format_number
from ..norms import Norms

#: Logarithmic distance up to which the combined local norm is the global norm, in addition to the
#: rounding of the printed global norm.
_NEAR = 0.02
#: Limit of the global norm if the log does not contain it: nearly every large model uses it.
_DEFAULT_CLIP_LIMIT = 1.0


def interpret_norms(norms: Norms) -> Norms:
    """Return the norms with ``squared``, ``clip_correction`` and notes from the global norm.

    Squares sum to the square of the global norm; the squares of roots sum to it.
    """
    if not np.isfinite(norms.global_norm) or norms.global_norm <= 0:
        return norms
    if not np.isfinite(norms.raw_values).all():
        return norms
    max_distance = _NEAR + norms.global_norm_rounding / norms.global_norm
    combined_norms = {}
    matching = []
    for squared in (True, False):
        combined_norm = replace(norms, squared=squared).combined_norm
        combined_norms[squared] = combined_norm
        if _is_near(combined_norm, norms.global_norm, max_distance):
            matching.append(squared)
    if len(matching) == 1 and matching[0] != norms.squared:
        reason = _format_reason(matching[0], norms.global_norm)
        if norms.squared is not None:
            reason += ", although that format prints the other"
        return replace(norms, squared=matching[0], squared_reason=reason)
    if norms.squared in matching:
        reason = _format_reason(bool(norms.squared), norms.global_norm)
        return replace(norms, squared_reason=f"{norms.squared_reason}; {reason}")
    if norms.squared is None:
        return norms
    return _explain_mismatch(norms, combined_norms[norms.squared])


def _is_near(value: float, reference: float, max_distance: float) -> bool:
    """Whether a value is positive and within a logarithmic distance of the reference."""
    return value > 0 and abs(math.log(value / reference)) <= max_distance


def _explain_mismatch(norms: Norms, combined_norm: float) -> Norms:
    """Return norms whose combination is not the global norm: corrected for clipping, or noted."""
    clip_limit = _DEFAULT_CLIP_LIMIT
    if np.isfinite(norms.clip_limit) and norms.clip_limit > 0:
        clip_limit = norms.clip_limit
    if norms.global_norm > clip_limit and _is_near(combined_norm, clip_limit, _NEAR):
        correction = norms.global_norm / combined_norm
        note = (
            f"they were recorded after clipping to {clip_limit:g}; corrected by the factor"
            f" {format_number(correction)}"
        )
        return replace(norms, clip_correction=correction, notes=(*norms.notes, note))
    if combined_norm < norms.global_norm:
        relation = "less"
        reason = "parameters are missing (on another rank, or left out of the print)"
    else:
        relation = "more"
        reason = "they were recorded before devices exchanged gradients, or are scaled"
    note = (
        f"their combined norm is {combined_norm:.5g}, {relation} than the global norm"
        f" {norms.global_norm:g}: {reason}"
    )
    return replace(norms, notes=(*norms.notes, note))


def _format_reason(squared: bool, global_norm: float) -> str:
    relation = "their sum is" if squared else "their squares sum to"
    return f"{relation} the square of the global norm {global_norm:g}"
