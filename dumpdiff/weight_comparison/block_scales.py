"""8-bit weights with scales as the numbers they stand for.

DeepSeek-V3's files hold ``weight`` in float8_e4m3fn and ``weight_scale_inv``, a float32 for each 128 x 128 elements
that these are multiplied by, despite its name (its inference/kernel.py, weight_dequant). Others say ``weight_scale``
and have one for a row or for the whole weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..checkpoints.elements import FLOAT8
from ..model.trace import Problem
from .computed_matrix import apply_block_scales
from .whole_model import WholeModel, Tensor

_SUFFIXES = ("_scale_inv", "_scale")
_USUAL = (128, 128)


def dequantize_weights(side: WholeModel) -> WholeModel:
    """The side with its 8-bit weights multiplied by their scales, which are no parameters of their own any more.

    Scales that fit no weight stay where they are, with a problem.
    """
    tensors = dict(side.tensors)
    problems = list(side.problems)
    blocks: Counter[tuple[str, str]] = Counter()
    for name, scales in side.tensors.items():
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
        weight = side.tensors.get(name.removesuffix(suffix)) if suffix else None
        if weight is None or weight.dtype not in FLOAT8:
            continue
        block = _block(weight, scales, side.checkpoint.settings)
        if block is None:
            problems.append(
                Problem(
                    "", f"{name}: {scales.shape} scales do not fit {weight.name} of {weight.shape}"
                )
            )
            continue
        matrix = apply_block_scales(weight.matrix, scales.matrix, block)
        tensors[weight.name] = replace(weight, matrix=matrix, stack=None)
        del tensors[name]
        whole = block == weight.matrix.shape
        blocks[
            weight.dtype, "of its own" if whole else f"for each {block[0]} x {block[1]} elements"
        ] += 1
    notes = [
        f"{count} parameters are {dtype} with a scale {said}: compared as the numbers they stand for"
        for (dtype, said), count in blocks.items()
    ]
    return replace(side, tensors=tensors, problems=tuple(problems), notes=(*side.notes, *notes))


def _block(weight: Tensor, scales: Tensor, settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """How many rows and columns share a scale; None if the shapes do not fit."""
    if len(weight.shape) != 2 or len(scales.shape) > 2:
        return None
    said = settings.get("quantization_config")
    given = said.get("weight_block_size") if isinstance(said, Mapping) else None
    usual = tuple(given) if isinstance(given, list) and len(given) == 2 else _USUAL
    sizes = []
    for length, count, known in zip(weight.shape, scales.matrix.shape, usual, strict=True):
        if type(known) is int and known > 0 and -(-length // known) == count:
            sizes.append(known)
        elif count and length % count == 0:
            sizes.append(length // count)
        else:
            return None
    return sizes[0], sizes[1]
