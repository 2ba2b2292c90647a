"""What the records of the two regions show: a number, an input or a sign that only one of them has.

There are few such differences, so that also one number, such as a loss, is seldom explained by
chance, and what is said of them is in both records.
"""

from __future__ import annotations

from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations

import numpy as np

from ....model.arrays import AnyArray
from ....model.trace import BACKWARD, FORWARD
from ...element_places import find_window_shift
from ...fault_case import FaultCase, compute_residual, have_same_elements
from ...region import Region, Step, StepInput
from .change import Change, belongs_to_formula, compute_with, list_floating_inputs
from .fitted_numbers import name_argument
from .numbers_in_steps import count_numbers, list_numbers, write_number
from .other_inputs import describe_replacement, name_source
from .surplus_steps import describe_omission

#: Kinds of steps that a number is left out of: without it, nothing is left of them.
_OMITTED_KINDS = {"add", "sub", "mul", "div"}
#: Kinds of steps of two values, of which one may be read twice.
_PAIRING_KINDS = {"add", "sub", "mul", "div", "maximum", "minimum", "matmul"}
#: Kinds of sums, and the kind that the other sign makes of them.
_SIGNED_KINDS = {"add": "sub", "sub": "add"}
#: Kinds of steps that take limits.
_LIMIT_KINDS = {"clamp", "minimum", "maximum", "hardtanh"}
#: Kinds that compute with a constant tensor: a mean of channels, frequencies, a table of positions.
_CONSTANT_READERS = {"add", "sub", "mul", "div", "pow", "maximum", "minimum"}
#: Relative L2 within which values of the two sides are one value.
SAME_VALUE_DISTANCE = 1e-4
#: Values of the other region that are tried in place of one.
_MAX_FOREIGN_VALUES = 6


def list_recorded_differences(case: FaultCase, region: Region) -> Iterator[Change]:
    """Give the region a number, a sign or an input of the other side's region."""
    other_region = case.faulty_region
    if other_region is None:
        return
    for change in chain(
        _list_repeated_inputs(region, other_region),
        _list_missing_numbers(case, region, other_region),
        _list_other_numbers(case, region, other_region),
        _list_number_sets(case, region, other_region),
        _list_exchanged_numbers(region),
        _list_other_signs(case, region, other_region),
        _list_other_constants(case, region, other_region),
        _list_foreign_inputs(case, region, other_region),
    ):
        yield replace(change, is_evident=True)


def _list_missing_numbers(
    case: FaultCase, region: Region, other_region: Region
) -> Iterator[Change]:
    """Leave out the factors and addends that only this region has."""
    surplus = count_numbers(region.steps) - count_numbers(other_region.steps)
    for number, step in enumerate(region.steps):
        is_surplus = any(write_number(own) in surplus for _, own in list_numbers(step))
        if not is_surplus or step.kind not in _OMITTED_KINDS:
            continue
        for _, source in list_floating_inputs(step):
            if source.array.size != step.output.size or belongs_to_formula(case, region, number):
                continue
            omission = describe_omission(case, region, number, [step], source)
            yield Change(
                number,
                source.array.reshape(step.output.shape),
                omission.cause,
                omission.without.description,
                omission.without.contrast,
                omission.without.parameters,
                mirror=omission.having,
                omitted_values=[step.value],
                kept_value=source.value,
            )


def _list_other_numbers(case: FaultCase, region: Region, other_region: Region) -> Iterator[Change]:
    """Put a number that only the other region has in the place of one that only this region has.

    Or in the place of a computed number: of a count, where the other side has a constant.
    """
    own_numbers, other_numbers = count_numbers(region.steps), count_numbers(other_region.steps)
    surplus, others = own_numbers - other_numbers, other_numbers - own_numbers
    for number, step in enumerate(region.steps):
        for position, own in list_numbers(step):
            if write_number(own) in surplus:
                for other in others:
                    yield from _replace_number(case, region, number, position, (own, other))
        for position, step_input in enumerate(step.inputs):
            if step.kind in ("mul", "div") and _is_count(step_input):
                for other in others:
                    yield from _replace_count(region, number, position, other)


def _list_number_sets(case: FaultCase, region: Region, other_region: Region) -> Iterator[Change]:
    """Put all numbers that only the other region has in the places of as many of this region.

    In the order of their sizes: both limits of a clamp.
    """
    own_numbers, other_numbers = count_numbers(region.steps), count_numbers(other_region.steps)
    surplus = sorted((own_numbers - other_numbers).elements())
    others = sorted((other_numbers - own_numbers).elements())
    if len(surplus) != len(others) or len(surplus) < 2:
        return
    new_numbers = dict(zip(surplus, others, strict=True))
    steps: dict[int, Step] = {}
    for number, step in enumerate(region.steps):
        inputs = list(step.inputs)
        for position, own in list_numbers(step):
            if write_number(own) in new_numbers:
                array = np.asarray(new_numbers[write_number(own)])
                inputs[position] = replace(inputs[position], array=array)
                steps[number] = replace(step, inputs=tuple(inputs))
    texts = [", ".join(f"{item:.6g}" for item in items) for items in (others, surplus)]
    names = ", ".join(dict.fromkeys(step.name for step in steps.values()))
    first = min(steps)
    yield Change(
        first,
        region.steps[first].output,
        _name_limits(case, region, list(steps)),
        f"the numbers {texts[0]} in {names}",
        f"has {texts[1]}",
        predicted=region.replace_steps(steps).unchanged,
    )


def _name_limits(case: FaultCase, region: Region, numbers: Sequence[int]) -> str:
    """Return the cause of several other numbers: limits of a loss, or arguments."""
    kinds = {region.steps[number].kind for number in numbers}
    return "loss-threshold" if kinds <= _LIMIT_KINDS and case.is_of_loss else "argument"


def _is_count(step_input: StepInput) -> bool:
    """Return whether an input is one computed number, or counts: computed whole numbers."""
    array = step_input.array
    is_computed = step_input.value >= 0 and not step_input.is_parameter
    return is_computed and (array.size == 1 or np.array_equal(array, np.round(array)))


def _replace_number(
    case: FaultCase, region: Region, number: int, position: int, numbers: tuple[float, float]
) -> Iterator[Change]:
    step = region.steps[number]
    own, other = numbers
    output = compute_with(step, position, np.asarray(other))
    if output is None:
        return
    cause, word = name_argument(case, region, number, numbers)
    description, contrast = f"{word} = {other:.6g} in {step.name}", f"has {own:.6g}"
    yield Change(number, output, cause, description, contrast, {word: other})


def _replace_count(region: Region, number: int, position: int, other: float) -> Iterator[Change]:
    step = region.steps[number]
    step_input = step.inputs[position]
    output = compute_with(step, position, np.full(step_input.array.shape, other))
    if output is None or np.all(step_input.array == other):
        return
    word = "divided" if step.kind == "div" else "multiplied"
    is_single = step_input.array.size == 1
    contrast = f"has the counts of {step_input.name}"
    if is_single:
        own_number = float(step_input.array.reshape(-1)[0])
        contrast = f"has {own_number:.6g}, computed by {step_input.name}"
    cause = "loss-reduction" if region.steps[-1].output.size == 1 else "constant-factor"
    yield Change(
        number,
        output,
        cause if is_single else "pooling",
        f"{word} by {other:.6g} in {step.name}",
        contrast,
        {"the number": other},
    )


def _list_exchanged_numbers(region: Region) -> Iterator[Change]:
    """Exchange the numbers of two steps of one kind, as alpha and 1 - alpha."""
    entries = [
        (number, position, value)
        for number, step in enumerate(region.steps)
        for position, value in list_numbers(step)
    ]
    for (i, position_i, value_i), (j, position_j, value_j) in combinations(entries, 2):
        first, second = region.steps[i], region.steps[j]
        is_pair = i != j and first.kind == second.kind and value_i != value_j
        if not is_pair or j in region.followers[i]:
            continue
        outputs = (
            compute_with(first, position_i, np.asarray(value_j)),
            compute_with(second, position_j, np.asarray(value_i)),
        )
        if outputs[0] is None or outputs[1] is None:
            continue
        yield Change(
            i,
            outputs[0],
            "loss-weight" if region.steps[-1].output.size == 1 else "argument",
            f"{value_j:.6g} in {first.name} and {value_i:.6g} in {second.name}",
            "has the two numbers exchanged",
            further_outputs={j: outputs[1]},
        )


def _list_repeated_inputs(region: Region, other_region: Region) -> Iterator[Change]:
    """Read one value twice, where an op of the other region does so."""
    repeated = [
        first
        for step in other_region.steps
        for (_, first), (_, second) in combinations(list_floating_inputs(step), 2)
        if first.value == second.value >= 0 and first.agrees and step.kind in _PAIRING_KINDS
    ]
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step)
        if step.kind not in _PAIRING_KINDS or len(inputs) != 2:
            continue
        for (_, kept), (position, replaced) in (inputs, inputs[::-1]):
            is_repeated = any(_is_equal(kept.array, item.array) for item in repeated)
            output = compute_with(step, position, kept.array) if is_repeated else None
            if output is not None and not _is_equal(kept.array, replaced.array):
                text = f"{step.name} ({step.kind}) of {kept.name} twice"
                contrast = f"has {replaced.name} in the place of one"
                yield Change(number, output, "input-source", text, contrast)


def _is_equal(array: AnyArray, other: AnyArray) -> bool:
    return array.shape == other.shape and compute_residual(array, other) <= SAME_VALUE_DISTANCE


def _list_other_signs(case: FaultCase, region: Region, other_region: Region) -> Iterator[Change]:
    """Subtract in place of adding, or the reverse, where the other region has the other kind."""
    kinds = Counter(step.kind for step in region.steps)
    other_kinds = Counter(step.kind for step in other_region.steps)
    for number, step in enumerate(region.steps):
        other_kind = _SIGNED_KINDS.get(step.kind)
        inputs = list_floating_inputs(step)
        if other_kind is None or len(inputs) != 2:
            continue
        if (
            kinds[step.kind] <= other_kinds[step.kind]
            or other_kinds[other_kind] <= kinds[other_kind]
        ):
            continue
        for position, step_input in inputs:
            output = compute_with(step, position, -step_input.array)
            if output is not None:
                text, contrast = f"{step_input.name} with the other sign in {step.name}", ""
                if step.kind == "add":
                    text, contrast = f"{step_input.name} subtracted in {step.name}", "adds it"
                cause = _name_sign(case, step, step_input)
                yield Change(number, output, cause, text, contrast, {"factor": -1.0})


def _name_sign(case: FaultCase, step: Step, step_input: StepInput) -> str:
    if case.phase == BACKWARD:
        return "gradient-scaled"
    is_branch = case.phase == FORWARD and step.output.size > 1 and not step_input.is_parameter
    return "residual-scale" if is_branch else "constant-factor"


def _list_other_constants(
    case: FaultCase, region: Region, other_region: Region
) -> Iterator[Change]:
    """Compute with the constants of the other side: the means and deviations of channels, a table.

    Those of one size that steps of one kind read are taken for each other in their order.
    """
    constants, others = (_list_constants(own.steps) for own in (region, other_region))
    steps = dict(enumerate(region.steps))
    changes: list[tuple[int, AnyArray, AnyArray]] = []
    for key, places in constants.items():
        other_places = others.get(key, [])
        if len(other_places) != len(places):
            continue
        for (number, position, item), (*_, other) in zip(places, other_places, strict=True):
            array = other.array.reshape(item.array.shape)
            if compute_residual(array, item.array) <= SAME_VALUE_DISTANCE:
                continue
            inputs = list(steps[number].inputs)
            inputs[position] = replace(item, array=array)
            steps[number] = replace(steps[number], inputs=tuple(inputs))
            changes.append((number, array, item.array))
    if not changes:
        return
    first = changes[0][0]
    cause, text = _describe_constants(case, region, changes)
    names = ", ".join(steps[number].name for number, *_ in changes)
    yield Change(
        first,
        region.steps[first].output,
        cause,
        f"{text}, in {names}",
        predicted=region.replace_steps(steps).unchanged,
    )


def _describe_constants(
    case: FaultCase, region: Region, changes: Sequence[tuple[int, AnyArray, AnyArray]]
) -> tuple[str, str]:
    """Return (cause, description) of constants of the other side; ``changes``: (step, other, own).

    What has an element for each one that is computed belongs to the batch.
    """
    if all(have_same_elements(array, own) for _, array, own in changes):
        return "channel-order", "constants in another order"
    if any(own.size < region.steps[number].output.size for number, _, own in changes):
        return "argument", "constants with other numbers"
    text = "other numbers of the batch"
    _, array, own = changes[0]
    shift = find_window_shift(own, array)
    if shift is not None:
        text = f"the batch cut {list(shift)} places later along its last axes"
    return "loss-target" if case.is_near_loss else "batch", text


def _list_constants(
    steps: Sequence[Step],
) -> Mapping[tuple[str, int], list[tuple[int, int, StepInput]]]:
    """Return (kind, size) -> (number, position, input) of the constant tensors that steps read."""
    constants: defaultdict[tuple[str, int], list[tuple[int, int, StepInput]]] = defaultdict(list)
    for number, step in enumerate(steps):
        for position, item in enumerate(step.inputs):
            is_tensor = item.array.dtype.kind == "f" and item.array.size > 1
            is_known = item.agrees or item.is_parameter or item.producer_kind or item.is_state
            if is_tensor and not is_known and step.kind in _CONSTANT_READERS:
                constants[step.kind, item.array.size].append((number, position, item))
    return constants


def _list_foreign_inputs(case: FaultCase, region: Region, other_region: Region) -> Iterator[Change]:
    """Read a value that both sides have, and that only the other side's region reads."""
    foreign = [
        item for item in list_entering(other_region) if item.agrees and not _holds(region, item)
    ][:_MAX_FOREIGN_VALUES]
    if not foreign:
        return
    reads = [{item.value: item for _, item in list_floating_inputs(step)} for step in region.steps]
    n_readers = Counter(chain.from_iterable(reads))
    own_values = {
        value
        for value, item in ChainMap(*reads).items()
        if value >= 0 and not _holds(other_region, item)
    }
    seen_values: set[int] = set()
    for number, step in enumerate(region.steps):
        for position, item in list_floating_inputs(step):
            if item.value not in own_values:
                continue
            for other in foreign:
                if other.array.size != item.array.size or other.is_parameter != item.is_parameter:
                    continue
                array = other.array.reshape(item.array.shape)
                cause, text, contrast = _describe_source(case, region, number, item, other)
                if item.value not in seen_values:
                    values = {item.value: array}
                    yield Change(number, step.output, cause, text, contrast, replaced_values=values)
                output = compute_with(step, position, array) if n_readers[item.value] > 1 else None
                if output is not None:
                    yield Change(number, output, cause, text, contrast)
            seen_values.add(item.value)


def _describe_source(
    case: FaultCase, region: Region, number: int, item: StepInput, other: StepInput
) -> tuple[str, str, str]:
    """Return (cause, description, contrast) of a step that reads another value.

    If no record shows what made either value, both may be inputs of the run.
    """
    if item.is_parameter:
        return "weight-swapped", f"{other.name} in its place", f"has {item.name}"
    source = (other.name, other.array.reshape(item.array.shape))
    description = describe_replacement(case, region, number, item, source)
    is_recorded = bool(item.producer_kind or other.producer_kind)
    if is_recorded or description[0] != "missing-step":
        return description
    cause, text = name_source(case, region, number, item, source)
    return cause, text, "has another one"


def list_entering(region: Region) -> list[StepInput]:
    """Return the floating tensors that enter a region, each once."""
    computed_values = {step.value for step in region.steps}
    entering = {
        item.value: item
        for step in region.steps
        for _, item in list_floating_inputs(step)
        if item.value >= 0 and item.value not in computed_values and item.array.ndim
    }
    return list(entering.values())


def _holds(region: Region, value: StepInput) -> bool:
    """Return whether a region reads or computes a value, in any layout."""
    arrays = [item.array for step in region.steps for item in step.inputs]
    arrays.append(region.steps[-1].output)
    return any(have_same_numbers(own, value.array) for own in arrays)


def have_same_numbers(array: AnyArray, other: AnyArray) -> bool:
    """Return whether two floating arrays hold one value, in any layout."""
    if array.size != other.size or array.dtype.kind != "f":
        return False
    is_near = compute_residual(array, other) <= SAME_VALUE_DISTANCE
    return is_near or have_same_elements(array, other)
