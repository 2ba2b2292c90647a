"""Norms out of text: a log in any of the printed forms, or a list; the step that is asked for; what ranks hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ....model.errors import DumpError
from ....training_logs.curves import Curves
from ....training_logs.reader import LOG_NAMES, by_rank, parse, rank_order, text_of
from ...side import Norms, norms_of
from . import lists, megatron, mindspore
from .block import Block, rounding_of

_STEP = re.compile(
    r"iteration\s+(\d{1,9})\s*/\s*\d+\s*\||(?:Epoch:\[\s*(\d{1,9})/\s*\d+\],\s*)?step:\[\s*(\d{1,9})/\s*(\d{1,9})\],"
)


@dataclass(frozen=True)
class _Form:
    """What prints local norms, and whether it prints their squares."""

    source: str
    squared: bool | None
    blocks: Callable[[str], list[Block]]


#: Those with names first: a log may hold norms in two forms.
_FORMS = (
    _Form("lines 'step:[...] local_norm/NAME'", False, mindspore.monitor_blocks),
    _Form("MindSpore's 'dump local norm'", False, mindspore.dumped_blocks),
    _Form("MindSpore Transformers' 'local_norm'", True, mindspore.trainer_blocks),
    _Form("Megatron-LM, lists of tensors under 'local norm'", True, megatron.patch_blocks),
)
#: What else a text may be.
_LISTS = (
    ("a list", lists.document),
    ("a list", lists.table),
    ("a list", lists.plain_list),
    ("lines with names and numbers", lists.named_lines),
)
EXPECTED = (
    "lines 'step:[1] local_norm/NAME: NORM', a block 'local_norm: [...]', a list '[tensor(...), ...]' under a line with"
    " 'local norm', 'dump local norm: NAME NORM', lines with a parameter's name and its norm, or numbers alone (text,"
    " CSV, JSON); 'dumpdiff snippet local-norm' prints code for a training"
)


def read(path: str, files: Sequence[Path], step: int | None) -> Norms | None:
    """The norms of one step in the logs of one run, one file or one for each rank; None if no log holds any.

    Raises DumpError if there are norms, but not of that step.
    """
    found: list[Norms] = []
    curves: list[Curves] = []
    for file in sorted(files, key=rank_order):
        for text in by_rank(text_of(file)):
            run = parse(text, str(file))
            curves += [run] if run is not None else []
            norms = _printed(text, path, run, step)
            found += [norms] if norms is not None else []
    if not found:
        return None
    return _with_total(_joined(found), curves)


def logs_of(folder: Path) -> list[Path]:
    """Logs and lists that lie in a folder."""
    names = (*LOG_NAMES, "*.json", "*.csv")
    return sorted({file for name in names for file in folder.glob(name) if file.is_file()})


def _printed(text: str, path: str, run: Curves | None, step: int | None) -> Norms | None:
    """The norms in one text."""
    for form in _FORMS:
        blocks = form.blocks(text)
        if blocks:
            return _chosen(_stepped(blocks, text, run), form.source, form.squared, path, text, step)
    for source, find in _LISTS:
        listed = find(text)
        if listed is not None:
            return _chosen(listed[0], source, listed[1], path, text, step)
    return None


def _stepped(blocks: Sequence[Block], text: str, run: Curves | None) -> list[Block]:
    """Blocks with their steps: norms are printed before the line of the step that they are of.

    Where not every step has a line (an interval), the last block before a line is of its step, those before count down;
    blocks behind the last line count on.
    """
    if blocks[0].step is not None:
        return list(blocks)
    lines = list(_STEP.finditer(text))
    steps = [
        int(m[1]) if m[1] else (max(int(m[2] or 1), 1) - 1) * int(m[4]) + int(m[3]) for m in lines
    ]
    if run is not None and len(run) == len(lines):
        steps = run.steps.tolist()  # what begins anew within an epoch is counted on there
    starts = [match.start() for match in lines]
    after = np.searchsorted(starts, [block.place for block in blocks])
    counts = np.bincount(after, minlength=len(lines) + 1)
    found = []
    turn = dict.fromkeys(range(len(lines) + 1), 0)
    for block, line in zip(blocks, after.tolist(), strict=True):
        turn[line] += 1
        last = steps[line] if line < len(lines) else (steps[-1] if steps else 0) + int(counts[line])
        found.append(replace(block, step=max(last - int(counts[line]) + turn[line], 1)))
    return found


def _chosen(
    blocks: Sequence[Block],
    source: str,
    squared: bool | None,
    path: str,
    text: str,
    step: int | None,
) -> Norms:
    """The norms of a step; of a list that counts no steps those that it holds. Raises DumpError if there are none."""
    if all(block.step is None for block in blocks):
        step = None
    chosen = next((block for block in blocks if step is None or block.step == step), None)
    if chosen is None:
        held = sorted({block.step for block in blocks if block.step is not None})
        said = f"step {held[0]}" if len(held) == 1 else f"steps {held[0]} to {held[-1]}"
        raise DumpError(f"{path}: has no norms of step {step}; it has those of {said}")
    return _norms(chosen, source, squared, path, text)


def _norms(block: Block, source: str, squared: bool | None, path: str, text: str) -> Norms:
    said = {True: "squares", False: "roots", None: ""}[squared]
    norms = norms_of(
        path,
        source,
        block.names,
        block.values(),
        rounding=rounding_of(block.texts),
        sizes=np.array(block.sizes) if block.sizes else None,
        squared=squared,
        because=f"that form prints {said}" if said else "",
    )
    return replace(
        norms,
        step=block.step,
        precision=megatron.precision_of(text),
        clip=megatron.clip_of(text),
        notes=block.notes,
    )


def _joined(found: Sequence[Norms]) -> Norms:
    """What ranks hold together where parameters are named; else the first rank's."""
    first = found[0]
    if len(found) == 1:
        return first
    if not all(norms.named for norms in found):
        return replace(
            first, notes=(*first.notes, f"the first of {len(found)} ranks' norms was taken")
        )
    place: dict[str, tuple[Norms, int]] = {}
    apart = 0
    for norms in found:
        for index, name in enumerate(norms.names):
            other, at = place.setdefault(name, (norms, index))
            apart += (
                abs(other.given[at] - norms.given[index])
                > other.rounding[at] + norms.rounding[index]
            )
    rows = list(place.values())
    notes = [f"{len(found)} ranks hold {len(rows)} parameters together"]
    if apart:
        notes.append(
            f"of {apart} parameters ranks print other norms (before they exchange gradients): the first's count"
        )
    return replace(
        first,
        names=tuple(place),
        given=np.array([norms.given[at] for norms, at in rows]),
        rounding=np.array([norms.rounding[at] for norms, at in rows]),
        sizes=np.array([norms.sizes[at] for norms, at in rows]),
        vectors=np.array([norms.vectors[at] for norms, at in rows]),
        notes=(*first.notes, *notes),
    )


def _with_total(norms: Norms, curves: Sequence[Curves]) -> Norms:
    """With the global norm of the same step, of the first log that prints one."""
    for run in curves:
        at = np.flatnonzero((run.steps == norms.step) & np.isfinite(run.norm))
        if len(at):
            return replace(norms, total=float(run.norm[at[0]]), total_rounding=run.norm_resolution)
    return norms
