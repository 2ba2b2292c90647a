"""Dequantize 8-bit weights that are stored with scales.

Files of DeepSeek-V3 contain ``weight`` in float8_e4m3fn and ``weight_scale_inv``, one float32 for
each 128 x 128 elements, which the elements are multiplied by despite the name (weight_dequant in
its inference/kernel.py). Other files name it ``weight_scale``, with one scale per row or per
weight.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..checkpoints.elements import FLOAT8
from ..model.trace import Problem
from .computed_matrix import apply_block_scales
from .whole_model import Tensor, WholeModel

_SCALES_NAME = re.compile(r"^(.*)_scale(?:_inv)?$", re.DOTALL)
_DEFAULT_BLOCK = (128, 128)  #: of DeepSeek-V3, used if the settings give no block size


def dequantize_weights(model: WholeModel) -> WholeModel:
    """Multiply the 8-bit weights of a model by their scales.

    The scales are removed from its tensors. Scales that fit no weight are kept as tensors. They,
    and scales that no quantizer writes, are reported as problems.
    """
    tensors = dict(model.tensors)
    problems = list(model.problems)
    counts: Counter[tuple[str, str]] = Counter()
    for name, scales in model.tensors.items():
        weight = _find_weight(model, name)
        if weight is None:
            continue
        block = _find_block_size(weight, scales, model.checkpoint.settings)
        if block is None:
            message = f"{name}: {scales.shape} scales do not fit {weight.name} of {weight.shape}"
            problems.append(Problem("", message))
            continue
        n_impossible = _count_impossible(scales)
        if n_impossible:
            message = f"{name}: {n_impossible} of {scales.size} scales are negative or not finite"
            problems.append(Problem("", message))
        matrix = apply_block_scales(weight.matrix, scales.matrix, block)
        tensors[weight.name] = replace(weight, matrix=matrix, stack=())
        del tensors[name]
        is_one_block = block == weight.matrix.shape
        extent = "per weight" if is_one_block else f"for each {block[0]} x {block[1]} elements"
        counts[weight.dtype, extent] += 1
    notes = list(model.notes)
    for (dtype, extent), count in counts.items():
        notes.append(
            f"{count} parameters are {dtype} with a scale {extent}: compared after dequantization"
        )
    return replace(model, tensors=tensors, problems=tuple(problems), notes=tuple(notes))


def _find_weight(model: WholeModel, scales_name: str) -> Tensor | None:
    """Return the 8-bit weight that a tensor, by its name, has the scales of."""
    match = _SCALES_NAME.match(scales_name)
    weight = model.tensors.get(match[1]) if match is not None else None
    if weight is None or weight.dtype not in FLOAT8:
        return None
    return weight


def _count_impossible(scales: Tensor) -> int:
    """Return how many scales no quantizer writes: negative, infinite or NaN."""
    values = scales.matrix.read_values(slice(0, scales.matrix.shape[0]))
    return int(np.count_nonzero(~((values >= 0) & np.isfinite(values))))


def _find_block_size(
    weight: Tensor, scales: Tensor, settings: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return how many rows and columns share a scale; None if the shapes do not fit."""
    if len(weight.shape) != 2 or len(scales.shape) > 2:
        return None
    default_block = _get_configured_block(settings)
    sizes = []
    for length, count, size in zip(weight.shape, scales.matrix.shape, default_block, strict=True):
        if type(size) is int and size > 0 and -(-length // size) == count:
            sizes.append(size)
        elif count and length % count == 0:
            sizes.append(length // count)
        else:
            return None
    return sizes[0], sizes[1]


def _get_configured_block(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    quantization = settings.get("quantization_config")
    if isinstance(quantization, Mapping):
        block = quantization.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2:
            return tuple(block)
    return _DEFAULT_BLOCK
