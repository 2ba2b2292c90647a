"""Norms of one step from text: a log in any of the known formats, or a list; ranks are combined."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ....model.errors import DumpError
from ....training_logs.curves import Curves
from ....training_logs.reader import LOG_NAMES, order_by_rank, parse, read_text, split_by_rank
from ...norms import Norms, build_norms
from . import lists, megatron, mindspore
from .block import Block, estimate_rounding

#: The step of a line of Megatron-LM (group 1), or of MindSpore Transformers (epoch, step, steps).
_STEP = re.compile(
    r"iteration\s+(\d{1,9})\s*/\s*\d+\s*\|"
    r"|(?:Epoch:\[\s*(\d{1,9})/\s*\d+\],\s*)?step:\[\s*(\d{1,9})/\s*(\d{1,9})\],"
)


@dataclass(frozen=True)
class _Format:
    """A format in which a log prints local norms."""

    source: str
    squared: bool | None
    find_blocks: Callable[[str], list[Block]]


#: Formats with names come first: a log may contain norms in two formats.
_FORMATS = (
    _Format("lines 'step:[...] local_norm/NAME'", False, mindspore.find_monitor_blocks),
    _Format("MindSpore's 'dump local norm'", False, mindspore.find_dumped_blocks),
    _Format("MindSpore Transformers' 'local_norm'", True, mindspore.find_trainer_blocks),
    _Format("Megatron-LM, lists of tensors under 'local norm'", True, megatron.find_list_blocks),
)
#: Formats of text that is no log of these frameworks.
_LIST_PARSERS = (
    ("a list", lists.parse_json),
    ("a list", lists.parse_table),
    ("a list", lists.parse_list),
    ("lines with names and numbers", lists.parse_named_lines),
)
EXPECTED = (
    "lines 'step:[1] local_norm/NAME: NORM', a block 'local_norm: [...]', a list"
    " '[tensor(...), ...]' under a line with 'local norm', 'dump local norm: NAME NORM', lines with"
    " a parameter's name and its norm, or numbers only (text, CSV, JSON);"
    " 'dumpdiff snippet local-norm' prints code for a training"
)


def read_printed_norms(path: str, files: Sequence[Path], step: int | None) -> Norms | None:
    """Read the norms of one step from the logs of one run: one file, or one per rank.

    Return None if no log contains norms. Raises DumpError if there are norms, but not of that step.
    """
    rank_norms: list[Norms] = []
    all_curves: list[Curves] = []
    for file in sorted(files, key=order_by_rank):
        for text in split_by_rank(read_text(file)):
            curves = parse(text, str(file))
            if curves is not None:
                all_curves.append(curves)
            norms = _read_text_norms(text, path, curves, step)
            if norms is not None:
                rank_norms.append(norms)
    if not rank_norms:
        return None
    return _add_global_norm(_combine_ranks(rank_norms), all_curves)


def find_logs(folder: Path) -> list[Path]:
    """Return the logs and lists in a folder."""
    patterns = (*LOG_NAMES, "*.json", "*.csv")
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def _read_text_norms(text: str, path: str, curves: Curves | None, step: int | None) -> Norms | None:
    """Read the norms of one step from the text of one rank; None if it contains none."""
    for log_format in _FORMATS:
        blocks = log_format.find_blocks(text)
        if blocks:
            numbered_blocks = _number_steps(blocks, text, curves)
            block = _select_block(numbered_blocks, path, step)
            norms = _build_block_norms(block, log_format.source, log_format.squared, path, text)
            return replace(norms, list_format=log_format.source)
    for source, parse_text in _LIST_PARSERS:
        parsed_list = parse_text(text)
        if parsed_list is not None:
            blocks, squared = parsed_list
            block = _select_block(blocks, path, step)
            return _build_block_norms(block, source, squared, path, text)
    return None


def _number_steps(blocks: Sequence[Block], text: str, curves: Curves | None) -> list[Block]:
    """Return blocks with their steps. Norms are printed before the line of their step.

    If not every step has a line (a log interval), the last block before a line belongs to its
    step, and those before it count down. Blocks after the last line count up.
    """
    if blocks[0].step is not None:
        return list(blocks)
    step_lines = list(_STEP.finditer(text))
    steps = [_parse_step(match) for match in step_lines]
    if curves is not None and len(curves) == len(step_lines):
        steps = curves.steps.tolist()  # these continue where steps restart within an epoch
    line_offsets = [match.start() for match in step_lines]
    line_indices = np.searchsorted(line_offsets, [block.offset for block in blocks])
    block_counts = np.bincount(line_indices, minlength=len(step_lines) + 1).tolist()
    seen_counts = [0] * (len(step_lines) + 1)
    numbered_blocks = []
    for block, line_index in zip(blocks, line_indices.tolist(), strict=True):
        seen_counts[line_index] += 1
        block_count = block_counts[line_index]
        if line_index < len(steps):
            last_step = steps[line_index]
        else:
            last_step = (steps[-1] if steps else 0) + block_count
        step = last_step - block_count + seen_counts[line_index]
        numbered_blocks.append(replace(block, step=max(step, 1)))
    return numbered_blocks


def _parse_step(match: re.Match[str]) -> int:
    """Return the step of a line, counted from the beginning of the training."""
    iteration, epoch, step, epoch_steps = match.groups()
    if iteration:
        return int(iteration)
    return (max(int(epoch or 1), 1) - 1) * int(epoch_steps) + int(step)


def _select_block(blocks: Sequence[Block], path: str, step: int | None) -> Block:
    """Return the block of a step; the first one if no step is given, or if blocks have no steps.

    Raises DumpError if there is none.
    """
    known_steps = {block.step for block in blocks if block.step is not None}
    if step is None or not known_steps:
        return blocks[0]
    for block in blocks:
        if block.step == step:
            return block
    first_step, last_step = min(known_steps), max(known_steps)
    available_steps = f"step {first_step}"
    if first_step != last_step:
        available_steps = f"steps {first_step} to {last_step}"
    raise DumpError(f"{path}: has no norms of step {step}; it has those of {available_steps}")


def _build_block_norms(
    block: Block, source: str, squared: bool | None, path: str, text: str
) -> Norms:
    squared_reason = ""
    if squared is not None:
        squared_reason = f"that format prints {'squares' if squared else 'roots'}"
    norms = build_norms(
        path,
        source,
        block.names,
        block.parse_values(),
        raw_rounding=estimate_rounding(block.texts),
        sizes=np.array(block.sizes) if block.sizes else None,
        squared=squared,
        squared_reason=squared_reason,
    )
    return replace(
        norms,
        step=block.step,
        precision=megatron.find_precision(text),
        clip_limit=megatron.find_clip_limit(text),
        notes=block.notes,
    )


def _combine_ranks(rank_norms: Sequence[Norms]) -> Norms:
    """Combine the parameters of all ranks if they have names; else return the first rank."""
    first = rank_norms[0]
    if len(rank_norms) == 1:
        return first
    if not all(norms.has_names for norms in rank_norms):
        note = f"only the norms of the first of {len(rank_norms)} ranks were read"
        return replace(first, notes=(*first.notes, note))
    sources: dict[str, tuple[Norms, int]] = {}
    n_different = 0
    for norms in rank_norms:
        for index, name in enumerate(norms.names):
            first_norms, first_index = sources.setdefault(name, (norms, index))
            difference = abs(first_norms.raw_values[first_index] - norms.raw_values[index])
            rounding = first_norms.raw_rounding[first_index] + norms.raw_rounding[index]
            n_different += difference > rounding
    parameters = list(sources.values())
    notes = [f"{len(rank_norms)} ranks hold {len(parameters)} parameters together"]
    if n_different:
        notes.append(
            f"{n_different} parameters have different norms on different ranks (before they"
            " exchange gradients): the first rank's are used"
        )
    return replace(
        first,
        names=tuple(sources),
        raw_values=np.array([norms.raw_values[index] for norms, index in parameters]),
        raw_rounding=np.array([norms.raw_rounding[index] for norms, index in parameters]),
        sizes=np.array([norms.sizes[index] for norms, index in parameters]),
        vector_flags=np.array([norms.vector_flags[index] for norms, index in parameters]),
        notes=(*first.notes, *notes),
    )


def _add_global_norm(norms: Norms, all_curves: Sequence[Curves]) -> Norms:
    """Return the norms with the same step's global norm, from the first log that prints one."""
    for curves in all_curves:
        indices = np.flatnonzero((curves.steps == norms.step) & np.isfinite(curves.norm))
        if len(indices):
            return replace(
                norms,
                global_norm=float(curves.norm[indices[0]]),
                global_norm_rounding=curves.norm_resolution,
            )
    return norms
