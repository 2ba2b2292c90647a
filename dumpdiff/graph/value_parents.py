"""What each value of one side was computed from, as far as its record shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..model.int_lists import IntLists
from ..model.trace import FORWARD, OPTIMIZER
from .dataflow import Flow
from .missing_edges import find_enclosing_inputs, has_missing_producer

#: Values that are searched for the next recorded gradient; a longer search leaves the layer.
_MAX_SEARCHED_VALUES = 64


def collect_parents(flow: Flow) -> IntLists:
    """Return per class the classes it was computed from: the operands of its producer.

    The gradient that a backward record was given comes from the gradients of what its value feeds.
    """
    parents: list[list[int]] = [[] for _ in range(len(flow.classes))]
    for value, producer in enumerate(flow.list_column("producer")):
        if producer >= 0:
            parents[value] = list(flow.operands[producer])
    for value, gradient in flow.recorded_gradients.items():
        if flow.producers[gradient] < 0:
            parents[gradient] += _find_next_gradients(flow, value, gradient)
    for parameter, gradient in _iterate_parameter_gradients(flow):
        if not parents[gradient]:
            parents[gradient] += _find_next_gradients(flow, parameter, gradient)
    for zero, total in _iterate_zero_terms(flow):
        if zero not in parents[total]:
            parents[total].append(zero)
    for gradient, total in _iterate_contributions(flow):
        if gradient != total and gradient not in parents[total]:
            parents[total].append(gradient)
    return IntLists.from_lists(parents)


def _iterate_parameter_gradients(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield (parameter, gradient) as the record names them."""
    names = flow.list_column("parameter")
    parameters = {name: value for value, name in enumerate(names) if name}
    parameter_names = flow.list_column("gradient_of")
    for gradient, name in enumerate(parameter_names):
        if name in parameters:
            yield parameters[name], gradient


def _iterate_zero_terms(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield (term, sum) of ops of the optimizer whose result is one of the values that they read.

    In a first step the moments are 0, so the sum of the decayed moment and the gradient is the
    value that the gradient's term is, and no edge leads there from the other term. A term that
    came later may depend on the sum and is left out.
    """
    for op in np.flatnonzero(flow.is_layout).tolist():
        if flow.phases[op] != OPTIMIZER or len(flow.reads[op]) < 2:
            continue
        rows = flow.get_tensor_ids(op)
        results = set(flow.tensor_class[rows[flow.is_computed[rows]]].tolist()) - {-1}
        if len(results) != 1:
            continue
        total = results.pop()
        for term in flow.reads[op]:
            if term != total and 0 <= flow.producers[term] < flow.producers[total]:
                yield term, total


def _iterate_contributions(flow: Flow) -> Iterator[tuple[int, int]]:
    """Yield (gradient that no recorded op reads, gradient that it was added to).

    The latter is the gradient of what the forward call read, or of what that was cut from. The
    gradient of a parameter is not added to another.
    """
    calls, parameter_names = flow.trace.ops["forward"].tolist(), flow.list_column("gradient_of")
    for op, call in enumerate(calls):
        if call < 0 or flow.phases[op] == FORWARD:
            continue
        unread_gradients = [
            value
            for value in flow.writes[op]
            if not flow.consumers[value] and not parameter_names[value]
        ]
        if not unread_gradients:
            continue
        yield from _iterate_partial_gradients(flow, unread_gradients, call)
        for source in _find_gradient_sources(flow, call):
            total = flow.recorded_gradients[source]
            yield from ((gradient, total) for gradient in unread_gradients)


def _iterate_partial_gradients(
    flow: Flow, unread_gradients: Sequence[int], call: int
) -> Iterator[tuple[int, int]]:
    """Yield (unread result of a backward record, named gradient of a parameter that it adds to).

    A parameter that several calls read, as the steps of a recurrence, has a part from each. The
    gradient of one parameter is no part of that of another.
    """
    for parameter in flow.operands[call]:
        total = flow.gradients_of_parameters.get(flow.list_column("parameter")[parameter], -1)
        for value in unread_gradients:
            if total >= 0 and flow.sizes[value] == flow.sizes[total]:
                yield value, total


def _find_gradient_sources(flow: Flow, call: int) -> set[int]:
    """Return the values with a recorded gradient that a call read, or that its inputs come from."""
    with_gradient = flow.recorded_gradients.keys()
    inputs = flow.operands[call]
    sources = with_gradient & inputs
    for value in inputs:
        if value in sources:
            continue
        if has_missing_producer(flow, value):
            sources.update(find_enclosing_inputs(flow, call, value))
    return sources & with_gradient


def _find_next_gradients(flow: Flow, value: int, gradient: int) -> list[int]:
    """Return the other gradients of the outputs of the forward ops that read a value.

    An output without a recorded gradient is replaced by what is computed from it.
    """
    next_gradients: dict[int, None] = {}
    visited = {value}
    stack = [value]
    while stack and len(visited) < _MAX_SEARCHED_VALUES:
        for op in flow.users[stack.pop()]:
            if flow.phases[op] != FORWARD:
                continue
            for output in flow.writes[op]:
                if output in flow.recorded_gradients:
                    next_gradients[flow.recorded_gradients[output]] = None
                elif output not in visited:
                    visited.add(output)
                    stack.append(output)
    next_gradients.pop(gradient, None)
    return list(next_gradients)
