"""Local norms in logs of Megatron-LM, which has no option for them: what users add prints lists of tensors.

The MindSpore Transformers precision guide has ``torch.norm(param.grad, 2) ** 2`` printed for every parameter of the
optimizer's groups, under "print torch local norm:". The code runs three times in a step, twice before clipping and
once after it; the groups are the parameters that are decayed, then those that are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from .block import NUMBER, Block, rounding_of

_LIST = re.compile(r"\[\s*tensor\([^\[\]]{0,4000000}\]")
_VALUE = re.compile(rf"tensor\(\s*({NUMBER})")
_TITLE = re.compile(r"local[ _-]?norm", re.IGNORECASE)
_ABOVE = 600  #: characters before a list in which its title stands; warnings may fall between
_SAME = 0.02  #: spread of the ratios of two lists, one of which is the other after clipping: their digits
_PRECISION = re.compile(r"^\s*params_dtype \.+ torch\.(\w+)", re.MULTILINE)
_CLIP = re.compile(r"^\s*clip_grad \.+ ([\d.e+-]+)\s*$", re.MULTILINE)


def patch_blocks(text: str) -> list[Block]:
    """The first list of every step; those that follow it, equal or smaller by one factor, are the same gradients."""
    found: list[Block] = []
    for match in _LIST.finditer(text) if "tensor(" in text else ():
        if _TITLE.search(text, max(match.start() - _ABOVE, 0), match.start()) is None:
            continue
        texts = tuple(_VALUE.findall(match[0]))
        if texts:
            found.append(Block(texts, place=match.start()))
    return _firsts(found)


def precision_of(text: str) -> str:
    """The dtype of the model's parameters by the log's block of arguments, '' if it has none."""
    match = _PRECISION.search(text)
    return match[1] if match else ""


def clip_of(text: str) -> float:
    """The limit of the global norm by the block of arguments, NaN if it does not say."""
    match = _CLIP.search(text)
    try:
        return float(match[1]) if match else np.nan
    except ValueError:
        return np.nan


def _firsts(blocks: Sequence[Block]) -> list[Block]:
    """Without lists that repeat the gradients of the list before them; at most two follow one."""
    kept: list[Block] = []
    followers = 0
    for block in blocks:
        if kept and followers < 2 and _proportional(kept[-1], block):
            followers += 1
            continue
        kept.append(block)
        followers = 0
    return kept


def _proportional(first: Block, second: Block) -> bool:
    """Whether two lists are one but for a factor, as far as their digits say, and the second is not larger."""
    a, b = first.values(), second.values()
    if len(a) != len(b):
        return False
    large = (a > 0) & (b > 0) & (a >= 1e-3 * np.nanmax(a, initial=0.0))
    if not large.any():
        return bool(np.array_equal(a, b, equal_nan=True))
    ratios = b[large] / a[large]
    middle = float(np.median(ratios))
    return middle <= 1 + _SAME and bool(
        np.abs(np.log(ratios / middle)).max() <= max(_SAME, _digits(first, second))
    )


def _digits(*blocks: Block) -> float:
    open_ = 0.0
    for block in blocks:
        values = block.values()
        large = values >= 1e-3 * np.nanmax(values, initial=0.0)
        open_ += float(
            np.max(rounding_of(block.texts)[large] / np.maximum(values[large], 1e-300), initial=0.0)
        )
    return open_
