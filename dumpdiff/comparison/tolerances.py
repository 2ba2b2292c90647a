"""The error each pair may have.

It depends on the dtypes and the operator, on the noise of this pair of dumps, and on the spread of
two runs of the reference if a baseline is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow, find_common_dtype
from ..model.arrays import AnyArray, Flags, Floats, Ints, Objects
from ..model.dtypes import UNIT_ROUNDOFF, get_unit_roundoff
from ..model.result import Baseline
from ..model.trace import BACKWARD
from ..rulebook import Rules
from .op_kinds import OpKinds

#: A relative error that is allowed to be this large cannot tell right from wrong. A judgment call.
NO_INFORMATION = 0.3
#: Class of the operators that multiply two tensors and add up: matrix products, convolutions.
_PRODUCT_CLASS = "linear"
#: Kind of a gradient that no recorded op made: a recorder shows no sum of those of several readers.
_UNRECORDED_GRADIENT = "grad:add"
#: Rounding to d digits moves 1.000 by up to 5 units of 10**-d.
_PRINT_UNITS = 5

#: Kind of an op that made a value, and number of terms in its sums.
_Production: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Spread:
    """The error of a second run of the reference, for every value class of the reference."""

    baseline: Baseline
    #: (reference classes,) error of one run against the other; NaN where it was not measured
    measured: Floats
    #: (reference classes,) error that two correct runs may show; 0 for values that no op computed
    allowed: Floats

    def get_largest(self, values: tuple[int, ...]) -> tuple[float, float]:
        """Return the largest (measured, allowed) error of the values of one tensor."""
        rows = list(values)
        return float(np.max(self.measured[rows])), float(np.max(self.allowed[rows]))

    def get_allowed(self, values: Ints) -> Floats:
        """Return the allowed error of each value, 0 if the baseline is unusable."""
        if self.baseline.unusable:
            return np.zeros(len(values))
        return self.allowed[values]


def compute_tolerances(
    alignment: Alignment,
    rules: Rules,
    target_ids: Ints,
    reference_ids: Ints,
    has_files: Flags,
    is_given: Flags,
) -> Floats:
    """Return the tolerance per pair, from both dtypes, the producers' kinds and sum lengths.

    Of two producers of different kinds the one with the larger tolerance counts. So does an op that
    only one side has, up to the last values that both have: a framework computes some functions
    less exactly than others (``units``), and the other side may have one op for all of them.
    ``has_files`` is true where whole tensors are compared. Values that ``is_given`` says no op of
    either side computed (parameters, the batch) may only differ by their own rounding, whatever the
    noise of the network: their elements by u (x rounded to nearest is within u of both x and the
    rounded: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorems 2.2 and 2.3),
    a norm that was itself recorded in the narrow type by one u more.
    """
    target, reference = alignment.target, alignment.reference
    coarse_dtype = find_common_dtype(target, reference)
    exact_tolerance = rules.compute_tolerance("float32", "float32", "identity", 1)
    has_narrow_statistics = any(
        flow.trace.source.low_precision_statistics for flow in (target, reference)
    )
    classes = alignment.classes
    productions_t, productions_r = (
        _collect_productions(flow, kinds, rules, values, classes[side].to_numpy())
        for flow, kinds, values, side in (
            (target, alignment.target_kinds, target_ids, "target"),
            (reference, alignment.reference_kinds, reference_ids, "reference"),
        )
    )

    def compute_tolerance(row: int) -> float:
        dtype = _limit_precision(dtypes_t[row], dtypes_r[row], coarse_dtype)
        productions = [*productions_t.list_of(row), *productions_r.list_of(row)]
        unrecorded_kind = _UNRECORDED_GRADIENT if are_gradients[row] else "identity"
        return max(
            0.0,
            *(
                rules.compute_tolerance(dtype, dtype, kind, length)
                for kind, length in productions or [(unrecorded_kind, 1)]
            ),
        )

    dtypes_t = target.classes["dtype"].to_numpy()[target_ids]
    dtypes_r = reference.classes["dtype"].to_numpy()[reference_ids]
    are_gradients = target.classes["phase"].to_numpy()[target_ids] == BACKWARD
    are_gradients &= reference.classes["phase"].to_numpy()[reference_ids] == BACKWARD
    # few rows differ in all that their tolerance follows from
    groups, first_rows = _group_equal_rows(
        [dtypes_t, dtypes_r, are_gradients, *productions_t.columns, *productions_r.columns]
    )
    tolerances_of_groups = [compute_tolerance(row) for row in first_rows.tolist()]
    tolerances = np.array(tolerances_of_groups, dtype=float)[groups]
    units = np.maximum(_list_roundoffs(dtypes_t), _list_roundoffs(dtypes_r))
    is_rounded = is_given & (units > 0)
    if has_narrow_statistics:
        units = np.where(has_files, units, 2 * units)
    tolerances[is_rounded] = np.maximum(units, exact_tolerance)[is_rounded]
    return tolerances


def _list_roundoffs(dtypes: Objects) -> Floats:
    """Return the unit roundoff of each dtype."""
    codes, words = pd.factorize(dtypes)
    roundoffs: Floats = np.array([get_unit_roundoff(word) for word in words], dtype=float)[codes]
    return roundoffs


def _group_equal_rows(columns: Sequence[AnyArray]) -> tuple[Ints, Ints]:
    """Return (rows,) a number that is equal for rows with equal columns, and a row of each."""
    groups = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes, words = pd.factorize(column)
        groups, _ = pd.factorize(groups * len(words) + codes)
    _, first_rows = np.unique(groups, return_index=True)
    return groups, first_rows


@dataclass(frozen=True)
class _Productions:
    """What made each value: its producer, and the least exact op before it."""

    words: tuple[str, ...]  #: kinds of ops
    kinds: Ints  #: (values,) place of the producer's kind in ``words``, -1 if there is none
    lengths: Ints  #: (values,) number of terms in the sums of the producer
    inexact_kinds: Ints  #: (values,) place of the kind of the least exact op, -1 if there is none

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """All that tells productions apart."""
        return self.kinds, self.lengths, self.inexact_kinds

    def list_of(self, row: int) -> list[_Production]:
        """Return the productions of one value."""
        productions = []
        if self.kinds[row] >= 0:
            productions.append((self.words[self.kinds[row]], int(self.lengths[row])))
        if self.inexact_kinds[row] >= 0:
            productions.append((self.words[self.inexact_kinds[row]], 1))
        return productions


def _collect_productions(
    flow: Flow, kinds: Sequence[str], rules: Rules, values: Ints, paired_values: Ints
) -> _Productions:
    """Return the productions of each value.

    A backward record is named as its forward call is; what it gives is the gradient.
    """
    op_kinds = OpKinds.from_names(kinds)
    calls = flow.trace.ops["forward"].to_numpy()
    gradient_kinds = op_kinds.name_gradients(calls >= 0)
    producers = flow.producers[values]
    is_produced = producers >= 0
    is_product_op = op_kinds.flag(lambda kind: rules.get_kind_class(kind) == _PRODUCT_CLASS)
    lengths = np.zeros(len(values), dtype=np.int64)
    lengths[is_produced] = _compute_sum_lengths(
        flow, producers[is_produced], values[is_produced], is_product_op
    )
    inexact_kinds = _find_inexact_kinds(flow, gradient_kinds, rules, paired_values)
    return _Productions(
        gradient_kinds.words,
        np.where(is_produced, gradient_kinds.codes[producers], -1),
        lengths,
        inexact_kinds[values],
    )


def _find_inexact_kinds(flow: Flow, kinds: OpKinds, rules: Rules, paired_values: Ints) -> Ints:
    """Return (classes,) the kind of the least exact op that computes a value since paired values.

    It is a place in the words of ``kinds``; -1 where no such op is less exact than most.
    """
    usual_tolerance = rules.compute_tolerance("float32", "float32", "identity")
    tolerances = [rules.compute_tolerance("float32", "float32", kind) for kind in kinds.words]
    inexact_kinds = np.full(len(flow.sizes), -1)
    is_used = np.bincount(kinds.codes, minlength=len(kinds.words)) > 0
    if max((tolerances[code] for code in np.flatnonzero(is_used)), default=0.0) <= usual_tolerance:
        return inexact_kinds
    is_paired = np.zeros(len(flow.sizes), dtype=bool)
    is_paired[paired_values] = True
    kind_of: dict[int, int] = {}
    for op, kind in enumerate(kinds.codes.tolist()):
        before = [kind_of[x] for x in flow.reads[op] if x in kind_of and not is_paired[x]]
        least_exact = max((kind, *before), key=tolerances.__getitem__)
        if tolerances[least_exact] > usual_tolerance:
            kind_of.update(dict.fromkeys(flow.writes[op], least_exact))
    inexact_kinds[list(kind_of)] = list(kind_of.values())
    return inexact_kinds


def widen_tolerances(pairs: pd.DataFrame, spread: Spread) -> None:
    """Add the column ``spread`` and raise ``tolerance`` to the error that the spread allows.

    Pairs whose spread allows any error are no longer ``comparable``, unless their error exceeds
    even that. An unusable baseline changes neither column.
    """
    measured, allowed = np.empty(len(pairs)), np.empty(len(pairs))
    rows = zip(pairs["reference"].tolist(), pairs["group"], strict=True)
    for row, (value, group) in enumerate(rows):
        values = (value,) if group is None else group.reference
        measured[row], allowed[row] = spread.get_largest(values)
    pairs["spread"] = measured
    if spread.baseline.unusable:
        return
    pairs["tolerance"] = np.maximum(pairs["tolerance"], allowed)
    is_hidden = (allowed >= NO_INFORMATION) & ~(pairs["error"] > allowed).to_numpy()
    pairs["comparable"] &= ~is_hidden


def compute_print_resolution(alignment: Alignment) -> float:
    """Return the error that printing can cause between two equal numbers."""
    target_source = alignment.target.trace.source
    reference_source = alignment.reference.trace.source
    return _PRINT_UNITS * (target_source.resolution + reference_source.resolution)


def _limit_precision(dtype_t: str, dtype_r: str, coarse_dtype: str) -> str:
    """Return the finer dtype, or ``coarse_dtype`` if that is a coarser floating type."""
    dtype = _find_finer_dtype(dtype_t, dtype_r)
    if dtype in UNIT_ROUNDOFF and get_unit_roundoff(dtype) < get_unit_roundoff(coarse_dtype):
        return coarse_dtype
    return dtype


def _find_finer_dtype(dtype_t: str, dtype_r: str) -> str:
    """Return the finer floating dtype.

    If only one side rounds coarsely, that is a difference, not noise.
    """
    floating = [dtype for dtype in (dtype_t, dtype_r) if dtype in UNIT_ROUNDOFF]
    if not floating:
        return min(dtype_t, dtype_r)
    return min(floating, key=get_unit_roundoff)


def _compute_sum_lengths(flow: Flow, producers: Ints, values: Ints, is_product_op: Flags) -> Ints:
    """Return (values,) the number of terms in the sums that made each value.

    A backward record names the gradient that flows in. The gradient of one factor of a product is
    a product, too: of that gradient and the other factor, which the forward call read.
    """
    sizes = flow.sizes
    reads = flow.reads.take(producers)
    counts = reads.counts
    input_sizes = np.zeros((len(values), 2), dtype=np.int64)
    for position in (0, 1):
        rows = np.flatnonzero(counts > position)
        input_sizes[rows, position] = sizes[reads.values[reads.starts[rows] + position]]
    calls = flow.trace.ops["forward"].to_numpy()[producers]
    for row in np.flatnonzero(is_product_op[producers] & (calls >= 0) & (counts < 2)).tolist():
        factor_sizes = [int(sizes[factor]) for factor in flow.reads[calls[row]]]
        if sizes[values[row]] in factor_sizes:
            factor_sizes.remove(sizes[values[row]])
            row_sizes = [*input_sizes[row, : counts[row]], *factor_sizes][:2]
            input_sizes[row, : len(row_sizes)] = row_sizes
            counts[row] = len(row_sizes)
    return _compute_reduction_lengths(input_sizes, counts, sizes[values])


def _compute_reduction_lengths(input_sizes: Ints, counts: Ints, output_sizes: Ints) -> Ints:
    """Return (ops,) the number of terms in the sums of each op.

    For a product it is K of (M, K) x (K, N) = sqrt(MK KN / MN); for a reduction it is the ratio of
    input to output elements. 1 if a size is unknown or 0. ``input_sizes`` (ops, 2) are those of the
    first inputs, of which ``counts`` says how many there are.
    """
    is_input = np.arange(2) < counts[:, None]
    is_known = (output_sizes > 0) & (counts > 0) & (input_sizes > 0).all(axis=1, where=is_input)
    outputs = np.where(is_known, output_sizes, 1)
    products = np.where(is_known & (counts > 1), input_sizes.prod(axis=1, dtype=float), 0.0)
    lengths = np.where(
        counts > 1, np.rint(np.sqrt(products / outputs)), input_sizes[:, 0] // outputs
    )
    return np.where(is_known, np.maximum(lengths, 1), 1).astype(np.int64)
