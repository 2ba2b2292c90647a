"""A mask behind the softmax in place of one before it: the probabilities no longer add up to 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....comparison.mask_fill import FILLING_KINDS
from ....operators.softmax import softmax
from ...fault_case import FaultCase
from ...region import Region
from .change import Change

#: Kinds that hide scores: by a number in their place, or by one that is added to them.
_MASKING_KINDS = {*FILLING_KINDS, "add"}


def list_late_masks(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take the softmax of scores without their mask, and set to 0 what the mask hides.

    The elements that are hidden have a probability of 0. One of the inputs of the step that masks
    has the scores.
    """
    masking_steps = {step.value: step for step in region.steps if step.kind in _MASKING_KINDS}
    for number, step in enumerate(region.steps):
        if step.kind != "softmax" or not step.inputs:
            continue
        masking_step = masking_steps.get(step.inputs[0].value)
        is_kept = step.output != 0
        if masking_step is None or is_kept.all():
            continue
        scores = [x for x in masking_step.inputs if x.array.shape == step.output.shape]
        for step_input in scores:
            if step_input.array.dtype.kind != "f" or not np.isfinite(step_input.array).all():
                continue
            probabilities = softmax(step_input.array.astype(np.float64)) * is_kept
            yield Change(
                number,
                probabilities,
                "mask-kind",
                f"the mask applied behind {step.name} ({step.kind}), whose rows no longer add up "
                f"to 1",
                "masks the scores before it",
            )
