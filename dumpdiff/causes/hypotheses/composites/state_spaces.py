"""Recurrences that are written out: their first state, the sign of their decay, their step.

A linear recurrence is h' = exp(P) h + B u, with the decay P = dt A of a step dt. What dt makes of B
is the discretization: dt B (Euler), or (exp(P) - 1) / A B (zero-order hold), which is Euler's term
times (exp(P) - 1) / P. https://arxiv.org/abs/2312.00752, section 2, equation 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ....model.arrays import AnyArray, Floats
from ....model.trace import FORWARD
from ...comparison_index import UNKNOWN_SOURCE
from ...fault_case import FaultCase
from ...region import Region, Step, StepInput
from .change import Change, compute_with, list_floating_inputs

_PRODUCT_KINDS = {"mul", "matmul", "einsum"}
#: Kinds of ops that the gates of a cell have.
_CELL_KINDS = {"sigmoid", "tanh"}
#: Kinds of ops that compute all steps of a layer, and axes of their states: layers, batch, size.
_LAYER_KINDS, _LAYER_STATE_AXES = {"lstm", "gru", "rnn"}, 3
#: The states of such a layer, in the order in which it reads them, after the sequence.
_STATE_NAMES = ("initial hidden state", "initial cell state")
#: Axes of a state at least: the batch, and the channels.
_MIN_STATE_AXES = 2
#: Below this magnitude of the decay the discretizations are equal to float32's rounding.
_MIN_DECAY = 1e-7

#: Name of a discretization -> its term of B over Euler's, from the decay P of a step.
_DISCRETIZATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "dt B (Euler)": np.ones_like,
    "(exp(dt A) - 1) / A B (zero-order hold)": lambda p: np.expm1(p) / p,
    "dt / (1 - dt A / 2) B (bilinear)": lambda p: 1 / (1 - p / 2),
}


def list_other_states(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take the state that an op reads as zeros: the given one, or that of the step before."""
    if case.phase != FORWARD:
        return
    for number, step in enumerate(region.steps):
        if step.kind in _LAYER_KINDS:
            yield from _reset_layer(number, step)
        if step.kind not in _PRODUCT_KINDS:
            continue
        for position, step_input in list_floating_inputs(step):
            is_given = step_input.is_given or _is_unknown_state(case, region, number, step_input)
            is_state = step_input.is_state or _is_previous_state(region, number, step_input)
            if step_input.array.ndim < _MIN_STATE_AXES:
                continue  # a vector of weights, one for each channel, or a part of a loss
            if is_given and not _is_recurrent(case, region, number, step_input):
                is_given = False
            if not is_given and not is_state:
                continue
            output = compute_with(step, position, np.zeros_like(step_input.array))
            if output is not None:
                state = "initial state" if is_given else "state"
                yield Change(
                    number,
                    output,
                    "hidden-state-reset",
                    f"{'an' if is_given else 'a'} {state} of zeros in {step.name}",
                    f"has {step_input.name}",
                )


def _reset_layer(number: int, step: Step) -> Iterator[Change]:
    """Take the initial states of a recurrent layer or a cell as zeros: all of them, and each."""
    states = [
        (position, step_input)
        for position, step_input in list_floating_inputs(step)[1 : 1 + len(_STATE_NAMES)]
        if step_input.array.any()
        and (
            step_input.array.ndim == _LAYER_STATE_AXES
            or (step_input.array.shape == step.output.shape and not step_input.is_parameter)
        )
    ]
    choices = [states] if len(states) > 1 else []
    for chosen in (*choices, *([state] for state in states)):
        inputs = step.list_arrays()
        for position, step_input in chosen:
            inputs[position] = np.zeros_like(step_input.array)
        names = " and ".join(dict.fromkeys(step_input.name for _, step_input in chosen))
        state = "initial state"
        if len(chosen) < len(states):
            state = _STATE_NAMES[states.index(chosen[0])]
        description = f"an {state} of zeros in {step.name} ({step.kind})"
        output = step.compute(inputs)
        if output is not None:
            yield Change(number, output, "hidden-state-reset", description, f"has {names}")
        zeros = {item.value: np.zeros_like(item.array) for _, item in chosen if item.value >= 0}
        if zeros:  # attention may read the state as well
            yield Change(
                number,
                step.output,
                "hidden-state-reset",
                description,
                f"has {names}",
                replaced_values=zeros,
            )


def _is_recurrent(case: FaultCase, region: Region, number: int, step_input: StepInput) -> bool:
    """Return whether a product with a given value may be one with the state of a recurrence.

    Each element of it decays, or it enters gates. What is given to other products is a part of the
    batch.
    """
    if region.steps[number].kind == "mul":
        return True
    kinds = region.find_kinds_after(number) | case.consumer_kinds
    others = [item for item in region.steps[number].inputs if item is not step_input]
    return bool(kinds & _CELL_KINDS) or any(item.producer_kind == "exp" for item in others)


def _is_unknown_state(case: FaultCase, region: Region, number: int, step_input: StepInput) -> bool:
    """Return whether an input of unknown origin enters the gates of a cell."""
    kinds = region.find_kinds_after(number) | case.consumer_kinds
    return step_input.name == UNKNOWN_SOURCE and kinds >= _CELL_KINDS


def _is_previous_state(region: Region, number: int, step_input: StepInput) -> bool:
    """Return whether an input is what an op like one that follows computed in an earlier step."""
    if step_input.is_parameter or not step_input.agrees:
        return False
    name = _strip_numbers(step_input.name.rpartition("/")[2])
    followers = [region.steps[consumer] for consumer in region.consumers[number]]
    return any(
        follower.kind == "add"
        and follower.output.shape == step_input.array.shape
        and _strip_numbers(follower.name) == name
        for follower in followers
    )


def _strip_numbers(name: str) -> str:
    return re.sub(r"\d+", "", name)


def list_decay_signs(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave out the minus sign before an exponential."""
    if case.phase != FORWARD:
        return
    for number, step in enumerate(region.steps):
        if step.kind == "neg" and "exp" in region.find_kinds_after(number):
            yield Change(
                number,
                step.inputs[0].array.reshape(step.output.shape),
                "decay-sign",
                f"{step.inputs[0].name} without the minus sign before the exponential",
            )


def list_discretizations(case: FaultCase, region: Region) -> Iterator[Change]:
    """Multiply a term by the ratio of two discretizations, or replace exp(P) by its expansion."""
    if case.phase != FORWARD:
        return
    decays = _list_decays(case, region)
    for number, step in enumerate(region.steps):
        for decay in decays:
            if step.output.size != decay.size or step.kind not in (*_PRODUCT_KINDS, "exp"):
                continue
            p = decay.reshape(step.output.shape)
            if step.kind == "exp" and not _is_subtracted(region, number):
                yield from _list_decay_forms(number, step, p)
            elif step.kind != "exp":
                yield from _list_input_forms(number, step, p)


def _is_subtracted(region: Region, number: int) -> bool:
    """Return whether one is subtracted from an exponential: it belongs to the input's term."""
    return any(region.steps[consumer].kind == "sub" for consumer in region.consumers[number])


def _list_input_forms(number: int, step: Step, p: Floats) -> Iterator[Change]:
    for own_name, own_term in _DISCRETIZATIONS.items():
        for name, term in _DISCRETIZATIONS.items():
            if name != own_name:
                yield Change(
                    number,
                    step.output * term(p) / own_term(p),
                    "discretization",
                    f"B discretized as {name}",
                    f"has {own_name}",
                )


def _list_decay_forms(number: int, step: Step, p: Floats) -> Iterator[Change]:
    forms = {
        "1 + dt A (Euler)": 1 + p,
        "(1 + dt A / 2) / (1 - dt A / 2) (bilinear)": (2 + p) / (2 - p),
    }
    for name, output in forms.items():
        yield Change(
            number,
            output,
            "discretization",
            f"A discretized as {name}",
            "has exp(dt A) (zero-order hold)",
        )


def _list_decays(case: FaultCase, region: Region) -> list[Floats]:
    """Return the negative tensors whose exponential is taken, in the region or next to it."""
    decays: list[AnyArray] = []
    near_operands = (
        *case.list_shared_operands(),
        *case.find_other_values(case.faithful.shape),
    )
    exponentials = [operand.array for operand in near_operands if operand.kind == "exp"]
    for step in region.steps:
        if step.kind == "exp":
            decays.append(step.inputs[0].array)
        exponentials += [item.array for item in step.inputs if item.producer_kind == "exp"]
    decays += [np.log(array) for array in exponentials if array.size > 1 and array.min() > 0]
    unique_decays: list[Floats] = []
    for p in decays:
        is_decay = p.size > 1 and np.isfinite(p).all() and p.max() < -_MIN_DECAY
        is_known = any(
            np.array_equal(known_decay.reshape(-1), p.reshape(-1)) for known_decay in unique_decays
        )
        if is_decay and not is_known:
            unique_decays.append(p)
    return unique_decays
