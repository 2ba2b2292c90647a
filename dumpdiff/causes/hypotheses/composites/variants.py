"""Other forms of one operator: another axis of the same call, another activation or padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, permutations

import numpy as np

from ....model.arrays import AnyArray, Ints
from ....operators.convolution import PADDING_MODES, convolve, list_settings
from ....operators.convolution_gradients import CONVOLUTION_GRADIENTS
from ....operators.resampling import ALIGNMENTS
from ...fault_case import FaultCase
from ...region import Region, Step
from ..attention import is_cross_attention
from .change import Change, list_floating_inputs

#: Kind -> cause of another reading of the same call.
_VARIANT_CAUSES: Mapping[str, str] = {
    "softmax": "softmax-axis", "log_softmax": "softmax-axis", "gelu": "gelu-variant",
    "matmul": "weight-transposed", "cross_entropy": "loss-reduction", "nll_loss": "loss-reduction",
    "mse_loss": "loss-reduction", "l1_loss": "loss-reduction", "rope": "rope-layout",
    "swiglu": "gate-up-swapped", "geglu": "gate-up-swapped", "glu": "gate-up-swapped",
    "var": "biased-variance", "std": "biased-variance", "group_norm": "norm-groups",
    "instance_norm": "norm-groups", "sub": "input-order", "div": "input-order",
    "kl_div": "loss-reduction",
    "cumsum": "scan-direction", "cumprod": "scan-direction", "batch_norm": "running-statistics",
}  # fmt: skip


#: Places in a padded tensor at which the tensor may begin, at most.
_MAX_WINDOWS = 256
#: What the gradient of a convolution by its input is in the forward pass.
_TRANSPOSED = "transposed convolution"
#: Tensors of fused attention that its mask comes after.
_MASKED_TENSORS = 3
#: Reading of a loss whose prediction and target are exchanged.
_EXCHANGED = "its arguments exchanged"
#: Names of forms that do not explain themselves.
_FORM_NAMES = {
    "": "the default form",
    "training": "the statistics of the batch",
    "training, statistics first": "the statistics of the batch",
    "inference": "the running statistics",
    "inference, statistics first": "the running statistics",
}


def list_variants(case: FaultCase, region: Region) -> Iterator[Change]:
    """Read the same call otherwise: another axis, form, reduction, padding or interpolation.

    Fused attention is also read without its mask.
    """
    for number, step in enumerate(region.steps):
        if step.places is not None:
            continue
        for name, output in _list_readings(step):
            if name == step.interpretation or output.shape != step.output.shape:
                continue
            cause = _name_variant(case, step, name)
            shift = _find_shift(step, name)
            if shift:
                text = f"convolution shifted by {shift}, with {name}"
                yield Change(number, output, "causal-shift", text, f"has {step.interpretation}")
            elif name == _EXCHANGED:
                yield Change(number, output, "input-order", f"{step.kind} with {name}")
            elif step.kind == "matmul":
                factor = list_floating_inputs(step)[-1][1]
                turned = cause if factor.is_parameter else "axes-swapped"
                yield Change(number, output, turned, f"{factor.name} transposed")
            elif cause:
                own, other = (_FORM_NAMES.get(form, form) for form in (step.interpretation, name))
                kind = _TRANSPOSED if step.kind.startswith(CONVOLUTION_GRADIENTS) else step.kind
                yield Change(number, output, cause, f"{kind} with {other}", f"has {own}")


def _list_readings(step: Step) -> Iterator[tuple[str, AnyArray]]:
    """Yield (name, output) of every reading of a call.

    Fused attention is also read without a mask, and a divergence from the other distribution.
    """
    yield from step.interpret(step.list_arrays())
    if step.kind == "kl_div":
        exchanged_readings = dict(step.interpret(step.list_arrays()[::-1]))
        if step.interpretation in exchanged_readings:
            yield _EXCHANGED, exchanged_readings[step.interpretation]
    keywords = {name: array for name, array in step.keywords.items() if not array.ndim}
    tensors = [array for array in step.list_arrays() if array.ndim]
    has_mask = len(tensors) > _MASKED_TENSORS or len(keywords) < len(step.keywords)
    if step.kind == "attention" and has_mask:
        yield from replace(step, keywords=keywords).interpret(tensors[:_MASKED_TENSORS])


def _name_variant(case: FaultCase, step: Step, name: str) -> str:
    """Return the cause of another interpretation of a step, '' if it has no name."""
    if step.kind == "attention":
        is_cross = is_cross_attention(case.finding.scope)
        missing = "cross-mask" if is_cross else "mask-missing"
        return missing if name == "no mask" else "mask-shifted"
    if step.kind == "convolution":
        own, other = (text.split(", dilation ") for text in (step.interpretation, name))
        return "padding-mode" if own[1:] == other[1:] else "dilation"
    if step.kind.startswith(CONVOLUTION_GRADIENTS):
        return "padding-mode"
    if step.kind == "upsample":
        return "align-corners" if _is_other_alignment(step.interpretation, name) else "resize-mode"
    if step.kind == "grid_sample":
        return _name_other_sampling(step.interpretation, name)
    return _VARIANT_CAUSES.get(step.kind, "")


def _is_other_alignment(way: str, other_way: str) -> bool:
    """Return whether two ways to interpolate differ only in the pixels that coincide."""
    parts = [text.partition(" with ") for text in (way, other_way)]
    has_same_mode = parts[0][0] == parts[1][0]
    return has_same_mode and all(option in ALIGNMENTS for _, _, option in parts)


def _name_other_sampling(way: str, other_way: str) -> str:
    """Return the cause of another way to read an image at places: 'mode, padding with alignment'.

    '' if they differ in more than one of these.
    """
    if _is_other_alignment(way, other_way):
        return "align-corners"
    (mode, _, padding), (other_mode, _, other_padding) = (
        text.partition(", ") for text in (way, other_way)
    )
    if mode == other_mode:
        has_same_alignment = padding.partition(" ")[2] == other_padding.partition(" ")[2]
        return "padding-mode" if has_same_alignment else ""
    return "resize-mode" if padding == other_padding else ""


def _find_shift(step: Step, name: str) -> int:
    """Return the steps by which a convolution along one axis is shifted; 0 if it is not.

    Both pad the same number of zeros, one of them more of it in front: a causal convolution has all
    of it there.
    """
    arrays = [item.array for item in step.inputs[:2]]
    if step.kind != "convolution" or len(arrays) < 2:
        return 0
    if sum(length > 1 for length in arrays[1].shape[2:]) != 1:
        return 0
    settings = {
        str(candidate): candidate
        for candidate in list_settings(arrays[0].shape, arrays[1].shape, step.output.shape)
    }
    own, other = settings.get(step.interpretation), settings.get(name)
    if own is None or other is None or replace(own, padding=other.padding) != other:
        return 0
    return other.padding[0] - own.padding[0] if sum(own.padding) == sum(other.padding) else 0


def list_padding_modes(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Fill the padding of a convolution, or a padding of its own, otherwise."""
    for number, step in enumerate(region.steps):
        if step.kind == "pad" and step.places is not None:
            yield from _fill_padding(number, step, step.places)
        if step.kind != "convolution":
            continue
        x, weight = (step_input.array for step_input in step.inputs[:2])
        settings = [
            candidate
            for candidate in list_settings(x.shape, weight.shape, step.output.shape)
            if str(candidate) == step.interpretation
        ]
        if not settings or not max(settings[0].padding):
            continue
        rest = step.output - convolve(x, weight, settings[0])
        for mode in PADDING_MODES:
            if mode == "zeros":
                continue
            try:
                output = convolve(x, weight, replace(settings[0], mode=mode)) + rest
            except ValueError:
                continue
            yield Change(number, output, "padding-mode", f"padding mode {mode}", "pads with zeros")


def _fill_padding(number: int, step: Step, places: Ints) -> Iterator[Change]:
    """Fill the padding around a tensor otherwise; ``places``: of the elements in the tensor."""
    shape = step.output.shape
    inner = _find_inner_window(step.inputs[0].array.shape, places.reshape(shape))
    if inner is None:
        return
    widths = [
        (window.start, length - window.stop) for window, length in zip(inner, shape, strict=True)
    ]
    outputs = {}
    for mode, name in PADDING_MODES.items():
        with suppress(ValueError):  # a reflection is no longer than the tensor
            outputs[mode] = np.pad(step.output[inner], widths, mode=name)  # type: ignore[call-overload]
    own_modes = [mode for mode, array in outputs.items() if np.array_equal(array, step.output)]
    for mode, output in outputs.items():
        if own_modes and mode not in own_modes:
            contrast = f"pads with mode {own_modes[0]}"
            yield Change(number, output, "padding-mode", f"padding mode {mode}", contrast)
    padded_axes = [axis for axis, width in enumerate(widths) if any(width)]
    if len(padded_axes) == 1 and "zeros" in own_modes:
        (axis,) = padded_axes
        for before in range(sum(widths[axis]) + 1):
            other_widths = list(widths)
            other_widths[axis] = (before, sum(widths[axis]) - before)
            if other_widths != widths:
                output = np.pad(step.output[inner], other_widths)
                text = f"{before} zeros before and {other_widths[axis][1]} behind"
                contrast = f"pads {widths[axis][0]} before and {widths[axis][1]} behind"
                yield Change(number, output, "causal-shift", text, contrast)


def _find_inner_window(inner_shape: tuple[int, ...], places: Ints) -> tuple[slice, ...] | None:
    """Return where a padded tensor holds each element once; its axes may be in another order."""
    if len(inner_shape) != places.ndim:
        return None
    for shape in dict.fromkeys(permutations(inner_shape)):
        n_starts = [length - own + 1 for own, length in zip(shape, places.shape, strict=True)]
        if min(n_starts) < 1:
            continue
        for starts in islice(np.ndindex(*n_starts), _MAX_WINDOWS):
            window = tuple(
                slice(start, start + own) for start, own in zip(starts, shape, strict=True)
            )
            inner = places[window]
            if inner.min() >= 0 and len(np.unique(inner)) == inner.size:
                return window
    return None
