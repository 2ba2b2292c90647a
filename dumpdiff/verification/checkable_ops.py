"""The ops of a trace whose results can be checked, with the statistics of inputs and output."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import is_floating
from ..model.trace import Trace, flag_words
from ..readers.call_records import is_in_place
from ..rulebook import Rules
from .tolerances import RecordedNumbers


@dataclass(frozen=True)
class CheckableOps:
    """Ops with one output whose inputs are all known, and the statistics of both; (ops,) each."""

    ids: Ints
    kinds: tuple[str, ...]  #: the different canonical kinds
    kind_numbers: Ints  #: position of the kind of each op in ``kinds``
    outputs: Ints  #: id of the output tensor
    first: Ints  #: id of the first input with more than one element, or of the first input
    second: Ints  #: id of the next input; -1 if there is none
    third: Ints
    n_operands: Ints
    sum_of_highs: Floats
    sum_of_lows: Floats
    sum_of_means: Floats
    sum_of_magnitudes: Floats
    highest: Floats
    lowest: Floats
    has_only_operands: Flags  #: every input is a number or floating tensor
    has_one_tensor: Flags  #: one floating tensor is read, and else only constants
    is_sum_of_all: Flags  #: AddN
    is_in_place: Flags  #: the input may be recorded after the update
    is_plain: Flags  #: of the names of a kind, one that has its operands in the usual order


def collect_ops(
    trace: Trace, numbers: RecordedNumbers, contradicted: Collection[int], rules: Rules
) -> CheckableOps:
    """Return the ops that can be checked."""
    tensors, op_table = trace.tensors, trace.ops
    n_ops = len(op_table)
    op_ids = tensors["op"].to_numpy()
    is_output = tensors["slot_kind"].to_numpy() == "output"
    is_complex = flag_words(tensors["dtype"], lambda dtype: dtype.startswith("complex"))
    is_real = flag_words(tensors["dtype"], is_floating) & ~is_complex
    is_number = tensors["constant"].to_numpy() & (tensors["dtype"].to_numpy() == "int")
    is_known = np.isfinite(numbers.high) & np.isfinite(numbers.low)
    is_known &= tensors["trusted"].to_numpy() & (numbers.sizes > 0)
    is_known[list(contradicted)] = False
    raw_kinds = op_table["kind"]
    is_usable = (op_table["level"].to_numpy() == "op") & (op_table["forward"] < 0).to_numpy()
    is_usable &= flag_words(raw_kinds, lambda kind: not kind.startswith("Assign"))
    is_usable[op_ids[(is_real & ~is_known) | (tensors["update_of"].to_numpy() != "")]] = False
    n_outputs = np.bincount(op_ids[is_output], minlength=n_ops)
    is_usable &= n_outputs == 1
    is_operand = ~is_output & is_known & (is_real | is_number)
    n_inputs = np.bincount(op_ids[~is_output], minlength=n_ops)
    n_operands = np.bincount(op_ids[is_operand], minlength=n_ops)
    output_rows = np.flatnonzero(is_output & is_real & is_known & is_usable[op_ids])
    output_rows = output_rows[n_operands[op_ids[output_rows]] > 0]
    ids = op_ids[output_rows]
    rows = np.flatnonzero(is_operand & np.isin(op_ids, ids))
    first, second = np.full(n_ops, -1), np.full(n_ops, -1)
    # single numbers last: an operand comes before the number that it is combined with
    order = rows[np.lexsort((rows, numbers.sizes[rows] == 1, op_ids[rows]))]
    owners = op_ids[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = owners[1:] != owners[:-1]
    first[owners[is_first]] = order[is_first]
    is_second = np.zeros(len(order), dtype=bool)
    is_second[1:] = is_first[:-1] & ~is_first[1:]
    second[owners[is_second]] = order[is_second]
    is_third = np.zeros(len(order), dtype=bool)
    is_third[2:] = is_second[1:-1] & ~is_first[2:]
    third = np.full(n_ops, -1)
    third[owners[is_third]] = order[is_third]
    magnitudes = np.maximum(np.abs(numbers.high), np.abs(numbers.low))

    def add_up(values: Floats) -> Floats:
        totals: Floats = np.bincount(owners, weights=values[order], minlength=n_ops)[ids]
        return totals

    is_tensor = ~is_output & ~tensors["constant"].to_numpy()
    n_tensors = np.bincount(op_ids[is_tensor], minlength=n_ops)
    n_real_tensors = np.bincount(op_ids[is_tensor & is_real], minlength=n_ops)
    kind_codes, words = pd.factorize(raw_kinds)
    kind_of_words = [rules.resolve_kind(kind) for kind in words]
    numbers_of_kinds = {kind: number for number, kind in enumerate(set(kind_of_words))}
    number_of_words = np.array([numbers_of_kinds[kind] for kind in kind_of_words], dtype=int)
    return CheckableOps(
        ids=ids,
        kinds=tuple(numbers_of_kinds),
        kind_numbers=number_of_words[kind_codes[ids]],
        outputs=output_rows,
        first=first[ids],
        second=second[ids],
        third=third[ids],
        n_operands=n_operands[ids],
        sum_of_highs=add_up(numbers.high),
        sum_of_lows=add_up(numbers.low),
        sum_of_means=add_up(fill_means(numbers)),
        sum_of_magnitudes=add_up(magnitudes),
        highest=_find_highest(numbers.high[order], owners, n_ops)[ids],
        lowest=-_find_highest(-numbers.low[order], owners, n_ops)[ids],
        has_only_operands=(n_inputs == n_operands)[ids],
        has_one_tensor=((n_tensors == 1) & (n_real_tensors == 1))[ids],
        is_sum_of_all=flag_words(raw_kinds, lambda kind: kind.endswith("AddN"))[ids],
        is_in_place=flag_words(raw_kinds, is_in_place)[ids],
        is_plain=flag_words(raw_kinds, _has_usual_operands)[ids],
    )


def _find_highest(values: Floats, owners: Ints, n_ops: int) -> Floats:
    """Return (ops,) the highest of the values of each op, NaN if it has none.

    Those of one op are next to each other.
    """
    highest = np.full(n_ops, np.nan)
    if len(values):
        starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
        highest[owners[starts]] = np.fmax.reduceat(values, starts)  # NaN is no value
    return highest


def _has_usual_operands(kind: str) -> bool:
    """Return whether a quotient is the first operand over the second, and is not rounded."""
    name = kind.rpartition(".")[2]
    return not name.startswith(("__r", "DivMod"))


def fill_means(numbers: RecordedNumbers) -> Floats:
    """Return the means, where none was recorded that of a tensor of one repeated number."""
    means: Floats = np.where(
        np.isnan(numbers.mean) & (numbers.high == numbers.low), numbers.high, numbers.mean
    )
    return means


def select_kinds(ops: CheckableOps, kinds: Collection[str]) -> Ints:
    """Return the positions of the ops of these kinds."""
    positions: Ints = np.flatnonzero(flag_kinds(ops, kinds))
    return positions


def flag_kinds(ops: CheckableOps, kinds: Collection[str]) -> Flags:
    """Return (ops,) true for ops of these kinds."""
    is_chosen = np.array([kind in kinds for kind in ops.kinds], dtype=bool)
    flags: Flags = is_chosen[ops.kind_numbers]
    return flags
