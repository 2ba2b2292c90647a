"""What one side's own log says of its norms: squares or roots, before clipping or after, all of them or some."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...model.formatting import number
from ..side import Norms

#: How near the sum of the local norms must come to the global norm to be it: the global norm's own digits aside.
_NEAR = 0.02
_CLIP = 1.0  #: the limit of the global norm that nearly every large model is trained with


def settled(norms: Norms) -> Norms:
    """Norms of which is known, as far as their own log tells, whether they are squares and whether they were clipped.

    Of squares the sum is the square of the global norm; of roots the sum of squares is.
    """
    if not np.isfinite(norms.total) or norms.total <= 0 or not np.isfinite(norms.given).all():
        return norms
    near = _NEAR + norms.total_rounding / norms.total
    sums = {squared: replace(norms, squared=squared).sum for squared in (True, False)}
    fits = [
        squared
        for squared, total in sums.items()
        if total > 0 and abs(math.log(total / norms.total)) <= near
    ]
    if len(fits) == 1 and fits[0] != norms.squared:
        was = "" if norms.squared is None else ", although that form prints the other"
        return replace(
            norms,
            squared=fits[0],
            because=f"{_means(fits[0])} the global norm {norms.total:g}{was}",
        )
    if norms.squared in fits:
        return replace(
            norms,
            because=f"{norms.because}; {_means(norms.squared)} the global norm {norms.total:g}",
        )
    if norms.squared is None:
        return norms
    return _apart(norms, sums[norms.squared], near)


def _apart(norms: Norms, together: float, near: float) -> Norms:
    """Norms whose sum is not the global norm, and what that says."""
    clip = norms.clip if np.isfinite(norms.clip) and norms.clip > 0 else _CLIP
    if together > 0 and norms.total > clip and abs(math.log(together / clip)) <= _NEAR:
        said = f"they were taken after clipping to {clip:g}: undone by {number(norms.total / together)}"
        return replace(norms, undone=norms.total / together, notes=(*norms.notes, said))
    less = "less" if together < norms.total else "more"
    why = (
        "parameters are missing (another rank's, or cut out of the print)"
        if together < norms.total
        else "taken before devices exchanged gradients, or scaled"
    )
    said = f"together they give {together:.5g}, {less} than the global norm {norms.total:g}: {why}"
    return replace(norms, notes=(*norms.notes, said))


def _means(squared: bool | None) -> str:
    return "their sum is the square of" if squared else "their squares sum to the square of"
