"""A change of one step of a region, and the search that runs the region with each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import FORWARD
from ....operators.elementwise import ROUNDINGS
from ...fault_case import FaultCase, compute_residual
from ...hypothesis import Candidate, Statement
from ...region import Region, Step, StepInput
from ..attention import SCORE_KINDS

#: Elements that one kind of change may compute in all its trials together: about half a second.
_MAX_ELEMENTS = 1e7
#: Trials of one kind of change: each also costs the call of a few operators.
_MAX_TRIALS = 400
#: Probability that a kind of change explains a value of few elements by chance, and the number of
#: elements from which on that does not happen: the limit is a tenth of the error at most.
_MAX_CHANCE, _MIN_SAFE_ELEMENTS = 1e-3, 8
#: The same probability of all kinds of change together, relative to that of one kind: it is 1 %.
_ALL_KINDS = 10
#: Steps of an activation that is written out, at most: gelu with a cubic term has eight.
_MAX_STEPS = 9
#: A number below this that is added under a root, or to a divisor, keeps it from zero.
_MAX_EPSILON = 0.5
#: Kinds of ops that take a root of their input, or divide by it.
_ROOT_KINDS = {"rsqrt", "sqrt", "pow", "reciprocal", "div"}
#: Kinds of ops that complete softplus, log(1 + exp x), or sigmoid, 1 / (1 + exp -x).
_ACTIVATION_END_KINDS = {"log", "reciprocal", "div"}
#: Kinds of ops after which a value is no score any more.
_LAYER_KINDS = {"matmul", "addmm", "convolution", "layer_norm", "rms_norm"}
#: Kinds of ops of one value that one side may apply later than the other side.
_MOVED_KINDS = {
    "relu", "gelu", "silu", "sigmoid", "tanh", "elu", "leaky_relu", "softplus", "softmax",
    "dropout", "layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "normalize",
}  # fmt: skip
LOSS_KINDS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}


@dataclass(frozen=True, eq=False)
class Change:
    """Another output of one step, and what it means."""

    number: int  #: of the step
    output: AnyArray
    cause: str
    description: str
    contrast: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)
    is_chaotic: bool = False
    is_evident: bool = False
    mirror: Statement | None = None
    #: other outputs of further steps, by their numbers
    further_outputs: Mapping[int, AnyArray] = field(default_factory=dict)
    #: other values that steps read, by their classes; ``output`` is that of the record then
    replaced_values: Mapping[int, AnyArray] = field(default_factory=dict)
    #: classes of the values that are left out, and of the value that takes their place (-1: none)
    omitted_values: Sequence[int] = ()
    kept_value: int = -1
    region: Region | None = None  #: in place of the region: with values of other shapes
    predicted: AnyArray | None = None  #: the compared value, if several steps were changed for it


def make_search(
    list_changes: Callable[[FaultCase, Region], Iterator[Change]],
    is_applicable: Callable[[FaultCase], bool] = lambda _: True,
    min_trials: int = 0,
) -> Callable[[FaultCase], Iterator[Candidate]]:
    """Return a hypothesis that runs the region with each change, within the allowed cost.

    The region, which costs time to read, is read only for cases that are applicable. ``min_trials``
    changes are tried in any case: what the records show needs less proof by numbers.
    """

    def suggest(case: FaultCase) -> Iterator[Candidate]:
        if case.is_source or case.is_discrete or not is_applicable(case):
            return
        region = case.region
        if region is None:
            return
        unchanged = region.unchanged
        if unchanged is None or not case.matches_faithful(unchanged):
            return
        n_elements = 0.0
        n_safe_trials = count_safe_trials(case)
        max_trials = max(min_trials, min(_MAX_TRIALS, n_safe_trials))
        for n_trials, change in enumerate(_add_joint_changes(region, list_changes(case, region))):
            n_elements += (
                max(region.costs) if change.replaced_values else region.costs[change.number]
            )
            if n_elements > _MAX_ELEMENTS or n_trials >= max_trials:
                return
            is_late = next(case.trial_numbers) > _ALL_KINDS * n_safe_trials
            if is_late and n_trials >= min_trials:
                return
            if change.predicted is not None:
                predicted: AnyArray | None = change.predicted
            elif change.replaced_values:
                predicted = region.run_with_values(change.replaced_values)
            else:
                outputs = {change.number: change.output, **change.further_outputs}
                predicted = (change.region or region).run_changes(outputs)
            if predicted is None:
                continue
            is_omission = bool(change.omitted_values) and case.phase == FORWARD
            meaning = _correct_omission(case, region, change) if is_omission else change
            yield Candidate(
                predicted,
                meaning.description,
                meaning.contrast,
                parameters=meaning.parameters,
                unchanged=unchanged,
                cause=meaning.cause,
                is_chaotic=meaning.is_chaotic,
                is_evident=meaning.is_evident,
                mirror=meaning.mirror,
            )

    return suggest


def _add_joint_changes(region: Region, changes: Iterator[Change]) -> Iterator[Change]:
    """Yield changes, and each together with those of similar steps before it.

    What a loop or a module does several times in one region is wrong every time. No step of them
    may follow from another one: its change was computed from its recorded inputs.
    """
    similar_changes: defaultdict[_Likeness, dict[int, Change]] = defaultdict(dict)
    for change in changes:
        yield change
        is_of_region = change.region is None and change.predicted is None
        if not is_of_region or change.further_outputs or change.replaced_values:
            continue
        likeness = _describe_likeness(region, change)
        joined_numbers = {change.number}
        # steps that read results of other operators are less alike
        for wider_likeness in dict.fromkeys((likeness, replace(likeness, producer_kinds=()))):
            group = _add_to_group(similar_changes, wider_likeness, change)
            numbers = set(group)
            are_apart = not any(region.followers[number] & numbers for number in numbers)
            if are_apart and not numbers <= joined_numbers:
                joined_numbers = numbers
                yield _join_changes(group)


def _add_to_group(
    groups: defaultdict[_Likeness, dict[int, Change]], likeness: _Likeness, change: Change
) -> dict[int, Change]:
    """Add a change to the first group of a likeness that has none of its step, and return it."""
    while change.number in groups[likeness]:
        likeness = replace(likeness, occurrence=likeness.occurrence + 1)
    groups[likeness][change.number] = change
    return groups[likeness]


def _join_changes(group: Mapping[int, Change]) -> Change:
    """Return the first change of a group with the others, by step number, at the same time."""
    first, *others = group
    clause, n_others = group[first].description, len(others)
    return replace(
        group[first],
        description=f"{clause}, and the same at 1 other place"
        if n_others == 1
        else f"{clause}, and the same at {n_others} other places",
        further_outputs={number: group[number].output for number in others},
    )


@dataclass(frozen=True)
class _Likeness:
    """What changes of similar steps have in common."""

    cause: str
    kind: str
    n_axes: int
    producer_kinds: tuple[str, ...]
    words: tuple[str, ...]  #: of the description that are no names of ops and no numbers
    occurrence: int = 0  #: of several changes of one step


def _describe_likeness(region: Region, change: Change) -> _Likeness:
    step = region.steps[change.number]
    words = [word for word in change.description.split() if not any(map(str.isdigit, word))]
    kinds = tuple(item.producer_kind for item in step.inputs)
    return _Likeness(change.cause, step.kind, step.output.ndim, kinds, tuple(words))


def _correct_omission(case: FaultCase, region: Region, change: Change) -> Change:
    """Return the change as one of the order if what it leaves out is applied elsewhere.

    A norm before a sublayer in place of after it, or sublayers in another order, look like a
    missing norm and a missing sublayer as far as the first difference. Gradients and updates are
    different: an order that is another one differs in the forward pass first.
    """
    moved_step = case.find_moved_step(change.omitted_values, change.kept_value)
    if moved_step is not None:
        return _describe_order(
            change,
            f"{moved_step.kind} ({moved_step.parameter}) applied to {moved_step.other_source}",
            f"applies it to {moved_step.own_source}",
        )
    step = region.steps[change.number]
    addends = [item.value for _, item in list_floating_inputs(step)]
    later_op = ""
    if step.kind in _MOVED_KINDS and step.value in change.omitted_values:
        # with its own parameters, if it has any: the next layer has such an op of its own
        parameters = [item.value for item in step.inputs if item.is_parameter]
        later_op = case.find_later_op(step.kind, parameters[0] if parameters else -1)
    elif step.kind == "add" and len(addends) == 2:
        is_left_out = [value in change.omitted_values for value in addends]
        if change.kept_value in addends:
            is_left_out = [value != change.kept_value for value in addends]
        if sum(is_left_out) == 1:
            later_op = case.find_later_op(step.kind, addends[is_left_out.index(True)])
    if not later_op:
        return change
    text = f"{step.kind} applied later, in {later_op}"
    return _describe_order(change, text, f"has it in {step.name}")


def _describe_order(change: Change, description: str, contrast: str) -> Change:
    return replace(
        change,
        cause="layer-order",
        description=description,
        contrast=contrast,
        parameters={},
        is_evident=True,  # both records show the op
        mirror=None,
    )


def count_safe_trials(case: FaultCase) -> float:
    """Return how many changes can be tried before one is likely to be near the value by chance.

    A change that has nothing to do with the fault moves the value about as far as the fault does.
    It comes within the limit with the probability limit / error, for each element.
    """
    if case.faithful.size >= _MIN_SAFE_ELEMENTS:
        return float("inf")
    chance = (case.limit / case.error) ** case.faithful.size
    return _MAX_CHANCE / chance if chance else float("inf")


def list_floating_inputs(step: Step) -> list[tuple[int, StepInput]]:
    """Return (position, input) of the floating tensors and computed numbers that a step reads."""
    return [
        (position, step_input)
        for position, step_input in enumerate(step.inputs)
        if step_input.array.dtype.kind == "f" and (step_input.array.ndim or step_input.value >= 0)
    ]


def compute_with(step: Step, position: int, array: AnyArray) -> AnyArray | None:
    """Return a step's output with one input replaced."""
    inputs = step.list_arrays()
    inputs[position] = array
    with np.errstate(all="ignore"):
        return step.compute(inputs)


def is_lost(case: FaultCase, region: Region, number: int, gradient: AnyArray) -> bool:
    """Return whether a gradient makes no difference to what follows from zeros in its place.

    As one that is the same for all inputs of a softmax.
    """
    own, other = (region.run(number, array) for array in (gradient, np.zeros_like(gradient)))
    return own is not None and other is not None and compute_residual(own, other) <= case.limit


def find_inputs_before(
    region: Region, number: int, *, with_parameters: bool = False
) -> dict[int, AnyArray]:
    """Return by class the values from which a step may have been computed, the last first.

    Only steps that work element by element and keep the order lie in between.
    """
    numbers_by_value = {step.value: i for i, step in enumerate(region.steps)}
    size, shape = region.steps[number].output.size, region.steps[number].output.shape
    values: dict[int, AnyArray] = {}
    front = [number]
    for _ in range(_MAX_STEPS):
        next_front = []
        for i in front:
            for _, step_input in list_floating_inputs(region.steps[i]):
                is_new = step_input.value not in values and step_input.value >= 0
                if not is_new or step_input.array.size != size:
                    continue
                if step_input.is_parameter and not with_parameters:
                    continue
                values[step_input.value] = step_input.array.reshape(shape)
                if step_input.value in numbers_by_value and step_input.order is None:
                    next_front.append(numbers_by_value[step_input.value])
        front = next_front
    return values


def belongs_to_formula(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether a step adds an epsilon, or the one of log(1 + exp x): it is no step by itself.

    An epsilon is a small number that is added to what is under a root, or to a divisor.
    """
    step = region.steps[number]
    numbers = [float(item.array) for item in step.inputs if item.array.ndim == 0]
    if step.kind != "add" or len(numbers) != 1:
        return False
    consumer_kinds = {region.steps[consumer].kind for consumer in region.consumers[number]}
    if not consumer_kinds:
        consumer_kinds = case.list_consumer_kinds()
    is_epsilon = 0 < numbers[0] < _MAX_EPSILON and bool(consumer_kinds & _ROOT_KINDS)
    adds_to_exp = any(item.producer_kind == "exp" for item in step.inputs)
    return is_epsilon or (adds_to_exp and bool(consumer_kinds & _ACTIVATION_END_KINDS))


def feeds_softmax(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether the output of a step becomes the scores of a softmax.

    If a layer reads it, and its output enters a softmax, it does not.
    """
    if region.find_kinds_after(number) & SCORE_KINDS:
        return True
    consumer_kinds = case.list_consumer_kinds()
    is_of_layer = bool(consumer_kinds) and consumer_kinds <= _LAYER_KINDS
    return bool(case.consumer_kinds & SCORE_KINDS) and not is_of_layer


def is_rounded(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether what follows from a step is rounded, as by a quantization."""
    return bool((case.consumer_kinds | region.find_kinds_after(number)) & set(ROUNDINGS))
