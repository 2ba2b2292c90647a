"""Which tokens a training takes first from Megatron's token files, as Megatron-LM and MindSpore Transformers pack them.

The sequences of the training split are put into a random order, epoch by epoch, and are read as one stream; sample k
is tokens k n to k n + n (n the sequence length, one token more for the labels); samples are drawn in a second random
order. A last epoch of which less than 80 % is needed is shuffled on its own. All of it follows from the seed (read in
megatron-core 0.16.1, gpt_dataset.py, blended_megatron_dataset_builder.py, helpers.cpp; MindSpore Transformers, master
of 2026, dataset/blended_datasets; other versions were not read).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints
from ..model.errors import DumpError
from .token_files import TokenFile

Loader = Literal["megatron", "mindformers"]

_OWN_SHUFFLE = 0.80  #: share of the last epoch below which it is shuffled on its own
_SURPLUS = 1.005  #: more samples are prepared of each dataset of a blend than its weight asks for
_LARGEST_ORDER = 1 << 31  #: sequences times epochs; Megatron numbers them with int32


@dataclass(frozen=True)
class Packing:
    """How a training reads its token files; the names are those of Megatron's options."""

    sequence_length: int | None = None
    global_batch: int | None = (
        None  #: samples of a step; None: those of one micro-batch on every rank
    )
    micro_batch: int = 1
    data_parallel: int = 1
    seed: int = 1234
    split: str = "969,30,1"  #: weights of training, validation and test; Megatron-LM's default
    samples: int | None = None  #: of the whole training; None: one epoch
    loader: Loader = "megatron"
    eod: int | None = None
    pad: int | None = None  #: these tokens become 0

    @property
    def step_samples(self) -> int:
        """Samples of a step."""
        return (
            self.micro_batch * self.data_parallel
            if self.global_batch is None
            else self.global_batch
        )


DEFAULT_PACKING = Packing()


def assign_ranks(packing: Packing) -> Ints:
    """(samples,) the data-parallel rank that each sample of a step goes to.

    Megatron-LM deals out micro-batches (MegatronPretrainingSampler), MindSpore single samples (a dataset with
    ``num_shards``).
    """
    number = np.arange(packing.step_samples)
    size = packing.micro_batch if packing.loader == "megatron" else 1
    return number // size % packing.data_parallel


def pack_first_step(parts: Sequence[tuple[float | None, TokenFile]], packing: Packing) -> AnyArray:
    """(samples, sequence length + 1) int64, the tokens of the first global batch.

    ``parts`` are the datasets with their weights; a single one without a weight is read as it is, others are blended.
    Raises DumpError if the sequence length is not known, or there are too few tokens.
    """
    if len(parts) == 1 and parts[0][0] is None:
        return _unpadded(_first(parts[0][1], packing, packing.samples, packing.step_samples), packing)
    weights = [weight for weight, _ in parts if weight is not None]
    if weights:
        shares = _normalised(np.asarray(weights, dtype=np.float64))
        sizes = [_prepared(packing, share) for share in shares.tolist()]
    else:  # in proportion to the samples of an epoch
        sizes = [None] * len(parts)
        shares = np.array([_plan(data, packing, None).total for _, data in parts], dtype=np.float64)
    chosen = _blended(_normalised(shares), packing.step_samples)
    counts = np.bincount(chosen, minlength=len(parts))
    rows = np.empty((packing.step_samples, _length(packing) + 1), dtype=np.int64)
    for i, (_, data) in enumerate(parts):
        if counts[i]:
            rows[chosen == i] = _first(data, packing, sizes[i], int(counts[i]))
    return _unpadded(rows, packing)


def _normalised(weights: Floats) -> Floats:
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise DumpError("the weights of the datasets must be greater than 0")
    shares: Floats = weights / np.sum(weights)
    return shares


def _prepared(packing: Packing, share: float) -> int | None:
    if packing.samples is None:
        return None
    asked = packing.samples * share
    return math.ceil((math.ceil(asked) if packing.loader == "megatron" else asked) * _SURPLUS)


def _blended(shares: Floats, count: int) -> Ints:
    """(count,) which dataset each sample is of: the one that is furthest behind its share."""
    taken = np.zeros(len(shares))
    chosen = np.empty(count, dtype=np.int64)
    for i in range(count):
        chosen[i] = int(np.argmax(shares * max(i, 1) - taken))
        taken[chosen[i]] += 1
    return chosen


@dataclass(frozen=True)
class _Plan:
    """What is read of one dataset, before anything is shuffled."""

    begin: int  #: first sequence of the split
    end: int
    epochs: int
    before_last: (
        int  #: samples of all epochs but the last, where that is shuffled on its own; else of all
    )
    total: int  #: samples


def _plan(data: TokenFile, packing: Packing, samples: int | None) -> _Plan:
    n = _length(packing)
    begin, end = _split(packing.split, len(data.lengths))
    per_epoch = int(data.lengths[begin:end].sum(dtype=np.int64))
    if per_epoch < n + 1 and (samples is None or per_epoch == 0):
        raise DumpError(
            f"{data.prefix}: the training split ({packing.split}) holds {per_epoch:,} tokens, a sample takes {n + 1:,}"
        )
    epochs = 1 if samples is None else max(1, -(-(samples * n + 1) // per_epoch))
    if epochs * (end - begin) >= _LARGEST_ORDER:
        raise DumpError(
            f"{data.prefix}: {samples:,} samples take {epochs:,} epochs, more than Megatron can number"
        )
    total = before_last = (epochs * per_epoch - 1) // n
    if epochs > 1 and samples is not None:
        without = ((epochs - 1) * per_epoch - 1) // n
        if samples - without < int(_OWN_SHUFFLE * ((per_epoch - 1) // n)):
            before_last = without
    return _Plan(begin, end, epochs, before_last, total)


def _first(data: TokenFile, packing: Packing, samples: int | None, count: int) -> AnyArray:
    """(count, sequence length + 1) int64, the first samples of one dataset."""
    n = _length(packing)
    plan = _plan(data, packing, samples)
    if plan.total < count:
        raise DumpError(
            f"{data.prefix}: the training split ({packing.split}) holds {plan.total:,} samples of {n:,} tokens, a step"
            f" takes {count:,}; say with --samples how many the training takes"
        )
    state = np.random.RandomState(packing.seed)
    own_last = plan.before_last < plan.total
    order = _sequence_order(plan, own_last, state)
    drawn = np.arange(plan.before_last, dtype=np.uint32 if plan.total < 2**32 - 2 else np.int64)
    state.shuffle(drawn)
    if plan.before_last < count:
        rest = np.arange(plan.before_last, plan.total, dtype=drawn.dtype)
        state.shuffle(rest)
        drawn = np.concatenate([drawn, rest])
    ends = np.cumsum(data.lengths[plan.begin : plan.end][order - plan.begin], dtype=np.int64)
    return np.stack(
        [_stream(data, order, ends, k * n, k * n + n + 1) for k in drawn[:count].tolist()]
    )


def _sequence_order(plan: _Plan, own_last: bool, state: np.random.RandomState) -> AnyArray:
    """(epochs * sequences,) int32, the sequences in the order in which they are read."""
    epoch = np.arange(plan.begin, plan.end, dtype=np.int32)
    if not own_last:
        order = np.tile(epoch, plan.epochs)
        state.shuffle(order)
        return order
    order = np.tile(epoch, plan.epochs - 1)
    state.shuffle(order)
    state.shuffle(epoch)
    return np.concatenate([order, epoch])


def _stream(data: TokenFile, order: AnyArray, ends: Ints, begin: int, end: int) -> Ints:
    """Tokens ``begin`` to ``end`` of the sequences one after another; ``ends`` are running sums of their lengths."""
    parts = []
    at = int(np.searchsorted(ends, begin, side="right"))
    while begin < end:
        start = int(ends[at - 1]) if at else 0
        until = min(end, int(ends[at]))
        parts.append(data.read_tokens(int(order[at]), begin - start, until - start))
        begin, at = until, at + 1
    return np.concatenate(parts)


def _split(split: str, sequences: int) -> tuple[int, int]:
    """The first sequence of the training split and the first behind it."""
    weights = [float(weight) for weight in re.findall(r"\d+\.?\d*|\.\d+", split)]
    if not weights or len(weights) > 3 or weights[0] <= 0:
        raise DumpError(
            f"split {split!r}: expected up to three weights, the first greater than 0, as in 969,30,1"
        )
    share = (np.asarray(weights) / np.sum(weights)).tolist()[0]
    return 0, round(share * float(sequences))


def _length(packing: Packing) -> int:
    if packing.sequence_length is None:
        raise DumpError("token files are cut into samples: say how long with --seq-length")
    return packing.sequence_length


def _unpadded(rows: AnyArray, packing: Packing) -> AnyArray:
    """Pad tokens as 0, as both loaders do; Megatron takes a pad id for none that is the end of a document, too."""
    if (
        packing.pad is None
        or packing.pad < 0
        or (packing.loader == "megatron" and packing.pad == packing.eod)
    ):
        return rows
    return np.where(rows == packing.pad, 0, rows)
