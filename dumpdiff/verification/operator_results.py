"""Contradictions between the statistics of an op's output and those of its inputs.

What an operator computes bounds the statistics of its output: the mean of a sum is the sum of the
means, a negation exchanges max and min, the largest square root is that of the largest number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import is_floating
from ..model.trace import Trace, flag_words
from ..readers.call_records import is_in_place
from ..rulebook import Rules
from .contradictions import Check, Contradiction
from .descriptions import build_contradiction, format_statistics
from .tolerances import RecordedNumbers

CHECK_NAME = "results of operators and their inputs"
#: Relative error of an operator whose function hardware approximates; damage is larger.
_FUNCTION_ERROR = 1e-3
#: Units in the last place that an output may be off besides.
_OUTPUT_UNITS = 4.0
#: Share of the ops of one kind that may contradict a relation, besides one. More of them mean that
#: the operator is another one than its name says.
_MAX_WRONG_SHARE = 0.1
#: Updates in place that must keep to a relation: their inputs were recorded before the update.
_MIN_KEEPING = 2
#: Kinds of which a NaN in any input is a NaN in the output.
_SPREADING = ("add", "sub", "mul", "div", "neg", "square", "sqrt", "matmul", "sum", "mean")
#: Kinds that only rearrange: the output has the numbers of the input.
_REARRANGING = (
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
    "contiguous",
    "flip",
    "roll",
    "cast",
)
#: Kinds whose output has some of the numbers of the input, and each once at most.
_CUTTING = ("slice", "split", "diagonal")
#: Kinds whose output has some of the numbers of the input, perhaps repeatedly.
_CHOOSING = (*_CUTTING, "gather_rows", "gather_elements")


def _invert(values: Floats) -> Floats:
    return np.asarray(1 / np.sqrt(values), dtype=float)


#: Kind -> increasing function of one number.
_INCREASING: Mapping[str, Callable[[Floats], Floats]] = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "relu": lambda values: np.maximum(values, 0.0),
    "sigmoid": lambda values: 1 / (1 + np.exp(-values)),
}
#: Kind -> decreasing function of one number.
_DECREASING: Mapping[str, Callable[[Floats], Floats]] = {"neg": np.negative, "rsqrt": _invert}


@dataclass(frozen=True)
class _Ops:
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


@dataclass(frozen=True)
class _Bounds:
    """Bounds of one statistic of the outputs of ops; (ops,) each. NaN for no bound."""

    statistic: str
    positions: Ints
    lower: Floats
    upper: Floats
    scale: Floats  #: magnitude that errors are relative to


def check_operators(
    trace: Trace,
    numbers: RecordedNumbers,
    rules: Rules,
    contradicted: Collection[int] = (),
) -> Check:
    """Check that the statistics of an output can follow from those of the inputs.

    Only operators of the forward kind count whose inputs are all recorded as finite numbers, not
    backward records. An update in place may be recorded before or after it is made. Ops with
    ``contradicted`` tensors are left out. A relation that many ops of a kind contradict is not what
    this kind computes.
    """
    lost_nans = _find_lost_nans(trace, numbers, rules)
    ops = _collect_ops(trace, numbers, contradicted, rules)
    if not len(ops.ids):
        return Check(CHECK_NAME, len(lost_nans), tuple(lost_nans))
    is_checked = np.zeros(len(ops.ids), dtype=bool)
    contradictions: dict[int, Contradiction] = {}
    for bounds in _iterate_bounds(ops, numbers):
        positions = bounds.positions
        rows = ops.outputs[positions]
        recorded = getattr(numbers, bounds.statistic)[rows]
        slack = _compute_slack(numbers, ops, bounds)
        with np.errstate(all="ignore"):
            is_known = np.isfinite(recorded) & np.isfinite(slack)
            is_known &= np.isfinite(bounds.lower) | np.isfinite(bounds.upper)
            is_wrong = recorded < bounds.lower - slack
            is_wrong |= recorded > bounds.upper + slack
        is_wrong &= is_known
        is_wrong &= _flag_understood(ops, positions, is_known, is_wrong)
        is_checked[positions[is_known]] = True
        for index in np.flatnonzero(is_wrong).tolist():
            row = int(rows[index])
            if row not in contradictions:
                contradictions[row] = _describe(trace, ops, bounds, index)
    items = sorted([*lost_nans, *contradictions.values()], key=lambda item: item.tensor)
    return Check(CHECK_NAME, int(is_checked.sum()) + len(lost_nans), tuple(items))


def _find_lost_nans(trace: Trace, numbers: RecordedNumbers, rules: Rules) -> list[Contradiction]:
    """Return the inputs that hold a NaN although the output of their op does not."""
    tensors, op_table = trace.tensors, trace.ops
    ops = tensors["op"].to_numpy()
    is_trusted = tensors["trusted"].to_numpy()
    is_output = tensors["slot_kind"].to_numpy() == "output"
    is_nan = np.isnan(numbers.high) & (tensors["nonfinite"] == 1).to_numpy()
    inputs = np.flatnonzero(is_nan & is_trusted & ~is_output)
    is_finite = np.isfinite(numbers.high) & np.isfinite(numbers.low) & np.isfinite(numbers.norm)
    output_of_op = {
        int(ops[row]): row for row in np.flatnonzero(is_finite & is_trusted & is_output).tolist()
    }
    contradictions = []
    for row in inputs.tolist():
        op = int(ops[row])
        kind = str(op_table["kind"].iat[op])
        is_forward_op = op_table["level"].iat[op] == "op" and op_table["forward"].iat[op] < 0
        is_spreading = rules.resolve_kind(kind) in _SPREADING and not _is_special(kind)
        if op in output_of_op and is_forward_op and is_spreading:
            output = output_of_op[op]
            slot = tensors["slot"].iat[output]
            computed = f"{slot} has {format_statistics(trace, output)}"
            item = build_contradiction(trace, "result", row, "holds NaN", computed)
            contradictions.append(item)
    return contradictions


def _is_special(kind: str) -> bool:
    """Return whether a call skips NaN or updates its input in place."""
    name = kind.rpartition(".")[2]
    return name.startswith(("nan", "Assign")) or is_in_place(kind)


def _flag_understood(ops: _Ops, positions: Ints, is_known: Flags, is_wrong: Flags) -> Flags:
    """Return whether nearly all ops of the kind keep to a relation.

    One may contradict it in any case, of updates in place only if at least two keep to it.
    """
    is_updating = ops.is_in_place[positions]
    groups = 2 * ops.kind_numbers[positions] + is_updating
    n_known = np.bincount(groups[is_known], minlength=groups.max(initial=0) + 1)[groups]
    n_wrong = np.bincount(groups[is_wrong], minlength=groups.max(initial=0) + 1)[groups]
    flags: Flags = n_wrong <= np.maximum(1, _MAX_WRONG_SHARE * n_known)
    flags &= ~is_updating | (n_known - n_wrong >= _MIN_KEEPING)
    return flags


def _describe(trace: Trace, ops: _Ops, bounds: _Bounds, index: int) -> Contradiction:
    position = int(bounds.positions[index])
    row = int(ops.outputs[position])
    inputs = [int(ops.first[position])]
    if ops.n_operands[position] > 1:
        inputs = sorted([*inputs, int(ops.second[position])])
    lower, upper = bounds.lower[index], bounds.upper[index]
    name = {"high": "max", "low": "min"}.get(bounds.statistic, bounds.statistic)
    if f"{lower:.5g}" == f"{upper:.5g}":
        expectation = f"the {name} must be {lower:.5g}"
    elif np.isfinite(lower) and np.isfinite(upper):
        expectation = f"the {name} must be between {lower:.6g} and {upper:.6g}"
    elif np.isfinite(lower):
        expectation = f"the {name} must be {lower:.6g} or more"
    else:
        expectation = f"the {name} must be {upper:.6g} or less"
    recorded = f"recorded with {format_statistics(trace, row)}"
    sources = [
        f"{trace.tensors['slot'].iat[tensor]} has {format_statistics(trace, tensor)}"
        for tensor in inputs
    ]
    computed = f"{expectation}: {', '.join(sources)}"
    return build_contradiction(trace, "result", row, recorded, computed)


def _compute_slack(numbers: RecordedNumbers, ops: _Ops, bounds: _Bounds) -> Floats:
    """Return by how much a recorded statistic may be outside of its bounds."""
    positions = bounds.positions
    rows, first = ops.outputs[positions], ops.first[positions]
    unit = np.maximum(numbers.units[rows], numbers.units[first])
    relative = _FUNCTION_ERROR + _OUTPUT_UNITS * unit
    relative = relative + numbers.sum_errors[rows] + numbers.sum_errors[first]
    slack: Floats = relative * bounds.scale + numbers.floors[rows] + numbers.floors[first]
    return slack


def _collect_ops(
    trace: Trace, numbers: RecordedNumbers, contradicted: Collection[int], rules: Rules
) -> _Ops:
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
    extremes = pd.DataFrame(
        {"op": owners, "high": numbers.high[order], "low": numbers.low[order]}
    ).groupby("op")

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
    return _Ops(
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
        sum_of_means=add_up(_fill_means(numbers)),
        sum_of_magnitudes=add_up(magnitudes),
        highest=extremes["high"].max().reindex(ids).to_numpy(),
        lowest=extremes["low"].min().reindex(ids).to_numpy(),
        has_only_operands=(n_inputs == n_operands)[ids],
        has_one_tensor=((n_tensors == 1) & (n_real_tensors == 1))[ids],
        is_sum_of_all=flag_words(raw_kinds, lambda kind: kind.endswith("AddN"))[ids],
        is_in_place=flag_words(raw_kinds, is_in_place)[ids],
        is_plain=flag_words(raw_kinds, _has_usual_operands)[ids],
    )


def _has_usual_operands(kind: str) -> bool:
    """Return whether a quotient is the first operand over the second, and is not rounded."""
    name = kind.rpartition(".")[2]
    return not name.startswith(("__r", "DivMod"))


def _fill_means(numbers: RecordedNumbers) -> Floats:
    """Return the means, where none was recorded that of a tensor of one repeated number."""
    means: Floats = np.where(
        np.isnan(numbers.mean) & (numbers.high == numbers.low), numbers.high, numbers.mean
    )
    return means


def _iterate_bounds(ops: _Ops, numbers: RecordedNumbers) -> Iterator[_Bounds]:
    """Yield what the operators say about the statistics of their outputs."""
    yield from _bound_sums(ops, numbers)
    yield from _bound_products(ops, numbers)
    yield from _bound_interpolations(ops, numbers)
    yield from _bound_functions(ops, numbers)
    yield from _bound_rearrangements(ops, numbers)
    yield from _bound_reductions(ops, numbers)


def _select(ops: _Ops, kinds: Collection[str]) -> Ints:
    positions: Ints = np.flatnonzero(_flag_kinds(ops, kinds))
    return positions


def _flag_kinds(ops: _Ops, kinds: Collection[str]) -> Flags:
    """Return (ops,) true for ops of these kinds."""
    is_chosen = np.array([kind in kinds for kind in ops.kinds], dtype=bool)
    flags: Flags = is_chosen[ops.kind_numbers]
    return flags


def _bound_sums(ops: _Ops, numbers: RecordedNumbers) -> Iterator[_Bounds]:
    """Yield bounds of sums: the mean is the sum of the means, and no element is beyond the sums."""
    positions = _select(ops, ["add"])
    # a third operand is a factor, but of AddN a third term
    has_terms = (ops.n_operands[positions] == 2) | ops.is_sum_of_all[positions]
    positions = positions[ops.has_only_operands[positions] & has_terms]
    scale = ops.sum_of_magnitudes[positions]
    upper, lower = ops.sum_of_highs[positions], ops.sum_of_lows[positions]
    # where one operand is largest, the others are not below their smallest
    spread_high = numbers.high[ops.first[positions]] - numbers.low[ops.first[positions]]
    yield _Bounds("high", positions, lower + spread_high, upper, scale)
    yield _Bounds("low", positions, lower, upper - spread_high, scale)
    means = ops.sum_of_means[positions]
    yield _Bounds("mean", positions, means, means, scale)


def _bound_products(ops: _Ops, numbers: RecordedNumbers) -> Iterator[_Bounds]:
    """Yield bounds of products and quotients with a single number, and of all products."""
    positions = _select(ops, ["mul", "div"])
    is_chosen = ops.has_only_operands[positions] & ops.is_plain[positions]
    positions = positions[is_chosen & (ops.n_operands[positions] == 2)]
    is_number = numbers.sizes[ops.second[positions]] == 1
    is_quotient = _flag_kinds(ops, ["div"])[positions]
    # the number is the second operand as sorted; a quotient needs it to be the recorded second
    is_exact = is_number & (~is_quotient | (ops.second[positions] > ops.first[positions]))
    exact = positions[is_exact]
    with np.errstate(all="ignore"):
        factors = numbers.high[ops.second[exact]]
        factors = np.where(_flag_kinds(ops, ["div"])[exact], 1 / factors, factors)
    yield from _bound_multiples(ops, numbers, exact, factors)
    general = positions[~is_number & ~is_quotient]
    first, second = ops.first[general], ops.second[general]
    products = np.stack(
        [
            a[first] * b[second]
            for a in (numbers.high, numbers.low)
            for b in (numbers.high, numbers.low)
        ]
    )
    scale = np.abs(products).max(axis=0, initial=0.0)
    unknown = np.full(len(general), np.nan)
    yield _Bounds("high", general, unknown, products.max(axis=0, initial=-np.inf), scale)
    yield _Bounds("low", general, products.min(axis=0, initial=np.inf), unknown, scale)


def _bound_interpolations(ops: _Ops, numbers: RecordedNumbers) -> Iterator[_Bounds]:
    """Yield bounds of a + w (b - a) with a number w between 0 and 1."""
    positions = _select(ops, ["lerp"])
    positions = positions[ops.has_only_operands[positions] & (ops.n_operands[positions] == 3)]
    weights = numbers.high[ops.third[positions]]
    is_inside = (numbers.sizes[ops.third[positions]] == 1) & (weights >= 0) & (weights <= 1)
    positions, weights = positions[is_inside], weights[is_inside]
    first, second = ops.first[positions], ops.second[positions]
    high = (1 - weights) * numbers.high[first] + weights * numbers.high[second]
    low = (1 - weights) * numbers.low[first] + weights * numbers.low[second]
    scale = np.maximum(np.abs(high), np.abs(low))
    yield _Bounds("high", positions, low, high, scale)
    yield _Bounds("low", positions, low, high, scale)
    mean = (1 - weights) * numbers.mean[first] + weights * numbers.mean[second]
    yield _make_exact("mean", positions, mean, scale)


def _bound_multiples(
    ops: _Ops, numbers: RecordedNumbers, positions: Ints, factors: Floats
) -> Iterator[_Bounds]:
    """Yield the statistics of outputs that are multiples of their first input."""
    first = ops.first[positions]
    is_same_size = numbers.sizes[first] == numbers.sizes[ops.outputs[positions]]
    positions, first, factors = positions[is_same_size], first[is_same_size], factors[is_same_size]
    ends = np.stack([factors * numbers.high[first], factors * numbers.low[first]])
    scale = np.abs(ends).max(axis=0, initial=0.0)
    yield _make_exact("high", positions, ends.max(axis=0, initial=-np.inf), scale)
    yield _make_exact("low", positions, ends.min(axis=0, initial=np.inf), scale)
    yield _make_exact("mean", positions, factors * numbers.mean[first], scale)
    norms = np.abs(factors) * numbers.norm[first]
    yield _make_exact("norm", positions, norms, norms)


def _make_exact(statistic: str, positions: Ints, values: Floats, scale: Floats) -> _Bounds:
    return _Bounds(statistic, positions, values, values, scale)


def _bound_functions(ops: _Ops, numbers: RecordedNumbers) -> Iterator[_Bounds]:
    """Yield the extremes of increasing and decreasing functions, and the mean of squares."""
    for functions, is_increasing in ((_INCREASING, True), (_DECREASING, False)):
        for kind, function in functions.items():
            positions = _select(ops, [kind])
            positions = positions[
                ops.has_only_operands[positions] & (ops.n_operands[positions] == 1)
            ]
            first = ops.first[positions]
            # of each extreme, the smallest and the largest number that it may have been
            arguments = [
                values[first] + sign * numbers.extreme_errors[first] * np.abs(values[first])
                for values in (numbers.high, numbers.low)
                for sign in (-1, 1)
            ]
            with np.errstate(all="ignore"):
                results = [function(argument) for argument in arguments]
            if not is_increasing:
                results.reverse()
            high_from, high_to, low_from, low_to = results
            scale = np.fmax(np.abs(high_to), np.abs(low_from))
            yield _Bounds("high", positions, high_from, high_to, scale)
            yield _Bounds("low", positions, low_from, low_to, scale)
            if kind == "neg":
                yield _make_exact("mean", positions, -numbers.mean[first], scale)
                norms = numbers.norm[first]
                yield _make_exact("norm", positions, norms, norms)
    positions = _select(ops, ["square"])
    first = ops.first[positions]
    magnitude = np.maximum(np.abs(numbers.high[first]), np.abs(numbers.low[first]))
    yield _make_exact("high", positions, magnitude**2, magnitude**2)
    mean_squares = numbers.norm[first] ** 2 / numbers.sizes[first]
    yield _make_exact("mean", positions, mean_squares, magnitude**2)


def _bound_rearrangements(ops: _Ops, numbers: RecordedNumbers) -> Iterator[_Bounds]:
    """Yield bounds of ops whose outputs have the numbers of their inputs."""
    first, outputs = ops.first, ops.outputs
    magnitude = np.maximum(np.abs(numbers.high[first]), np.abs(numbers.low[first]))
    has_one = ops.has_one_tensor
    same = _select(ops, _REARRANGING)
    same = same[has_one[same] & (numbers.sizes[first] == numbers.sizes[outputs])[same]]
    for statistic in ("high", "low", "mean"):
        values = getattr(numbers, statistic)[first[same]]
        yield _make_exact(statistic, same, values, magnitude[same])
    norms = numbers.norm[first[same]]
    yield _make_exact("norm", same, norms, norms)
    repeated = _select(ops, ["expand"])
    repeated = repeated[has_one[repeated]]
    for statistic in ("high", "low"):
        values = getattr(numbers, statistic)[first[repeated]]
        yield _make_exact(statistic, repeated, values, magnitude[repeated])
    chosen = _select(ops, _CHOOSING)
    chosen = chosen[has_one[chosen]]
    high, low = numbers.high[first[chosen]], numbers.low[first[chosen]]
    yield _Bounds("high", chosen, low, high, magnitude[chosen])
    yield _Bounds("low", chosen, low, high, magnitude[chosen])
    cut = _select(ops, _CUTTING)
    cut = cut[has_one[cut] & (numbers.sizes[outputs] <= numbers.sizes[first])[cut]]
    norms = numbers.norm[first[cut]]
    yield _Bounds("norm", cut, np.full(len(cut), np.nan), norms, norms)
    joined = _select(ops, ["concat"])
    joined = joined[ops.n_operands[joined] > 1]
    scale = np.maximum(np.abs(ops.highest[joined]), np.abs(ops.lowest[joined]))
    yield _Bounds("high", joined, ops.lowest[joined], ops.highest[joined], scale)
    yield _Bounds("low", joined, ops.lowest[joined], ops.highest[joined], scale)


def _bound_reductions(ops: _Ops, numbers: RecordedNumbers) -> Iterator[_Bounds]:
    """Yield the mean of sums and means over some dimensions."""
    positions = _select(ops, ["sum", "mean"])
    positions = positions[ops.has_one_tensor[positions]]
    first, outputs = ops.first[positions], ops.outputs[positions]
    n_terms = numbers.sizes[first] / numbers.sizes[outputs]
    is_whole = (n_terms >= 1) & (n_terms == np.floor(n_terms))
    positions, first, n_terms = positions[is_whole], first[is_whole], n_terms[is_whole]
    factors = np.where(_flag_kinds(ops, ["sum"])[positions], n_terms, 1.0)
    magnitude = np.maximum(np.abs(numbers.high[first]), np.abs(numbers.low[first]))
    scale = factors * magnitude
    yield _make_exact("mean", positions, factors * _fill_means(numbers)[first], scale)
    high, low = factors * numbers.high[first], factors * numbers.low[first]
    yield _Bounds("high", positions, low, high, scale)
    yield _Bounds("low", positions, low, high, scale)
