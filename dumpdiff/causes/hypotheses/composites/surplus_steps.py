"""Steps that only one side has: without them, the region gives the other side's value.

The records show that the other side has no such op, so this says more than any number that would
explain the value as well. Without dropout, without a soft cap, without a scaling of the embedding.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ....comparison.mask_fill import FILLING_KINDS
from ....model.arrays import AnyArray
from ....model.trace import BACKWARD, FORWARD, OPTIMIZER
from ...fault_case import FaultCase, compute_residual
from ...hypothesis import Statement
from ...region import Region, Step, StepInput
from ..residual_sums import read_mask_factor
from ..wave_tables import is_wave_table
from .activations import ACTIVATION_KINDS
from .change import Change, belongs_to_formula, feeds_softmax, is_lost, list_floating_inputs
from .missing_inputs import is_mask, name_bypass
from .quantizers import scales_quantized

#: Kinds that change no number, or whose other form is no missing step.
_PLAIN_KINDS = {"cast", "reshape", "transpose", "contiguous", "expand", "stack", "concat", "split"}
_SCALING_KINDS = {"mul", "div"}
_MEAN_KINDS = {"mean", "sum", "div"}
#: Causes of steps for which there is no word: what another hypothesis says is better.
_UNNAMED_CAUSES = {"missing-step", "missing-term"}
_ROOT_KINDS = {"rsqrt", "sqrt"}
_NORM_KINDS = {"normalize", "rms_norm", "layer_norm"}
#: Values before the surplus steps that are tried in place of the last one's output.
_MAX_SOURCES = 6


def list_named_surplus_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave out surplus steps for which there is a word: dropout, a scaling, a norm.

    Not in an update: its rule says what a decay or a moment is, where an op is only a sum.
    """
    if case.phase == OPTIMIZER:
        return
    for change in _list_surplus_steps(case, region):
        if change.cause not in _UNNAMED_CAUSES:
            yield replace(change, is_evident=True)


def list_unnamed_surplus_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave out other surplus steps."""
    for change in _list_surplus_steps(case, region):
        if change.cause in _UNNAMED_CAUSES:
            yield change


def _list_surplus_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave out the steps whose kind only the faithful side has, one or several in a row."""
    surplus_numbers = _find_surplus_steps(case, region)
    has_replacement = bool(set(case.faulty_kinds) - set(case.kinds) - _PLAIN_KINDS)
    rotations: dict[int, Change] = {}
    for number in reversed(surplus_numbers):
        if is_mask(region.steps[number].output):
            continue  # what a mask hides says more
        for source, skipped_numbers in _list_sources(region, number, surplus_numbers):
            output = source.array.reshape(region.steps[number].output.shape)
            if np.array_equal(output, region.steps[number].output):
                continue  # without them nothing changes
            if case.phase == BACKWARD and is_lost(case, region, number, output):
                continue  # that no gradient flows says more
            steps = [region.steps[skipped] for skipped in skipped_numbers]
            omission = describe_omission(case, region, number, steps, source)
            if has_replacement and omission.cause == "missing-step" and len(steps) > 1:
                continue  # they are not missing
            change = Change(
                number,
                output,
                omission.cause,
                omission.without.description,
                omission.without.contrast,
                omission.without.parameters,
                mirror=omission.having,
                omitted_values=[step.value for step in steps],
                kept_value=source.value,
            )
            if omission.cause == "rope-missing":
                rotations[number] = change
            yield change
    if len(rotations) > 1:
        first, *others = rotations.values()
        thing = "rotary embedding of the queries and of the keys"
        yield replace(
            first,
            description=f"no {thing}",
            mirror=Statement(thing, "has none"),
            further_outputs={change.number: change.output for change in others},
        )


def list_repeated_surplus_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave out all activations of a kind, or all products with one value, of the faithful side."""
    if case.phase != FORWARD:
        return
    positions_of_steps: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for number in _find_surplus_steps(case, region):
        step = region.steps[number]
        inputs = list_floating_inputs(step)
        kept = [
            (position, item) for position, item in inputs if item.array.shape == step.output.shape
        ]
        if step.kind in ACTIVATION_KINDS and len(kept) == 1:
            positions_of_steps[step.kind, -1][number] = kept[0][0]
        if step.kind in _SCALING_KINDS and len(inputs) == 2:
            for position, item in kept:
                (other,) = (own for _, own in inputs if own is not item)
                text = f"{step.kind} by {other.name}"
                positions_of_steps[text, other.value][number] = position
    for (text, _), positions in positions_of_steps.items():
        if len(positions) > 1:
            first = min(positions)
            yield Change(
                first,
                region.steps[first].output,
                "missing-step",
                f"without {text} at all {len(positions)} places",
                predicted=region.bypass(positions).unchanged,
            )


def has_surplus_ops(case: FaultCase) -> bool:
    """Return whether the finding's ops of the faithful side have a kind that the other's lack."""
    return bool(set(case.kinds) - set(case.faulty_kinds) - _PLAIN_KINDS)


def _find_surplus_steps(case: FaultCase, region: Region) -> list[int]:
    """Return the numbers of the steps of which the faithful side has more than the other side."""
    surplus = Counter(step.kind for step in region.steps)
    surplus.subtract(case.faulty_kinds)
    if case.faithful.size == 1:
        for kind in FILLING_KINDS:
            surplus[kind] = 0  # what a fill removes from a loss may be zero anyway
    return [
        number
        for number, step in enumerate(region.steps)
        if surplus[step.kind] > 0
        and step.kind not in _PLAIN_KINDS
        and not belongs_to_formula(case, region, number)
    ]


def _list_sources(
    region: Region, number: int, surplus_numbers: list[int]
) -> Iterator[tuple[StepInput, tuple[int, ...]]]:
    """Yield (value of the same size, surplus steps between it and the output of a step)."""
    numbers_by_value = {step.value: other for other, step in enumerate(region.steps)}
    size = region.steps[number].output.size
    front: list[tuple[int, tuple[int, ...]]] = [(number, (number,))]
    n_sources = 0
    seen_values: set[int] = set()
    while front and n_sources < _MAX_SOURCES:
        current, skipped = front.pop(0)
        for _, step_input in list_floating_inputs(region.steps[current]):
            if step_input.value in seen_values:
                continue
            seen_values.add(step_input.value)
            if step_input.array.size == size and not step_input.is_parameter:
                n_sources += 1
                yield step_input, skipped
            producer = numbers_by_value.get(step_input.value, -1)
            if producer in surplus_numbers:
                front.append((producer, (producer, *skipped)))


@dataclass(frozen=True)
class Omission:
    """Steps that are left out, as said of the side without them and of the side with them."""

    cause: str
    without: Statement
    having: Statement | None = None


def describe_omission(
    case: FaultCase, region: Region, number: int, steps: list[Step], source: StepInput
) -> Omission:
    """Return what it means that these steps are left out; ``number`` is the last one's."""
    kinds = {step.kind for step in steps}
    names = ", ".join(f"{step.name} ({step.kind})" for step in steps)
    factor = _multiply_numbers(steps) if kinds <= _SCALING_KINDS else None
    if factor is not None:
        return _describe_factor(case, region, number, source, factor, names)
    if len(steps) == 1 and _subtracts_mean(region, number, source):
        without = Statement(f"RMS norm, without {names} of the mean", "has layer norm")
        having = Statement(f"layer norm, with {names} of the mean", "has RMS norm")
        return Omission("norm-kind", without, having)
    for cause, noun, details in _list_nouns(case, steps, source):
        thing = f"{noun}{details} ({names})"
        return Omission(
            cause, Statement(f"no {noun}", f"has {thing}"), Statement(thing, "has none")
        )
    if len(steps) == 1:
        return _describe_step(case, region, number, source)
    cause = "activation-kind" if kinds <= ACTIVATION_KINDS else "missing-step"
    without = Statement(f"without {names}")
    return Omission(cause, without, Statement(f"with {names}", "has no such ops"))


def _describe_factor(
    case: FaultCase, region: Region, number: int, source: StepInput, factor: float, names: str
) -> Omission:
    """Return what leaving out a product with a number means."""
    if not _gates_itself(case, region, number, source):
        return _describe_scaling(_name_scaling(case, region, number), names, factor)
    quick_gelu = f"x sigmoid({factor:.6g} x)"
    return Omission(
        "activation-kind",
        Statement("silu, x sigmoid(x)", f"has {quick_gelu}"),
        Statement(quick_gelu, "has silu, x sigmoid(x)"),
    )


def _describe_step(case: FaultCase, region: Region, number: int, source: StepInput) -> Omission:
    """Return what leaving out one step means."""
    others = [item for _, item in list_floating_inputs(region.steps[number]) if item is not source]
    is_addition = region.steps[number].kind == "add"
    if is_addition and len(others) == 1 and _is_used_twice(case, source.value, others[0]):
        name = others[0].name
        without = Statement(f"its bias added once ({name})", "adds it twice")
        return Omission(
            "bias-doubled", without, Statement(f"its bias added twice ({name})", "adds it once")
        )
    cause, description = name_bypass(case, region, number, others)
    return Omission(cause, Statement(description))


def _gates_itself(case: FaultCase, region: Region, number: int, source: StepInput) -> bool:
    """Return whether a sigmoid reads the output of a step, and multiplies its source.

    This is an activation: silu is x sigmoid(x), quick gelu x sigmoid(1.702 x).
    """
    consumers = region.consumers[number]
    if len(consumers) != 1 or region.steps[consumers[0]].kind != "sigmoid":
        return False
    products = [region.steps[consumer] for consumer in region.consumers[consumers[0]]]
    arrays = [item.array for step in products for item in step.inputs]
    if not products:
        arrays = [operand.array for _, operands in case.consumers for operand in operands]
    return any(
        array.size == source.array.size
        and array.dtype.kind == "f"
        and compute_residual(array, source.array) <= case.limit
        for array in arrays
    )


def _subtracts_mean(region: Region, number: int, source: StepInput) -> bool:
    """Return whether a step subtracts the mean of its input before a norm."""
    step = region.steps[number]
    others = [item for _, item in list_floating_inputs(step) if item is not source]
    is_mean = len(others) == 1 and others[0].producer_kind in _MEAN_KINDS
    has_root = bool(region.find_kinds_after(number) & _ROOT_KINDS)
    return step.kind == "sub" and is_mean and has_root


def _is_used_twice(case: FaultCase, value: int, addend: StepInput) -> bool:
    """Return whether an addend is a vector of weights from which the value was computed already.

    The other side has the vector as well.
    """
    if not addend.is_parameter or addend.array.ndim != 1:
        return False
    return case.depends_on(value, addend.value) and any(
        operand.parameter
        and operand.shape == addend.array.shape
        and np.array_equal(operand.array, addend.array)
        for operand in case.faulty_operands
    )


def _list_nouns(
    case: FaultCase, steps: list[Step], source: StepInput
) -> Iterator[tuple[str, str, str]]:
    """Yield (cause, noun, details) of what the steps are together, if there is a word for it."""
    kinds = {step.kind for step in steps}
    for step in steps:
        for _, item in list_floating_inputs(step):
            factor = read_mask_factor(item.array)
            if step.kind == "mul" and item is not source and factor is not None:
                yield "dropout", "dropout", f" with p = {1 - 1 / factor:.3g}"
    if "dropout" in kinds:
        share = _read_dropout_share(next(step for step in steps if step.kind == "dropout"))
        yield "dropout", "dropout", f" with p = {share:.3g}"
    if "tanh" in kinds and kinds <= _SCALING_KINDS | {"tanh"} and len(kinds) > 1:
        yield "soft-cap", "soft cap", ""
    if kinds >= {"mul", "add"} and any(map(_reads_wave_table, steps)):
        yield "rope-missing", f"rotary embedding of {source.name}", ""
    has_norm = bool(kinds & _NORM_KINDS) and kinds <= _NORM_KINDS | _SCALING_KINDS
    if has_norm or any(_divides_by_own_root(case, step, source, kinds) for step in steps):
        yield "norm-missing", "norm", ""


def _describe_scaling(cause: str, names: str, factor: float) -> Omission:
    return Omission(
        cause,
        Statement(
            f"a factor of 1, without {names}",
            f"multiplies by {factor:.6g}",
            {"factor": 1 / factor},
        ),
        Statement(f"a factor of {factor:.6g} ({names})", "has a factor of 1", {"factor": factor}),
    )


def _name_scaling(case: FaultCase, region: Region, number: int) -> str:
    """Return the cause of a product with a number that is left out."""
    if case.phase == BACKWARD:
        return "constant-factor" if case.is_near_loss else "gradient-scaled"
    if scales_quantized(case, region, number):
        return "quantization-scale"
    if feeds_softmax(case, region, number):
        return "scale"
    consumer_kinds = {region.steps[consumer].kind for consumer in region.consumers[number]}
    is_embedding = any(step.kind == "gather_rows" for step in region.steps[:number])
    reads_embedding = any(
        item.producer_kind == "gather_rows"
        for _, item in list_floating_inputs(region.steps[number])
    )
    is_branch = consumer_kinds == {"add"} and not is_embedding and not reads_embedding
    if is_branch and _bypasses_itself(case, region, number):
        return "residual-scale"
    return "constant-factor"


def _bypasses_itself(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether a step's output is added to something that it was computed from."""
    value = region.steps[number].value
    return any(
        case.depends_on(value, item.value)
        for consumer in region.consumers[number]
        for _, item in list_floating_inputs(region.steps[consumer])
        if item.value not in (value, -1)
    )


def _divides_by_own_root(
    case: FaultCase, step: Step, source: StepInput, kinds: Collection[str]
) -> bool:
    """Return whether a step multiplies a value by the inverse of a root that follows from it.

    Or divides it by the root. ``kinds`` are those of all steps that are left out: the root may be
    one of them, with an epsilon after it. The root of something else, such as a count, is no norm,
    and neither is the root of the value itself.
    """
    root_kinds = {"mul": {"rsqrt", "reciprocal"}, "div": {"sqrt"}}.get(step.kind, set())
    return any(
        item.value != source.value
        and case.depends_on(item.value, source.value)
        and (item.producer_kind in root_kinds or bool(_ROOT_KINDS.intersection(kinds)))
        for item in step.inputs
        if root_kinds
    )


def _reads_wave_table(step: Step) -> bool:
    """Return whether a step multiplies by a table of sines or cosines."""
    return any(
        not item.producer_kind and not item.is_parameter and is_wave_table(item.array)
        for _, item in list_floating_inputs(step)
    )


def _multiply_numbers(steps: list[Step]) -> float | None:
    """Return the number by which products and quotients multiply; None if it is no number."""
    factor = 1.0
    for step in steps:
        numbers = [float(item.array.reshape(-1)[0]) for item in step.inputs if item.array.size == 1]
        if len(numbers) != 1 or not numbers[0]:
            return None
        factor *= numbers[0] if step.kind == "mul" else 1 / numbers[0]
    return factor


def _read_dropout_share(step: Step) -> float:
    """Return p of dropout: what is kept is multiplied by 1 / (1 - p)."""
    x = step.inputs[0].array.reshape(-1)
    output: AnyArray = step.output.reshape(-1)
    is_kept = (output != 0) & (x != 0)
    if not is_kept.any():
        return 1.0
    return 1 - 1 / float(np.median(output[is_kept] / x[is_kept]))
