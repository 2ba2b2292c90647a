"""Contradictions between the record of a module call and those of the ops that ran inside it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Ints
from ..model.trace import BACKWARD, FORWARD, Trace
from .contradictions import Check
from .descriptions import build_contradiction, format_statistics, get_op_name
from .tolerances import RecordedNumbers

#: Informative statistics (of 4) from which on equal statistics mean equal tensors.
_MIN_EVIDENCE = 2
CHECK_NAME = "module calls and the ops inside them"
#: Share of the calls of one class of module that may lack the value, besides one. More of them
#: mean that the code of the module decides.
_MAX_LACKING_SHARE = 0.1
#: Of the numbers that stand for kinds, so that one dump always has one answer.
_SEED = 20261128
#: Takes the place of NaN where rows are joined by equal numbers.
_NAN_KEY = 9.87e300

#: What an op does with the value of a slot, by direction.
_VERBS = ("read", "wrote")


@dataclass(frozen=True)
class _Records:
    """Tensors of module calls, or of what ran inside of them; (records,) each."""

    rows: Ints  #: ids of the tensors
    calls: Ints  #: forward op of the module call
    phases: Ints  #: 0 in the forward pass, 1 in the backward pass
    directions: Ints  #: 0 for what is read, 1 for what is written


def check_module_calls(
    trace: Trace, numbers: RecordedNumbers, contradicted: Collection[int] = ()
) -> Check:
    """Check that what a module call read and wrote was read and written by an op inside it.

    Inputs and parameters of a call are read inside it, outputs are written inside; likewise in the
    backward pass, where the gradients of its parameters are written. What holds depends on the code
    of the module: it is learned from the other calls of its class that ran the same kinds of ops. A
    call contradicts them if none of its ops holds the value, although it has an op with the slot
    that holds it in other calls.
    The gradient of a parameter that is used elsewhere, too, is a sum and is left out, and so is
    that of an input that several ops inside read, such as the input of a residual block. What
    ``contradicted`` tensors of ops do not confirm is left out, too.
    """
    codes = _number_values(numbers)
    outer = _collect_module_records(trace, numbers, codes)
    if not len(outer.rows):
        return Check(CHECK_NAME, 0)
    inner = _collect_inner_records(trace, numbers)
    positions, inner_rows = _find_equal_inside(numbers, codes, outer, inner)
    is_inside = np.zeros(len(outer.rows), dtype=bool)
    is_inside[positions] = True
    kinds = trace.ops["kind"].to_numpy()[outer.calls]
    slots = trace.tensors["slot"].to_numpy()[outer.rows]
    is_gradient = (trace.tensors["gradient_of"].to_numpy() != "")[outer.rows]
    table = pd.DataFrame(
        {
            "kind": kinds,
            "ops": _compute_signatures(trace)[outer.calls],
            "phase": outer.phases,
            "slot": slots,
            "gradient": is_gradient,
        }
    )
    groups = table.groupby(list(table.columns), sort=False).ngroup().to_numpy()
    is_informative = (numbers.evidence >= _MIN_EVIDENCE)[outer.rows]
    n_proofs = np.bincount(groups[is_inside & is_informative], minlength=groups.max() + 1)[groups]
    lacking = np.flatnonzero(~is_inside & (n_proofs > 0))
    others = _find_other_values(trace, outer, inner, groups, positions, inner_rows, lacking)
    is_lacking = ~is_inside & (others >= 0) & ~np.isin(others, list(contradicted))
    is_lacking[is_lacking] = ~_flag_sums(trace, codes, outer, inner, np.flatnonzero(is_lacking))
    n_lacking = np.bincount(groups[is_lacking], minlength=groups.max() + 1)[groups]
    is_checked = (is_inside | is_lacking) & (n_proofs > 0)
    is_checked &= n_lacking <= np.maximum(1, _MAX_LACKING_SHARE * n_proofs)
    contradictions = []
    for position in np.flatnonzero(is_checked & is_lacking).tolist():
        row, other = int(outer.rows[position]), int(others[position])
        verb = _VERBS[int(outer.directions[position])]
        recorded = f"recorded with {format_statistics(trace, row)}"
        place = f"{get_op_name(trace, other)} {trace.tensors['slot'].iat[other]}"
        computed = f"no op inside {verb} that; {place} has {format_statistics(trace, other)}"
        contradictions.append(build_contradiction(trace, "module", row, recorded, computed))
    contradictions.sort(key=lambda item: item.tensor)
    return Check(CHECK_NAME, int(is_checked.sum()), tuple(contradictions))


def _compute_signatures(trace: Trace) -> Ints:
    """Return (ops,) a number that is equal for module calls with the same kinds of forward ops.

    The first layer may have a norm that the others lack: then its input is read in another way.
    """
    ops, calls = _list_ancestors(trace)
    is_forward_op = (trace.ops["level"] == "op") & (trace.ops["phase"] == FORWARD)
    is_counted = is_forward_op.to_numpy()[ops]
    codes, names = pd.factorize(trace.ops["kind"])
    weights = np.random.default_rng(_SEED).integers(1 << 62, size=len(names), dtype=np.int64)
    signatures = np.zeros(len(trace.ops), dtype=np.int64)
    np.add.at(signatures, calls[is_counted], weights[codes[ops[is_counted]]])
    return signatures


def _find_other_values(
    trace: Trace,
    outer: _Records,
    inner: _Records,
    groups: Ints,
    positions: Ints,
    inner_rows: Ints,
    lacking: Ints,
) -> Ints:
    """Return (outer records,) a tensor of the call where others of its class hold the value.

    It is in a slot of an op of the same kind, and has the size of the value; -1 if there is none.
    ``positions`` are those of the outer records whose value the ``inner_rows`` hold, ``lacking``
    those of records to look at.
    """
    others = np.full(len(outer.rows), -1)
    if not len(lacking):
        return others
    tensors = trace.tensors
    op_ids = tensors["op"].to_numpy()
    # tables of numbers are joined several times as fast as those of words
    kinds, slots = pd.factorize(trace.ops["kind"])[0][op_ids], pd.factorize(tensors["slot"])[0]
    is_op = (trace.ops["level"].to_numpy() == "op")[op_ids]
    sizes = tensors["size"].to_numpy()
    places = pd.DataFrame(
        {"group": groups[positions], "kind": kinds[inner_rows], "slot": slots[inner_rows]}
    )
    places = places[is_op[inner_rows]].drop_duplicates()
    wanted = pd.DataFrame(
        {
            "position": lacking,
            "group": groups[lacking],
            "call": outer.calls[lacking],
            "phase": outer.phases[lacking],
            "direction": outer.directions[lacking],
            "size": sizes[outer.rows[lacking]],
        }
    ).merge(places, on="group")
    # few calls lack a value, and the tables of all records would be large
    is_candidate = is_op[inner.rows] & np.isin(inner.calls, wanted["call"].to_numpy())
    rows = inner.rows[is_candidate]
    candidates = pd.DataFrame(
        {
            "row": rows,
            "call": inner.calls[is_candidate],
            "phase": inner.phases[is_candidate],
            "direction": inner.directions[is_candidate],
            "size": sizes[rows],
            "kind": kinds[rows],
            "slot": slots[rows],
        }
    )
    keys = ["call", "phase", "direction", "size", "kind", "slot"]
    matches = wanted.merge(candidates, on=keys).drop_duplicates("position")
    others[matches["position"].to_numpy(dtype=int)] = matches["row"].to_numpy(dtype=int)
    return others


def _flag_sums(
    trace: Trace, codes: Ints, outer: _Records, inner: _Records, positions: Ints
) -> Flags:
    """Return (positions,) whether an outer record is the gradient of an input with several readers.

    No op writes the sum of what flows back from them.
    """
    tensors = trace.tensors
    op_ids, sizes = tensors["op"].to_numpy(), tensors["size"].to_numpy()
    is_input = (tensors["slot_kind"] == "input").to_numpy()
    is_read = (inner.phases == 0) & (inner.directions == 0)
    is_read &= (trace.ops["level"].to_numpy() == "op")[op_ids[inner.rows]]
    read_rows, read_calls = inner.rows[is_read], inner.calls[is_read]
    is_sum = np.zeros(len(positions), dtype=bool)
    for index, position in enumerate(positions.tolist()):
        row, call = int(outer.rows[position]), int(outer.calls[position])
        if not (outer.phases[position] and outer.directions[position]):
            continue
        inputs = codes[is_input & (op_ids == call) & (sizes == sizes[row])]
        rows = read_rows[read_calls == call]
        readers = pd.Series(op_ids[rows]).groupby(codes[rows]).nunique()
        is_sum[index] = bool((readers.reindex(inputs, fill_value=0) > 1).any())
    return is_sum


def _collect_module_records(trace: Trace, numbers: RecordedNumbers, codes: Ints) -> _Records:
    """Return the tensors of module calls and the gradients of the parameters of modules."""
    tensors, ops = trace.tensors, trace.ops
    is_module = ops["level"].to_numpy() == "module"
    forward = ops["forward"].to_numpy()
    is_gradient_record = ~is_module & (forward >= 0)
    is_gradient_record &= is_module[np.maximum(forward, 0)]
    calls = np.where(is_module & (forward < 0), np.arange(len(ops)), forward)
    is_outer = is_module | is_gradient_record
    op_ids = tensors["op"].to_numpy()
    is_chosen = is_outer[op_ids] & _flag_usable(trace, numbers)
    rows = np.flatnonzero(is_chosen)
    is_gradient = is_gradient_record[op_ids[rows]]
    single_parameters = _find_parameters_of_one_call(trace, numbers, codes)
    is_sum = np.zeros(len(rows), dtype=bool)
    names = tensors["gradient_of"].to_numpy()[rows[is_gradient]].tolist()
    is_sum[is_gradient] = [name not in single_parameters for name in names]
    rows = rows[~is_sum]
    return _build_records(trace, rows, calls[op_ids[rows]])


def _build_records(trace: Trace, rows: Ints, calls: Ints) -> _Records:
    tensors, ops = trace.tensors, trace.ops
    phases = (ops["phase"].to_numpy() == BACKWARD)[tensors["op"].to_numpy()[rows]]
    directions = tensors["slot_kind"].to_numpy()[rows] == "output"
    return _Records(rows, calls, phases.astype(np.int64), directions.astype(np.int64))


def _flag_usable(trace: Trace, numbers: RecordedNumbers) -> Flags:
    """Return (tensors,) whether a tensor of forward or backward has a number to compare."""
    tensors = trace.tensors
    is_chosen_phase = trace.ops["phase"].isin((FORWARD, BACKWARD)).to_numpy()
    is_usable = is_chosen_phase[tensors["op"].to_numpy()] & tensors["trusted"].to_numpy()
    is_usable &= ~tensors["constant"].to_numpy() & (numbers.sizes > 0)
    has_numbers = ~np.isnan(numbers.high) | (tensors["nonfinite"] == 1).to_numpy()
    flags: Flags = is_usable & has_numbers
    return flags


def _find_parameters_of_one_call(trace: Trace, numbers: RecordedNumbers, codes: Ints) -> set[str]:
    """Return the parameters that are read inside one module call and nowhere else.

    The value counts, not the name: tied weights have two names.
    """
    tensors, ops = trace.tensors, trace.ops
    op_ids = tensors["op"].to_numpy()
    is_read = (tensors["slot_kind"].to_numpy() != "output") & _flag_usable(trace, numbers)
    is_read &= (ops["phase"].to_numpy() == FORWARD)[op_ids]
    rows = np.flatnonzero(is_read)
    readers = op_ids[rows]
    is_module = ops["level"].to_numpy() == "module"
    # the innermost module call
    calls = np.where(is_module[readers], readers, ops["parent"].to_numpy()[readers])
    values = codes[rows]
    # each value once for every call that reads it; calls of -1 are calls, too
    uses = np.unique(values * (len(ops) + 1) + calls + 1)
    n_calls = np.bincount(uses // (len(ops) + 1), minlength=len(tensors))
    is_parameter = (tensors["slot_kind"].to_numpy() == "parameter")[rows] & is_module[readers]
    names = tensors["parameter"].to_numpy()[rows[is_parameter]].tolist()
    n_calls_of_name: dict[str, list[int]] = {}
    for name, n_calls_of_value in zip(names, n_calls[values[is_parameter]].tolist(), strict=True):
        n_calls_of_name.setdefault(name, []).append(n_calls_of_value)
    return {name for name, counts in n_calls_of_name.items() if counts == [1]}


def _number_values(numbers: RecordedNumbers) -> Ints:
    """Return (tensors,) a number that is equal for tensors of equal size, max and min."""
    columns = [numbers.sizes, numbers.high, numbers.low]
    keys = [np.nan_to_num(column, nan=_NAN_KEY) for column in columns]
    order = np.lexsort(keys)
    is_new = np.zeros(len(order), dtype=bool)
    for key in keys:
        is_new[1:] |= key[order[1:]] != key[order[:-1]]
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = np.cumsum(is_new)
    return codes


def _list_ancestors(trace: Trace) -> tuple[Ints, Ints]:
    """Return (op, module call that it ran in) for every op and call, as two columns.

    A call of the backward pass is the call of the forward pass that it belongs to.
    """
    parents = trace.ops["parent"].to_numpy()
    forward = trace.ops["forward"].to_numpy()
    ops, ancestors = np.arange(len(parents)), parents
    columns: list[tuple[Ints, Ints]] = []
    while (ancestors >= 0).any():
        ops, ancestors = ops[ancestors >= 0], ancestors[ancestors >= 0]
        calls = np.where(forward[ancestors] >= 0, forward[ancestors], ancestors)
        columns.append((ops, calls))
        ancestors = parents[ancestors]
    if not columns:
        return np.empty(0, dtype=int), np.empty(0, dtype=int)
    all_ops, all_calls = zip(*columns, strict=True)
    return np.concatenate(all_ops), np.concatenate(all_calls)


def _collect_inner_records(trace: Trace, numbers: RecordedNumbers) -> _Records:
    """Return the tensors of what ran inside of module calls, once for each call around it."""
    ops, calls = _list_ancestors(trace)
    rows = np.flatnonzero(_flag_usable(trace, numbers))
    positions, places = _join(trace.tensors["op"].to_numpy()[rows], ops)
    return _build_records(trace, rows[positions], calls[places])


def _join(keys: Ints, other_keys: Ints) -> tuple[Ints, Ints]:
    """Return the positions of all pairs of equal keys, in the order of the first, then the others.

    Tables of pandas are joined several times as slowly.
    """
    order = np.argsort(other_keys, kind="stable")
    sorted_keys = other_keys[order]
    starts = np.searchsorted(sorted_keys, keys, side="left")
    counts = np.searchsorted(sorted_keys, keys, side="right") - starts
    positions = np.repeat(np.arange(len(keys)), counts)
    offsets = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions, order[np.repeat(starts, counts) + offsets]


def _find_equal_inside(
    numbers: RecordedNumbers, codes: Ints, outer: _Records, inner: _Records
) -> tuple[Ints, Ints]:
    """Return (position of an outer record, tensor inside the call that holds the same numbers).

    ``codes`` is what :func:`_number_values` returns.
    """
    is_outer_code = np.zeros(len(codes), dtype=bool)
    is_outer_code[codes[outer.rows]] = True
    candidates = np.flatnonzero(is_outer_code[codes[inner.rows]])
    positions, places = _join(_build_keys(outer, codes), _build_keys(inner, codes)[candidates])
    first, second = outer.rows[positions], inner.rows[candidates[places]]
    is_equal = np.ones(len(positions), dtype=bool)
    magnitude = np.maximum(np.abs(numbers.high), np.abs(numbers.low))
    with np.errstate(all="ignore"):
        for values, scale in ((numbers.mean, magnitude), (numbers.norm, numbers.norm)):
            slack = numbers.sum_errors[first] * np.abs(scale[first]) + numbers.floors[first]
            is_equal &= ~(np.abs(values[first] - values[second]) > slack)
    return positions[is_equal], second[is_equal]


def _build_keys(records: _Records, codes: Ints) -> Ints:
    """Return (records,) one number for call, phase, direction and value."""
    places = (records.calls * 2 + records.phases) * 2 + records.directions
    keys: Ints = places * len(codes) + codes[records.rows]
    return keys
