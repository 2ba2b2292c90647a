"""The batch as a network read it, found in a dump by the operators that read it.

Embeddings read tokens, losses read labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from .. import readers
from ..model.arrays import AnyArray, Ints
from ..model.dtypes import is_discrete, is_floating, is_integer
from ..model.errors import DumpError
from ..model.trace import FORWARD, Source, Trace
from ..readers.parts import Part
from ..rulebook import load_rules
from .batch import Batch, TensorStatistics, join_ranks

#: Canonical kind of the operator of an embedding.
_LOOKUP = "gather_rows"
#: Columns of an embedding table that identify its rows.
_KEY_COLUMNS = 64
#: Shifts of the tokens of further prediction heads.
_HEAD_SHIFTS = (1, 2, 3)


def read_dump_batch(path: str, parts: Sequence[Part], step: int | None, rank: int | None) -> Batch:
    """Read the batch of one step: of one rank, or of all ranks, one after another.

    Raises DumpError if the dump contains no batch that can be recognized.
    """
    first_part = _choose_part(parts, step, rank)
    ranks = _list_ranks(parts, first_part.step)
    if rank is not None or first_part.is_unranked or len(ranks) < 2:
        return _read_batch(readers.read_part(first_part), path)
    batches = []
    for number in ranks:
        part = _choose_part(parts, first_part.step, number)
        batches.append(_read_batch(readers.read_part(part), path))
    source_without_rank = batches[0].source.rpartition(", rank ")[0]
    return join_ranks(batches, ranks, path, f"{source_without_rank}, {len(ranks)} ranks)")


def _list_ranks(parts: Sequence[Part], step: int | None) -> list[int]:
    """Return the known ranks of one step."""
    step_parts = [part for part in parts if part.step == step]
    return sorted({part.rank for part in step_parts if part.rank is not None})


def _choose_part(parts: Sequence[Part], step: int | None, rank: int | None) -> Part:
    return readers.choose_parts(
        parts, parts, step=step, rank=rank, side_names=("dump", "same dump")
    )[0]


def _read_batch(trace: Trace, path: str) -> Batch:
    """Read the batch of one rank."""
    forward_pass = _ForwardPass(trace)
    micro_batches, vocabulary = forward_pass.find_tokens()
    notes: tuple[str, ...] = ()
    if not micro_batches:
        recovered = forward_pass.recover_tokens()
        if recovered is not None:
            micro_batches, vocabulary = [recovered[0]], recovered[1]
            notes = (
                "no ids were recorded: they were recovered from the rows that the embedding"
                " returned",
            )
    source = _describe_source(trace.source)
    if not micro_batches:
        statistics = forward_pass.collect_statistics()
        if not statistics:
            raise DumpError(
                f"{path}: no embedding in it reads integers, so its token ids are unknown"
            )
        return Batch(path, "dump", source, statistics=statistics, vocabulary=vocabulary)
    candidate_arrays = {
        "tokens": np.concatenate(micro_batches),
        "labels": forward_pass.find_labels(micro_batches),
        "loss_mask": forward_pass.find_loss_mask(micro_batches),
        "positions": forward_pass.find_positions(micro_batches),
    }
    arrays = {name: array for name, array in candidate_arrays.items() if array is not None}
    return Batch(path, "dump", source, arrays, vocabulary=vocabulary, notes=notes)


def _describe_source(source: Source) -> str:
    labels = [source.framework, source.format]
    if source.step is not None:
        labels.append(f"step {source.step}")
    if source.number is not None:
        key = "process" if source.rank is None else "rank"
        labels.append(f"{key} {source.number}")
    return f"dump ({', '.join(labels)})"


class _ForwardPass:
    """The tensors of a trace's forward pass. Rows are those of the tensor table, in dump order."""

    def __init__(self, trace: Trace) -> None:
        rules = load_rules()
        table = trace.tensors
        self._trace = trace
        self._kinds = [rules.resolve_kind(kind) for kind in trace.ops["kind"]]
        self._is_loss = [rules.get_kind_class(kind) == "loss" for kind in self._kinds]
        self._op, self._size = table["op"].to_numpy(), table["size"].to_numpy()
        self._slot_kind, self._shape = table["slot_kind"].tolist(), table["shape"].tolist()
        self._dtype: list[str] = table["dtype"].tolist()
        is_forward = ((trace.ops["phase"] == FORWARD) & ~trace.ops["recomputed"]).to_numpy()
        is_usable = is_forward[self._op] & ~table["constant"].to_numpy()
        is_usable = is_usable & table["trusted"].to_numpy() & (self._size != 1)
        is_integer_row = table["dtype"].map(is_integer).to_numpy(dtype=bool)
        self._usable_rows: list[int] = np.flatnonzero(is_usable).tolist()
        self._integer_rows: list[int] = np.flatnonzero(is_usable & is_integer_row).tolist()

    def find_tokens(self) -> tuple[list[AnyArray], int | None]:
        """Return the (samples, length) ids of each micro-batch, and the rows of the table.

        Ids that repeat another micro-batch, shifted or not, are those of further heads.
        """
        micro_batches: list[AnyArray] = []
        vocabulary = None
        for row in self._list_lookup_inputs():
            table_rows = self._count_table_rows(self._op[row])
            vocabulary = vocabulary or table_rows
            array = self._load(row)
            if array is None or is_counting(array):
                continue
            ids = self._reshape_ids(array)
            if not micro_batches:
                vocabulary = table_rows
            elif _is_other_head(ids, micro_batches):
                continue
            micro_batches.append(ids)
        return micro_batches, vocabulary

    def recover_tokens(self) -> tuple[AnyArray, int] | None:
        """Return the ids that produce an embedding's output, for recorders that skip integers."""
        for op in dict.fromkeys(self._op[self._usable_rows].tolist()):
            if self._kinds[op] != _LOOKUP:
                continue
            tables, outputs = self._list_lookup_tensors(op)
            for table in tables:
                for output in outputs:
                    ids = self._recover_ids(table, output)
                    if ids is not None:
                        return ids, int(self._shape[table][0])
        return None

    def _list_lookup_tensors(self, op: int) -> tuple[list[int], list[int]]:
        """Return the rows of an embedding's possible tables, and of its outputs."""
        tables, outputs = [], []
        for row in self._usable_rows:
            if self._op[row] != op or not is_floating(self._dtype[row]):
                continue
            if self._slot_kind[row] == "output":
                outputs.append(row)
            elif len(self._shape[row] or ()) == 2:
                tables.append(row)
        return tables, outputs

    def _recover_ids(self, table: int, output: int) -> AnyArray | None:
        """Return the (samples, length) rows of a table that an output consists of.

        Return None if there are none, or if they count as positions do.
        """
        weights, vectors = self._load(table), self._load(output)
        if weights is None or vectors is None or vectors.ndim < 2:
            return None
        if vectors.shape[-1] != weights.shape[1]:
            return None
        ids = _find_rows(weights, vectors)
        if ids is None or is_counting(ids):
            return None
        return ids.reshape(-1, vectors.shape[-2])

    def find_labels(self, micro_batches: Sequence[AnyArray]) -> AnyArray | None:
        """Return the labels that a loss reads.

        If no operator is a loss, these are the first other integers of as many elements.
        """
        n_samples, length = micro_batches[0].shape
        rows = self._select_inputs(
            self._integer_rows, (n_samples * length, n_samples * (length - 1))
        )
        loss_rows = [row for row in rows if self._is_loss[self._op[row]]]
        known_ids = {array.tobytes() for array in micro_batches}
        distinct_labels: dict[bytes, AnyArray] = {}
        for row in loss_rows or rows:
            array = self._load(row)
            if array is None or is_counting(array):
                continue
            labels = array.reshape(n_samples, -1).astype(np.int64)
            key = labels.tobytes()
            if loss_rows or key not in known_ids:
                distinct_labels.setdefault(key, labels)
        return _join_micro_batches(list(distinct_labels.values()), len(micro_batches))

    def find_loss_mask(self, micro_batches: Sequence[AnyArray]) -> AnyArray | None:
        """Return the zeros and ones, one per token, that are multiplied with as many numbers."""
        shape = micro_batches[0].shape
        rows_by_op: dict[int, list[int]] = {}
        for row in self._select_inputs(self._usable_rows, (micro_batches[0].size,)):
            op = int(self._op[row])
            if self._kinds[op] == "mul":
                rows_by_op.setdefault(op, []).append(row)
        masks = []
        for rows in rows_by_op.values():
            mask = self._find_mask_factor(rows)
            if mask is not None:
                masks.append(mask.reshape(shape).astype(np.float64))
        return _join_micro_batches(masks, len(micro_batches))

    def _find_mask_factor(self, rows: Sequence[int]) -> AnyArray | None:
        """Return the factor of zeros and ones if exactly one of two factors is such."""
        arrays = []
        masks = []
        for row in rows:
            array = self._load(row)
            if array is None:
                continue
            arrays.append(array)
            if np.isin(array, (0, 1)).all():
                masks.append(array)
        if len(arrays) == 2 and len(masks) == 1:
            return masks[0]
        return None

    def find_positions(self, micro_batches: Sequence[AnyArray]) -> AnyArray | None:
        """Return integers that count, as long as a sample; one row may serve all samples."""
        n_samples, length = micro_batches[0].shape
        for row in self._integer_rows:
            if self._size[row] not in (n_samples * length, length):
                continue
            array = self._load(row)
            if array is None or array.ndim == 0:
                continue
            rows = array.reshape(-1, length)
            if not is_counting(rows):
                continue
            n_repetitions = len(micro_batches) * n_samples // len(rows)
            positions: AnyArray = np.tile(rows.astype(np.int64), (n_repetitions, 1))
            return positions
        return None

    def _select_inputs(self, rows: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return the rows of inputs that have one of these sizes."""
        return [row for row in rows if self._slot_kind[row] == "input" and self._size[row] in sizes]

    def collect_statistics(self) -> dict[str, TensorStatistics]:
        """Return the statistics of the tokens and labels, if they are comparable."""
        rows_by_field = {
            "tokens": self._list_lookup_inputs(),
            "labels": self._list_loss_inputs(),
        }
        statistics = {}
        for name, rows in rows_by_field.items():
            if not rows:
                continue
            values = self._get_statistics(rows[0])
            if values.is_comparable:
                statistics[name] = values
        return statistics

    def _list_lookup_inputs(self) -> list[int]:
        """Return the rows of integers that embeddings read."""
        input_rows = [row for row in self._integer_rows if self._slot_kind[row] == "input"]
        return [row for row in input_rows if self._kinds[self._op[row]] == _LOOKUP]

    def _list_loss_inputs(self) -> list[int]:
        """Return the rows of integers that losses read."""
        input_rows = [row for row in self._integer_rows if self._slot_kind[row] == "input"]
        return [row for row in input_rows if self._is_loss[self._op[row]]]

    def _count_table_rows(self, op: int) -> int | None:
        """Return the number of rows of the matrix from which an operator gathers."""
        for row in np.flatnonzero(self._op == op).tolist():
            if self._slot_kind[row] == "output" or not is_floating(self._dtype[row]):
                continue
            shape = self._shape[row]
            is_matrix = shape is not None and len(shape) == 2
            if is_matrix:
                return int(shape[0])
        return None

    def _reshape_ids(self, array: AnyArray) -> AnyArray:
        """Return ids as (samples, length); flat ids get the shape that they have elsewhere."""
        ids = array.astype(np.int64)
        if array.ndim == 2:
            return ids
        for row in self._integer_rows:
            shape = self._shape[row] or ()
            is_matrix = len(shape) == 2 and min(shape) > 1
            if self._size[row] != ids.size or not is_matrix:
                continue
            other_array = self._load(row)
            if other_array is not None and np.array_equal(other_array.ravel(), ids.ravel()):
                return ids.reshape(shape)
        length = array.shape[-1] if array.ndim > 1 else ids.size
        return ids.reshape(-1, length)

    def _load(self, row: int) -> AnyArray | None:
        """Return a whole tensor in its recorded shape; None if it is missing or unreadable."""
        if row not in self._loaded_arrays:
            try:
                self._loaded_arrays[row] = self._read_array(row)
            except (DumpError, KeyError, OSError, ValueError):
                self._loaded_arrays[row] = None
        return self._loaded_arrays[row]

    def _read_array(self, row: int) -> AnyArray | None:
        array = self._trace.array(row)
        if array.size == 0:
            return None
        shape = self._shape[row]
        return array.reshape(shape) if shape else array

    @cached_property
    def _loaded_arrays(self) -> dict[int, AnyArray | None]:
        return {}

    def _get_statistics(self, row: int) -> TensorStatistics:
        record = self._trace.tensors.iloc[row]
        return TensorStatistics(
            shape=record["shape"],
            dtype=record["dtype"],
            max=float(record["max"]),
            min=float(record["min"]),
            norm=float(record["norm"]),
            hash=record["hash"],
        )


def is_counting(ids: AnyArray) -> bool:
    """Whether every row counts up by one, with restarts at 0: these are positions, not tokens."""
    if ids.ndim == 0 or ids.shape[-1] < 2:
        return False
    if ids.dtype == np.bool_ or not is_discrete(str(ids.dtype)):
        return False
    rows = ids.reshape(-1, ids.shape[-1]).astype(np.int64)
    is_count = np.diff(rows, axis=1) == 1
    is_restart = rows[:, 1:] == 0
    return bool(np.all(is_count | is_restart) and np.any(rows))


def _join_micro_batches(arrays: Sequence[AnyArray], count: int) -> AnyArray | None:
    """Join the first ``count`` arrays; None if there are fewer, or if their shapes differ."""
    shapes = {array.shape for array in arrays[:count]}
    if len(arrays) < count or len(shapes) > 1:
        return None
    joined_array: AnyArray = np.concatenate(arrays[:count])
    return joined_array


def _is_other_head(ids: AnyArray, micro_batches: Sequence[AnyArray]) -> bool:
    """Whether ids have another shape than the micro-batches, or repeat one of them."""
    if ids.shape != micro_batches[0].shape:
        return True
    return any(_is_repetition(ids, other_ids) for other_ids in micro_batches)


def _is_repetition(ids: AnyArray, other_ids: AnyArray) -> bool:
    """Whether ids are the other ones of the same shape, possibly shifted by a few tokens."""
    length = ids.shape[1]
    for shift in (0, *_HEAD_SHIFTS):
        if shift < length and np.array_equal(ids[:, : length - shift], other_ids[:, shift:]):
            return True
    return False


def _find_rows(table: AnyArray, vectors: AnyArray) -> Ints | None:
    """Return the row of ``table`` that each vector is; None if one is in no row, or in several."""
    n_columns = min(_KEY_COLUMNS, table.shape[1])
    numbers: dict[bytes, int] = {}
    for number, row in enumerate(table[:, :n_columns]):
        numbers[np.ascontiguousarray(row).tobytes()] = number
    if len(numbers) < len(table):
        return None
    keys = vectors[..., :n_columns].reshape(-1, n_columns)
    row_numbers = [numbers.get(np.ascontiguousarray(key).tobytes(), -1) for key in keys]
    return None if -1 in row_numbers else np.array(row_numbers, dtype=np.int64)
