"""Value classes: tensors of one side that hold the same numbers, whatever their shape.

Reshape, transpose, copy, residual reuse and parameter reads all collapse into one class. So two
frameworks with different layout operators have the same classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints, Objects
from ..model.dtypes import MASK_MAGNITUDE, is_integer
from ..model.trace import flag_words

#: Relative difference of mean and norm of the same numbers in another order: float32 summation, or
#: six printed digits.
_SUMMATION_ERROR = 1e-6
#: The same where mean and norm were summed in the dtype itself.
_LOW_PRECISION_ERRORS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Informative statistics (of 4) from which on equal statistics mean equal tensors.
_MIN_EVIDENCE = 2
#: Elements below which mean and norm say no more than the extremes.
_MIN_SIZE_OF_SUMS = 4
#: Elements below which a constant is an immediate.
_MIN_CONSTANT_SIZE = 8
#: Distance to two significant digits up to which a number counts as typed.
_TYPED_DISTANCE = 1e-5
#: Takes the place of NaN where rows are grouped by equal numbers.
_NAN_KEY = 9.87e300


def flag_doubtful_files(
    ops: pd.DataFrame,
    tensors: pd.DataFrame,
    tensor_class: Ints,
    producers: Ints,
    lacks_file: Flags,
) -> Flags:
    """Return (tensors,) where a whole tensor must not represent its class.

    Values that were given to the run and have no name are one class if their statistics are equal,
    which a table in another order has too. If statistics are all that is recorded of some of them,
    the whole tensor of one says nothing about the others. The record of a module call that repeats
    what an op inside it read is no other value.
    """
    is_given = np.zeros(len(producers) + 1, dtype=bool)  # the last one: no class
    is_given[:-1] = producers < 0
    is_given[tensor_class[tensors["parameter"].to_numpy() != ""]] = False
    is_given[-1] = False
    lacking_rows = np.flatnonzero(lacks_file & is_given[tensor_class])
    is_mixed = np.zeros(len(is_given), dtype=bool)
    is_mixed[tensor_class[lacking_rows]] = True
    recorded_rows = np.flatnonzero(~lacks_file & is_mixed[tensor_class])
    repeated_rows = _list_repeated_rows(ops, tensors, tensor_class, recorded_rows, lacking_rows)
    is_mixed[:] = False
    is_mixed[tensor_class[np.setdiff1d(lacking_rows, repeated_rows)]] = True
    flags: Flags = is_mixed[tensor_class]
    return flags


def _list_repeated_rows(
    ops: pd.DataFrame, tensors: pd.DataFrame, tensor_class: Ints, rows: Ints, other_rows: Ints
) -> list[int]:
    """Return which of ``other_rows`` are of calls around the op of one of ``rows``, of its class.

    A backward call is around those of the ops that ran in its forward call.
    """
    parents = ops["parent"].to_numpy()
    forward_ops = ops["forward"].to_numpy()
    phases = ops["phase"].to_numpy()
    op_column = tensors["op"].to_numpy()

    def get_forward_op(op: int) -> int:
        return int(forward_ops[op]) if forward_ops[op] >= 0 else op

    enclosing_calls = set()
    for row in rows.tolist():
        op = int(op_column[row])
        call = get_forward_op(op)
        while (call := int(parents[call])) >= 0:
            enclosing_calls.add((int(tensor_class[row]), call, phases[op]))
    repeated_rows = []
    for row in other_rows.tolist() if enclosing_calls else ():
        op = int(op_column[row])
        if (int(tensor_class[row]), get_forward_op(op), phases[op]) in enclosing_calls:
            repeated_rows.append(row)
    return repeated_rows


def count_evidence(tensors: pd.DataFrame) -> Ints:
    """Return how many of a tensor's statistics carry information, 0 to 4 per row.

    A number carries none if it is missing, not finite, a masking constant (``dtypes.MASK``), one
    that a person would type (0, 1, few digits) or, in a tensor of one repeated value, a copy of
    another number. 0 means all ones, a mask, a shape and the like.
    """
    counts = np.zeros(len(tensors), dtype=np.int64)
    with np.errstate(all="ignore"):
        is_constant = tensors["max"].to_numpy() == tensors["min"].to_numpy()
    has_sums = ~is_constant & (tensors["size"].to_numpy() >= _MIN_SIZE_OF_SUMS)
    may_inform = {"max": True, "min": ~is_constant, "mean": has_sums, "norm": has_sums}
    for name, is_allowed in may_inform.items():  # one after the other: the columns are long
        counts += _flag_informative(tensors[name].to_numpy(dtype=float)) & is_allowed
    return counts


def _flag_informative(numbers: Floats) -> Flags:
    """Return true for finite numbers that are no masking constant and that nobody would type.

    People write at most two significant digits in source code.
    """
    with np.errstate(all="ignore"):
        magnitudes = np.abs(numbers)
        is_informative: Flags = (numbers != 0) & (magnitudes < MASK_MAGNITUDE)  # false for NaN, too
        scaled = magnitudes / 10.0 ** (np.floor(np.log10(magnitudes)) - 1)
        is_informative &= ~(np.abs(scaled - np.round(scaled)) < _TYPED_DISTANCE)
    return is_informative


def flag_immediates(tensors: pd.DataFrame) -> Flags:
    """Return (rows,) true for constants of fewer than 8 elements or of integers.

    These are scalar arguments, shapes, axes and the like.
    """
    is_small = tensors["size"].to_numpy() < _MIN_CONSTANT_SIZE
    is_small |= flag_words(tensors["dtype"], is_integer)
    is_immediate: Flags = tensors["constant"].to_numpy() & is_small
    return is_immediate


def assign_classes(
    tensors: pd.DataFrame,
    low_precision: bool,
    updates: Flags | None = None,
    counters: Flags | None = None,
    contents: Ints | None = None,
    ops: pd.DataFrame | None = None,
) -> Ints:
    """Return the value class of each tensor, 0..n-1 by first appearance.

    Untrusted tensors and immediates get -1. ``tensors`` has complete statistics. ``low_precision``
    means that mean and norm were computed in the tensor's dtype. ``updates`` (rows,) marks what
    optimizers read and write. ``counters`` (rows,) marks counts of steps: an optimizer that keeps
    one for each weight has one value of it. ``contents`` (rows,) are checksums of what was read of
    tensors, -1 for nothing; those of other contents are not equal. ``ops`` tells which ops ran in
    a call of a module.

    Two tensors are one class if a recorded edge joins them, if their checksums are equal, or if
    element count, max and min are identical and mean and norm agree to summation order (exactly,
    for updates, because a step may change less). Tensors without information (all ones, zeros) are
    only joined to the latest output that looks the same, and so is what a module returns, if an op
    inside it computed that. So are complex ones: what is recorded of them are magnitudes, which a
    rotation leaves as they are.
    """
    n_rows = len(tensors)
    is_usable = tensors["trusted"].to_numpy() & ~flag_immediates(tensors)
    is_complex = flag_words(tensors["dtype"], lambda dtype: dtype.startswith("complex"))
    is_informative = (count_evidence(tensors) >= _MIN_EVIDENCE) & ~is_complex
    is_exact = np.zeros(n_rows, dtype=bool) if updates is None else updates
    contents = np.full(n_rows, -1) if contents is None else contents
    is_chosen = is_usable & is_informative
    joins = [
        _find_recorded_edges(tensors, is_usable),
        _find_equal_statistics(tensors, is_chosen, low_precision, is_exact, contents),
        _find_equal_checksums(tensors, tensors["hash"].to_numpy(), is_usable, ""),
        _find_equal_checksums(tensors, _select_given_contents(tensors, contents), is_usable, -1),
        _find_latest_outputs(tensors, is_usable & ~is_informative, contents, ops),
    ]
    if counters is not None:
        joins.append(_find_equal_numbers(tensors, is_usable & counters))
    first_rows, second_rows = np.concatenate(joins, axis=1)
    labels = _label_components(first_rows, second_rows, n_rows)
    classes = np.full(n_rows, -1)
    classes[is_usable] = np.unique(labels[is_usable], return_inverse=True)[1]
    return classes


def _label_components(first_rows: Ints, second_rows: Ints, n_rows: int) -> Ints:
    """Return (rows,) the smallest member of each row's connected component.

    The edges join ``first_rows`` to ``second_rows``. The method is hooking and pointer jumping
    (Shiloach and Vishkin, J. Algorithms 3, 1982). It is written out here because importing scipy
    for it takes a tenth of the time of a small comparison.
    """
    labels = np.arange(n_rows)
    while True:
        hooked = labels.copy()
        smaller_labels = np.minimum(labels[first_rows], labels[second_rows])
        np.minimum.at(hooked, labels[first_rows], smaller_labels)
        np.minimum.at(hooked, labels[second_rows], smaller_labels)
        while not np.array_equal(hooked, hooked[hooked]):
            hooked = hooked[hooked]
        if np.array_equal(hooked, labels):
            return labels
        labels = hooked


def _find_recorded_edges(tensors: pd.DataFrame, is_usable: Flags) -> Ints:
    """Return (2, n) inputs and the outputs that the reader joined them to."""
    producers = tensors["source_tensor"].to_numpy()
    inputs = np.flatnonzero((producers >= 0) & is_usable)
    inputs = inputs[is_usable[producers[inputs]]]
    return np.stack([inputs, producers[inputs]])


def _find_equal_statistics(
    tensors: pd.DataFrame,
    is_chosen: Flags,
    low_precision: bool,
    is_exact: Flags,
    contents: Ints,
) -> Ints:
    """Return (2, n) chosen rows of equal size and extremes whose mean and norm agree."""
    rows = np.flatnonzero(is_chosen)
    errors = np.full(len(tensors), _SUMMATION_ERROR)
    if low_precision:
        dtype_errors = tensors["dtype"].map(_LOW_PRECISION_ERRORS).fillna(0.0)
        errors = np.maximum(errors, dtype_errors.to_numpy(dtype=float))
    errors[is_exact] = 0.0
    names = ("size", "max", "min", "mean", "norm")
    columns = [tensors[name].to_numpy(dtype=float)[rows] for name in names]
    first_rows = rows
    if len(np.unique(errors[rows])) == 1:  # then equal rows are neighbors of the same rows
        first_rows = rows[_find_first_equals([*columns, contents[rows].astype(float)])]
    copies = rows[first_rows != rows], first_rows[first_rows != rows]
    rows = rows[first_rows == rows]
    size, high, low, mean, norm = (tensors[name].to_numpy(dtype=float)[rows] for name in names)
    errors, content = errors[rows], contents[rows]
    with np.errstate(all="ignore"):
        magnitude = np.maximum(np.abs(high), np.abs(low))
        order = np.lexsort((*map(np.nan_to_num, (norm, low, high)), size))
        a, b = order[:-1], order[1:]
        slack = _compute_slack(errors, a, b)
        is_near = size[a] == size[b]
        is_near &= _flag_compatible(high, a, b, 0.0)
        is_near &= _flag_compatible(low, a, b, 0.0)
        is_near &= _flag_compatible(norm, a, b, slack * np.abs(norm[a]))
        # The norms of a tensor and of its transpose may round to either side of that of another
        # tensor with these extremes, such as a rotated one. So neighbors are those by the mean.
        clusters = np.empty(len(rows), dtype=np.int64)
        clusters[order] = np.cumsum(np.concatenate([[True], ~is_near]))[: len(rows)]
        order = np.lexsort((np.nan_to_num(norm), np.nan_to_num(mean), content, clusters))
        a, b = order[:-1], order[1:]
        slack = _compute_slack(errors, a, b)
        is_equal = (clusters[a] == clusters[b]) & ((content[a] == content[b]) | (content[a] < 0))
        is_equal &= _flag_compatible(norm, a, b, slack * np.abs(norm[a]))
        is_equal &= _flag_compatible(mean, a, b, slack * magnitude[a])
    return np.concatenate([np.stack(copies), np.stack([rows[a[is_equal]], rows[b[is_equal]]])], 1)


def _find_first_equals(columns: Sequence[Floats]) -> Ints:
    """Return (rows,) the first row with the same bits in all columns.

    Most tensors are recorded where they are written and again where they are read. A row that has
    the hash of another one, but not its numbers, is a first one itself.
    """
    bits = [np.ascontiguousarray(column, dtype=np.float64).view(np.uint64) for column in columns]
    hashes = np.zeros(len(bits[0]), dtype=np.uint64)
    for column in bits:
        hashes = (hashes ^ column) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(32)
    codes, _ = pd.factorize(hashes)
    positions = np.arange(len(codes))
    first_positions = np.empty(codes.max(initial=-1) + 1, dtype=np.int64)
    first_positions[codes[::-1]] = positions[::-1]  # the last assignment, that of the first, counts
    first_equals = first_positions[codes]
    is_equal = np.ones(len(codes), dtype=bool)
    for column in bits:
        is_equal &= column == column[first_equals]
    return np.where(is_equal, first_equals, positions)


def _compute_slack(errors: Floats, a: Ints, b: Ints) -> Floats:
    """Return the larger error of two rows, 0 if one of them is exact."""
    slack: Floats = np.where(
        np.minimum(errors[a], errors[b]) > 0, np.maximum(errors[a], errors[b]), 0.0
    )
    return slack


def _flag_compatible(numbers: Floats, a: Ints, b: Ints, slack: Floats | float) -> Flags:
    """Return true where two rows agree within the slack, or one has no number."""
    first, second = numbers[a], numbers[b]
    agrees = (np.abs(first - second) <= slack) | (first == second)
    compatible: Flags = agrees | np.isnan(first) | np.isnan(second)
    return compatible


def _find_equal_numbers(tensors: pd.DataFrame, is_chosen: Flags) -> Ints:
    """Return (2, n) chosen rows that hold the same single number."""
    rows = np.flatnonzero(is_chosen & np.isfinite(tensors["max"].to_numpy()))
    numbers = tensors["max"].to_numpy()[rows]
    order = np.argsort(numbers, kind="stable")
    is_equal = numbers[order[1:]] == numbers[order[:-1]]
    return np.stack([rows[order[:-1]][is_equal], rows[order[1:]][is_equal]])


def _select_given_contents(tensors: pd.DataFrame, contents: Ints) -> Ints:
    """Return (rows,) the contents of what the run was given, -1 for others.

    Ops compute equal numbers that are not one value, such as the tokens of each of two experts.
    """
    is_output = tensors["slot_kind"].to_numpy() == "output"
    return np.where(np.isin(contents, contents[is_output]), -1, contents)


def _find_equal_checksums(
    tensors: pd.DataFrame, checksums: Ints | Objects, is_usable: Flags, missing: str | int
) -> Ints:
    """Return (2, n) usable rows of more than one element with equal size and checksum."""
    sizes = tensors["size"].to_numpy()
    rows = np.flatnonzero(is_usable & (checksums != missing) & (sizes > 1))
    keys = pd.Series(list(zip(sizes[rows], checksums[rows], strict=True)))
    codes = pd.factorize(keys)[0] if len(rows) else np.empty(0, dtype=int)
    order = np.argsort(codes, kind="stable")
    is_equal = codes[order[1:]] == codes[order[:-1]]
    return np.stack([rows[order[:-1]][is_equal], rows[order[1:]][is_equal]])


def _find_latest_outputs(
    tensors: pd.DataFrame, is_chosen: Flags, contents: Ints, ops: pd.DataFrame | None
) -> Ints:
    """Return (2, n) chosen inputs without producer, and the latest output that looks the same.

    So are outputs of modules, and the output of an op inside.
    """
    has_numbers = tensors["max"].notna() | (tensors["nonfinite"] == 1)
    rows = np.flatnonzero(is_chosen & has_numbers.to_numpy())
    keys = [
        np.nan_to_num(tensors[name].to_numpy(dtype=float)[rows], nan=_NAN_KEY)
        for name in ("size", "max", "min", "norm")
    ]
    keys.append(contents[rows])
    order = np.lexsort((rows, *keys))
    is_repeat = np.ones(len(rows), dtype=bool)
    for key in keys:
        is_repeat[1:] &= key[order[1:]] == key[order[:-1]]
    is_repeat[:1] = False
    groups: Ints = np.cumsum(~is_repeat)
    rows = rows[order]
    is_output = tensors["slot_kind"].to_numpy()[rows] == "output"
    if ops is not None:
        is_module = (ops["level"].to_numpy() == "module")[tensors["op"].to_numpy()[rows]]
        positions = _find_latest(groups, is_output & ~is_module)
        returned = np.flatnonzero(is_output & is_module & (positions >= 0))
        calls, inner_ops = tensors["op"].to_numpy()[rows[[returned, positions[returned]]]]
        is_output[returned[_flag_inside(ops, inner_ops, calls)]] = False
    has_producer = tensors["source_tensor"].to_numpy()[rows] >= 0
    positions = _find_latest(groups, is_output)
    is_linked = ~is_output & ~has_producer & (positions >= 0)
    return np.stack([rows[is_linked], rows[positions[is_linked]]])


def _find_latest(groups: Ints, is_chosen: Flags) -> Ints:
    """Return the latest chosen position at or before each one of its group, -1 if none is."""
    positions = np.where(is_chosen, np.arange(len(groups)), -1)
    offsets = groups * (len(groups) + 1)
    latest: Ints = np.maximum.accumulate(positions + offsets) - offsets
    return latest


def _flag_inside(ops: pd.DataFrame, inner_ops: Ints, calls: Ints) -> Flags:
    """Return whether each op ran in the call of a module."""
    parents = np.append(ops["parent"].to_numpy(), -1)
    outer, is_inside = parents[inner_ops], np.zeros(len(calls), dtype=bool)
    while (outer >= 0).any():
        is_inside |= outer == calls
        outer = parents[outer]
    return is_inside
