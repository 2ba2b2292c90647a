"""Local norms in logs of Megatron-LM; they are printed by code that users add.

The MindSpore Transformers precision guide prints ``torch.norm(param.grad, 2) ** 2`` for every
parameter of the optimizer's groups, under "print torch local norm:". The code runs three times per
step, twice before clipping and once after it. The groups are first the decayed parameters, then the
others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ....model.arrays import Flags, Floats
from .block import NUMBER, Block, estimate_rounding

_LIST = re.compile(r"\[\s*tensor\([^\[\]]{0,4000000}\]")
_VALUE = re.compile(rf"tensor\(\s*({NUMBER})")
_TITLE = re.compile(r"local[ _-]?norm", re.IGNORECASE)
_PRECISION = re.compile(r"^\s*params_dtype \.+ torch\.(\w+)", re.MULTILINE)
_CLIP_LIMIT = re.compile(r"^\s*clip_grad \.+ ([\d.e+-]+)\s*$", re.MULTILINE)

#: The title of a list is within this many characters before it; warnings may be printed between.
_TITLE_DISTANCE = 600
#: Spread (logarithmic) of the ratios of two lists of the same gradients, before and after clipping.
_MAX_SPREAD = 0.02
#: Lists of one step that follow the first one, at most.
_MAX_REPETITIONS = 2
#: Norms below this share of the largest one have too few digits to be compared.
_MIN_SHARE = 1e-3


def find_list_blocks(text: str) -> list[Block]:
    """Return the first list of every step.

    A list that follows it and is equal, or smaller by one factor, contains the same gradients.
    """
    if "tensor(" not in text:
        return []
    blocks: list[Block] = []
    for match in _LIST.finditer(text):
        title_start = max(match.start() - _TITLE_DISTANCE, 0)
        if _TITLE.search(text, title_start, match.start()) is None:
            continue
        texts = tuple(_VALUE.findall(match[0]))
        if texts:
            blocks.append(Block(texts, offset=match.start()))
    return _drop_repetitions(blocks)


def find_precision(text: str) -> str:
    """Return the dtype of the parameters from the log's list of arguments, '' if it is missing."""
    match = _PRECISION.search(text)
    return match[1] if match else ""


def find_clip_limit(text: str) -> float:
    """Return the limit of the global norm from the list of arguments, NaN if it is missing."""
    match = _CLIP_LIMIT.search(text)
    if match is None:
        return np.nan
    try:
        return float(match[1])
    except ValueError:
        return np.nan


def _drop_repetitions(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks without those that repeat the gradients of the block before them."""
    first_blocks: list[Block] = []
    n_repetitions = 0
    for block in blocks:
        may_repeat = bool(first_blocks) and n_repetitions < _MAX_REPETITIONS
        if may_repeat and _is_proportional(first_blocks[-1], block):
            n_repetitions += 1
            continue
        first_blocks.append(block)
        n_repetitions = 0
    return first_blocks


def _is_proportional(first: Block, second: Block) -> bool:
    """Whether the second list is the first one times a factor of at most 1, within the digits."""
    first_values, second_values = first.parse_values(), second.parse_values()
    if len(first_values) != len(second_values):
        return False
    positive = (first_values > 0) & (second_values > 0)
    usable = positive & _flag_large(first_values)
    if not usable.any():
        return bool(np.array_equal(first_values, second_values, equal_nan=True))
    ratios = second_values[usable] / first_values[usable]
    median = float(np.median(ratios))
    if not median <= 1 + _MAX_SPREAD:
        return False
    max_spread = max(_MAX_SPREAD, _compute_digit_error(first) + _compute_digit_error(second))
    return bool(np.abs(np.log(ratios / median)).max() <= max_spread)


def _flag_large(values: Floats) -> Flags:
    return np.asarray(values >= _MIN_SHARE * np.nanmax(values, initial=0.0))


def _compute_digit_error(block: Block) -> float:
    """Return the largest relative rounding error of the large norms of a block."""
    values = block.parse_values()
    is_large = _flag_large(values)
    rounding = estimate_rounding(block.texts)[is_large]
    return float(np.max(rounding / np.maximum(values[is_large], 1e-300), initial=0.0))
