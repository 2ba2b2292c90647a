"""Which value is the gradient of which: recorded in API dumps, else inferred from the dataflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..model.trace import FORWARD
from .dataflow import Flow
from .gradients import Gradients
from .inferred_gradients import infer_gradients
from .recorded_gradients import collect_recorded_gradients
from .repeated_values import count_repeats

_RECURRENT_KINDS = frozenset({"lstm", "gru", "rnn"})


def find_gradients(
    flow: Flow, kinds: Sequence[str], known_gradients: Mapping[int, int] | None = None
) -> Gradients:
    """Return the gradients of one side; ``kinds`` are the canonical operator kinds of its ops.

    ``known_gradients``: value -> its gradient, of some values, where they have to be inferred.
    """
    if flow.records_calls:
        gradients = collect_recorded_gradients(flow)
    else:
        gradients = infer_gradients(flow, kinds, known_gradients or {})
    repeats = _add_terms_of_repeats(flow, gradients.by_value, count_repeats(flow))
    shares = dict.fromkeys(_list_inner_states(flow, kinds), 2)
    return replace(gradients, repeats={**shares, **repeats})


def _list_inner_states(flow: Flow, kinds: Sequence[str]) -> list[int]:
    """Return the states that recurrent ops return behind their outputs.

    The output is computed from the state inside of the op. So what flows back to the state from
    outside is a share of its gradient, as it is written out on the other side.
    """
    return [
        value
        for op, kind in enumerate(kinds)
        if kind in _RECURRENT_KINDS and flow.phases[op] == FORWARD
        for value in flow.writes[op][1:]
    ]


def _add_terms_of_repeats(
    flow: Flow, gradient_of: Mapping[int, int], repeats: Mapping[int, int]
) -> dict[int, int]:
    """Return the repeats, also of the values before repeated ones that have the same gradient.

    An example is a term of a sum that is cut out again of the padded sum.
    """
    all_repeats = dict(repeats)
    values = list(repeats)
    while values:
        value = values.pop()
        producer = int(flow.producers[value])
        gradient = gradient_of.get(value)
        if producer < 0 or gradient is None:
            continue
        for operand in flow.operands[producer]:
            if gradient_of.get(operand) == gradient and operand not in all_repeats:
                all_repeats[operand] = all_repeats[value]
                values.append(operand)
    return all_repeats
