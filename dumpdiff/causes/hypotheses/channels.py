"""Channels of images in another order: BGR for RGB, in the images or in the first kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import Ints
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis
from .weights import find_block_length, find_permutation

#: Axis of the channels in images (batch, channels, height, width), and of the input channels in
#: kernels (out, in, ...).
_CHANNEL_AXIS = 1
#: Fewest axes of a kernel or of images, and axes of a kernel that is written as a matrix.
_MIN_AXES, _MATRIX_AXES = 3, 2
_MIN_CHANNELS = 2  #: one has no order


def suggest_channel_order(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the input channels of a kernel, or the channels of images, are reordered.

    The columns of a kernel that multiplies patches as a matrix are in blocks, one for each channel.
    """
    kinds = {*case.consumer_kinds, *case.kinds, *case.faulty_kinds}
    is_source = case.is_source and case.finding.kind != "constant"  # a table has no channels
    if case.is_discrete or not is_source or "convolution" not in kinds:
        return
    n_axes = case.faithful.ndim
    axis = _CHANNEL_AXIS if n_axes >= _MIN_AXES else n_axes - 1
    if n_axes < _MATRIX_AXES or case.faithful.shape[axis] < _MIN_CHANNELS:
        return
    order = find_permutation(np.moveaxis(case.faithful, axis, 0), np.moveaxis(case.faulty, axis, 0))
    if order is None:
        return
    channels = order
    if n_axes == _MATRIX_AXES:
        channels = _read_blocks(order)
        if len(channels) == len(order):
            return  # single columns
    description = f"the kernel with its input channels in the order {channels.tolist()}"
    if case.finding.kind == "input":
        description = f"images with their channels in the order {channels.tolist()}"
    predicted = np.take(case.faithful, order, axis=axis)
    yield Candidate(predicted, description, unchanged=case.faithful)


def _read_blocks(order: Ints) -> Ints:
    """Return the order of the blocks that stay together."""
    block = find_block_length(order)
    blocks: Ints = order[::block] // block
    return blocks


HYPOTHESES = (Hypothesis("channel-order", suggest_channel_order),)
