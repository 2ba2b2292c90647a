"""Checks of one side's batch: ids, special ids, label shift, loss mask, positions, repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from ..model.arrays import AnyArray, Flags
from ..model.verdict import Verdict
from .batch import Batch

#: agree: as it should be; warning: unusual, but no difference by itself; differ: makes runs
#: diverge.
State = Literal[Verdict, "warning"]

#: Shifts of labels against tokens that are recognized, in the order in which they are tried.
_SHIFTS = (1, 0, 2, -1, 3)
_SHIFT_SUMMARIES = {
    1: "each label is the next token",
    0: "the labels are the tokens themselves",
    2: "each label is the token after the next: shifted twice",
    -1: "each label is the token before: shifted backwards",
    3: "each label is the third token from there: shifted three times",
}
#: A shift must be visible in at least this many labels: a single one may agree by chance.
MIN_EVIDENCE = 2
#: Numbers that are listed in a message, at most.
_MAX_NUMBERS = 4


@dataclass(frozen=True)
class Vocabulary:
    """The size and the special ids of a vocabulary; None if unknown."""

    size: int | None = None
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    #: Further ids that are no text, from a tokenizer.
    special_names: Mapping[int, str] = field(default_factory=dict)


UNKNOWN_VOCABULARY = Vocabulary()


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: State
    summary: str
    side: str = ""  #: target or reference; '' if it is about both


class _Result(NamedTuple):
    """A finding of one side, without the side."""

    name: str
    state: State
    summary: str


def check_batch(batch: Batch, vocabulary: Vocabulary, side: str) -> list[Finding]:
    """Return the findings about one side; none if its tokens are unknown."""
    tokens = batch.tokens
    if tokens is None:
        return []
    results = [
        _check_range(tokens, vocabulary.size or batch.vocabulary),
        *_count_special_ids(tokens, vocabulary),
        *_check_label_shift(batch),
        *_check_loss_mask(batch, vocabulary),
        *_check_positions(batch),
        *_check_repeats(tokens),
    ]
    return [Finding(name, state, summary, side) for name, state, summary in results]


def find_label_shift(tokens: AnyArray, labels: AnyArray) -> int | None:
    """Return by how many positions the labels are ahead of the tokens; None if by no known shift.

    Ignored labels (negative) match any token; at least two other labels must match.
    """
    for shift in _SHIFTS:
        if shift >= 0:
            shifted_tokens, shifted_labels = tokens[:, shift:], labels
        else:
            shifted_tokens, shifted_labels = tokens[:, :shift], labels[:, -shift:]
        length = min(shifted_tokens.shape[1], shifted_labels.shape[1])
        shifted_tokens, shifted_labels = shifted_tokens[:, :length], shifted_labels[:, :length]
        is_used = shifted_labels >= 0
        is_match = np.array_equal(shifted_tokens[is_used], shifted_labels[is_used])
        if is_match and is_used.sum() >= MIN_EVIDENCE:
            return shift
    return None


def _check_range(tokens: AnyArray, vocabulary_size: int | None) -> _Result:
    low, high = int(tokens.min()), int(tokens.max())
    if vocabulary_size is None:
        state: State = "differ" if low < 0 else "agree"
        return _Result("ids", state, f"{low} to {high}, the size of the vocabulary is not known")
    is_outside = (tokens < 0) | (tokens >= vocabulary_size)
    if not is_outside.any():
        return _Result("ids", "agree", f"{low} to {high} of a vocabulary of {vocabulary_size}")
    sample, position = (int(index) for index in np.argwhere(is_outside)[0])
    summary = (
        f"{int(is_outside.sum())} outside of the vocabulary of {vocabulary_size}: first"
        f" {int(tokens[sample, position])} at sample {sample}, position {position}"
    )
    return _Result("ids", "differ", summary)


def _count_special_ids(tokens: AnyArray, vocabulary: Vocabulary) -> Iterator[_Result]:
    """Yield the counts of special ids; tokenizer ids that do not occur are left out."""
    special_ids = {
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
        "pad": vocabulary.pad,
    }
    names = {token: name for name, token in special_ids.items() if token is not None}
    further_names = {
        token: name for token, name in vocabulary.special_names.items() if token not in names
    }
    if not names and not further_names:
        return
    counts = []
    for token, name in {**further_names, **names}.items():
        count = int((tokens == token).sum())
        if count or token not in vocabulary.special_names:
            counts.append(f"{name} ({token}) {count} times")
    yield _Result("special ids", "agree", ", ".join(counts) or "none of those of the tokenizer")


def _check_label_shift(batch: Batch) -> Iterator[_Result]:
    if batch.tokens is None or batch.labels is None:
        return
    shift = find_label_shift(batch.tokens, batch.labels)
    if shift is None:
        summary = "the labels are not the tokens shifted by one"
        yield _Result("label shift", "warning", summary)
        return
    state: State = "warning"
    summary = _SHIFT_SUMMARIES[shift]
    is_dump = batch.kind == "dump"
    if shift == 1:
        state = "agree"
        if not is_dump:
            summary += ": the model must not shift them again"
    elif shift == 0 and not is_dump:
        state = "agree"
        summary += ": correct if the model shifts them, as the models of transformers do"
    yield _Result("label shift", state, summary)


def find_loss_labels(batch: Batch) -> Flags | None:
    """Return (samples, length) whether a label enters the loss.

    Return None if neither a mask nor labels are known.
    """
    if batch.loss_mask is None:
        return None if batch.labels is None else batch.labels >= 0
    enters_loss: Flags = batch.loss_mask != 0
    if batch.labels is not None and batch.labels.shape == enters_loss.shape:
        return enters_loss & (batch.labels >= 0)
    return enters_loss


def _check_loss_mask(batch: Batch, vocabulary: Vocabulary) -> Iterator[_Result]:
    enters_loss = find_loss_labels(batch)
    if enters_loss is None:
        return
    count = f"{int(enters_loss.sum())} of {enters_loss.size} tokens count"
    n_padding = _count_padding(batch, enters_loss, vocabulary.pad)
    if not enters_loss.any():
        yield _Result("loss mask", "warning", "no token counts: the loss is 0 or not a number")
    elif n_padding:
        summary = f"{count}, {n_padding} of them are padding ({vocabulary.pad})"
        yield _Result("loss mask", "warning", summary)
    elif batch.loss_mask is not None or not enters_loss.all():
        yield _Result("loss mask", "agree", count)


def _count_padding(batch: Batch, enters_loss: Flags, pad: int | None) -> int:
    """Return how many labels in the loss are padding."""
    if pad is None or batch.labels is None:
        return 0
    is_padding = batch.labels == pad
    if is_padding.shape != enters_loss.shape:
        return 0
    return np.count_nonzero(is_padding & enters_loss)


def _check_positions(batch: Batch) -> Iterator[_Result]:
    if batch.positions is None:
        return
    is_jump = np.diff(batch.positions, axis=1) != 1
    is_zero = batch.positions[:, 1:] == 0
    n_restarts = int((is_jump & is_zero).sum())
    first_positions = np.unique(batch.positions[:, 0]).tolist()
    if first_positions != [0]:
        numbers = ", ".join(map(str, first_positions[:_MAX_NUMBERS]))
        yield _Result("positions", "warning", f"samples begin at position {numbers}")
    elif (is_jump & ~is_zero).any():
        yield _Result("positions", "warning", "do not count up by one")
    elif n_restarts:
        yield _Result("positions", "agree", f"restart {n_restarts} times within samples")
    else:
        yield _Result("positions", "agree", "0, 1, 2, ... in all samples")


def _check_repeats(tokens: AnyArray) -> Iterator[_Result]:
    n_repeats = len(tokens) - len({row.tobytes() for row in tokens})
    if n_repeats:
        summary = f"{n_repeats} of {len(tokens)} samples are in the batch more than once"
        yield _Result("repeats", "warning", summary)
