"""What can be wrong with one side's batch by itself: ids, padding, label shift, masks, positions, repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray, Flags
from ..model.verdict import Verdict
from .batch import Batch

#: agree: as it should be; warning: unusual, but no difference by itself; differ: makes runs diverge.
State = Literal[Verdict, "warning"]

#: How far labels may be ahead of the tokens and still be known as theirs.
SHIFTS = (1, 0, 2, -1, 3)
_SHIFTED = {
    1: "each label is the next token",
    0: "the labels are the tokens themselves",
    2: "each label is the token after the next: shifted twice",
    -1: "each label is the token before: shifted backwards",
    3: "each label is the third token from there: shifted three times",
}


@dataclass(frozen=True)
class Vocabulary:
    """What is known of the vocabulary; None where it is not."""

    size: int | None = None
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    special_names: Mapping[int, str] = field(
        default_factory=dict
    )  #: further ids that are no text, by a tokenizer


UNKNOWN_VOCABULARY = Vocabulary()


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State
    summary: str
    side: str = ""  #: target or reference; '' if it is about both


def check_batch(batch: Batch, ids: Vocabulary, side: str) -> list[Finding]:
    """Everything that can be said of one side whose tokens are known."""
    tokens = batch.tokens
    if tokens is None:
        return []
    found = [_in_range(tokens, ids.size or batch.vocabulary)]
    for check in (
        _special(batch, ids),
        _shift(batch),
        _mask(batch, ids),
        _positions(batch),
        _repeats(tokens),
    ):
        found += check
    return [Finding(name, state, said, side) for name, state, said in found]


_Said = tuple[str, State, str]


def find_label_shift(tokens: AnyArray, labels: AnyArray) -> int | None:
    """By how many places the labels are ahead of the tokens; None if they are no shift of them.

    Ignored labels (negative) fit anything, and so does what a shift moves out of sight; at least two places must tell.
    """
    for shift in SHIFTS:
        if shift >= 0:
            mine, theirs = tokens[:, shift:], labels[:, : tokens.shape[1] - shift]
        else:
            mine, theirs = tokens[:, :shift], labels[:, -shift:]
        width = min(mine.shape[1], theirs.shape[1])
        mine, theirs = mine[:, :width], theirs[:, :width]
        told = theirs >= 0
        if told.sum() >= 2 and np.array_equal(mine[told], theirs[told]):
            return shift
    return None


def _in_range(tokens: AnyArray, vocabulary: int | None) -> _Said:
    low, high = int(tokens.min()), int(tokens.max())
    if vocabulary is None:
        state: State = "differ" if low < 0 else "agree"
        return "ids", state, f"{low} to {high}, the size of the vocabulary is not known"
    outside = int(((tokens < 0) | (tokens >= vocabulary)).sum())
    if outside:
        first = tuple(int(i) for i in np.argwhere((tokens < 0) | (tokens >= vocabulary))[0])
        where = f"first {int(tokens[first])} at sample {first[0]}, place {first[1]}"
        return "ids", "differ", f"{outside} outside of the vocabulary of {vocabulary}: {where}"
    return "ids", "agree", f"{low} to {high} of a vocabulary of {vocabulary}"


def _special(batch: Batch, ids: Vocabulary) -> Iterator[_Said]:
    named = {
        i: name
        for name, i in (("bos", ids.bos), ("eos", ids.eos), ("pad", ids.pad))
        if i is not None
    }
    named = {**{i: name for i, name in ids.special_names.items() if i not in named}, **named}
    if not named or batch.tokens is None:
        return
    counts = {i: int((batch.tokens == i).sum()) for i in named}
    shown = [(i, counts[i]) for i in named if counts[i] or i not in ids.special_names]
    said = ", ".join(f"{named[i]} ({i}) {count} times" for i, count in shown)
    yield "special ids", "agree", said or "none of those that the tokenizer has"


def _shift(batch: Batch) -> Iterator[_Said]:
    if batch.tokens is None or batch.labels is None:
        return
    shift = find_label_shift(batch.tokens, batch.labels)
    if shift is None:
        yield "label shift", "warning", "the labels are not the tokens moved on by one"
    elif shift == 0 and batch.kind != "dump":
        yield (
            "label shift",
            "agree",
            f"{_SHIFTED[0]}: right if the model shifts them, as those of transformers do",
        )
    elif shift == 1:
        model = "" if batch.kind == "dump" else ": the model must not shift them again"
        yield "label shift", "agree", f"{_SHIFTED[1]}{model}"
    else:
        yield "label shift", "warning", _SHIFTED[shift]


def find_loss_labels(batch: Batch) -> Flags | None:
    """Which labels enter the loss, (samples, length); None if neither a mask nor labels are known."""
    if batch.loss_mask is not None:
        flags: Flags = batch.loss_mask != 0
        same = batch.labels is not None and batch.labels.shape == flags.shape
        return flags & (batch.labels >= 0) if same and batch.labels is not None else flags
    return None if batch.labels is None else batch.labels >= 0


def _mask(batch: Batch, ids: Vocabulary) -> Iterator[_Said]:
    flags = find_loss_labels(batch)
    if flags is None:
        return
    share = f"{int(flags.sum())} of {flags.size} tokens count"
    padding = None if ids.pad is None or batch.labels is None else batch.labels == ids.pad
    on_padding = (
        int((padding & flags).sum()) if padding is not None and padding.shape == flags.shape else 0
    )
    if not flags.any():
        yield "loss mask", "warning", "no token counts: the loss is 0 or not a number"
    elif on_padding:
        yield "loss mask", "warning", f"{share}, {on_padding} of them are padding ({ids.pad})"
    elif batch.loss_mask is not None or not flags.all():
        yield "loss mask", "agree", share


def _positions(batch: Batch) -> Iterator[_Said]:
    if batch.positions is None:
        return
    steps = np.diff(batch.positions, axis=1)
    resets = int(((steps != 1) & (batch.positions[:, 1:] == 0)).sum())
    begins = np.unique(batch.positions[:, 0]).tolist()
    if begins != [0]:
        yield "positions", "warning", f"samples begin at position {', '.join(map(str, begins[:4]))}"
    elif ((steps != 1) & (batch.positions[:, 1:] != 0)).any():
        yield "positions", "warning", "do not count up by one"
    else:
        yield (
            "positions",
            "agree",
            f"begin anew {resets} times within samples"
            if resets
            else "0, 1, 2, ... in all samples",
        )


def _repeats(tokens: AnyArray) -> Iterator[_Said]:
    distinct = len({row.tobytes() for row in tokens})
    if distinct < len(tokens):
        yield (
            "repeats",
            "warning",
            f"{len(tokens) - distinct} of {len(tokens)} samples are in the batch more than once",
        )
