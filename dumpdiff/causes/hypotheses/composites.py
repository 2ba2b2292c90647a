"""A region as a whole: the faithful side's operators, run again with one thing changed.

The other side may have fused, split or reordered the operators, or recorded none of the values in
between. What follows from the change is compared with its value at the end of the region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from ...comparison.narrow_dtypes import round_to_dtype
from ...model.arrays import AnyArray
from ...model.dtypes import get_unit_roundoff
from ...model.trace import BACKWARD, FORWARD
from ...operators.activations import ACTIVATIONS
from ...operators.convolution import PADDING_MODES, convolve, list_settings
from ..fault_case import FaultCase, compute_residual, find_masked
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_number
from ..region import Region, Step, StepInput
from .attention import is_cross_attention

#: Elements that one kind of change may compute in all its trials together: about half a second.
_MAX_ELEMENTS = 1e7
#: Trials of one kind of change: each also costs the call of a few operators.
_MAX_TRIALS = 400
#: Fewest elements from which a number is solved for.
_MIN_FITTED = 8
#: Largest input that is tried with other tensors in its place.
_MAX_REPLACED_ELEMENTS = 1 << 17
#: Tensors of the region that are tried in place of another.
_MAX_REPLACEMENTS = 10
#: Relative L2 within which the values of the two sides are the same value.
_EQUAL_DISTANCE = 1e-3
#: Pieces of an axis whose order is tried.
_CHUNKS = (2, 3, 4)
#: Errors beyond this many units of a narrow type are no rounding errors.
_MAX_ROUNDING_UNITS = 32.0
#: A smaller factor is zero; a factor so near to -1 is another sign.
_ZERO_FACTOR, _SIGN_DISTANCE = 1e-6, 1e-4
_GATED_KINDS = {"sigmoid", "tanh"}
_LOSS_KINDS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
#: Kinds whose inputs may come from anywhere in the model.
_SOURCE_KINDS = {"concat", "add", "sub", "convolution", "matmul", *_LOSS_KINDS}
_SCORE_KINDS = {"softmax", "scaled_masked_softmax"}
_ACTIVATION_KINDS = {
    "silu", "gelu", "fast_gelu", "relu", "sigmoid", "tanh", "softplus", "mish", "hardswish", "elu",
    "leaky_relu", "relu6", "erf",
}  # fmt: skip
_ROOT_KINDS = {"rsqrt", "sqrt", "pow", "div", "reciprocal"}


@dataclass(frozen=True, eq=False)
class _Change:
    """Another output of one step, and what it means."""

    number: int  #: of the step
    output: AnyArray
    cause: str
    description: str
    contrast: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)
    is_chaotic: bool = False


def _make_search(
    list_changes: Callable[[FaultCase, Region], Iterator[_Change]],
) -> Callable[[FaultCase], Iterator[Candidate]]:
    """Return a hypothesis that runs the region with each change, within the allowed cost."""

    def suggest(case: FaultCase) -> Iterator[Candidate]:
        region = case.region
        if region is None or case.is_source or case.is_discrete:
            return
        unchanged = region.run_all()
        if unchanged is None or not case.matches_faithful(unchanged):
            return
        n_elements = 0.0
        for n_trials, change in enumerate(list_changes(case, region)):
            n_elements += region.costs[change.number]
            if n_elements > _MAX_ELEMENTS or n_trials >= _MAX_TRIALS:
                return
            predicted = region.run(change.number, change.output)
            if predicted is None:
                continue
            yield Candidate(
                predicted,
                change.description,
                change.contrast,
                parameters=change.parameters,
                unchanged=unchanged,
                cause=change.cause,
                is_chaotic=change.is_chaotic,
            )

    return suggest


def _list_floating_inputs(step: Step) -> list[tuple[int, StepInput]]:
    """Return (position, input) of the floating tensors that a step reads."""
    return [
        (position, step_input)
        for position, step_input in enumerate(step.inputs)
        if step_input.array.dtype.kind == "f" and step_input.array.ndim
    ]


def _compute_with(step: Step, position: int, array: AnyArray) -> AnyArray | None:
    """Return a step's output with one input replaced."""
    inputs = step.list_arrays()
    inputs[position] = array
    with np.errstate(all="ignore"):
        return step.compute(inputs)


# ---- numbers


def _list_other_arguments(case: FaultCase, region: Region) -> Iterator[_Change]:
    """Change a number that an op takes: first to those of the other side, then to the best one."""
    if case.faithful.size < _MIN_FITTED:
        return
    for number, step in enumerate(region.steps):
        for position, step_input in enumerate(step.inputs):
            if step_input.array.ndim == 0 and step_input.array.dtype.kind == "f":
                yield from _change_argument(case, region, number, position)


def _change_argument(
    case: FaultCase, region: Region, number: int, position: int
) -> Iterator[_Change]:
    step = region.steps[number]
    recorded = float(step.inputs[position].array)

    def run(value: float) -> AnyArray | None:
        output = _compute_with(step, position, np.asarray(value))
        return None if output is None else region.run(number, output)

    value = fit_number(run, recorded, case.faulty)
    if value is None:
        return
    output = _compute_with(step, position, np.asarray(value))
    if output is None:
        return
    cause, word = _name_argument(region, number, recorded, value)
    yield _Change(
        number,
        output,
        cause,
        f"{word} = {value:.4g} in {step.name}" if word != "epsilon" else f"epsilon = {value:.2g}",
        f"has {recorded:.4g}" if word != "epsilon" else f"uses {recorded:.2g}",
        {word: value},
    )


def _name_argument(region: Region, number: int, recorded: float, value: float) -> tuple[str, str]:
    """Return (cause, word) of a number that an op takes."""
    step = region.steps[number]
    kinds_after = region.find_kinds_after(number)
    is_small = 0 <= recorded < 0.5 and 0 <= value < 1
    if step.kind == "add" and is_small and kinds_after & _ROOT_KINDS:
        return "epsilon", "epsilon"
    if step.kind.endswith("norm") and is_small:
        return "epsilon", "epsilon"
    if step.kind in ("mul", "div") and kinds_after & _SCORE_KINDS:
        return "scale", "the number"
    if step.kind in ("mul", "div"):
        return "constant-factor", "the number"
    return "argument", "the number"


def _list_factors(case: FaultCase, region: Region) -> Iterator[_Change]:
    """Multiply the output of a step by the best number."""
    if case.faithful.size < _MIN_FITTED:
        return
    for number, step in enumerate(region.steps):
        if step.output.dtype.kind != "f":
            continue

        def run(factor: float, number: int = number) -> AnyArray | None:
            return region.run(number, factor * region.steps[number].output)

        factor = fit_number(run, 1.0, case.faulty)
        if factor is None:
            continue
        yield _Change(
            number,
            factor * step.output,
            *_describe_factor(case, region, number, factor),
            parameters={"factor": factor},
        )


def _describe_factor(
    case: FaultCase, region: Region, number: int, factor: float
) -> tuple[str, str]:
    """Return (cause, description) of a step's output multiplied by a number."""
    step = region.steps[number]
    description = f"{step.name} ({step.kind}) {factor:.6g} times the {case.faithful_side}'s"
    if abs(factor) < _ZERO_FACTOR:
        cause = "gradient-stopped" if case.phase == BACKWARD else "missing-term"
        return cause, f"{step.name} ({step.kind}) left out"
    kinds_after = region.find_kinds_after(number)
    consumer_kinds = {region.steps[consumer].kind for consumer in region.consumers[number]}
    if case.phase != FORWARD:
        cause = "gradient-scaled" if case.phase == BACKWARD else "clip"
    elif abs(factor + 1) < _SIGN_DISTANCE and "exp" in kinds_after:
        cause, description = "decay-sign", f"{step.name} ({step.kind}) with the other sign"
    elif kinds_after & _SCORE_KINDS:
        cause = "scale"
        description = f"attention scores {factor:.6g} times the {case.faithful_side}'s"
    else:
        cause = "residual-scale" if consumer_kinds == {"add"} else "constant-factor"
    return cause, description


def _list_offsets(case: FaultCase, region: Region) -> Iterator[_Change]:
    """Add the best number to the output of a step."""
    if case.faithful.size < _MIN_FITTED:
        return
    for number, step in enumerate(region.steps):
        if step.output.dtype.kind != "f":
            continue

        def run(offset: float, number: int = number) -> AnyArray | None:
            return region.run(number, region.steps[number].output + offset)

        offset = fit_number(run, 0.0, case.faulty)
        if offset is not None:
            yield _Change(
                number,
                step.output + offset,
                "constant-offset",
                f"{step.name} ({step.kind}) plus {offset:.4g}",
                parameters={"offset": offset},
            )


# ---- other forms of one operator


#: Kind -> cause of another reading of the same call.
_VARIANT_CAUSES: Mapping[str, str] = {
    "softmax": "softmax-axis", "log_softmax": "softmax-axis", "gelu": "gelu-variant",
    "matmul": "weight-transposed", "cross_entropy": "loss-reduction", "nll_loss": "loss-reduction",
    "mse_loss": "loss-reduction", "l1_loss": "loss-reduction", "rope": "rope-layout",
    "swiglu": "gate-up-swapped", "geglu": "gate-up-swapped", "glu": "gate-up-swapped",
    "var": "biased-variance", "std": "biased-variance", "group_norm": "norm-groups",
    "instance_norm": "norm-groups", "sub": "input-order", "div": "input-order",
    "cumsum": "scan-direction", "cumprod": "scan-direction",
}  # fmt: skip


def _list_variants(_case: FaultCase, region: Region) -> Iterator[_Change]:
    """Read the same call otherwise: another axis, form, reduction, padding or interpolation."""
    for number, step in enumerate(region.steps):
        if step.places is not None:
            continue
        for name, output in step.interpret(step.list_arrays()):
            if name == step.interpretation or output.shape != step.output.shape:
                continue
            cause = _name_variant(step, name)
            if step.kind == "matmul":
                names = [item.name for _, item in _list_floating_inputs(step)]
                yield _Change(number, output, cause, f"{names[-1]} transposed")
            elif cause:
                yield _Change(
                    number,
                    output,
                    cause,
                    f"{step.kind} with {name or 'the default form'}",
                    f"has {step.interpretation or 'the default form'}",
                )


def _name_variant(step: Step, name: str) -> str:
    """Return the cause of another interpretation of a step, '' if it has no name."""
    if step.kind == "attention":
        return "mask-missing" if name == "no mask" else "mask-shifted"
    if step.kind == "convolution":
        own, other = (text.split(", dilation ") for text in (step.interpretation, name))
        return "padding-mode" if own[1:] == other[1:] else "dilation"
    if step.kind == "upsample":
        is_alignment = "linear" in name and "linear" in step.interpretation
        return "align-corners" if is_alignment else "resize-mode"
    return _VARIANT_CAUSES.get(step.kind, "")


def _list_activations(_case: FaultCase, region: Region) -> Iterator[_Change]:
    """Replace an activation by another one, or leave it out."""
    for number, step in enumerate(region.steps):
        if step.kind not in _ACTIVATION_KINDS or step.inputs[0].array.shape != step.output.shape:
            continue
        own = step.interpretation or step.kind
        for name, function in ACTIVATIONS.items():
            if name in (step.kind, step.interpretation):
                continue
            is_variant = "gelu" in own and "gelu" in name
            yield _Change(
                number,
                function(step.inputs[0].array),
                "gelu-variant" if is_variant else "activation-kind",
                name,
                f"has {own}",
            )


def _list_padding_modes(_case: FaultCase, region: Region) -> Iterator[_Change]:
    """Fill the padding of a convolution otherwise."""
    for number, step in enumerate(region.steps):
        if step.kind != "convolution":
            continue
        x, weight = (step_input.array for step_input in step.inputs[:2])
        settings = [
            candidate
            for candidate in list_settings(x.shape, weight.shape, step.output.shape)
            if str(candidate) == step.interpretation
        ]
        if not settings or not max(settings[0].padding):
            continue
        rest = step.output - convolve(x, weight, settings[0])
        for mode in PADDING_MODES:
            if mode == "zeros":
                continue
            changed_settings = type(settings[0])(
                settings[0].stride, settings[0].dilation, settings[0].padding, mode
            )
            try:
                output = convolve(x, weight, changed_settings) + rest
            except ValueError:
                continue
            yield _Change(number, output, "padding-mode", f"padding mode {mode}", "pads with zeros")


# ---- inputs


def _list_missing_inputs(case: FaultCase, region: Region) -> Iterator[_Change]:
    """Leave an addend or a factor out, count an addend twice, or take an input as zero."""
    for number, step in enumerate(region.steps):
        inputs = _list_floating_inputs(step)
        for position, step_input in inputs:
            array = step_input.array
            neutral = np.ones_like(array) if step.kind in ("mul", "div") else np.zeros_like(array)
            output = _compute_with(step, position, neutral)
            if output is not None:
                yield _Change(
                    number, output, *_name_missing_input(case, region, number, step_input)
                )
            if step.kind == "add" and len(inputs) > 1:
                output = _compute_with(step, position, 2 * array)
                is_bias = step_input.is_parameter and array.ndim == 1
                cause = "bias-doubled" if is_bias else "residual-scale"
                if case.phase == BACKWARD:
                    cause = "gradient-scaled"
                if output is not None:
                    yield _Change(number, output, cause, f"{step_input.name} added twice")


def _name_missing_input(
    case: FaultCase, region: Region, number: int, step_input: StepInput
) -> tuple[str, str]:
    """Return (cause, description) of an input that is left out."""
    step = region.steps[number]
    if case.phase == BACKWARD:
        return "gradient-stopped", f"the gradient through {step_input.name} missing"
    if step_input.is_parameter and step_input.array.ndim == 1 and step.kind != "mul":
        return "bias-missing", f"without its bias ({step_input.name})"
    if step.kind in ("add", "sub", "masked_fill", "where") and step_input.array.ndim > 1:
        if _is_mask(step_input.array) or _feeds_softmax(case, region, number):
            return _name_score_term(case, step_input)
        is_skip = step_input.agrees and not step_input.is_parameter
        if is_skip and step_input.array.shape == step.output.shape:
            return "skip-missing", f"without {step_input.name} in the sum {step.name}"
    return "missing-term", f"without {step_input.name} in {step.name} ({step.kind})"


def _list_bypassed_steps(case: FaultCase, region: Region) -> Iterator[_Change]:
    """Leave a step out: what follows reads one of its inputs in place of its output."""
    for number, step in enumerate(region.steps):
        for _, step_input in _list_floating_inputs(step):
            if step_input.array.size != step.output.size or step.kind == "cast":
                continue
            if step.places is not None:
                continue
            others = [other for _, other in _list_floating_inputs(step) if other is not step_input]
            cause, description = _name_bypass(case, region, number, others)
            yield _Change(number, step_input.array.reshape(step.output.shape), cause, description)


def _name_bypass(
    case: FaultCase, region: Region, number: int, others: Sequence[StepInput]
) -> tuple[str, str]:
    """Return (cause, description) of a step that is left out."""
    step = region.steps[number]
    if others:
        return _name_missing_input(case, region, number, others[0])
    if step.kind.endswith("norm"):
        return "norm-missing", f"without {step.name} ({step.kind})"
    if step.kind in _ACTIVATION_KINDS:
        return "activation-kind", f"without {step.name} ({step.kind})"
    if step.kind in ("mul", "div"):
        cause = "scale" if _feeds_softmax(case, region, number) else "constant-factor"
        numbers = [float(item.array) for item in step.inputs if item.array.size == 1] or [1.0]
        return cause, f"without the factor of {step.name} ({step.kind} {numbers[0]:.6g})"
    return "missing-step", f"without {step.name} ({step.kind})"


def _list_replaced_inputs(case: FaultCase, region: Region) -> Iterator[_Change]:
    """Give a step another tensor of the same shape, or two of its inputs in the other order."""
    replacements = _list_replacements(case, region)
    for number, step in enumerate(region.steps):
        inputs = _list_floating_inputs(step)
        if len(inputs) > 1 and step.kind not in ("add", "mul", "maximum", "minimum"):
            yield from _swap_inputs(number, step, inputs)
        for position, step_input in inputs:
            if step_input.array.size > _MAX_REPLACED_ELEMENTS:
                continue
            fitting = [
                entry
                for entry in replacements
                if _fits(entry[1].shape, step_input.array.shape, step.kind)
                and not _holds_same_elements(entry[1], step_input.array)
            ]
            fitting = fitting[:_MAX_REPLACEMENTS]
            if step.kind in _SOURCE_KINDS and not step_input.is_parameter:
                fitting += _list_values_elsewhere(case, step_input)
            for name, array, is_parameter in fitting:
                output = _compute_with(step, position, array)
                if output is None or _is_bypass(region, step_input, array):
                    continue
                swaps_weights = is_parameter and step_input.is_parameter
                cause, description = "weight-swapped", f"{name} in its place"
                if not swaps_weights:
                    cause, description = _name_source(case, region, number, step_input, name)
                yield _Change(number, output, cause, description, f"has {step_input.name}")


def _name_source(
    case: FaultCase, region: Region, number: int, step_input: StepInput, name: str
) -> tuple[str, str]:
    """Return (cause, description) of a step that reads the value ``name`` in place of another."""
    step = region.steps[number]
    if step.kind == "add" and _feeds_softmax(case, region, number):
        return _name_score_term(case, step_input)
    if step.kind in _LOSS_KINDS or (case.is_near_loss and step.kind == "sub"):
        return "loss-target", f"the loss against {name}"
    if step.kind == "add":
        return "residual-order", f"the residual taken from {name}"
    if step.kind == "concat":
        return "skip-source", f"{name} joined in {step.name}"
    return "input-source", f"{step.name} ({step.kind}) of {name}"


def _is_bypass(region: Region, step_input: StepInput, array: AnyArray) -> bool:
    """Return whether an array is what the step before reads: leaving it out is tried by itself."""
    for step in region.steps:
        if step.value != step_input.value:
            continue
        return any(
            compute_residual(array, item.array) < _EQUAL_DISTANCE
            for _, item in _list_floating_inputs(step)
            if item.array.size == array.size
        )
    return False


def _holds_same_elements(array: AnyArray, other: AnyArray) -> bool:
    """Return whether two arrays hold the same numbers in any order: another layout of one value."""
    if array.size != other.size:
        return False
    return np.array_equal(np.sort(array, axis=None), np.sort(other, axis=None))


def _list_values_elsewhere(
    case: FaultCase, step_input: StepInput
) -> list[tuple[str, AnyArray, bool]]:
    """Return (name, array, False) of values of the same shape that both sides have."""
    size = step_input.array.size
    return [
        (operand.name, operand.array.reshape(step_input.array.shape), False)
        for operand in case.find_other_values(step_input.array.shape)
        if operand.array.size == size
    ]


def _fits(shape: tuple[int, ...], expected: tuple[int, ...], kind: str) -> bool:
    """Return whether a tensor can take the place of another; in sums also one that broadcasts."""
    if shape == expected:
        return True
    if kind not in ("add", "mul") or len(shape) != len(expected):
        return False
    return all(length in (1, other) for length, other in zip(shape, expected, strict=True))


def _feeds_softmax(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether the output of a step becomes the scores of a softmax."""
    return bool((region.find_kinds_after(number) | case.consumer_kinds) & _SCORE_KINDS)


def _name_score_term(case: FaultCase, step_input: StepInput) -> tuple[str, str]:
    """Return (cause, description) of a term of attention scores that is left out or replaced."""
    if _is_mask(step_input.array):
        cause = "cross-mask" if is_cross_attention(case.finding.scope) else "mask-missing"
        return cause, f"no mask ({step_input.name})"
    return "relative-bias", f"scores without the bias {step_input.name}"


def _is_mask(array: AnyArray) -> bool:
    """Return whether an array to be added holds zeros and masking constants only."""
    is_masked = find_masked(array)
    return bool(is_masked.any() and not array[~is_masked].any())


def _list_replacements(case: FaultCase, region: Region) -> list[tuple[str, AnyArray, bool]]:
    """Return (name, array, whether it is a parameter) of the tensors in and around the region."""
    replacements: list[tuple[str, AnyArray, bool]] = []
    for step in region.steps:
        replacements += [
            (item.name, item.array, item.is_parameter) for _, item in _list_floating_inputs(step)
        ]
    replacements += [
        (operand.name, operand.array, bool(operand.parameter))
        for operand in case.list_shared_operands()
        if operand.shape and operand.is_floating
    ]
    return replacements


def _swap_inputs(
    number: int, step: Step, inputs: Sequence[tuple[int, StepInput]]
) -> Iterator[_Change]:
    (first, first_input), (second, second_input) = inputs[:2]
    if first_input.array.shape != second_input.array.shape:
        return
    arrays = step.list_arrays()
    arrays[first], arrays[second] = arrays[second], arrays[first]
    output = step.compute(arrays)
    if output is None:
        return
    names = f"{second_input.name} before {first_input.name}"
    is_wave = {"sin", "cos"} <= {name.split(".")[-2] if "." in name else name.lower()[:3]
                                 for name in (first_input.name, second_input.name)}  # fmt: skip
    cause = "time-embedding-order" if is_wave else "input-order"
    yield _Change(number, output, cause, f"{step.kind} of {names}")


# ---- order of elements


def _list_shifts(_case: FaultCase, region: Region) -> Iterator[_Change]:
    """Shift an input by one along an axis, or reverse it."""
    for number, step in enumerate(region.steps):
        for position, step_input in _list_floating_inputs(step):
            array = step_input.array
            for axis in range(array.ndim):
                if array.shape[axis] < 2:
                    continue
                for cause, description, changed in _shift_axis(step, step_input, axis):
                    output = _compute_with(step, position, changed)
                    if output is not None:
                        yield _Change(number, output, cause, description)


def _shift_axis(
    step: Step, step_input: StepInput, axis: int
) -> Iterator[tuple[str, str, AnyArray]]:
    """Yield (cause, description, array) of an input that is shifted or reversed along an axis."""
    array, name = step_input.array, step_input.name
    is_kernel = step.kind == "convolution" and step_input.is_parameter
    flipped_cause = "kernel-flipped" if is_kernel else "scan-direction"
    yield flipped_cause, f"{name} reversed along axis {axis}", np.flip(array, axis)
    if is_kernel and axis == array.ndim - 1:
        axes = tuple(range(2, array.ndim))
        yield "kernel-flipped", f"the kernel {name} flipped", np.flip(array, axes)
    shift_cause = "causal-shift" if step.kind == "convolution" else "row-shift"
    for shift in (1, -1):
        rolled = np.roll(array, shift, axis)
        cut = rolled.copy()
        edge: list[slice | int] = [slice(None)] * array.ndim
        edge[axis] = 0 if shift > 0 else -1
        cut[tuple(edge)] = 0.0
        text = f"{name} shifted by {shift} along axis {axis}"
        yield shift_cause, f"{text}, with zeros at the end", cut
        yield shift_cause, f"{text}, cyclically", rolled


def _list_orders(_case: FaultCase, region: Region) -> Iterator[_Change]:
    """Take the pieces of an input's axis in another order, or two of its axes exchanged."""
    for number, step in enumerate(region.steps):
        for position, step_input in _list_floating_inputs(step):
            for cause, description, changed in _reorder(region, number, step_input):
                output = _compute_with(step, position, changed)
                if output is not None:
                    yield _Change(number, output, cause, description)


def _reorder(
    region: Region, number: int, step_input: StepInput
) -> Iterator[tuple[str, str, AnyArray]]:
    """Yield (cause, description, array) of an input in another order."""
    array, name = step_input.array, step_input.name
    is_kernel = region.steps[number].kind == "convolution" and step_input.is_parameter
    for axis in range(array.ndim - 1, -1, -1):
        length = array.shape[axis]
        for n_chunks in _CHUNKS:
            if length % n_chunks == 0 and length > n_chunks:
                for order in permutations(range(n_chunks)):
                    if list(order) != sorted(order):
                        pieces = np.split(array, n_chunks, axis)
                        changed = np.concatenate([pieces[i] for i in order], axis)
                        cause = _name_order(region, number, n_chunks)
                        text = f"the {n_chunks} parts of {name} in the order {list(order)}"
                        yield cause, text, changed
        for block in range(2, length // 2 + 1):
            if length % block == 0:
                moved = np.moveaxis(array, axis, -1)
                strided = moved.reshape(*moved.shape[:-1], block, length // block)
                changed = np.moveaxis(np.swapaxes(strided, -1, -2).reshape(moved.shape), -1, axis)
                text = f"axis {axis} of {name} in steps of {length // block}"
                yield "heads-permuted", text, changed
    for first in range(array.ndim):
        for second in range(first + 1, array.ndim):
            swapped = np.swapaxes(array, first, second).reshape(array.shape)
            cause = "weight-transposed" if step_input.is_parameter else "axes-swapped"
            if is_kernel:
                cause = "kernel-axes"
            yield cause, f"axes {first} and {second} of {name} exchanged", swapped


def _name_order(region: Region, number: int, n_chunks: int) -> str:
    kinds = region.find_kinds_after(number) | {region.steps[number].kind}
    if n_chunks > 2 and kinds & _GATED_KINDS:
        return "gate-order"
    if n_chunks == 2 and kinds & {"silu", "gelu", "swiglu", "geglu", "glu"}:
        return "gate-up-swapped"
    return "heads-permuted"


# ---- precision


def _list_roundings(case: FaultCase, region: Region) -> Iterator[_Change]:
    """Round the output of a step, and its inputs too, to a narrower type."""
    for dtype in ("float16", "bfloat16"):
        if case.error > _MAX_ROUNDING_UNITS * get_unit_roundoff(dtype):
            continue
        for number, step in enumerate(region.steps):
            if step.output.dtype.kind != "f":
                continue
            yield _Change(
                number,
                _round(step.output, dtype),
                "low-precision",
                f"{step.name} ({step.kind}) rounded to {dtype}",
                is_chaotic=True,
            )
            inputs = [_round(item, dtype) for item in step.list_arrays()]
            output = step.compute(inputs)
            if output is not None:
                yield _Change(
                    number,
                    _round(output, dtype),
                    "low-precision",
                    f"{step.name} ({step.kind}) computed in {dtype}",
                    is_chaotic=True,
                )


def _round(array: AnyArray, dtype: str) -> AnyArray:
    if array.dtype.kind != "f":
        return array
    return round_to_dtype(array.astype(np.float32), dtype).astype(np.float64)


#: In the order in which equal explanations are listed: the simplest first.
HYPOTHESES = (
    Hypothesis("argument", _make_search(_list_other_arguments)),
    Hypothesis("missing-term", _make_search(_list_missing_inputs)),
    Hypothesis("missing-step", _make_search(_list_bypassed_steps)),
    Hypothesis("activation-kind", _make_search(_list_activations)),
    Hypothesis("variant", _make_search(_list_variants)),
    Hypothesis("padding-mode", _make_search(_list_padding_modes)),
    Hypothesis("constant-factor", _make_search(_list_factors)),
    Hypothesis("input-source", _make_search(_list_replaced_inputs)),
    Hypothesis("scan-direction", _make_search(_list_shifts)),
    Hypothesis("heads-permuted", _make_search(_list_orders)),
    Hypothesis("low-precision", _make_search(_list_roundings)),
    Hypothesis("constant-offset", _make_search(_list_offsets)),
)
