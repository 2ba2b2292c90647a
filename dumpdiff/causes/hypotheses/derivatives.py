"""Gradients of activations: the derivative is taken of another number than the input.

Backward passes by hand use the result of an activation where that is shorter: 1 - tanh(x)^2. A
result that is taken for the input, or an input for the result, gives another derivative. That of x
times a gate has two terms, of which one may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ...model.arrays import AnyArray
from ...model.trace import BACKWARD
from ...operators import FUNCTIONS_OF_NUMBERS, compute_gradients, compute_interpretations
from ..fault_case import FaultCase
from ..hypothesis import Candidate, Hypothesis

#: Kind -> its derivative as a function of its result.
_DERIVATIVES_BY_RESULT: Mapping[str, Callable[[AnyArray], AnyArray]] = {
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "exp": lambda y: y,
    "elu": lambda y: np.where(y > 0, 1.0, y + 1),
    "softplus": lambda y: -np.expm1(-y),
}
#: Activations that are their input times a gate, a function of the input.
_GATED_KINDS = frozenset({"silu", "gelu", "mish", "hardswish"})
#: Gradients and inputs that are tried.
_MAX_GRADIENTS, _MAX_INPUTS = 4, 16


def suggest_other_number(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the derivative of an activation at its result, or of its input as of a result."""
    last_kinds = {kind for kinds in (case.kinds, case.faulty_kinds) for kind in kinds[-1:]}
    activations = {kind.removeprefix("grad:") for kind in last_kinds} & FUNCTIONS_OF_NUMBERS
    if case.phase != BACKWARD or not activations:
        return
    shape = case.faithful.shape
    gradients = list(case.find_same_size_arrays())[:_MAX_GRADIENTS]
    inputs = [
        operand.array.reshape(shape)
        for operand in (*case.list_shared_operands(), *case.find_other_values(shape))
        if int(np.prod(operand.shape)) == case.faithful.size and operand.is_floating
    ][:_MAX_INPUTS]
    for kind in sorted(activations):
        for gradient in gradients:
            for x in inputs:
                yield from _exchange_numbers(case, kind, gradient, x)


def _exchange_numbers(
    case: FaultCase, kind: str, gradient: AnyArray, x: AnyArray
) -> Iterator[Candidate]:
    """Yield the candidates if the faithful side's value is the gradient of an activation of x."""
    results = dict(compute_interpretations(kind, (x,), output_shape=x.shape))
    for name, unchanged in compute_gradients(kind, (gradient, x)):
        if not case.matches_faithful(unchanged):
            continue
        for other_name, predicted in compute_gradients(kind, (gradient, results[name])):
            if other_name == name:
                yield Candidate(
                    predicted,
                    f"the derivative of {kind} at its result",
                    "takes it at its input",
                    unchanged=unchanged,
                )
        if kind in _GATED_KINDS:
            gate = np.divide(results[name], x, out=np.zeros_like(x), where=x != 0)
            yield Candidate(
                gradient * gate,
                f"the derivative of {kind} with its gate as a constant",
                "has that of the gate",
                unchanged=unchanged,
                cause="gradient-stopped",
            )
            yield Candidate(
                unchanged - gradient * gate,
                f"the derivative of the gate of {kind} alone",
                "has the gate as well",
                unchanged=unchanged,
                cause="missing-term",
            )
        if kind in _DERIVATIVES_BY_RESULT:
            yield Candidate(
                gradient * _DERIVATIVES_BY_RESULT[kind](x),
                f"the derivative of {kind} with its input in place of its result",
                "takes it at its input",
                unchanged=unchanged,
            )
        return


HYPOTHESES = (Hypothesis("input-source", suggest_other_number),)
