"""Draw damages, always the same ones, and put them into a copy of a dump."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import kinds
import numpy as np
from copies import Editor, StatisticsEditor, TensorFiles
from records import SUBJECTS, Record, group_by_content

#: Damages of each kind on each side of a pair in each form: of several subjects in turn.
DRAWS = 2
#: One in so many damages is held out, besides those of the model that is held out completely (a
#: sixth of all): a third together.
_HELD_OUT_SHARE = 5


@dataclass(frozen=True)
class Damage:
    """One damaged value of one side of a pair."""

    pair: str
    form: str
    side: str  #: target or reference
    kind: str
    record: Record
    #: all records of the value: those that hold the same numbers
    same_value: tuple[Record, ...]

    @property
    def name(self) -> str:
        """Return what makes the damage unique."""
        return f"{self.pair} [{self.form}] {self.side} {self.kind}: {self.record.name}"

    @property
    def id(self) -> str:
        """Return a short word for the command line."""
        return compute_hash(self.name)[:8]

    @property
    def is_held_out(self) -> bool:
        """Return whether the damage is held out by its name; its pair may be, too."""
        return int(compute_hash("held out", self.name), 16) % _HELD_OUT_SHARE == 0


def compute_hash(*words: str) -> str:
    """Return a hexadecimal number that is the same in every process."""
    return hashlib.blake2b("|".join(words).encode(), digest_size=8).hexdigest()


def draw_damages(
    editor: Editor,
    records: Sequence[Record],
    place: tuple[str, str, str],
    kind: str,
) -> Iterator[Damage]:
    """Yield damages of one kind, each of them while it is in the copy of the dump.

    ``place`` is pair, form and side. The subjects take turns from one kind to the next. Within a
    subject the order is that of a hash of the op's name, and what would change nothing is skipped:
    a damage must change the tensor by more than ``kinds.CLEAR`` of its norm (a statistic: of its
    scale), so that a factor of zeros, the sign of a symmetric tensor, NaN in integers and a swap
    with an equal tensor are no cases. Whether dumpdiff notices plays no part. The caller restores
    the copy before it asks for the next damage.
    """
    groups = group_by_content(list(records))
    by_size: dict[int, list[Record]] = {}
    for record in records:
        by_size.setdefault(record.size, []).append(record)
    present = [name for name in SUBJECTS if any(r.subject == name for r in records)]
    turn = int(compute_hash(*place), 16) + DRAWS * kinds.KINDS.index(kind)
    n_drawn = 0
    for position in range(len(present)):
        subject = present[(turn + position) % len(present)]
        candidates = [record for record in records if record.subject == subject]
        candidates.sort(key=lambda record: compute_hash(*place, kind, record.name))
        for record in candidates:
            same_value = tuple(groups[record.content])
            if apply_damage(editor, kind, record, same_value, by_size[record.size]):
                yield Damage(*place, kind, record, same_value)
                n_drawn += 1
                break
        if n_drawn == DRAWS:
            return


def apply_damage(
    editor: Editor,
    kind: str,
    record: Record,
    same_value: Sequence[Record],
    same_size: Sequence[Record],
) -> bool:
    """Damage a record; return false, and change nothing, if the damage would change nothing."""
    if kind == kinds.TRUNCATED:
        editor.truncate(record)
        return True
    if kind in (kinds.DELETED, kinds.DELETED_COPY):
        if (len(same_value) > 1) != (kind == kinds.DELETED_COPY):
            return False
        editor.delete(record)
        return True
    is_applied = False
    damaged_records = same_value if kind == kinds.EVERYWHERE else [record]
    for damaged_record in damaged_records:
        if isinstance(editor, TensorFiles):
            is_applied |= _damage_tensor(editor, kind, damaged_record, same_size)
        else:
            is_applied |= _damage_statistics(editor, kind, damaged_record, same_size)
    return is_applied


def _damage_tensor(
    editor: TensorFiles, kind: str, record: Record, same_size: Sequence[Record]
) -> bool:
    """Write the first proposal that changes the tensor clearly; return whether there is one."""
    recorded = editor.read_values(record)
    values = recorded.astype(np.float64)
    for proposal in _propose_tensors(editor, kind, record, values, same_size):
        if recorded.dtype.kind != "f" and not np.isfinite(proposal).all():
            continue
        with np.errstate(over="ignore"):
            damaged = np.asarray(proposal).astype(recorded.dtype)
        if kinds.is_clear_tensor_damage(values, damaged.astype(np.float64)):
            editor.write_values(record, damaged)
            return True
    return False


def _propose_tensors(
    editor: TensorFiles,
    kind: str,
    record: Record,
    values: np.ndarray,
    same_size: Sequence[Record],
) -> Iterator[np.ndarray]:
    if kind == kinds.SWAPPED:
        for donor in _order_donors(record, same_size):
            yield editor.read_values(donor).astype(np.float64).reshape(values.shape)
    else:
        yield kinds.TENSOR_DAMAGES[kinds.get_arithmetic(kind)](values)


def _damage_statistics(
    editor: StatisticsEditor, kind: str, record: Record, same_size: Sequence[Record]
) -> bool:
    """Write the first proposal that changes the statistics clearly; return whether there is one."""
    if record.dtype == "bool":  # recorders write words in place of its numbers
        return False
    numbers = editor.read_numbers(record)
    for proposal in _propose_statistics(editor, kind, record, numbers, same_size):
        if "float" not in record.dtype and not kinds.is_finite(proposal):
            continue
        if kinds.is_clear_statistics_damage(numbers, proposal, record.size):
            editor.write_numbers(record, proposal)
            return True
    return False


def _propose_statistics(
    editor: StatisticsEditor,
    kind: str,
    record: Record,
    numbers: kinds.Statistics,
    same_size: Sequence[Record],
) -> Iterator[kinds.Statistics]:
    if kind == kinds.SWAPPED:
        for donor in _order_donors(record, same_size):
            if donor.dtype == record.dtype:
                yield editor.read_numbers(donor)
    elif kind == kinds.ONE_STATISTIC:
        names = sorted(kinds.STATISTIC_NAMES, key=lambda name: compute_hash(record.name, name))
        for name in names:
            yield kinds.change_one(numbers, name)
    else:
        yield kinds.STATISTICS_DAMAGES[kinds.get_arithmetic(kind)](numbers, record.size)


def _order_donors(record: Record, same_size: Sequence[Record]) -> list[Record]:
    """Return the records whose numbers may take the place of others, in a fixed order."""
    donors = [other for other in same_size if other.content != record.content]
    return sorted(donors, key=lambda other: compute_hash(record.name, other.name))
