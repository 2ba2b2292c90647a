"""Which tokens a training takes first from Megatron's token files.

Megatron-LM and MindSpore Transformers shuffle the sequences of the training split, epoch by epoch,
and read them as one stream; sample k consists of tokens k n to k n + n (n is the sequence length;
one more token is for the labels). The samples are used in a second random order. A last epoch of
which less than 80 % is needed is shuffled separately. Everything follows from the seed.

Sources: megatron-core 0.16.1 (gpt_dataset.py, blended_megatron_dataset_builder.py, helpers.cpp) and
MindSpore Transformers, master of 2026 (dataset/blended_datasets). Other versions were not checked.
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

#: If a smaller share of the last epoch is needed, Megatron shuffles the last epoch separately.
_SEPARATE_EPOCH_SHARE = 0.80
#: Megatron prepares this many times the samples that the weight of a blended dataset requires.
_BLEND_SURPLUS = 1.005
#: Megatron numbers sequences times epochs with int32.
_MAX_SEQUENCES = 1 << 31
#: From this many samples on, Megatron numbers samples with int64, below it with uint32.
_UINT32_SAMPLES = 2**32 - 2
#: Weights of a split: training, validation, test.
_MAX_SPLIT_WEIGHTS = 3


@dataclass(frozen=True)
class Packing:
    """How a training reads its token files; the names are those of Megatron's options."""

    sequence_length: int | None = None
    global_batch: int | None = None  #: samples per step; None: one micro-batch for every rank
    micro_batch: int = 1
    data_parallel: int = 1
    seed: int = 1234
    split: str = "969,30,1"  #: weights of training, validation and test; Megatron-LM's default
    samples: int | None = None  #: of the whole training; None: one epoch
    loader: Loader = "megatron"
    eod: int | None = None  #: id of the end of a document
    pad: int | None = None  #: id of padding, which loaders replace by 0

    @property
    def step_samples(self) -> int:
        """Samples per step."""
        if self.global_batch is None:
            return self.micro_batch * self.data_parallel
        return self.global_batch


DEFAULT_PACKING = Packing()


def assign_ranks(packing: Packing) -> Ints:
    """Return (samples,) the data-parallel rank that gets each sample of a step.

    Megatron-LM distributes micro-batches (MegatronPretrainingSampler), MindSpore single samples (a
    dataset with ``num_shards``).
    """
    numbers = np.arange(packing.step_samples)
    samples_per_turn = packing.micro_batch if packing.loader == "megatron" else 1
    return numbers // samples_per_turn % packing.data_parallel


def pack_first_step(
    datasets: Sequence[tuple[float | None, TokenFile]], packing: Packing
) -> AnyArray:
    """Return (samples, sequence length + 1) int64, the tokens of the first global batch.

    ``datasets`` are token files with their weights. A single one without a weight is used alone,
    others are blended. Raises DumpError if the sequence length is unknown, or if there are too few
    tokens.
    """
    count = packing.step_samples
    token_files = [token_file for _, token_file in datasets]
    if len(datasets) == 1 and datasets[0][0] is None:
        rows = _pack_dataset(token_files[0], packing, packing.samples, count)
        return _replace_padding(rows, packing)
    weights = [weight for weight, _ in datasets if weight is not None]
    sizes: list[int | None] = [None] * len(datasets)
    if weights:
        shares = _normalize_weights(np.asarray(weights, dtype=np.float64))
        sizes = [_count_prepared_samples(packing, share) for share in shares.tolist()]
    else:  # in proportion to the samples of one epoch
        n_samples = [_plan_dataset(file, packing, None).n_samples for file in token_files]
        shares = np.array(n_samples, dtype=np.float64)
    dataset_numbers = _blend_datasets(_normalize_weights(shares), count)
    dataset_counts = np.bincount(dataset_numbers, minlength=len(datasets)).tolist()
    rows = np.empty((count, _get_length(packing) + 1), dtype=np.int64)
    for number, token_file in enumerate(token_files):
        if dataset_counts[number]:
            rows[dataset_numbers == number] = _pack_dataset(
                token_file, packing, sizes[number], dataset_counts[number]
            )
    return _replace_padding(rows, packing)


def _normalize_weights(weights: Floats) -> Floats:
    if not np.all(np.isfinite(weights) & (weights > 0)):
        raise DumpError("the weights of the datasets must be greater than 0")
    shares: Floats = weights / np.sum(weights)
    return shares


def _count_prepared_samples(packing: Packing, share: float) -> int | None:
    """Return how many samples are prepared of a dataset of a blend; None for one epoch."""
    if packing.samples is None:
        return None
    samples = packing.samples * share
    if packing.loader == "megatron":
        samples = math.ceil(samples)
    return math.ceil(samples * _BLEND_SURPLUS)


def _blend_datasets(shares: Floats, count: int) -> Ints:
    """Return (count,) the dataset of each sample: the one that is furthest behind its share."""
    sample_counts = np.zeros(len(shares))
    dataset_numbers = np.empty(count, dtype=np.int64)
    for sample in range(count):
        number = int(np.argmax(shares * max(sample, 1) - sample_counts))
        dataset_numbers[sample] = number
        sample_counts[number] += 1
    return dataset_numbers


@dataclass(frozen=True)
class _DatasetPlan:
    """What is read of one dataset, before anything is shuffled."""

    begin: int  #: first sequence of the split
    end: int
    n_epochs: int
    #: Samples of all epochs but the last, if that is shuffled separately; else of all epochs.
    n_samples_before_last: int
    n_samples: int


def _plan_dataset(
    token_file: TokenFile, packing: Packing, required_samples: int | None
) -> _DatasetPlan:
    """Plan how many epochs are read for the required samples; None for one epoch."""
    length = _get_length(packing)
    begin, end = _find_training_split(packing.split, len(token_file.lengths))
    epoch_tokens = int(token_file.lengths[begin:end].sum(dtype=np.int64))
    has_one_sample = epoch_tokens >= length + 1
    if epoch_tokens == 0 or (required_samples is None and not has_one_sample):
        raise DumpError(
            f"{token_file.prefix}: the training split ({packing.split}) holds {epoch_tokens:,}"
            f" tokens, a sample takes {length + 1:,}"
        )
    n_epochs = 1
    if required_samples is not None:
        n_epochs = max(1, -(-(required_samples * length + 1) // epoch_tokens))
    if n_epochs * (end - begin) >= _MAX_SEQUENCES:
        raise DumpError(
            f"{token_file.prefix}: {required_samples:,} samples take {n_epochs:,} epochs, more than"
            " Megatron can number"
        )
    n_samples = n_samples_before_last = (n_epochs * epoch_tokens - 1) // length
    if n_epochs > 1 and required_samples is not None:
        n_without_last = ((n_epochs - 1) * epoch_tokens - 1) // length
        epoch_samples = (epoch_tokens - 1) // length
        if required_samples - n_without_last < int(_SEPARATE_EPOCH_SHARE * epoch_samples):
            n_samples_before_last = n_without_last
    return _DatasetPlan(begin, end, n_epochs, n_samples_before_last, n_samples)


def _pack_dataset(
    token_file: TokenFile, packing: Packing, required_samples: int | None, count: int
) -> AnyArray:
    """Return (count, sequence length + 1) int64, the first samples of one dataset."""
    length = _get_length(packing)
    plan = _plan_dataset(token_file, packing, required_samples)
    if plan.n_samples < count:
        raise DumpError(
            f"{token_file.prefix}: the training split ({packing.split}) holds"
            f" {plan.n_samples:,} samples of {length:,} tokens, a step takes {count:,}; set the"
            " samples of the whole training with --samples"
        )
    # The generator is used in Megatron's order: sequences first, then samples.
    generator = np.random.RandomState(packing.seed)
    sequences = _shuffle_sequences(plan, generator)
    samples = _shuffle_samples(plan, generator, count)
    lengths = token_file.lengths[plan.begin : plan.end][sequences - plan.begin]
    ends = np.cumsum(lengths, dtype=np.int64)
    rows = []
    for sample in samples.tolist():
        begin = sample * length
        rows.append(_read_stream(token_file, sequences, ends, begin, begin + length + 1))
    return np.stack(rows)


def _shuffle_sequences(plan: _DatasetPlan, generator: np.random.RandomState) -> AnyArray:
    """Return (epochs * sequences,) int32, the sequences in the order in which they are read."""
    last_epoch = np.arange(plan.begin, plan.end, dtype=np.int32)
    if plan.n_samples_before_last == plan.n_samples:
        sequences = np.tile(last_epoch, plan.n_epochs)
        generator.shuffle(sequences)
        return sequences
    sequences = np.tile(last_epoch, plan.n_epochs - 1)
    generator.shuffle(sequences)
    generator.shuffle(last_epoch)
    return np.concatenate([sequences, last_epoch])


def _shuffle_samples(plan: _DatasetPlan, generator: np.random.RandomState, count: int) -> AnyArray:
    """Return (count,) the first samples in the order in which they are used."""
    dtype = np.uint32 if plan.n_samples < _UINT32_SAMPLES else np.int64
    samples = np.arange(plan.n_samples_before_last, dtype=dtype)
    generator.shuffle(samples)
    if len(samples) < count:
        last_samples = np.arange(plan.n_samples_before_last, plan.n_samples, dtype=dtype)
        generator.shuffle(last_samples)
        samples = np.concatenate([samples, last_samples])
    return samples[:count]


def _read_stream(
    token_file: TokenFile, sequences: AnyArray, ends: Ints, begin: int, end: int
) -> Ints:
    """Read tokens ``begin`` to ``end`` of the concatenated sequences, which end at ``ends``."""
    pieces = []
    index = int(np.searchsorted(ends, begin, side="right"))
    while begin < end:
        sequence_begin = int(ends[index - 1]) if index else 0
        piece_end = min(end, int(ends[index]))
        piece = token_file.read_tokens(
            int(sequences[index]), begin - sequence_begin, piece_end - sequence_begin
        )
        pieces.append(piece)
        begin = piece_end
        index += 1
    return np.concatenate(pieces)


def _find_training_split(split: str, n_sequences: int) -> tuple[int, int]:
    """Return the first sequence of the training split, and the first one after it."""
    weights = [float(weight) for weight in re.findall(r"\d+\.?\d*|\.\d+", split)]
    if not weights or len(weights) > _MAX_SPLIT_WEIGHTS or weights[0] <= 0:
        raise DumpError(
            f"split {split!r}: expected up to three weights, the first greater than 0, as in"
            " 969,30,1"
        )
    shares = (np.asarray(weights) / np.sum(weights)).tolist()
    return 0, round(shares[0] * float(n_sequences))


def _get_length(packing: Packing) -> int:
    if packing.sequence_length is None:
        raise DumpError("token files are cut into samples: set their length with --seq-length")
    return packing.sequence_length


def _replace_padding(rows: AnyArray, packing: Packing) -> AnyArray:
    """Replace pad tokens by 0, as both loaders do.

    Megatron does not do this if the id of padding is that of the end of a document.
    """
    is_end_of_document = packing.loader == "megatron" and packing.pad == packing.eod
    has_padding = packing.pad is not None and packing.pad >= 0
    if has_padding and not is_end_of_document:
        return np.where(rows == packing.pad, 0, rows)
    return rows
