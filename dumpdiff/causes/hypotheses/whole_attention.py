"""Attention as a whole, softmax(q k^T scale + mask) v: another scale, mask, bias or axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations
from typing import Any, cast

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats
from ...operators.attention import attention, make_causal_mask, repeat_groups
from ...operators.softmax import softmax
from ..fault_case import FaultCase, Operand, compute_residual, find_masked, have_same_elements
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_number, minimize
from .attention import MASKED_SCORE, SCORE_KINDS, format_mask_shift, is_attention
from .masks import describe_hidden, name_mask_change

#: Products of a score matrix beyond which whole attention is not tried at all, and beyond which it
#: is tried in few orders of the operands only.
_MAX_COST, _MAX_COST_OF_ALL_ORDERS = 3e7, 3e5
_COMMON_ORDERS: list[tuple[int, ...]] = [(0, 1, 2), (2, 1, 0), (1, 0, 2)]
#: Operands that may be q, k and v.
_MAX_OPERANDS = 4
#: Tensors of the faulty side that are tried in their place, which have these names.
_MAX_OTHER_TENSORS = 4
_FIELDS = {"queries": "q", "keys": "k", "values": "v"}
#: Recorded masks that are tried, and kinds whose outputs are scores or probabilities.
_MAX_MASKS = 3
_SCORE_PRODUCERS = {"matmul", "einsum", *SCORE_KINDS}
#: First hidden diagonals tried for whole attention; a causal mask hides from diagonal 1 on.
_DIAGONALS = (0, 2, 3, -1)
#: The scale is searched within exp(-4) to exp(4) of the faithful side's.
_SCALE_GRID = np.linspace(-4, 4, 17)
_SCALE_ROUNDS = 45
#: Masks and biases of the faulty side that are tried, alone and two at a time.
_MAX_OTHER_MASKS = 6
#: Masks that are tried, and products of the score matrices that they may cost together.
_MAX_TRIALS, _MAX_TRIAL_COST = 80, 1e8
#: Axes of queries that are cut into heads: batch, heads, tokens, size.
_HEAD_AXES = 4
#: A fitted number in place of hidden scores that is below this is zero.
_MIN_FILL = 1e-5
#: Relative difference of numbers that a mask adds to every hidden score.
_EQUAL_FILL = 1e-4


@dataclass(frozen=True, eq=False)
class _Call:
    """Attention that gives the value of the faithful side."""

    q: AnyArray
    k: AnyArray
    v: AnyArray
    scale: float
    hidden: AnyArray | None  #: flags, or numbers that are added to the scores
    output: Floats
    is_recorded: bool = False  #: the mask is a recorded one, not a causal one that fits

    @property
    def score_shape(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.q.shape[-2], self.k.shape[-2]

    def compute(self, scale: float, hidden: AnyArray | None, axis: int = -1) -> Floats:
        """Return the output with another scale, mask (as ``hidden``) or axis of the softmax."""
        return attention(self.q, self.k, self.v, scale, hidden, axis)


def suggest_whole_attention(case: FaultCase) -> Iterator[Candidate]:
    """Suggest softmax(q k^T scale + mask) v with another scale, mask or axis of the softmax."""
    call = _find_call(case)
    if call is None:
        return
    yield _fit_scale(case, call)
    if not call.is_recorded:
        yield from _change_mask(call)
    yield Candidate(
        call.compute(call.scale, call.hidden, -2),
        "softmax along axis -2",
        "has axis -1",
        parameters={"axis": -2.0},
        unchanged=call.output,
        cause="softmax-axis",
    )
    yield from _fill_otherwise(case, call)
    yield from _take_recorded_masks(case, call)
    yield from _cut_heads_otherwise(call)
    yield from _cut_parts_otherwise(call)


def _fill_otherwise(case: FaultCase, call: _Call) -> Iterator[Candidate]:
    """Put a number in place of each hidden score, add it, or hide after the softmax only."""
    if call.hidden is None:
        return
    hidden = find_masked(_make_terms(call.hidden)[0])
    if not hidden.any() or hidden.all():
        return
    scores = np.matmul(call.q, np.swapaxes(call.k, -1, -2)) * call.scale

    def fill(number: float) -> Floats:
        result: Floats = np.matmul(softmax(np.where(hidden, number, scores)), call.v)
        return result

    def add(number: float) -> Floats:
        result: Floats = np.matmul(softmax(scores + number * hidden), call.v)
        return result

    for run in (fill, add):
        number = fit_number(run, 0.0, case.faulty)
        number = 0.0 if number is None or abs(number) < _MIN_FILL else number
        if run is fill:
            description = f"hidden scores replaced by {number:.4g}: they still count"
        elif number:
            description = f"hidden scores plus {number:.4g}: they still count"
        else:
            continue  # as without a mask
        yield Candidate(
            run(number),
            description,
            "hides them",
            parameters={"fill": number},
            unchanged=call.output,
            cause="mask-fill",
        )
    yield Candidate(
        np.matmul(softmax(scores) * ~hidden, call.v),
        "probabilities masked after the softmax: they do not sum to one",
        "masks the scores",
        unchanged=call.output,
        cause="mask-kind",
    )


def _cut_heads_otherwise(call: _Call) -> Iterator[Candidate]:
    """Cut every head from elements that lie a number of heads apart, not next to each other.

    A projection is cut to (heads, size) on one side, to (size, heads) on the other.
    """
    if not all(tensor.ndim == _HEAD_AXES for tensor in (call.q, call.k, call.v)):
        return
    for cut, join in ((_interleave_heads, _join_heads), (_join_heads, _interleave_heads)):
        q, k, v = map(cut, (call.q, call.k, call.v))
        output = attention(q, k, v, call.scale, call.hidden)
        for predicted in (output, join(output)):
            yield Candidate(
                predicted,
                "heads of elements that lie apart: cut to (size, heads), not to (heads, size)",
                "cuts the other way",
                unchanged=call.output,
                cause="heads-permuted",
            )


def _interleave_heads(tensor: AnyArray) -> AnyArray:
    """Return (batch, heads, tokens, size) cut from the projection as (size, heads)."""
    batch, heads, tokens, size = tensor.shape
    projection = tensor.transpose(0, 2, 1, 3).reshape(batch, tokens, size, heads)
    return projection.transpose(0, 3, 1, 2)


def _join_heads(tensor: AnyArray) -> AnyArray:
    """Return (batch, heads, tokens, size) cut from the projection that has (size, heads)."""
    batch, heads, tokens, size = tensor.shape
    projection = tensor.transpose(0, 2, 3, 1).reshape(batch, tokens, heads, size)
    return projection.transpose(0, 2, 1, 3)


def _cut_parts_otherwise(call: _Call) -> Iterator[Candidate]:
    """Cut queries, keys and values from rows head by head, not part by part, or the reverse.

    One projection has the rows of all three: all queries come first, or those of the first head,
    its keys and its values.
    """
    if call.q.ndim != _HEAD_AXES or not call.q.shape == call.k.shape == call.v.shape:
        return
    batch, heads, tokens, size = call.q.shape
    by_part = np.stack((call.q, call.k, call.v)).transpose(1, 3, 0, 2, 4)  # batch, tokens, parts
    by_head = by_part.swapaxes(2, 3)
    cut_by_part = by_head.reshape(batch, tokens, 3, heads, size).transpose(2, 0, 3, 1, 4)
    cut_by_head = by_part.reshape(batch, tokens, heads, 3, size).transpose(3, 0, 2, 1, 4)
    for (q, k, v), description in (
        (
            cut_by_part,
            "queries, keys and values cut part by part from rows that are head by head",
        ),
        (
            cut_by_head,
            "queries, keys and values cut head by head from rows that are part by part",
        ),
    ):
        yield Candidate(
            attention(q, k, v, call.scale, call.hidden),
            description,
            "cuts them as its rows are",
            unchanged=call.output,
            cause="split-order",
        )


def _fit_scale(case: FaultCase, call: _Call) -> Candidate:
    """Return attention with the scale that comes nearest to the faulty side's value."""

    def measure_distance(log_scale: float) -> float:
        output = call.compute(float(np.exp(log_scale)), call.hidden)
        return float(np.linalg.norm(output - case.faulty))

    log_scale = minimize(measure_distance, np.log(call.scale) + _SCALE_GRID, _SCALE_ROUNDS)
    scale = float(np.exp(log_scale))
    factor = scale / call.scale
    return Candidate(
        call.compute(scale, call.hidden),
        _describe_scale(case, scale, call.scale),
        recorded=case.describe_own_scalings(factor, in_softmax=True),
        parameters={"factor": factor, "scale": scale},
        unchanged=call.output,
        cause="scale",
    )


def _describe_scale(case: FaultCase, scale: float, faithful_scale: float) -> str:
    """Return the description of scaled scores.

    A faithful scale of 1 means that the queries were scaled before, by an unknown number.
    """
    factor = scale / faithful_scale
    description = f"attention scores {factor:.4g} times the {case.faithful_side}'s"
    if faithful_scale == 1:
        return description
    return f"{description} (effective scale {scale:.4g} against {faithful_scale:.4g})"


def _change_mask(call: _Call) -> Iterator[Candidate]:
    if call.hidden is None:
        yield Candidate(
            call.compute(call.scale, make_causal_mask(*call.score_shape)),
            "a causal mask",
            "has none",
            unchanged=call.output,
            cause="mask-shifted",
        )
        return
    yield Candidate(
        call.compute(call.scale, None),
        "no mask",
        "hides from diagonal 1 on",
        unchanged=call.output,
        cause="mask-missing",
    )
    for diagonal in _DIAGONALS:
        yield Candidate(
            call.compute(call.scale, make_causal_mask(*call.score_shape, diagonal)),
            format_mask_shift(diagonal - 1, 1),
            "hides from diagonal 1 on",
            unchanged=call.output,
            cause="mask-shifted",
        )


def _take_recorded_masks(case: FaultCase, call: _Call) -> Iterator[Candidate]:
    """Suggest what the faulty side itself adds to the scores: its masks and biases."""
    masks = _list_masks(case.faulty_operands, case.faulty, call.score_shape)
    masks = [mask for mask in masks if not mask.agrees or mask.is_floating][:_MAX_OTHER_MASKS]
    max_trials = int(min(_MAX_TRIALS, _MAX_TRIAL_COST // (case.faulty.size * call.score_shape[1])))
    own_term = _make_terms(call.hidden)[0] if call.hidden is not None else np.zeros((1, 1))
    for term in islice(_list_terms(masks), max_trials):
        shape = np.broadcast_shapes(term.shape, own_term.shape)
        own, other = np.broadcast_to(own_term, shape), np.broadcast_to(term, shape)
        if np.array_equal(own, other):
            continue
        cause, description, contrast = _describe_term(case, other, own)
        yield Candidate(
            call.compute(call.scale, term),
            description,
            contrast,
            unchanged=call.output,
            cause=cause,
        )


def suggest_other_tensors(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the queries, keys or values that the faulty side itself multiplies."""
    call = _find_call(case)
    if call is None:
        return
    others = _list_other_tensors(case, call)
    for names in (("keys",), ("values",), ("queries",), ("keys", "values")):
        fields = [_FIELDS[name] for name in names]
        own_tensors = [getattr(call, name) for name in fields]
        for tensors in permutations(others, len(names)):
            if any(a.shape != b.shape for a, b in zip(tensors, own_tensors, strict=True)):
                continue
            cause, description, contrast = _describe_tensors(case, names, tensors, own_tensors)
            other_call = replace(call, **cast(Any, dict(zip(fields, tensors, strict=True))))
            yield Candidate(
                other_call.compute(call.scale, call.hidden),
                description,
                contrast,
                unchanged=call.output,
                cause=cause,
            )


def _list_other_tensors(case: FaultCase, call: _Call) -> list[Floats]:
    """Return what only the faulty side has in the shape of queries, keys or transposed keys."""
    own_tensors = (call.q, call.k, call.v)
    tensors: list[Floats] = []
    for operand in case.faulty_operands:
        if operand.parameter or len(operand.shape) != call.q.ndim or not operand.is_floating:
            continue
        for array in (operand.array, np.swapaxes(operand.array, -1, -2)):
            fits = array.shape in (call.q.shape, call.k.shape)
            is_own = any(compute_residual(array, own) <= case.tolerance for own in own_tensors)
            if fits and not is_own:
                tensors.append(array)
    return tensors[:_MAX_OTHER_TENSORS]


def _describe_tensors(
    case: FaultCase,
    names: Sequence[str],
    tensors: Sequence[Floats],
    own_tensors: Sequence[Floats],
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of tensors in place of the faithful side's own."""
    words = " and ".join(names)
    orders = {tuple(_number_heads(*pair)) for pair in zip(tensors, own_tensors, strict=True)}
    own_orders = {tuple(_number_heads(own, own)) for own in own_tensors}
    if len(orders) == 1 and -1 not in next(iter(orders)):
        (order,), (own_order, *_) = orders, own_orders
        return (
            "heads-permuted",
            f"{words} of the heads {list(order)}",
            f"has {list(own_order)}",
        )
    sources = " and ".join(filter(None, (_find_source(case, tensor) for tensor in tensors)))
    own_sources = " and ".join(filter(None, (_find_source(case, own) for own in own_tensors)))
    return (
        "input-source",
        f"{words} taken from {sources}" if sources else f"other {words}",
        f"has {own_sources}" if own_sources else "",
    )


def _number_heads(tensor: Floats, own: Floats) -> list[int]:
    """Return the number of each head's contents among those of its own tensor, -1 for others."""
    numbers: dict[bytes, int] = {}
    for head in np.moveaxis(own, -3, 0).astype(np.float32):
        numbers.setdefault(head.tobytes(), len(numbers))
    heads = np.moveaxis(tensor, -3, 0).astype(np.float32)
    return [numbers.get(head.tobytes(), -1) for head in heads]


def _find_source(case: FaultCase, tensor: Floats) -> str:
    """Return the op that computed the different heads of a tensor, '' if none is found."""
    numbers = _number_heads(tensor, tensor)
    heads = np.take(tensor, [numbers.index(number) for number in sorted(set(numbers))], axis=-3)
    *batch, n_heads, length, size = heads.shape
    other_values = case.find_other_values((*batch, length, n_heads * size))
    for operand in (*case.operands, *case.faulty_operands, *other_values):
        is_computed = operand.kind and int(np.prod(operand.shape)) == heads.size
        if is_computed and have_same_elements(operand.array, heads):
            return f"{operand.name} ({operand.kind})"
    return ""


def _list_terms(masks: Sequence[Operand]) -> Iterator[Floats]:
    """Yield what may be added to the scores: a mask or bias in each sense, or two of them."""
    terms = [_make_terms(mask.array) for mask in masks]
    for alternatives in terms:
        yield from alternatives
    for first, second in combinations(terms, 2):
        for term in first:
            for other in second:
                yield np.maximum(term + other, MASKED_SCORE)


def _make_terms(mask: AnyArray) -> list[Floats]:
    """Return what a mask adds to the scores; of flags, in both senses: hidden first, then seen."""
    if mask.dtype == bool:
        return [np.where(flags, MASKED_SCORE, 0.0) for flags in (mask, ~mask)]
    return [np.where(find_masked(mask), MASKED_SCORE, mask)]


def _describe_term(case: FaultCase, term: Floats, own: Floats) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of what is added to the scores in place of ``own``."""
    hidden, own_hidden = _find_hidden(term, own), _find_hidden(own, term)
    if np.array_equal(hidden, own_hidden):
        visible = term[~hidden]
        description = "another bias of the scores" if visible.any() else "no bias of the scores"
        return "relative-bias", description, "adds one" if own[~hidden].any() else "adds none"
    contrast = describe_hidden(own_hidden) if own_hidden.any() else "hides nothing"
    if not hidden.any():
        return "mask-missing", "no mask", contrast
    return (
        name_mask_change(case, hidden, own_hidden),
        f"a mask that {describe_hidden(hidden)}",
        contrast,
    )


def _find_hidden(term: Floats, other: Floats) -> Flags:
    """Return which scores a term hides; also by one number that it adds and another does not."""
    is_masked = find_masked(term)
    if is_masked.any() or find_masked(other).any():
        return is_masked
    difference = term - other
    fill = float(difference.min())
    is_filled: Flags = np.isclose(difference, fill, rtol=_EQUAL_FILL)
    is_mask = fill < 0 and bool(
        np.all(is_filled | np.isclose(difference, 0, atol=_EQUAL_FILL * -fill))
    )
    return is_filled if is_mask else np.zeros(term.shape, bool)


def _find_call(case: FaultCase) -> _Call | None:
    """Return attention over three operands that gives the faithful side's value."""
    faithful = case.faithful
    if not case.is_forward_value or faithful.ndim < 3:
        return None
    has_scores = bool({"attention", *SCORE_KINDS} & set(case.kinds))
    if not has_scores and not is_attention(case.finding.scope):
        return None
    arrays = [
        operand.array for operand in case.operands if _has_head_shape(operand.array, faithful)
    ][:_MAX_OPERANDS]
    cost = float(faithful.size) * faithful.shape[-2]
    for order in _list_operand_orders(len(arrays), cost):
        q, k, v = (arrays[i] for i in order)
        if q.shape != faithful.shape or k.shape != v.shape:
            continue
        k, v = repeat_groups(k, q.shape[-3]), repeat_groups(v, q.shape[-3])
        n_scores = q.shape[-2], k.shape[-2]
        recorded_masks: list[AnyArray] = []
        for mask in _list_masks(case.operands, faithful, n_scores)[:_MAX_MASKS]:
            recorded_masks.append(mask.array)
            if mask.array.dtype == bool:
                recorded_masks.append(~mask.array)
        for number, hidden in enumerate((make_causal_mask(*n_scores), None, *recorded_masks)):
            for scale in (q.shape[-1] ** -0.5, 1.0):
                output = attention(q, k, v, scale, hidden)
                if case.matches_faithful(output):
                    return _Call(q, k, v, scale, hidden, output, is_recorded=number > 1)
    return None


def _list_masks(
    operands: Sequence[Operand], output: AnyArray, score_shape: tuple[int, int]
) -> list[Operand]:
    """Return the operands that may be masks or biases of scores, the smallest first.

    ``output``: of attention (..., heads, length, size); ``score_shape``: queries and keys. Products
    of queries and keys are none.
    """
    masks = [
        operand
        for operand in operands
        if operand.shape[-2:] == score_shape
        and len(operand.shape) <= output.ndim
        and operand.kind not in _SCORE_PRODUCERS
        and not operand.parameter
        and operand.array.dtype.kind in "bf"
        and _broadcasts(operand.shape[:-2], output.shape[:-2])
    ]
    return sorted(masks, key=lambda mask: mask.array.size)


def _broadcasts(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether the axes before queries and keys fit those of an output."""
    if not shape:
        return True
    return all(
        length in (1, other) for length, other in zip(shape, expected[-len(shape) :], strict=True)
    )


def _list_operand_orders(n_arrays: int, cost: float) -> list[tuple[int, ...]]:
    """Return the orders in which operands are tried as q, k and v."""
    if cost >= _MAX_COST or n_arrays < 3:
        return []
    if cost < _MAX_COST_OF_ALL_ORDERS:
        return list(permutations(range(n_arrays), 3))
    return _COMMON_ORDERS


def _has_head_shape(array: AnyArray, output: AnyArray) -> bool:
    """Return whether the array is (..., heads or groups, length, size) for an output of heads."""
    if array.ndim != output.ndim or array.dtype.kind != "f":
        return False
    if array.shape[-2:] != output.shape[-2:]:
        return False
    if array.shape[:-3] != output.shape[:-3]:
        return False
    return output.shape[-3] % array.shape[-3] == 0


HYPOTHESES = (Hypothesis("scale", suggest_whole_attention),)

#: They say where to look, not what is wrong there.
LAST_HYPOTHESES = (Hypothesis("input-source", suggest_other_tensors),)
