"""Activations: another one, the other form of gelu, gate and up changed round."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import AnyArray
from ...operators.activations import ACTIVATIONS
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase

_NEAREST = 10  # operands that may be gate or up


def other_function(s: FaultCase) -> Iterator[Candidate]:
    """r = f(x) or f(x) y, t = g(x) or g(x) y."""
    if not s.is_forward_value:
        return
    inputs = [o.array.reshape(s.faithful.shape) for o in s.find_same_size_operands()]
    for x in inputs:
        made = {name: f(x) for name, f in ACTIVATIONS.items()}
        for name, plain in made.items():
            if s.matches_faithful(plain):
                for other, changed in made.items():
                    if other != name:
                        yield _changed(name, other, changed, plain)
                return
    yield from _gated(s, inputs[:_NEAREST])


def _gated(s: FaultCase, inputs: list[AnyArray]) -> Iterator[Candidate]:
    for gate in inputs:
        for name, f in ACTIVATIONS.items():
            if name in ("identity", "sigmoid", "tanh", "softplus"):
                continue
            opened = f(gate)
            for up in inputs:
                if up is gate or not s.matches_faithful(opened * up):
                    continue
                plain = opened * up
                yield Candidate(
                    f(up) * gate, "gate and up changed round", "", {}, plain, "gate-up-swapped"
                )
                for other, g in ACTIVATIONS.items():
                    if other != name:
                        yield _changed(name, other, g(gate) * up, plain)
                return


def fused_halves(s: FaultCase) -> Iterator[Candidate]:
    """r = f(first half) second half of one operand; t with the halves changed round, or another f."""
    if not s.is_forward_value:
        return
    for o in s.operands:
        if (
            not o.shape
            or o.shape[-1] % 2
            or int(np.prod(o.shape)) != 2 * s.faithful.size
            or o.array.dtype.kind != "f"
        ):
            continue
        first, second = (half.reshape(s.faithful.shape) for half in np.split(o.array, 2, axis=-1))
        for gate, up in ((first, second), (second, first)):
            for name in ("silu", "gelu (tanh)", "gelu (erf)", "sigmoid", "relu"):
                plain = ACTIVATIONS[name](gate) * up
                if s.matches_faithful(plain):
                    swapped = ACTIVATIONS[name](up) * gate
                    yield Candidate(
                        swapped, "gate and up changed round", "", {}, plain, "gate-up-swapped"
                    )
                    for other, g in ACTIVATIONS.items():
                        if other != name:
                            yield _changed(name, other, g(gate) * up, plain)
                    return


def _changed(name: str, other: str, made: AnyArray, plain: AnyArray) -> Candidate:
    cause = (
        "gelu-variant"
        if name.startswith("gelu") and other.startswith("gelu")
        else "activation-kind"
    )
    return Candidate(made, other, f"has {name}", {}, plain, cause)


HYPOTHESES = (
    Hypothesis("activation-kind", other_function),
    Hypothesis("gate-up-swapped", fused_halves),
)
