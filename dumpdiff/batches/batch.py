"""What one run was given to train on in its first step, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..model.errors import DumpError

#: The fields of a batch, in the order in which they are looked at.
FIELDS = ("tokens", "labels", "loss_mask", "positions")
#: dump: what the network read (labels as the loss reads them); dataset: packed here; file: saved by a user.
Kind = Literal["dump", "dataset", "file"]


@dataclass(frozen=True)
class TensorStatistics:
    """What a dump of statistics knows of a tensor; NaN and '' where nothing was recorded."""

    shape: tuple[int, ...] | None
    dtype: str
    max: float
    min: float
    norm: float
    hash: str

    @property
    def is_comparable(self) -> bool:
        """Whether there is anything to compare."""
        return bool(self.hash) or not np.isnan([self.max, self.min]).any()


@dataclass(frozen=True)
class Batch:
    """The samples of one step. Arrays are (samples, length); what the source does not hold is not among them."""

    path: str
    kind: Kind
    source: str  #: in words: which framework, step, rank, or which packing
    arrays: Mapping[str, AnyArray] = field(default_factory=dict)  #: by the names of FIELDS
    ranks: Ints | None = None  #: (samples,) data-parallel rank that trains on each
    vocabulary: int | None = None  #: rows of the embedding table
    statistics: Mapping[str, TensorStatistics] = field(
        default_factory=dict
    )  #: field -> statistics, where no array is known
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> AnyArray | None:
        """int64."""
        return self.arrays.get("tokens")

    @property
    def labels(self) -> AnyArray | None:
        """int64; negative ones do not enter the loss. One column shorter where a loss leaves the last token out."""
        return self.arrays.get("labels")

    @property
    def loss_mask(self) -> AnyArray | None:
        """float64, 0 where a label does not enter the loss."""
        return self.arrays.get("loss_mask")

    @property
    def positions(self) -> AnyArray | None:
        """int64."""
        return self.arrays.get("positions")

    @property
    def n_samples(self) -> int:
        """Number of samples, 0 if only statistics are known."""
        return 0 if self.tokens is None else len(self.tokens)

    @property
    def sample_length(self) -> int:
        """Tokens of a sample, 0 if only statistics are known."""
        return 0 if self.tokens is None else self.tokens.shape[1]


def join_ranks(parts: Sequence[Batch], ranks: Sequence[int], path: str, source: str) -> Batch:
    """The batches of several ranks as one; what one of them lacks, or has in another length, all lack.

    Ranks that hold the same tokens (tensor and pipeline parallel ones) count once. Raises DumpError if none has tokens.
    """
    seen: dict[bytes, int] = {}
    for i, part in enumerate(parts):
        if part.tokens is not None:
            seen.setdefault(part.tokens.tobytes(), i)
    kept = [parts[i] for i in seen.values()]
    if not kept:
        raise DumpError(
            f"{path}: none of {len(parts)} ranks holds token ids as whole tensors; dump them whole"
        )
    joined = {}
    for name in FIELDS:
        found = [part.arrays[name] for part in kept if name in part.arrays]
        if len(found) == len(kept) and len({array.shape[1] for array in found}) == 1:
            joined[name] = np.concatenate(found)
    if "tokens" not in joined:
        raise DumpError(f"{path}: the ranks hold samples of several lengths; name one with --rank")
    notes = dict.fromkeys(note for part in kept for note in part.notes)
    same = len(parts) - len(kept)
    if same:
        notes[
            f"{same} of {len(parts)} ranks hold what another holds, or no tokens: each batch counts once"
        ] = None
    return Batch(
        path=path,
        kind="dump",
        source=source,
        arrays=joined,
        ranks=np.repeat([ranks[i] for i in seen.values()], [part.n_samples for part in kept]),
        vocabulary=kept[0].vocabulary,
        notes=tuple(notes),
    )
