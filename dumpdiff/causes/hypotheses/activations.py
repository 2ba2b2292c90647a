"""Activations: another function, the other form of gelu, gate and up swapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from ...model.arrays import AnyArray
from ...operators.activations import ACTIVATIONS, ACTIVATIONS_BY_KIND, is_shown
from ..fault_case import FaultCase, Operand
from ..hypothesis import Candidate, Hypothesis

#: Operands, the nearest first, that may be gate or up.
_MAX_GATE_OPERANDS = 10
#: Activations that gate nothing in practice, and those that may gate.
_NO_GATES = (
    "identity", "sigmoid", "tanh", "softplus", "selu", "relu6", "hardsigmoid", "hardtanh",
    "logsigmoid", "softsign",
)  # fmt: skip
_GATES = tuple(name for name in ACTIVATIONS if name not in _NO_GATES)
#: Activations that are tried for a fused gate.
_FUSED_GATES = ("silu", "gelu (tanh)", "gelu (erf)", "sigmoid", "relu")


def suggest_other_activation(case: FaultCase) -> Iterator[Candidate]:
    """Suggest another activation: faithful = f(x) or f(x) y, faulty = g(x) or g(x) y."""
    if not case.is_forward_value:
        return
    inputs = list(case.find_same_size_arrays())
    for x in inputs:
        outputs = {name: function(x) for name, function in ACTIVATIONS.items()}
        for name in _order_names(case):
            output = outputs[name]
            if is_shown(name, x) and case.matches_faithful(output):
                yield from _replace_activation(case, name, output, x, outputs.__getitem__)
                return
    yield from _suggest_gated(case, inputs[:_MAX_GATE_OPERANDS])


def _order_names(case: FaultCase) -> list[str]:
    """Return the names of all activations, those of the recorded ops first."""
    recorded_kinds = [*case.kinds, case.call.kind] if case.call is not None else case.kinds
    recorded_names = [name for kind in recorded_kinds for name in ACTIVATIONS_BY_KIND.get(kind, ())]
    return list(dict.fromkeys((*recorded_names, *ACTIVATIONS)))


def _suggest_gated(case: FaultCase, inputs: Sequence[AnyArray]) -> Iterator[Candidate]:
    for gate, name in product(inputs, _GATES):
        if not is_shown(name, gate):
            continue
        activated = ACTIVATIONS[name](gate)
        for up in inputs:
            if up is not gate and case.matches_faithful(activated * up):
                yield from _change_gate(case, gate, up, name)
                return


def suggest_fused_gate(case: FaultCase) -> Iterator[Candidate]:
    """Suggest swapped halves or another f, if faithful = f(half) half of one operand."""
    if not case.is_forward_value:
        return
    for operand in case.operands:
        if not _holds_gate_and_up(operand, case.faithful):
            continue
        halves = np.split(operand.array, 2, axis=-1)
        first, second = (half.reshape(case.faithful.shape) for half in halves)
        for gate, up in ((first, second), (second, first)):
            for name in _FUSED_GATES:
                is_equal = case.matches_faithful(ACTIVATIONS[name](gate) * up)
                if is_shown(name, gate) and is_equal:
                    yield from _change_gate(case, gate, up, name)
                    return


def _holds_gate_and_up(operand: Operand, output: AnyArray) -> bool:
    if not operand.shape or operand.shape[-1] % 2:
        return False
    if int(np.prod(operand.shape)) != 2 * output.size:
        return False
    return operand.is_floating


def _change_gate(case: FaultCase, gate: AnyArray, up: AnyArray, name: str) -> Iterator[Candidate]:
    """Yield f(gate) up with gate and up swapped, then with another f."""
    function = ACTIVATIONS[name]
    unchanged = function(gate) * up
    yield Candidate(
        function(up) * gate,
        "gate and up swapped",
        unchanged=unchanged,
        cause="gate-up-swapped",
    )
    yield from _replace_activation(
        case, name, unchanged, gate, lambda other: ACTIVATIONS[other](gate) * up
    )


def _replace_activation(
    case: FaultCase,
    name: str,
    unchanged: AnyArray,
    x: AnyArray,
    compute_output: Callable[[str], AnyArray],
) -> Iterator[Candidate]:
    """Yield the output with every other activation of ``x``."""
    for other in ACTIVATIONS:
        if other == name or not is_shown(other, x):
            continue
        if _is_exchanged(case, name, other):
            text = f"{other} and {name} of each other's part"
            yield Candidate(compute_output(other), text, unchanged=unchanged, cause="split-order")
            continue
        is_variant = name.startswith("gelu") and other.startswith("gelu")
        yield Candidate(
            compute_output(other),
            other,
            f"has {name}",
            unchanged=unchanged,
            cause="gelu-variant" if is_variant else "activation-kind",
        )


def _is_exchanged(case: FaultCase, name: str, other: str) -> bool:
    """Return whether both sides have two activations, equally often: they read each other's part.

    As in tanh(a) sigmoid(b) with a and b exchanged. Both forms of gelu are calls of one kind, which
    do not show it.
    """
    counts, faulty_counts = Counter(case.kinds), Counter(case.faulty_kinds)
    kinds_of_functions = [
        {kind for kind, names in ACTIVATIONS_BY_KIND.items() if function in names}
        for function in (name, other)
    ]
    if kinds_of_functions[0] & kinds_of_functions[1]:
        return False
    for kinds in kinds_of_functions:
        n_calls, n_faulty_calls = (
            sum(own_counts[kind] for kind in kinds) for own_counts in (counts, faulty_counts)
        )
        if not n_calls or n_calls != n_faulty_calls:
            return False
    return True


HYPOTHESES = (
    Hypothesis("activation-kind", suggest_other_activation),
    Hypothesis("gate-up-swapped", suggest_fused_gate),
)
