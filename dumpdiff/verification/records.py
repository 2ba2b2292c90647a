"""Contradictions between the records of one trace. No file is opened."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.trace import BACKWARD, FORWARD, Trace
from ..readers.call_records import SlotIndex
from ..rulebook import Rules
from .contradictions import Check, Contradiction
from .descriptions import build_contradiction, format_statistics, get_op_name
from .module_calls import check_module_calls
from .operator_results import check_operators
from .tolerances import RecordedNumbers, collect_numbers

#: Magnitude below which squares leave the range of float32 (1e-38), so that a norm says nothing.
_MIN_MAGNITUDE = 1e-18
#: Elements from which on equal statistics mean equal tensors.
_MIN_COPY_SIZE = 8
#: Share of the parameters whose new value may differ from that at the end of the step. If more do,
#: the recorder writes parameters before the step ends.
_MAX_STALE_SHARE = 0.5
#: A float16 norm that overflows is recorded as this where the device saturates.
_FLOAT16_MAX = 65504.0


def check_records(trace: Trace, rules: Rules) -> tuple[Check, ...]:
    """Return all checks of the records of a trace against each other.

    The rules say what the operators compute.
    """
    numbers = collect_numbers(trace)
    checks = (
        check_possibility(trace, numbers),
        check_edges(trace, numbers),
        check_copies(trace, numbers),
        check_parameters(trace, numbers),
        check_new_values(trace, numbers),
        check_gradient_shapes(trace),
    )
    contradicted = {item.tensor for check in checks for item in check.contradictions}
    return (
        *checks,
        check_module_calls(trace, numbers, contradicted),
        check_operators(trace, numbers, rules, contradicted),
    )


def check_possibility(trace: Trace, numbers: RecordedNumbers) -> Check:
    """Check that a tensor with the recorded statistics can exist.

    For n elements between m and M with mean a: m <= a <= M, and n (a (m + M) - m M) is the largest
    sum of squares (Bhatia and Davis, American Mathematical Monthly 107, 2000). The smallest is that
    of m, M, and n - 2 equal elements. NaN or Inf among the elements makes the norm nonfinite, and a
    NaN is both max and min.
    """
    tensors = trace.tensors
    high, low, mean, norm = numbers.high, numbers.low, numbers.mean, numbers.norm
    errors, floors = numbers.sum_errors, numbers.floors
    with np.errstate(all="ignore"):
        magnitude = np.maximum(np.abs(high), np.abs(low))
        is_finite = np.isfinite(magnitude)
        mean_error = errors * magnitude + floors
        lower, upper = _bound_norms(numbers, mean_error)
        is_judged = is_finite & (magnitude > _MIN_MAGNITUDE) & np.isfinite(norm)
        is_judged &= ~((tensors["dtype"].to_numpy() == "float16") & (norm >= _FLOAT16_MAX))
        reasons: list[tuple[Flags, str]] = [
            (is_finite & (high < low), "max is below min"),
            (is_finite & (numbers.sizes == 1) & (high != low), "max and min of one element differ"),
            (is_finite & (mean > high + mean_error), "the mean is above max"),
            (is_finite & (mean < low - mean_error), "the mean is below min"),
            (is_judged & (norm * (1 + errors) + floors < lower), "the norm is too small for them"),
            (is_judged & (norm > upper * (1 + errors) + floors), "the norm is too large for them"),
            (_flag_hidden_nonfinite(tensors, numbers), "NaN or Inf must be in all of them"),
        ]
    contradictions: dict[int, Contradiction] = {}
    for is_wrong, reason in reasons:
        for row in np.flatnonzero(is_wrong).tolist():
            if row not in contradictions:
                recorded = format_statistics(trace, row)
                contradictions[row] = build_contradiction(
                    trace, "impossible", row, recorded, reason
                )
    n_checked = int((tensors["max"].notna() & tensors["min"].notna()).sum())
    return Check("statistics that a tensor can have", n_checked, _sort(contradictions.values()))


def _bound_norms(numbers: RecordedNumbers, mean_error: Floats) -> tuple[Floats, Floats]:
    """Return the smallest and the largest norm that the other statistics allow; NaN if unknown."""
    high, low, mean, sizes = numbers.high, numbers.low, numbers.mean, numbers.sizes
    magnitude = np.maximum(np.abs(high), np.abs(low))
    largest = sizes * magnitude**2
    # each of the three numbers is wrong by up to the error, times at most twice the magnitude
    by_mean = sizes * (mean * (high + low) - high * low + 6 * magnitude * mean_error)
    largest = np.where(np.isnan(mean), largest, np.minimum(largest, by_mean))
    extremes = high**2 + low**2
    rest = np.abs(sizes * mean - high - low) - sizes * mean_error
    rest = np.where(np.isnan(mean), 0.0, np.maximum(rest, 0.0))
    smallest = extremes + rest**2 / np.maximum(sizes - 2, 1)
    # of an unknown number of elements, the norm is at least that of the two extremes
    smallest = np.where(np.isnan(smallest), extremes, smallest)
    is_constant = high == low
    constant = np.where(np.isnan(sizes), 1.0, sizes) * magnitude**2
    smallest = np.where(is_constant, constant, smallest)
    return np.sqrt(smallest), np.sqrt(np.maximum(largest, 0.0))


def _flag_hidden_nonfinite(tensors: pd.DataFrame, numbers: RecordedNumbers) -> Flags:
    """Return where one statistic is NaN or infinite and another, which must be too, is a number."""
    high, low, norm = numbers.high, numbers.low, numbers.norm
    has_columns = bool(np.isfinite(high).any() and np.isfinite(low).any())
    is_nonfinite = (tensors["nonfinite"] == 1).to_numpy()
    has_extreme = ~np.isfinite(high) | ~np.isfinite(low)
    hides_in_norm = is_nonfinite & has_extreme & np.isfinite(norm)
    hides_in_extreme = is_nonfinite & (np.isnan(high) != np.isnan(low))
    flags: Flags = (hides_in_norm | hides_in_extreme) & has_columns
    return flags


def check_edges(trace: Trace, numbers: RecordedNumbers) -> Check:
    """Check that a reader of a value has the value that its producer wrote.

    Files are compared by the fingerprints that the reader of the dump took, else the statistics.
    Values that an op may have updated in place are not compared.
    """
    tensors = trace.tensors
    producers = tensors["source_tensor"].to_numpy()
    rows = np.flatnonzero(producers >= 0)
    sources = producers[rows]
    trusted = tensors["trusted"].to_numpy()
    content = tensors["content"].to_numpy()
    is_known, is_different = _compare_rows(trace, numbers, rows, sources)
    is_updated = ~trusted[rows] | _flag_updates(trace, numbers, rows, is_known, is_different)
    updated_sources = np.zeros(len(tensors), dtype=bool)
    updated_sources[sources[is_updated]] = True
    is_checked = is_known & trusted[rows] & trusted[sources] & ~updated_sources[sources]
    is_wrong = is_checked & is_different
    contradictions = []
    for row, source in zip(rows[is_wrong].tolist(), sources[is_wrong].tolist(), strict=True):
        producer = f"{get_op_name(trace, source)} {tensors['slot'].iat[source]}"
        recorded = f"reads {format_statistics(trace, row)}"
        computed = f"{producer} wrote {format_statistics(trace, source)}"
        if content[row] and content[source]:
            recorded = "the file read"
            computed = f"it differs from the file that {producer} wrote"
        contradictions.append(build_contradiction(trace, "edge", row, recorded, computed))
    n_checked = int(is_checked.sum())
    return Check("values read and the values written", n_checked, _sort(contradictions))


def flag_changed_inputs(trace: Trace) -> Flags:
    """Return which inputs do not hold what their producer wrote, as recorded; (tensors,)."""
    tensors = trace.tensors
    sources, content = tensors["source_tensor"].to_numpy(), tensors["content"].to_numpy()
    has_source = sources >= 0
    source_content = content[np.where(has_source, sources, 0)]
    has_content = has_source & (content != 0) & (source_content != 0)
    flags: Flags = has_content & (content != source_content)
    return flags


def _flag_updates(
    trace: Trace, numbers: RecordedNumbers, rows: Ints, is_known: Flags, is_different: Flags
) -> Flags:
    """Return which inputs an op may have updated in place before they were recorded.

    Such an input is not what was written, but equals an output of its own op. So does an input of a
    reshape whose producer's record is damaged. Hence an op updates its inputs only if no fewer of
    its kind do than hold an output that was written as they read it.
    """
    if not (is_known & is_different).any():
        return np.zeros(len(rows), dtype=bool)
    holds_output = _hold_own_output(trace, numbers, rows)
    kinds = trace.ops["kind"].to_numpy()[trace.tensors["op"].to_numpy()[rows]]
    table = pd.DataFrame({"kind": kinds})
    table["updated"] = is_known & holds_output & is_different
    table["copied"] = is_known & holds_output & ~is_different
    counts = table.groupby("kind")[["updated", "copied"]].transform("sum")
    flags: Flags = table["updated"].to_numpy() & (counts["updated"] >= counts["copied"]).to_numpy()
    return flags


def _hold_own_output(trace: Trace, numbers: RecordedNumbers, rows: Ints) -> Flags:
    """Return which inputs equal an output of their own op, as after an update in place."""
    tensors = trace.tensors
    outputs = np.flatnonzero(tensors["slot_kind"].to_numpy() == "output")
    ops = tensors["op"].to_numpy()
    output_table = pd.DataFrame({"op": ops[outputs], "output": outputs})
    pairs = pd.DataFrame({"op": ops[rows], "position": np.arange(len(rows))})
    pairs = pairs.merge(output_table, on="op")
    positions = pairs["position"].to_numpy(dtype=int)
    is_known, is_different = _compare_rows(
        trace, numbers, rows[positions], pairs["output"].to_numpy(dtype=int)
    )
    flags = np.zeros(len(rows), dtype=bool)
    flags[positions[is_known & ~is_different]] = True
    return flags


def _compare_rows(
    trace: Trace, numbers: RecordedNumbers, rows: Ints, others: Ints
) -> tuple[Flags, Flags]:
    """Return which pairs of records can be compared, and which of these hold different values."""
    tensors = trace.tensors
    high, low, norm, sizes = numbers.high, numbers.low, numbers.norm, numbers.sizes
    extreme_errors, sum_errors = numbers.extreme_errors, numbers.sum_errors
    floors = numbers.floors
    content = tensors["content"].to_numpy()
    nonfinite = tensors["nonfinite"].to_numpy()
    scale = np.maximum(np.abs(high), np.abs(low))
    is_known = np.zeros(len(rows), dtype=bool)
    is_different = np.zeros(len(rows), dtype=bool)
    with np.errstate(all="ignore"):
        for values, errors, reference in (
            (high, extreme_errors, scale),
            (low, extreme_errors, scale),
            (numbers.mean, sum_errors, scale),
            (norm, sum_errors, norm),
        ):
            first, second = values[rows], values[others]
            is_pair = ~(np.isnan(first) | np.isnan(second))
            size = np.maximum(np.abs(reference[rows]), np.abs(reference[others]))
            slack = np.maximum(errors[rows], errors[others]) * np.where(np.isfinite(size), size, 0)
            slack = slack + np.maximum(floors[rows], floors[others])
            is_known |= is_pair
            is_different |= is_pair & (first != second) & ~(np.abs(first - second) <= slack)
    has_flags = (nonfinite[rows] >= 0) & (nonfinite[others] >= 0)
    is_different |= has_flags & (nonfinite[rows] != nonfinite[others])
    has_sizes = ~(np.isnan(sizes[rows]) | np.isnan(sizes[others]))
    is_different |= is_known & has_sizes & (sizes[rows] != sizes[others])
    has_content = (content[rows] != 0) & (content[others] != 0)
    is_known |= has_content | has_flags
    is_different = np.where(has_content, content[rows] != content[others], is_different)
    return is_known, is_different


def check_copies(trace: Trace, numbers: RecordedNumbers) -> Check:
    """Check that records which share all statistics but one share that one, too.

    Only float32 and wider records of at least 8 elements with informative numbers take part. If
    size, mean, norm and one extreme of two records are equal bit for bit, they are records of one
    tensor, and the other extreme must be equal; likewise the norm, if max, min and mean are equal.
    A mean may differ: swapping signs inside a tensor changes nothing else.
    """
    tensors = trace.tensors
    high, low, norm, sizes = numbers.high, numbers.low, numbers.norm, numbers.sizes
    columns = {"max": high, "min": low, "mean": numbers.mean, "norm": norm}
    is_wide = tensors["dtype"].isin(("float32", "float64")).to_numpy()
    is_usable = is_wide & tensors["trusted"].to_numpy() & (sizes >= _MIN_COPY_SIZE)
    is_usable &= np.isfinite(np.stack(list(columns.values()))).all(axis=0) & (high != low)
    is_usable &= numbers.evidence == len(columns)
    rows = np.flatnonzero(is_usable)
    mixed_rows = rows[_flag_mixed(rows, sizes, columns)]
    contradictions: dict[int, Contradiction] = {}
    for name in ("max", "min", "norm"):
        copies = _find_first_copies(mixed_rows, sizes, columns, name)
        values, first_values = columns[name][mixed_rows], columns[name][copies]
        # an extreme that adds nothing to the norm may differ between other tensors
        change = np.abs(values**2 - first_values**2)
        is_wrong = change > 2 * numbers.sum_errors[mixed_rows] * norm[mixed_rows] ** 2
        contradicted_rows = zip(
            mixed_rows[is_wrong].tolist(), copies[is_wrong].tolist(), strict=True
        )
        for row, other in contradicted_rows:
            recorded = f"recorded with {format_statistics(trace, row)}"
            place = f"{get_op_name(trace, other)} {tensors['slot'].iat[other]}"
            computed = f"{place} is recorded with another {name}, {columns[name][other]:.6g}"
            item = build_contradiction(trace, "copy", row, recorded, computed)
            contradictions.setdefault(row, item)
    return Check("records of equal tensors", len(rows), _sort(contradictions.values()))


def _flag_mixed(rows: Ints, sizes: Floats, columns: dict[str, Floats]) -> Flags:
    """Return (rows,) whether rows of the same size and mean differ in another statistic.

    Most records of one mean are those of one value, and no further look at them is needed.
    """
    order = np.lexsort((columns["mean"][rows], sizes[rows]))
    ordered = rows[order]
    is_new_group = np.ones(len(rows), dtype=bool)
    is_new_group[1:] = sizes[ordered[1:]] != sizes[ordered[:-1]]
    is_new_group[1:] |= columns["mean"][ordered[1:]] != columns["mean"][ordered[:-1]]
    is_change = np.zeros(len(rows), dtype=bool)
    for column in columns.values():
        is_change[1:] |= column[ordered[1:]] != column[ordered[:-1]]
    groups = np.cumsum(is_new_group)
    is_mixed_group = np.zeros(len(rows) + 1, dtype=bool)
    is_mixed_group[groups[is_change & ~is_new_group]] = True
    flags = np.empty(len(rows), dtype=bool)
    flags[order] = is_mixed_group[groups]
    return flags


def _find_first_copies(rows: Ints, sizes: Floats, columns: dict[str, Floats], name: str) -> Ints:
    """Return, for each row, the first of the rows that share all its statistics but ``name``.

    If these have several values of ``name``, it is the first that has the most frequent one.
    """
    keys = [sizes[rows], *[columns[key][rows] for key in columns if key != name]]
    order = np.lexsort(keys)
    is_new_group = np.zeros(len(rows), dtype=bool)
    is_new_group[:1] = True
    for key in keys:
        is_new_group[1:] |= key[order[1:]] != key[order[:-1]]
    group = np.empty(len(rows), dtype=np.int64)
    group[order] = np.cumsum(is_new_group)
    copies = rows.copy()
    values = columns[name][rows]
    is_change = ~is_new_group[1:] & (values[order[1:]] != values[order[:-1]])
    # in most groups all rows have one value, so that each is its own copy
    is_mixed = np.isin(group, group[order[1:]][is_change])
    copies[is_mixed] = _find_most_frequent(group[is_mixed], values[is_mixed], rows[is_mixed])
    return copies


def _find_most_frequent(group: Ints, values: Floats, rows: Ints) -> Ints:
    """Return for each row the first row of its group that has the group's most frequent value."""
    frame = pd.DataFrame({"group": group, "value": values, "row": rows})
    same = frame.groupby(["group", "value"], sort=False)["row"]
    frame["count"], frame["first"] = same.transform("size"), same.transform("first")
    best = frame.sort_values(["count", "first"], ascending=[False, True], kind="stable")
    first_rows = best.drop_duplicates("group").set_index("group")["first"]
    copies: Ints = frame["group"].map(first_rows).to_numpy(dtype=int)
    return copies


def check_parameters(trace: Trace, numbers: RecordedNumbers) -> Check:
    """Check that all ops of the forward and backward pass read the same value of a parameter."""
    tensors = trace.tensors
    ops = tensors["op"].to_numpy()
    phases = trace.ops["phase"].to_numpy()[ops]
    is_read = (tensors["slot_kind"].to_numpy() != "output") & tensors["trusted"].to_numpy()
    is_read &= (tensors["parameter"].to_numpy() != "") & np.isin(phases, (FORWARD, BACKWARD))
    rows = np.flatnonzero(is_read)
    first_reads = _find_most_frequent_reads(trace, rows)
    is_known, is_different = _compare_rows(trace, numbers, rows, first_reads)
    is_updated = _flag_updates(trace, numbers, rows, is_known, is_different)
    names = tensors["parameter"].to_numpy()
    if is_updated.any():
        updated_names = set(names[rows[is_updated]])
        rows = rows[[name not in updated_names for name in names[rows]]]
        first_reads = _find_most_frequent_reads(trace, rows)
        is_known, is_different = _compare_rows(trace, numbers, rows, first_reads)
    is_checked = is_known & (rows != first_reads)
    contradictions = []
    for position in np.flatnonzero(is_checked & is_different).tolist():
        row, other = int(rows[position]), int(first_reads[position])
        recorded = f"reads {names[row]} with {format_statistics(trace, row)}"
        computed = f"{get_op_name(trace, other)} reads it with {format_statistics(trace, other)}"
        contradictions.append(build_contradiction(trace, "parameter", row, recorded, computed))
    return Check("reads of one parameter", int(is_checked.sum()), _sort(contradictions))


def check_new_values(trace: Trace, numbers: RecordedNumbers) -> Check:
    """Check that what an update leaves of a parameter is what the end of the step has of it.

    MindSpore writes parameters and optimizer states to disk when the step ends.
    """
    tensors = trace.tensors
    names = tensors["update_of"].to_numpy()
    op_names = trace.ops["name"].to_numpy()[tensors["op"].to_numpy()]
    kinds = trace.ops["kind"].to_numpy()[tensors["op"].to_numpy()]
    final_rows = {op_names[row]: row for row in np.flatnonzero(kinds == "Parameter").tolist()}
    updates = np.array(
        [row for row in np.flatnonzero(names != "").tolist() if names[row] in final_rows], dtype=int
    )
    finals = np.array([final_rows[names[row]] for row in updates.tolist()], dtype=int)
    files = tensors["file"].to_numpy()
    is_known, is_different = _compare_rows(trace, numbers, updates, finals)
    is_known &= (files[updates] == "") | (files[updates] != files[finals])
    is_wrong = is_known & is_different
    if is_wrong.sum() > max(1.0, _MAX_STALE_SHARE * is_known.sum()):
        is_wrong[:] = is_known[:] = False
    contradictions = []
    for row, final in zip(updates[is_wrong].tolist(), finals[is_wrong].tolist(), strict=True):
        recorded = f"leaves {format_statistics(trace, row)} in {names[row]}"
        computed = f"it has {format_statistics(trace, final)} at the end of the step"
        content = tensors["content"]
        if content.iat[row] and content.iat[final]:
            recorded = f"the file of the new value of {names[row]}"
            computed = "it differs from the file that holds it at the end of the step"
        contradictions.append(build_contradiction(trace, "parameter", row, recorded, computed))
    name = "new values and those at the end of the step"
    return Check(name, int(is_known.sum()), _sort(contradictions))


def _find_most_frequent_reads(trace: Trace, rows: Ints) -> Ints:
    """Return, for each read of a parameter, the first read that has its most frequent value."""
    tensors = trace.tensors
    table = tensors.iloc[rows][["parameter", "size", "max", "min", "content", "nonfinite"]]
    keys = table.astype({"parameter": str}).fillna({"max": np.inf, "min": np.inf})
    columns = list(keys.columns)
    keys["row"] = rows
    groups = keys.groupby(columns, sort=False)["row"]
    keys["count"], keys["first"] = groups.transform("size"), groups.transform("first")
    best = keys.sort_values(["count", "first"], ascending=[False, True], kind="stable")
    best_rows = best.drop_duplicates("parameter").set_index("parameter")["first"]
    first_reads: Ints = keys["parameter"].map(best_rows).to_numpy(dtype=int)
    return first_reads


def check_gradient_shapes(trace: Trace) -> Check:
    """Check that the gradient that a backward call receives has the shape of the call's output."""
    tensors, ops = trace.tensors, trace.ops
    forward = ops["forward"].to_numpy()[tensors["op"].to_numpy()]
    is_gradient = (forward >= 0) & (tensors["slot_kind"].to_numpy() == "input")
    is_gradient &= tensors["trusted"].to_numpy()
    slots, shapes = tensors["slot"].to_numpy(), tensors["shape"].to_numpy()
    rows = np.flatnonzero(is_gradient)
    output_slots = [slot.replace("input", "output", 1) for slot in slots[rows].tolist()]
    outputs = SlotIndex(tensors).find_rows(forward[rows], output_slots)
    rows, outputs = rows[outputs >= 0], outputs[outputs >= 0]
    has_shapes = pd.notna(shapes[rows]) & pd.notna(shapes[outputs])
    rows, outputs = rows[has_shapes], outputs[has_shapes]
    contradictions = []
    is_wrong = shapes[rows] != shapes[outputs]
    for row, output in zip(rows[is_wrong].tolist(), outputs[is_wrong].tolist(), strict=True):
        value = f"{get_op_name(trace, output)} {slots[output]}"
        computed = f"{value} has shape {shapes[output]}"
        recorded = f"a gradient of shape {shapes[row]}"
        contradictions.append(build_contradiction(trace, "gradient", row, recorded, computed))
    return Check("shapes of gradients and of their values", len(rows), tuple(contradictions))


def _sort(contradictions: Iterable[Contradiction]) -> tuple[Contradiction, ...]:
    return tuple(sorted(contradictions, key=lambda item: item.tensor))
