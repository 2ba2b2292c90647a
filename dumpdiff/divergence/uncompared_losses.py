"""Losses that were not compared with each other, although both sides recorded one."""

from __future__ import annotations

from ..alignment import Alignment
from ..alignment.losses import find_loss, find_unscaled_losses


def find_loss_gaps(alignment: Alignment) -> list[str]:
    """Return a sentence if the losses of the two sides have no partners, else nothing.

    Both runs are trained on what their losses are computed from: as long as these were not
    compared, nothing else that agrees shows that they are. A loss that is a fixed multiple of a
    value counts as compared if that value was.
    """
    target, reference = alignment.target, alignment.reference
    loss_t, loss_r = find_loss(target), find_loss(reference)
    if loss_t < 0 or loss_r < 0:
        return []
    losses_t = find_unscaled_losses(target, alignment.target_kinds, loss_t)
    losses_r = find_unscaled_losses(reference, alignment.reference_kinds, loss_r)
    if any(alignment.partners.get(loss) in losses_r for loss in losses_t):
        return []
    name_t = target.trace.ops["name"].iat[int(target.producers[loss_t])]
    name_r = reference.trace.ops["name"].iat[int(reference.producers[loss_r])]
    return [
        f"the losses were not compared: {name_t} of the target and {name_r} of the reference have "
        "no partners; compare how the two losses are computed"
    ]
