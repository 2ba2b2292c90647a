"""The loss of each side: the scalar from which the backward pass starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..graph import Flow
from ..graph.missing_edges import has_missing_producer
from ..model.dtypes import is_floating
from ..model.trace import BACKWARD, FORWARD
from . import confidence
from .matches import Matching

#: Operators that make a loss a multiple of another value, or leave it as it is.
_SCALING_KINDS = frozenset({"mul", "div", "cast", "identity", "reshape"})


def pair_mistakable_losses(matching: Matching) -> None:
    """Pair losses that agree, and those of which one has the value that the other is computed from.

    Of losses that agree, one may stand where the other side has a term of its own: the mean of
    smoothed losses against the smoothed mean. A loss without label smoothing is the mean that a
    smoothed loss adds a term to. Paired by value, these two would agree, and nothing would be
    compared with the smoothed loss. Where the loss is only a multiple of that value, as with a
    division by the number of tokens that is missing on the other side, the two are paired by value.
    """
    loss_t, loss_r = find_loss(matching.target), find_loss(matching.reference)
    if loss_t < 0 or loss_r < 0:
        return
    if matching.compute_distance(loss_t, loss_r) <= matching.tolerance:
        matching.pair(loss_t, loss_r, "value", confidence.LOSS)
        return
    terms_t = [
        term
        for term in _find_terms(matching.target, matching.kinds_t, loss_t)
        if matching.compute_distance(term, loss_r) <= matching.tolerance
    ]
    terms_r = [
        term
        for term in _find_terms(matching.reference, matching.kinds_r, loss_r)
        if matching.compute_distance(loss_t, term) <= matching.tolerance
    ]
    if terms_t or terms_r:
        matching.pair(loss_t, loss_r, "last", confidence.LOSS)


def find_loss(flow: Flow) -> int:
    """Return the scalar from which the backward pass starts, -1 if no single one can be it.

    That is the only floating scalar that the forward pass computes and does not read again. Of
    several, it is the one with a recorded gradient. What reads a term may not be recorded, as a
    stack: of several with a gradient, it is the one of the first record of the backward pass.
    """
    ends = list_scalar_ends(flow)
    ends_with_gradient = [value for value in ends if value in flow.recorded_gradients]
    ends = ends_with_gradient or ends
    if len(ends) > 1:
        first_call = _find_first_differentiated_call(flow)
        ends = [value for value in ends if flow.producers[value] == first_call >= 0]
    return ends[0] if len(ends) == 1 else -1


def _find_first_differentiated_call(flow: Flow) -> int:
    """Return the forward call of the first record of the backward pass, -1 if it names none."""
    gradient_ops = np.flatnonzero(flow.flag_phase(BACKWARD))
    return int(flow.calls[gradient_ops[0]]) if len(gradient_ops) else -1


def find_unscaled_losses(flow: Flow, kinds: Sequence[str], loss: int) -> frozenset[int]:
    """Return the loss and the scalars that it is a fixed multiple of, by class.

    Loss scaling and the mean over micro-batches multiply the loss by a number that nothing
    computed, and change nothing but the scale of the gradients.
    """
    multiples = {loss}
    value = loss
    while True:
        producer = int(flow.producers[value])
        if producer < 0 or kinds[producer] not in _SCALING_KINDS:
            return frozenset(multiples)
        computed_inputs = [read for read in flow.operands[producer] if flow.producers[read] >= 0]
        is_single = len(computed_inputs) == 1 and flow.sizes[computed_inputs[0]] == 1
        if not is_single or computed_inputs[0] in multiples:
            return frozenset(multiples)
        value = computed_inputs[0]
        multiples.add(value)


def _find_terms(flow: Flow, kinds: Sequence[str], loss: int) -> list[int]:
    """Return the computed scalars that a loss is computed from, without fixed multiples of it."""
    terms: set[int] = set()
    pending = [loss]
    while pending:
        producer = int(flow.producers[pending.pop()])
        for value in flow.operands[producer]:
            if flow.sizes[value] == 1 and flow.producers[value] >= 0 and value not in terms:
                terms.add(value)
                pending.append(value)
    terms -= find_unscaled_losses(flow, kinds, loss)
    return sorted(term for term in terms if _has_other_term(flow, loss, term))


def _has_other_term(flow: Flow, loss: int, term: int) -> bool:
    """Return whether the loss depends on a parameter also by a path around one of its terms."""
    parameters = flow.list_column("parameter")
    return any(parameters[value] for value in _iterate_upstream(flow, loss, without=term))


def _iterate_upstream(flow: Flow, value: int, without: int = -1) -> Iterator[int]:
    """Yield a value and all that it is computed from, by no path through ``without``."""
    visited, pending = {value, without}, [value]
    while pending:
        upstream_value = pending.pop()
        yield upstream_value
        producer = int(flow.producers[upstream_value])
        operands = flow.operands[producer] if producer >= 0 else ()
        new_values = [operand for operand in operands if operand not in visited]
        visited.update(new_values)
        pending += new_values


def list_scalar_ends(flow: Flow) -> list[int]:
    """Return the floating scalars at the end of the forward pass, in order.

    A loss is one of them. A count is none, such as that of the batches that a norm has seen, nor is
    what an op keeps for itself next to a larger result, nor what depends on no parameter.
    """
    dtypes = flow.list_column("dtype")
    has_names = any(flow.list_column("parameter"))
    return [
        value
        for value in np.flatnonzero(flow.sizes == 1).tolist()
        if is_floating(str(dtypes[value]))
        and is_forward_end(flow, value)
        and not _is_workspace(flow, value)
        and (not has_names or _may_depend_on_weights(flow, value))
    ]


def _is_workspace(flow: Flow, value: int) -> bool:
    """Return whether the op that computes a value gives larger ones before it."""
    written_values = flow.writes[int(flow.producers[value])]
    return value in written_values[1:] and flow.sizes[written_values[0]] > 1


def _may_depend_on_weights(flow: Flow, value: int) -> bool:
    """Return whether a parameter may be among what a value is computed from.

    A count of tokens, or an argument of an op, is computed from the batch or from numbers alone.
    Where an op on the way was not recorded, it may.
    """
    parameters = flow.list_column("parameter")
    return any(
        parameters[upstream_value]
        or (flow.producers[upstream_value] < 0 and has_missing_producer(flow, upstream_value))
        for upstream_value in _iterate_upstream(flow, value)
    )


def is_forward_end(flow: Flow, value: int) -> bool:
    """Return whether a forward op computes the value and no forward op computes with it.

    A check of a loss, whether it is finite, gives no number.
    """
    producer = int(flow.producers[value])
    if producer < 0 or flow.phases[producer] != FORWARD:
        return False
    return not any(
        flow.phases[op] == FORWARD and _gives_number(flow, op) for op in flow.users[value]
    )


def _gives_number(flow: Flow, op: int) -> bool:
    """Return whether an op has a floating result, or none that is recorded."""
    rows = flow.get_tensor_ids(op)
    dtypes = flow.tensors["dtype"].to_numpy()[rows[flow.is_output[rows]]]
    return not len(dtypes) or any(is_floating(str(dtype)) for dtype in dtypes)
