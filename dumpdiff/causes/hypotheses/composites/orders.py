"""Elements of an input in another order: shifted, reversed, in other pieces, axes exchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import FORWARD
from ...element_places import is_rotation
from ...fault_case import FaultCase
from ...region import Region, Step, StepInput
from ..attention import is_attention
from ..wave_tables import holds_both_waves
from .change import Change, compute_with, feeds_softmax, list_floating_inputs
from .missing_inputs import CLASS_LOSSES

#: Kinds of ops that combine two values element by element.
_ELEMENT_KINDS = {"add", "sub", "mul", "div"}
#: Pieces of an axis whose order is tried.
_CHUNKS = (2, 3, 4)
#: Fewest positions that show relative positions.
_MIN_POSITIONS = 3
#: Fewest elements of an axis that is shifted: of fewer, a shift drops most.
_MIN_SHIFTED = 4
#: Axis of the channels in images, and of the input channels in kernels.
_CHANNEL_AXIS = 1
#: Axes of heads: batch, heads, tokens, size.
_HEAD_AXES = 4
_GATED_KINDS = {"sigmoid", "tanh"}
_SCALING_KINDS = {"mul", "div"}
#: Axes of images, and the factors by which channels become pixels.
_IMAGE_AXES, _PIXEL_FACTORS = 4, (2, 3, 4)
#: Two chunks that change places are exchanged rather than rolled.
_MIN_ROLLED_CHUNKS = 3


def list_shifts(case: FaultCase, region: Region) -> Iterator[Change]:
    """Shift an input by one along an axis, or reverse it; in a loss, that of other examples.

    What a loss multiplies by are weights.
    """
    for number, step in enumerate(region.steps):
        if step.kind == "convolution":
            continue
        is_compared = case.is_of_loss and step.kind not in _SCALING_KINDS
        for change in _shift_inputs(number, step):
            is_of_targets = is_compared and change.cause == "scan-direction"
            yield replace(change, cause="loss-target") if is_of_targets else change


def list_convolution_shifts(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Shift or reverse what a convolution reads: its input, or its kernel."""
    for number, step in enumerate(region.steps):
        if step.kind == "convolution":
            yield from _shift_inputs(number, step)


def _shift_inputs(number: int, step: Step) -> Iterator[Change]:
    for position, step_input in list_floating_inputs(step):
        for axis, length in enumerate(step_input.array.shape):
            if length < 2:
                continue
            for cause, description, changed in _shift_axis(step, position, axis):
                output = compute_with(step, position, changed)
                if output is not None:
                    yield Change(number, output, cause, description)


def _shift_axis(step: Step, position: int, axis: int) -> Iterator[tuple[str, str, AnyArray]]:
    """Yield (cause, description, array) of an input that is shifted or reversed along an axis."""
    step_input = step.inputs[position]
    array, name = step_input.array, step_input.name
    is_kernel = step.kind == "convolution" and (step_input.is_parameter or position == 1)
    if step.kind == "convolution" and (axis == _CHANNEL_AXIS or (is_kernel and axis == 0)):
        yield "channel-order", f"the channels of {name} in reverse order", np.flip(array, axis)
        return
    flipped_cause = "kernel-flipped" if is_kernel else "scan-direction"
    if _weights_classes(step, position):
        flipped_cause = "loss-weight"
    yield flipped_cause, f"{name} reversed along axis {axis}", np.flip(array, axis)
    if is_kernel and axis == array.ndim - 1:
        axes = tuple(range(2, array.ndim))
        yield "kernel-flipped", f"the kernel {name} flipped", np.flip(array, axes)
    if step.kind != "convolution" and array.shape[axis] < _MIN_SHIFTED:
        return
    shift_cause = "causal-shift" if step.kind == "convolution" else "row-shift"
    for shift in (1, -1):
        rolled = np.roll(array, shift, axis)
        cut = rolled.copy()
        edge: list[slice | int] = [slice(None)] * array.ndim
        edge[axis] = 0 if shift > 0 else -1
        cut[tuple(edge)] = 0.0
        text = f"{name} shifted by {shift} along axis {axis}"
        yield shift_cause, f"{text}, with zeros at the end", cut
        is_of_experts = array.shape[axis] in _list_expert_counts(step)
        cause = "experts-permuted" if is_of_experts else shift_cause
        yield cause, f"{text}, cyclically", rolled


def _weights_classes(step: Step, position: int) -> bool:
    """Return whether an input of a loss is a weight for each class."""
    shape, predictions = step.inputs[position].array.shape, step.inputs[0].array.shape
    is_vector = position > 0 and len(shape) == 1 and len(predictions) > 1
    return step.kind in CLASS_LOSSES and is_vector and shape[0] in (predictions[1], predictions[-1])


def _list_expert_counts(step: Step) -> set[int]:
    """Return the number of experts whose outputs a step weights, if it does.

    The weights of the chosen experts were written to the places of all experts (scatter).
    """
    return {
        item.array.shape[-1]
        for item in step.inputs
        if "scatter" in item.producer_kind and item.array.ndim > 1
    }


def list_orders(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take the pieces of an input's axis in another order, or two of its axes exchanged."""
    for number, step in enumerate(region.steps):
        for position, step_input in list_floating_inputs(step):
            for cause, description, changed in _reorder(region, number, step_input):
                output = compute_with(step, position, changed)
                if output is None:
                    continue
                is_score_term = step.kind == "add" and feeds_softmax(case, region, number)
                is_shared = step_input.array.size < step.output.size  # the same for each sequence
                is_bias = is_score_term and is_shared and cause == "axes-swapped"
                name = "relative-bias" if is_bias else cause
                if cause == "heads-permuted" and not _has_heads(case, region, number, step_input):
                    name = "input-order"
                yield Change(number, output, name, description)
            for description, changed in _broadcast_otherwise(step, step_input):
                output = compute_with(step, position, changed)
                if output is not None and output.shape == step.output.shape:
                    yield Change(number, output, "axes-swapped", description)
            for description, changed in _regroup_columns(step_input):
                output = compute_with(step, position, changed)
                if output is not None:
                    has_heads = is_attention(case.finding.scope) or feeds_softmax(
                        case, region, number
                    )
                    is_wave_table = holds_both_waves(step_input.array)
                    cause = "heads-permuted" if has_heads else "axes-swapped"
                    if is_wave_table:
                        cause = "time-embedding-order"
                    elif has_heads and step.kind == "gather_rows" and step_input.is_parameter:
                        cause = "relative-bias"  # rows of a table of distances
                    # rows of the weight in the other order do the same
                    yield Change(number, output, cause, description, is_evident=is_wave_table)


def _has_heads(case: FaultCase, region: Region, number: int, step_input: StepInput) -> bool:
    """Return whether parts of an input may be heads: next to attention, or of a parameter."""
    is_near = is_attention(case.finding.scope) or feeds_softmax(case, region, number)
    return is_near or step_input.is_parameter or case.phase != FORWARD


def list_pixel_orders(case: FaultCase, region: Region) -> Iterator[Change]:
    """Read images whose channels were moved to pixels in the other order.

    A pixel shuffle reads (channel, offset) from its channels, a depth to space (offset, channel).
    """
    if case.phase != FORWARD:
        return
    images = {
        item.value: (number, item)
        for number, step in enumerate(region.steps)
        for _, item in list_floating_inputs(step)
        if item.array.ndim == _IMAGE_AXES and item.agrees and not item.is_parameter
    }
    for value, (number, item) in images.items():
        for factor in _PIXEL_FACTORS:
            batch, channels, height, width = item.array.shape
            if height % factor or width % factor or channels == 1:
                continue
            blocks = item.array.reshape(
                batch, channels, height // factor, factor, width // factor, factor
            )
            before = blocks.transpose(0, 1, 3, 5, 2, 4)  # (batch, channel, offsets, place)
            n_offsets = factor * factor
            flat = before.reshape(batch, channels * n_offsets, *before.shape[4:])
            for shape in ((channels, n_offsets), (n_offsets, channels)):
                own = flat.reshape(batch, *shape, *flat.shape[2:])
                moved = own.swapaxes(1, 2).reshape(before.shape)
                changed = moved.transpose(0, 1, 4, 2, 5, 3).reshape(item.array.shape)
                yield Change(
                    number,
                    region.steps[number].output,
                    "axes-swapped",
                    f"channels of {item.name} moved to {factor} x {factor} pixels in the other "
                    "order of channel and offset",
                    replaced_values={value: changed},
                )


def _reorder(
    region: Region, number: int, step_input: StepInput
) -> Iterator[tuple[str, str, AnyArray]]:
    """Yield (cause, description, array) of an input in another order."""
    array, name = step_input.array, step_input.name
    is_kernel = region.steps[number].kind == "convolution" and step_input.is_parameter
    for axis in range(array.ndim - 1, -1, -1):
        length = array.shape[axis]
        for n_chunks in _CHUNKS:
            if length % n_chunks == 0 and length > n_chunks:
                for order in permutations(range(n_chunks)):
                    if list(order) != sorted(order):
                        pieces = np.split(array, n_chunks, axis)
                        changed = np.concatenate([pieces[i] for i in order], axis)
                        cause = _name_order(region, number, n_chunks)
                        text = f"the {n_chunks} parts of {name} in the order {list(order)}"
                        shift = _find_token_shift(order, axis, array.shape)
                        if cause == "heads-permuted" and shift:
                            cause, text = "row-shift", f"{name} rolled by {shift} along axis {axis}"
                        yield cause, text, changed
    for first in range(array.ndim):
        for second in range(first + 1, array.ndim):
            swapped = np.swapaxes(array, first, second).reshape(array.shape)
            cause = "weight-transposed" if step_input.is_parameter else "axes-swapped"
            if is_kernel:
                cause = "kernel-axes"
            elif not step_input.is_parameter and _depends_on_distance(array, first, second):
                cause = "relative-bias"
            yield cause, f"axes {first} and {second} of {name} exchanged", swapped


def _broadcast_otherwise(step: Step, step_input: StepInput) -> Iterator[tuple[str, AnyArray]]:
    """Yield (description, array) of an input that is repeated along another axis."""
    array = step_input.array
    if step.kind not in _ELEMENT_KINDS or array.size == step.output.size:
        return
    for first, second in combinations(range(array.ndim), 2):
        if (
            1 in (array.shape[first], array.shape[second])
            and array.shape[first] != array.shape[second]
        ):
            axes = f"axes {first - array.ndim} and {second - array.ndim}"
            yield f"{step_input.name} with {axes} exchanged", np.swapaxes(array, first, second)


def _find_token_shift(order: Sequence[int], axis: int, shape: tuple[int, ...]) -> int:
    """Return by how many tokens an order of chunks rolls an axis; 0 of heads and other orders.

    Heads are parts of the last axis, or the second of four axes.
    """
    has_heads = axis == len(shape) - 1 or (len(shape) == _HEAD_AXES and axis == 1)
    n_chunks = len(order)
    if has_heads or n_chunks < _MIN_ROLLED_CHUNKS or not is_rotation(order):
        return 0
    n_places = -order[0] if order[0] <= n_chunks // 2 else n_chunks - order[0]
    return n_places * shape[axis] // n_chunks


def _regroup_columns(step_input: StepInput) -> Iterator[tuple[str, AnyArray]]:
    """Yield (description, array) of an input whose axis is read as rows of a matrix by columns.

    Also of heads (batch, heads, tokens, size) that are cut from the columns of one projection.
    """
    array, name = step_input.array, step_input.name
    for axis in range(array.ndim - 1, -1, -1):
        length = array.shape[axis]
        moved = np.moveaxis(array, axis, -1)
        for block in range(2, length // 2 + 1):
            if length % block == 0:
                strided = moved.reshape(*moved.shape[:-1], block, length // block)
                changed = np.moveaxis(np.swapaxes(strided, -1, -2).reshape(moved.shape), -1, axis)
                yield f"axis {axis} of {name} in steps of {length // block}", changed
    if array.ndim == _HEAD_AXES and min(array.shape[1], array.shape[3]) > 1:
        heads = np.swapaxes(array, 1, 2)  # (batch, tokens, heads, size)
        *tokens, n_heads, size = heads.shape
        columns_first = heads.reshape(*tokens, size, n_heads).swapaxes(-1, -2)
        heads_first = heads.swapaxes(-1, -2).reshape(heads.shape)
        text = f"heads of {name} cut from its columns in steps of"
        yield f"{text} {n_heads}", np.swapaxes(columns_first, 1, 2)
        yield f"{text} {size}", np.swapaxes(heads_first, 1, 2)


def _depends_on_distance(array: AnyArray, first: int, second: int) -> bool:
    """Return whether an array depends on two axes by their distance alone: relative positions."""
    matrix = np.moveaxis(array, (first, second), (0, 1))
    if len(matrix) < _MIN_POSITIONS or matrix.shape[0] != matrix.shape[1]:
        return False
    return np.array_equal(matrix[1:, 1:], matrix[:-1, :-1])


def _name_order(region: Region, number: int, n_chunks: int) -> str:
    kinds = region.find_kinds_after(number) | {region.steps[number].kind}
    if n_chunks > 2 and kinds & _GATED_KINDS:
        return "gate-order"
    if n_chunks == 2 and kinds & {"silu", "gelu", "swiglu", "geglu", "glu"}:
        return "gate-up-swapped"
    return "heads-permuted"
