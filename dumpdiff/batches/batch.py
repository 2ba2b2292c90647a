"""The batch of a run's first step, from any source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..model.errors import DumpError

#: The fields of a batch, in the order in which they are compared.
FIELDS = ("tokens", "labels", "loss_mask", "positions")
#: dump: what the network read (labels as the loss reads them); dataset: packed by dumpdiff from
#: token files; file: saved by a user.
Kind = Literal["dump", "dataset", "file"]


@dataclass(frozen=True)
class TensorStatistics:
    """The statistics of a tensor in a dump; NaN and '' if they were not recorded."""

    shape: tuple[int, ...] | None
    dtype: str
    max: float
    min: float
    norm: float
    hash: str

    @property
    def is_comparable(self) -> bool:
        """Whether a checksum or the range of values is known."""
        return bool(self.hash) or not np.isnan([self.max, self.min]).any()


@dataclass(frozen=True)
class Batch:
    """The samples of one step. Arrays have the shape (samples, length)."""

    path: str
    kind: Kind
    source: str  #: description: framework, step and rank, or packing
    #: By the names of FIELDS; fields that the source does not contain are missing.
    arrays: Mapping[str, AnyArray] = field(default_factory=dict)
    ranks: Ints | None = None  #: (samples,) data-parallel rank that trains on each sample
    vocabulary: int | None = None  #: rows of the embedding table
    #: Statistics of fields without an array.
    statistics: Mapping[str, TensorStatistics] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> AnyArray | None:
        """Token ids, int64."""
        return self.arrays.get("tokens")

    @property
    def labels(self) -> AnyArray | None:
        """Labels, int64; negative ones do not enter the loss.

        They have one column less than the tokens if the loss leaves out the last token.
        """
        return self.arrays.get("labels")

    @property
    def loss_mask(self) -> AnyArray | None:
        """Weights of the labels in the loss, float64; 0 if a label does not enter it."""
        return self.arrays.get("loss_mask")

    @property
    def positions(self) -> AnyArray | None:
        """Position ids, int64."""
        return self.arrays.get("positions")

    @property
    def n_samples(self) -> int:
        """Number of samples, 0 if only statistics are known."""
        return 0 if self.tokens is None else len(self.tokens)

    @property
    def sample_length(self) -> int:
        """Tokens per sample, 0 if only statistics are known."""
        return 0 if self.tokens is None else self.tokens.shape[1]


def join_ranks(batches: Sequence[Batch], ranks: Sequence[int], path: str, source: str) -> Batch:
    """Join the batches of several ranks.

    Ranks with the same tokens (tensor and pipeline parallel ones) count once. A field is kept if
    all ranks have it in the same length. Raises DumpError if no rank has tokens.
    """
    first_indices: dict[bytes, int] = {}
    for index, batch in enumerate(batches):
        if batch.tokens is not None:
            first_indices.setdefault(batch.tokens.tobytes(), index)
    distinct_batches = [batches[index] for index in first_indices.values()]
    distinct_ranks = [ranks[index] for index in first_indices.values()]
    if not distinct_batches:
        raise DumpError(
            f"{path}: none of {len(batches)} ranks holds token ids as whole tensors; dump whole"
            " tensors"
        )
    joined_arrays = {}
    for name in FIELDS:
        arrays = [batch.arrays[name] for batch in distinct_batches if name in batch.arrays]
        lengths = {array.shape[1] for array in arrays}
        if len(arrays) == len(distinct_batches) and len(lengths) == 1:
            joined_arrays[name] = np.concatenate(arrays)
    if "tokens" not in joined_arrays:
        raise DumpError(
            f"{path}: the ranks hold samples of several lengths; select one with --rank"
        )
    notes = list(dict.fromkeys(note for batch in distinct_batches for note in batch.notes))
    n_skipped = len(batches) - len(distinct_batches)
    if n_skipped:
        notes.append(
            f"{n_skipped} of {len(batches)} ranks hold the same tokens as another rank, or no"
            " tokens: each batch counts once"
        )
    return Batch(
        path=path,
        kind="dump",
        source=source,
        arrays=joined_arrays,
        ranks=np.repeat(distinct_ranks, [batch.n_samples for batch in distinct_batches]),
        vocabulary=distinct_batches[0].vocabulary,
        notes=tuple(notes),
    )
