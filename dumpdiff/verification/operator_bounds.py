"""Bounds of the statistics of an op's output that follow from its kind and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Floats, Ints
from .checkable_ops import CheckableOps, fill_means, flag_kinds, select_kinds
from .tolerances import RecordedNumbers

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
class Bounds:
    """Bounds of one statistic of the outputs of ops; (ops,) each. NaN for no bound."""

    statistic: str
    positions: Ints
    lower: Floats
    upper: Floats
    scale: Floats  #: magnitude that errors are relative to


def iterate_bounds(ops: CheckableOps, numbers: RecordedNumbers) -> Iterator[Bounds]:
    """Yield what the operators say about the statistics of their outputs."""
    yield from _bound_sums(ops, numbers)
    yield from _bound_products(ops, numbers)
    yield from _bound_interpolations(ops, numbers)
    yield from _bound_functions(ops, numbers)
    yield from _bound_rearrangements(ops, numbers)
    yield from _bound_reductions(ops, numbers)


def _bound_sums(ops: CheckableOps, numbers: RecordedNumbers) -> Iterator[Bounds]:
    """Yield bounds of sums: the mean is the sum of the means, and no element is beyond the sums."""
    positions = select_kinds(ops, ["add"])
    # a third operand is a factor, but of AddN a third term
    has_terms = (ops.n_operands[positions] == 2) | ops.is_sum_of_all[positions]
    positions = positions[ops.has_only_operands[positions] & has_terms]
    scale = ops.sum_of_magnitudes[positions]
    upper, lower = ops.sum_of_highs[positions], ops.sum_of_lows[positions]
    # where one operand is largest, the others are not below their smallest
    spread_high = numbers.high[ops.first[positions]] - numbers.low[ops.first[positions]]
    yield Bounds("high", positions, lower + spread_high, upper, scale)
    yield Bounds("low", positions, lower, upper - spread_high, scale)
    means = ops.sum_of_means[positions]
    yield Bounds("mean", positions, means, means, scale)


def _bound_products(ops: CheckableOps, numbers: RecordedNumbers) -> Iterator[Bounds]:
    """Yield bounds of products and quotients with a single number, and of all products."""
    positions = select_kinds(ops, ["mul", "div"])
    is_chosen = ops.has_only_operands[positions] & ops.is_plain[positions]
    positions = positions[is_chosen & (ops.n_operands[positions] == 2)]
    is_number = numbers.sizes[ops.second[positions]] == 1
    is_quotient = flag_kinds(ops, ["div"])[positions]
    # the number is the second operand as sorted; a quotient needs it to be the recorded second
    is_exact = is_number & (~is_quotient | (ops.second[positions] > ops.first[positions]))
    exact = positions[is_exact]
    with np.errstate(all="ignore"):
        factors = numbers.high[ops.second[exact]]
        factors = np.where(flag_kinds(ops, ["div"])[exact], 1 / factors, factors)
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
    yield Bounds("high", general, unknown, products.max(axis=0, initial=-np.inf), scale)
    yield Bounds("low", general, products.min(axis=0, initial=np.inf), unknown, scale)


def _bound_interpolations(ops: CheckableOps, numbers: RecordedNumbers) -> Iterator[Bounds]:
    """Yield bounds of a + w (b - a) with a number w between 0 and 1."""
    positions = select_kinds(ops, ["lerp"])
    positions = positions[ops.has_only_operands[positions] & (ops.n_operands[positions] == 3)]
    weights = numbers.high[ops.third[positions]]
    is_inside = (numbers.sizes[ops.third[positions]] == 1) & (weights >= 0) & (weights <= 1)
    positions, weights = positions[is_inside], weights[is_inside]
    first, second = ops.first[positions], ops.second[positions]
    high = (1 - weights) * numbers.high[first] + weights * numbers.high[second]
    low = (1 - weights) * numbers.low[first] + weights * numbers.low[second]
    scale = np.maximum(np.abs(high), np.abs(low))
    yield Bounds("high", positions, low, high, scale)
    yield Bounds("low", positions, low, high, scale)
    mean = (1 - weights) * numbers.mean[first] + weights * numbers.mean[second]
    yield _make_exact("mean", positions, mean, scale)


def _bound_multiples(
    ops: CheckableOps, numbers: RecordedNumbers, positions: Ints, factors: Floats
) -> Iterator[Bounds]:
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


def _make_exact(statistic: str, positions: Ints, values: Floats, scale: Floats) -> Bounds:
    return Bounds(statistic, positions, values, values, scale)


def _bound_functions(ops: CheckableOps, numbers: RecordedNumbers) -> Iterator[Bounds]:
    """Yield the extremes of increasing and decreasing functions, and the mean of squares."""
    for functions, is_increasing in ((_INCREASING, True), (_DECREASING, False)):
        for kind, function in functions.items():
            positions = select_kinds(ops, [kind])
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
            yield Bounds("high", positions, high_from, high_to, scale)
            yield Bounds("low", positions, low_from, low_to, scale)
            if kind == "neg":
                yield _make_exact("mean", positions, -numbers.mean[first], scale)
                norms = numbers.norm[first]
                yield _make_exact("norm", positions, norms, norms)
    positions = select_kinds(ops, ["square"])
    first = ops.first[positions]
    magnitude = np.maximum(np.abs(numbers.high[first]), np.abs(numbers.low[first]))
    yield _make_exact("high", positions, magnitude**2, magnitude**2)
    mean_squares = numbers.norm[first] ** 2 / numbers.sizes[first]
    yield _make_exact("mean", positions, mean_squares, magnitude**2)


def _bound_rearrangements(ops: CheckableOps, numbers: RecordedNumbers) -> Iterator[Bounds]:
    """Yield bounds of ops whose outputs have the numbers of their inputs."""
    first, outputs = ops.first, ops.outputs
    magnitude = np.maximum(np.abs(numbers.high[first]), np.abs(numbers.low[first]))
    has_one = ops.has_one_tensor
    same = select_kinds(ops, _REARRANGING)
    same = same[has_one[same] & (numbers.sizes[first] == numbers.sizes[outputs])[same]]
    for statistic in ("high", "low", "mean"):
        values = getattr(numbers, statistic)[first[same]]
        yield _make_exact(statistic, same, values, magnitude[same])
    norms = numbers.norm[first[same]]
    yield _make_exact("norm", same, norms, norms)
    repeated = select_kinds(ops, ["expand"])
    repeated = repeated[has_one[repeated]]
    for statistic in ("high", "low"):
        values = getattr(numbers, statistic)[first[repeated]]
        yield _make_exact(statistic, repeated, values, magnitude[repeated])
    chosen = select_kinds(ops, _CHOOSING)
    chosen = chosen[has_one[chosen]]
    high, low = numbers.high[first[chosen]], numbers.low[first[chosen]]
    yield Bounds("high", chosen, low, high, magnitude[chosen])
    yield Bounds("low", chosen, low, high, magnitude[chosen])
    cut = select_kinds(ops, _CUTTING)
    cut = cut[has_one[cut] & (numbers.sizes[outputs] <= numbers.sizes[first])[cut]]
    norms = numbers.norm[first[cut]]
    yield Bounds("norm", cut, np.full(len(cut), np.nan), norms, norms)
    joined = select_kinds(ops, ["concat"])
    joined = joined[ops.n_operands[joined] > 1]
    scale = np.maximum(np.abs(ops.highest[joined]), np.abs(ops.lowest[joined]))
    yield Bounds("high", joined, ops.lowest[joined], ops.highest[joined], scale)
    yield Bounds("low", joined, ops.lowest[joined], ops.highest[joined], scale)


def _bound_reductions(ops: CheckableOps, numbers: RecordedNumbers) -> Iterator[Bounds]:
    """Yield the mean of sums and means over some dimensions."""
    positions = select_kinds(ops, ["sum", "mean"])
    positions = positions[ops.has_one_tensor[positions]]
    first, outputs = ops.first[positions], ops.outputs[positions]
    n_terms = numbers.sizes[first] / numbers.sizes[outputs]
    is_whole = (n_terms >= 1) & (n_terms == np.floor(n_terms))
    positions, first, n_terms = positions[is_whole], first[is_whole], n_terms[is_whole]
    factors = np.where(flag_kinds(ops, ["sum"])[positions], n_terms, 1.0)
    magnitude = np.maximum(np.abs(numbers.high[first]), np.abs(numbers.low[first]))
    scale = factors * magnitude
    yield _make_exact("mean", positions, factors * fill_means(numbers)[first], scale)
    high, low = factors * numbers.high[first], factors * numbers.low[first]
    yield Bounds("high", positions, low, high, scale)
    yield Bounds("low", positions, low, high, scale)
