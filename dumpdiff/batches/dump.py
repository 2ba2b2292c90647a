"""The batch as a network read it, found in a dump by who reads it: embeddings read tokens, losses read labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from .. import readers
from ..model.arrays import AnyArray, Ints
from ..model.dtypes import is_discrete, is_floating, is_integer
from ..model.errors import DumpError
from ..model.trace import FORWARD, Trace
from ..readers.parts import Part
from ..rulebook import load_rules
from .batch import Batch, TensorStatistics, join_ranks

_LOOKUP = "gather_rows"
_PROBE = 64  #: columns of an embedding by which its rows are told apart
_ROLLS = (1, 2, 3)  #: tokens moved on by so many are those of a further prediction head


def read_dump_batch(path: str, parts: Sequence[Part], step: int | None, rank: int | None) -> Batch:
    """The batch of one step: of one rank, or of all ranks that are numbered, one after another.

    Raises DumpError if nothing in the dump can be known as a batch.
    """
    first = _chosen(parts, step, rank)
    numbers = sorted(
        {part.rank for part in parts if part.step == first.step and part.rank is not None}
    )
    if rank is not None or first.is_unranked or len(numbers) < 2:
        return _of_trace(readers.read_part(first), path)
    found = [
        _of_trace(readers.read_part(_chosen(parts, first.step, number)), path) for number in numbers
    ]
    source = f"{found[0].source.rpartition(', rank ')[0]}, {len(numbers)} ranks)"
    return join_ranks(found, numbers, path, source)


def _chosen(parts: Sequence[Part], step: int | None, rank: int | None) -> Part:
    return readers.choose_parts(parts, parts, step=step, rank=rank, roles=("dump", "same dump"))[0]


def _of_trace(trace: Trace, path: str) -> Batch:
    seen = _Seen(trace)
    micro, vocabulary = seen.tokens()
    notes = []
    if not micro and (recovered := seen.recovered()) is not None:
        micro, vocabulary = [recovered[0]], recovered[1]
        notes.append(
            "no ids were recorded: they are the rows of the table that the embedding gave out"
        )
    about = trace.source
    said = [
        about.framework,
        about.format,
        *([f"step {about.step}"] if about.step is not None else []),
    ]
    if about.number is not None:
        said.append(f"{'process' if about.rank is None else 'rank'} {about.number}")
    source = f"dump ({', '.join(said)})"
    if not micro:
        numbers = seen.numbers()
        if not numbers:
            raise DumpError(
                f"{path}: no embedding reads integers in it, so that its token ids are not known"
            )
        return Batch(path, "dump", source, statistics=numbers, vocabulary=vocabulary)
    found = {
        "tokens": np.concatenate(micro),
        "labels": seen.labels(micro),
        "loss_mask": seen.loss_mask(micro),
        "positions": seen.positions(micro),
    }
    arrays = {name: array for name, array in found.items() if array is not None}
    return Batch(path, "dump", source, arrays, vocabulary=vocabulary, notes=tuple(notes))


class _Seen:
    """The forward pass of a trace: its integers, in the order in which they were read."""

    def __init__(self, trace: Trace) -> None:
        rules = load_rules()
        self._trace = trace
        self._kinds = [rules.resolve_kind(kind) for kind in trace.ops["kind"]]
        self._is_loss = [rules.get_kind_class(kind) == "loss" for kind in self._kinds]
        ops = trace.tensors["op"].to_numpy()
        forward = ((trace.ops["phase"] == FORWARD) & ~trace.ops["recomputed"]).to_numpy()
        table = trace.tensors
        usable = forward[ops] & ~table["constant"].to_numpy() & table["trusted"].to_numpy()
        self._usable = np.flatnonzero(usable & (table["size"].to_numpy() != 1))
        integer = table["dtype"].map(is_integer).to_numpy(dtype=bool)
        self._integers: list[int] = self._usable[integer[self._usable]].tolist()
        self._op, self._size = ops, table["size"].to_numpy()
        self._role, self._shape = table["role"].tolist(), table["shape"].tolist()
        self._dtype: list[str] = table["dtype"].tolist()

    def tokens(self) -> tuple[list[AnyArray], int | None]:
        """The ids that embeddings read, (samples, length) for each micro-batch; and the rows of the table."""
        found: list[AnyArray] = []
        vocabulary = None
        for row in self._read_by_lookups():
            vocabulary = vocabulary or self._table_rows(self._op[row])
            array = self._array(row)
            if array is None or is_counting(array):
                continue
            shaped = self._shaped(array)
            if not found or (
                shaped.shape == found[0].shape and not any(_again(shaped, other) for other in found)
            ):
                vocabulary = vocabulary if found else self._table_rows(self._op[row])
                found.append(shaped)
        return found, vocabulary

    def recovered(self) -> tuple[AnyArray, int] | None:
        """The ids by the rows of a table that its embedding gave out, where the recorder left integers out."""
        for op in dict.fromkeys(self._op[self._usable].tolist()):
            if self._kinds[op] != _LOOKUP:
                continue
            rows = [
                row
                for row in self._usable.tolist()
                if self._op[row] == op and is_floating(self._dtype[row])
            ]
            tables = [
                row
                for row in rows
                if self._role[row] != "output" and len(self._shape[row] or ()) == 2
            ]
            outputs = [row for row in rows if self._role[row] == "output"]
            for table, output in ((table, output) for table in tables for output in outputs):
                weights, taken = self._array(table), self._array(output)
                if (
                    weights is None
                    or taken is None
                    or taken.shape[-1] != weights.shape[1]
                    or taken.ndim < 2
                ):
                    continue
                ids = _rows_of(weights, taken)
                if ids is not None and not is_counting(ids):
                    return ids.reshape(-1, taken.shape[-2]), len(weights)
        return None

    def labels(self, micro: Sequence[AnyArray]) -> AnyArray | None:
        """What the loss reads; without an operator that is a loss, the first other integers of as many tokens."""
        samples, length = micro[0].shape
        rows = self._inputs(self._integers, (samples * length, samples * (length - 1)))
        of_loss = [row for row in rows if self._is_loss[self._op[row]]]
        given = {array.tobytes() for array in micro}
        found: dict[bytes, AnyArray] = {}
        for row in of_loss or rows:
            array = self._array(row)
            if array is None or is_counting(array):
                continue
            labels = array.reshape(samples, -1).astype(np.int64)
            if of_loss or labels.tobytes() not in given:
                found.setdefault(labels.tobytes(), labels)
        return _joined(list(found.values()), len(micro))

    def loss_mask(self, micro: Sequence[AnyArray]) -> AnyArray | None:
        """Zeros and ones, one for each token, that are multiplied with as many numbers."""
        by_op: dict[int, list[int]] = {}
        for row in self._inputs(self._usable.tolist(), (micro[0].size,)):
            if self._kinds[self._op[row]] == "mul":
                by_op.setdefault(int(self._op[row]), []).append(row)
        masks = []
        for rows in by_op.values():
            arrays = [array for row in rows if (array := self._array(row)) is not None]
            flags = [array for array in arrays if np.isin(array, (0, 1)).all()]
            if len(arrays) == 2 and len(flags) == 1:
                masks.append(flags[0].reshape(micro[0].shape).astype(np.float64))
        return _joined(masks, len(micro))

    def positions(self, micro: Sequence[AnyArray]) -> AnyArray | None:
        """Integers that count, as long as a sample; one row of them may serve all samples."""
        length = micro[0].shape[1]
        for row in self._integers:
            array = self._array(row) if self._size[row] in (micro[0].size, length) else None
            if array is None or array.ndim == 0 or not is_counting(array.reshape(-1, length)):
                continue
            rows = array.reshape(-1, length).astype(np.int64)
            tiled: AnyArray = np.tile(rows, (len(micro) * len(micro[0]) // len(rows), 1))
            return tiled
        return None

    def _inputs(self, rows: Sequence[int], sizes: Sequence[int]) -> list[int]:
        return [row for row in rows if self._role[row] == "input" and self._size[row] in sizes]

    def numbers(self) -> dict[str, TensorStatistics]:
        """Statistics of the tokens and labels."""
        found: dict[str, TensorStatistics] = {}
        for row in self._read_by_lookups():
            found.setdefault("tokens", self._statistics(row))
        for row in self._integers:
            if self._is_loss[self._op[row]] and self._role[row] == "input":
                found.setdefault("labels", self._statistics(row))
        return {name: numbers for name, numbers in found.items() if numbers.is_comparable}

    def _read_by_lookups(self) -> Iterator[int]:
        for row in self._integers:
            if self._role[row] == "input" and self._kinds[self._op[row]] == _LOOKUP:
                yield row

    def _table_rows(self, op: int) -> int | None:
        """Rows of the matrix that an operator picks from."""
        for row in np.flatnonzero(self._op == op).tolist():
            shape = self._shape[row]
            if (
                self._role[row] != "output"
                and is_floating(self._dtype[row])
                and shape
                and len(shape) == 2
            ):
                return int(shape[0])
        return None

    def _shaped(self, array: AnyArray) -> AnyArray:
        """The ids as (samples, length): in the shape in which they occur elsewhere, if here they are flat."""
        ids = array.astype(np.int64)
        if array.ndim == 2:
            return ids
        for row in self._integers:
            shape = self._shape[row]
            if self._size[row] == ids.size and shape and len(shape) == 2 and min(shape) > 1:
                other = self._array(row)
                if other is not None and np.array_equal(other.ravel(), ids.ravel()):
                    return ids.reshape(shape)
        return ids.reshape(-1, array.shape[-1]) if array.ndim > 1 else ids.reshape(1, -1)

    def _array(self, row: int) -> AnyArray | None:
        if row not in self._loaded:
            try:
                array = self._trace.array(row)
                shape = self._shape[row]
                self._loaded[row] = (
                    array.reshape(shape) if shape and array.size else array if array.size else None
                )
            except (DumpError, KeyError, OSError, ValueError):
                self._loaded[row] = None
        return self._loaded[row]

    @cached_property
    def _loaded(self) -> dict[int, AnyArray | None]:
        return {}

    def _statistics(self, row: int) -> TensorStatistics:
        said = self._trace.tensors.iloc[row]
        high, low, norm = (float(said[name]) for name in ("max", "min", "norm"))
        return TensorStatistics(said["shape"], said["dtype"], high, low, norm, said["hash"])


def is_counting(ids: AnyArray) -> bool:
    """Whether every row counts up by one, beginning anew at 0 wherever it likes: these are positions, no tokens."""
    rows = ids.reshape(-1, ids.shape[-1]) if ids.ndim else ids.reshape(1, 1)
    if rows.shape[1] < 2 or not (is_discrete(str(rows.dtype))) or rows.dtype == np.bool_:
        return False
    return bool(
        ((np.diff(rows.astype(np.int64), axis=1) == 1) | (rows[:, 1:] == 0)).all()
    ) and bool(rows.any())


def _joined(found: Sequence[AnyArray], count: int) -> AnyArray | None:
    """The first ``count``, one for each micro-batch, one after another; None if there are fewer or they differ."""
    if len(found) < count or len({array.shape for array in found[:count]}) > 1:
        return None
    whole: AnyArray = np.concatenate(found[:count])
    return whole


def _again(ids: AnyArray, other: AnyArray) -> bool:
    """The same ids, or the same moved on by a few."""
    if ids.shape != other.shape:
        return False
    return any(
        np.array_equal(ids[:, : ids.shape[1] - k], other[:, k:])
        for k in (0, *_ROLLS)
        if k < ids.shape[1]
    )


def _rows_of(table: AnyArray, taken: AnyArray) -> Ints | None:
    """The row of ``table`` that each row of ``taken`` is; None if one is in none, or in several."""
    columns = min(_PROBE, table.shape[1])
    places = {np.ascontiguousarray(row).tobytes(): i for i, row in enumerate(table[:, :columns])}
    if len(places) < len(table):
        return None
    wanted = taken[..., :columns].reshape(-1, columns)
    found = [places.get(np.ascontiguousarray(row).tobytes(), -1) for row in wanted]
    return None if -1 in found else np.array(found, dtype=np.int64)
