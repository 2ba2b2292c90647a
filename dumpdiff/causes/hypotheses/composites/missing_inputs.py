"""Inputs and steps that are left out, or counted twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....comparison.mask_fill import FILLING_KINDS
from ....model.arrays import AnyArray
from ....model.trace import BACKWARD, FORWARD, OPTIMIZER
from ....operators.activations import sigmoid
from ....operators.elementwise import ROUNDINGS
from ...fault_case import FaultCase, compute_residual, find_masked
from ...region import Region, Step, StepInput
from ..attention import is_attention, is_cross_attention
from .activations import ACTIVATION_KINDS, is_soft_cap
from .change import (
    Change,
    belongs_to_formula,
    compute_with,
    feeds_softmax,
    is_lost,
    list_floating_inputs,
)
from .parts import feeds_gate

#: Kinds of the comparisons that show which values were clipped.
_COMPARISON_KINDS = {
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
}  # fmt: skip
_SQUARE_KINDS = {"pow", "square", "mul"}
#: Relative L2 within which a value is the sigmoid of another.
_SIGMOID_DISTANCE = 1e-5
#: Relative L2 within which a step gives its recorded output: rounding.
_SAME_DISTANCE = 1e-5
_GATE_KINDS = {"sigmoid", "hardsigmoid"}
#: Difference of a normalized row's mean square from one: its epsilon takes a part away.
_MAX_NORM_DIFFERENCE = 0.05
_SCALING_KINDS, _OFFSET_KINDS = ("mul", "div"), ("add", "sub")
#: Kinds of ops that lead from a rate to its exponential.
_PRODUCT_KINDS = {"mul", "div", "neg", "cast", "reshape", "expand", "transpose", "expand_dims"}
_PRODUCT_OPS = ("matmul", "addmm", "convolution")
#: Kinds of ops that weigh values by probabilities.
_WEIGHING_KINDS = {"matmul", "attention"}
_ADDING_KINDS = {"add", "sub", *FILLING_KINDS}
#: Kinds that are a step of their own: without one of its inputs, what the step does is missing.
_STEP_KINDS = {"where", "mul", "div"}
_AVERAGING_KINDS = ("mean", "avg_pool")
#: Kinds of ops that sum the gradients of the rows of a table.
_LOOKUP_GRADIENT_KINDS = {"segment_sum", "scatter_add", "grad:gather_rows"}
_MAX_LISTED_ROWS = 8  #: numbers of rows that are listed
#: Functions of predictions and labels: nobody leaves out one of them.
_LOSS_KINDS = {"cross_entropy", "nll_loss", "bce_loss", "ctc_loss"}
#: Losses that take a weight for each class.
CLASS_LOSSES = {"cross_entropy", "nll_loss"}


def list_missing_inputs(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave an addend or a factor out, count an addend twice, or take an input as zero."""
    for number, step in enumerate(region.steps):
        inputs = list_floating_inputs(step) if step.kind not in _LOSS_KINDS else []
        for position, step_input in inputs:
            array = step_input.array
            neutral = np.ones_like(array) if step.kind in ("mul", "div") else np.zeros_like(array)
            output = compute_with(step, position, neutral)
            is_factor = case.phase == BACKWARD and step.kind in _SCALING_KINDS
            if output is not None and not (is_factor and is_lost(case, region, number, output)):
                cause, description = _name_missing_input(case, region, number, step_input)
                omitted = (step_input.value,)
                yield Change(number, output, cause, description, omitted_values=omitted)
            if step.kind == "add" and len(inputs) > 1:
                output = compute_with(step, position, 2 * array)
                if output is not None:
                    cause, description = _name_doubled_input(case, region, number, step_input)
                    yield Change(number, output, cause, description)


def _name_doubled_input(
    case: FaultCase, region: Region, number: int, step_input: StepInput
) -> tuple[str, str]:
    """Return (cause, description) of an addend that is added twice.

    Scores to which a mask is added are no bias: twice the scores is another scale. What is added to
    a weight in its update is a step.
    """
    description = f"{step_input.name} added twice"
    if case.phase == OPTIMIZER:
        return "learning-rate", f"a step of twice the length, {step_input.name} added twice"
    is_bias = step_input.is_parameter and step_input.array.ndim == 1
    if case.phase == BACKWARD:
        return "gradient-scaled", description
    if is_bias or not feeds_softmax(case, region, number):
        return "bias-doubled" if is_bias else "residual-scale", description
    others = [item for _, item in list_floating_inputs(region.steps[number])]
    if any(is_mask(other.array) for other in others if other is not step_input):
        return "scale", f"attention scores 2 times the {case.faithful_side}'s"
    return "relative-bias", description


def list_equal_weights(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take every weight of a loss that the batch gives, or of a class, as one."""
    if not case.is_of_loss or case.phase != FORWARD:
        return
    weights = {
        item.value: (number, item)
        for number, step in enumerate(region.steps)
        for _, item in list_floating_inputs(step)
        if item.is_given and item.array.ndim
    }
    for value, (number, item) in weights.items():
        if item.array.min() < 0 or np.ptp(item.array) == 0:
            continue
        yield Change(
            number,
            region.steps[number].output,
            "loss-weight",
            "all weights of the loss 1",
            f"has weights of {item.array.min():.4g} to {item.array.max():.4g}",
            replaced_values={value: np.ones_like(item.array)},
        )
    for number, step in enumerate(region.steps):
        class_weights = step.keywords.get("weight")
        if step.kind not in CLASS_LOSSES or class_weights is None or not class_weights.ndim:
            continue
        keywords = {**step.keywords, "weight": np.ones_like(class_weights)}
        output = replace(step, keywords=keywords).compute(step.list_arrays())
        if output is not None and np.ptp(class_weights) > 0:
            yield Change(
                number,
                output,
                "loss-weight",
                f"all weights of the classes 1 in {step.name}",
                f"has weights of {class_weights.min():.4g} to {class_weights.max():.4g}",
            )


def list_missing_affines(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave out the weight of a norm and the bias after it."""
    numbers = {step.value: number for number, step in enumerate(region.steps)}
    for number, step in enumerate(region.steps):
        if step.kind != "add" or case.phase != FORWARD:
            continue
        position, product = _find_scaled_input(step)
        scaled = numbers.get(product.value, -1) if product is not None else -1
        if scaled < 0 or region.steps[scaled].kind != "mul":
            continue
        base_position, base = _find_scaled_input(region.steps[scaled])
        if base is None or not _multiplies_norm(region.steps[scaled]):
            continue
        names = [
            item.name
            for own in (region.steps[scaled], step)
            for item in own.inputs
            if item.is_parameter
        ]
        yield Change(
            number,
            step.output,
            "affine-missing",
            f"a norm without its weight and bias ({', '.join(names)})",
            predicted=region.bypass({scaled: base_position, number: position}).unchanged,
        )


def _find_scaled_input(step: Step) -> tuple[int, StepInput | None]:
    """Return (position, input) that a step scales or shifts by a parameter; None if it does not."""
    inputs = list_floating_inputs(step)
    values = [(position, item) for position, item in inputs if not item.is_parameter]
    if len(inputs) != 2 or len(values) != 1 or values[0][1].array.size != step.output.size:
        return -1, None
    return values[0]


def list_missing_masks(case: FaultCase, region: Region) -> Iterator[Change]:
    """Pass the gradient of all values, also of those that a quantizer clipped and masks."""
    if case.phase != BACKWARD:
        return
    for number, step in enumerate(region.steps):
        if step.kind != "mul" or len(step.inputs) != 2:
            continue
        for mask, gradient in (step.inputs, step.inputs[::-1]):
            if (
                mask.producer_kind not in _COMPARISON_KINDS
                or gradient.array.shape != step.output.shape
            ):
                continue
            cause, description = _name_missing_mask(mask)
            yield Change(number, gradient.array, cause, description, "masks it")


def list_stopped_rows(case: FaultCase, region: Region) -> Iterator[Change]:
    """Give the rows that differ no gradient from where they were looked up, as of padding.

    The same table may get another gradient, for example as the weights of the last layer.
    """
    if case.phase != BACKWARD or case.faithful.ndim != 2:
        return
    lengths = np.linalg.norm(case.faithful, axis=1)
    differs = np.linalg.norm(case.faulty - case.faithful, axis=1) > case.tolerance * lengths.max()
    n_rows, n_differing = len(differs), int(differs.sum())
    if not 0 < n_differing < n_rows:
        return
    for number, step in enumerate(region.steps):
        is_lookup = step.kind in _LOOKUP_GRADIENT_KINDS
        is_lookup &= step.output.shape == case.faithful.shape
        if is_lookup and step.output[differs].any():
            numbers = ", ".join(map(str, np.flatnonzero(differs)[:_MAX_LISTED_ROWS].tolist()))
            yield Change(
                number,
                np.where(differs[:, None], 0.0, step.output),
                "gradient-stopped",
                f"no gradient in {n_differing} of {n_rows} rows: {numbers}",
                "has a gradient there",
            )


def _name_missing_mask(mask: StepInput) -> tuple[str, str]:
    """Return (cause, description) of the mask of a gradient that is left out."""
    text = f"the gradient of all values, also of those that {mask.name} masks (clipped ones)"
    return "straight-through", text


def _name_missing_gradient(step: Step, step_input: StepInput) -> tuple[str, str]:
    """Return (cause, description) of an input of the backward pass that is left out.

    Without an addend no gradient flows back through it; without a factor all of it does. So it
    does where the derivative of a function is left out.
    """
    if step_input.producer_kind in _COMPARISON_KINDS:
        return _name_missing_mask(step_input)
    if step.kind == "div":
        return "gradient-scaled", f"a gradient that is not divided by {step_input.name}"
    if step.kind == "mul":
        return "gradient-scaled", f"a gradient that is not multiplied by {step_input.name}"
    if step.kind.removeprefix("grad:") in ACTIVATION_KINDS:
        return "straight-through", f"the gradient passed on by {step.name} ({step.kind}) as it is"
    return "gradient-stopped", f"the gradient through {step_input.name} missing"


def _name_missing_input(
    case: FaultCase, region: Region, number: int, step_input: StepInput
) -> tuple[str, str]:
    """Return (cause, description) of an input that is left out."""
    step = region.steps[number]
    loss_term = _name_loss_term(case, region, step, step_input)
    if loss_term is not None:
        return loss_term
    if case.phase == BACKWARD:
        return _name_missing_gradient(step, step_input)
    part = _name_missing_part(case, region, step, step_input)
    if part is not None:
        return part
    is_addend = step.kind in _ADDING_KINDS and step_input.array.ndim > 1
    if is_addend and (is_mask(step_input.array) or feeds_softmax(case, region, number)):
        return name_score_term(case, step_input)
    skip = _describe_skip(region, step, step_input)
    if skip:
        return "skip-missing", f"without {skip} in the sum {step.name}"
    cause = "missing-step" if step.kind in _STEP_KINDS else "missing-term"
    return cause, f"without {step_input.name} in {step.name} ({step.kind})"


def _is_neutral(case: FaultCase, step: Step, step_input: StepInput) -> bool:
    """Return whether the other side adds zeros, or multiplies by ones, in the place of an input."""
    return any(
        case.combines_neutral(other.value, step_input.array.size, step.kind)
        for _, other in list_floating_inputs(step)
        if other is not step_input and other.agrees
    )


def _name_missing_part(
    case: FaultCase, region: Region, step: Step, step_input: StepInput
) -> tuple[str, str] | None:
    """Return (cause, description) of a bias, a factor of silu or a norm's weight; else None.

    Of zeros, too, that the other side adds in its place.
    """
    if _is_neutral(case, step, step_input):
        return _name_neutral(region, step, step_input)
    if step.kind == "pow":
        is_mean = any(other.kind in _AVERAGING_KINDS for other in region.steps)
        cause = "pooling" if is_mean else "activation-kind"
        return cause, f"without {step_input.name} in {step.name} ({step.kind})"
    bias_name = _find_bias(case, step, step_input)
    if bias_name:
        return "bias-missing", f"without its bias ({bias_name})"
    activation = _describe_part_of_silu(region, step, step_input)
    if activation:
        return "activation-kind", activation
    return _name_missing_factor(step, step_input)


def _name_missing_factor(step: Step, step_input: StepInput) -> tuple[str, str] | None:
    """Return (cause, description) of a mask or of a norm's weight; None for other inputs.

    Without the mask in 1 - mask, the factor is 1, too.
    """
    is_complement = step.kind in _OFFSET_KINDS and len(list_floating_inputs(step)) == 1
    if (is_complement or step.kind == "mul") and is_selection(step_input.array):
        return "mask-missing", f"no mask ({step_input.name} in {step.name})"
    if step.kind == "mul" and step_input.is_parameter and _multiplies_norm(step):
        return "affine-missing", f"a norm without its weight ({step_input.name})"
    return None


def _name_neutral(region: Region, step: Step, step_input: StepInput) -> tuple[str, str]:
    """Return (cause, description) of an input in whose place the other side has zeros or ones."""
    if step.kind == "add" and _is_decayed_sum(region, step, step_input):
        return "hidden-state-reset", f"a state of zeros, without {step_input.name}"
    number = 1 if step.kind == "mul" else 0
    return "zeroed", f"{step_input.name} filled with {number} in {step.name}"


def _is_decayed_sum(region: Region, step: Step, step_input: StepInput) -> bool:
    """Return whether an addend is a sum as large as this one times what no parameter is: a state.

    A scan is h = a h + b, step by step.
    """
    products = [other for other in region.steps if other.value == step_input.value]
    return any(
        product.kind == "mul"
        and any(
            item.producer_kind == step.kind and item.array.shape == step.output.shape
            for item in product.inputs
        )
        and not any(item.is_parameter or not item.array.ndim for item in product.inputs)
        for product in products
    )


def _multiplies_norm(step: Step) -> bool:
    """Return whether a step multiplies rows or images normalized to mean squares of one."""
    for _, item in list_floating_inputs(step):
        if item.array.shape == step.output.shape and item.array.ndim > 1:
            axes_of_norms = (-1, tuple(range(2, item.array.ndim)))  # of rows, or of images
            for axes in axes_of_norms[: 2 if item.array.ndim > 2 else 1]:
                mean_squares = np.mean(item.array**2, axis=axes)
                if np.abs(mean_squares - 1).max() <= _MAX_NORM_DIFFERENCE:
                    return True
    return False


def _describe_part_of_silu(region: Region, step: Step, step_input: StepInput) -> str:
    """Return what is left of x sigmoid(x) without one of these factors; '' of other factors.

    The two need not be multiplied by one another first.
    """
    if step.kind != "mul" or step_input.is_parameter:
        return ""
    array = step_input.array
    for product in region.steps:
        for _, other in list_floating_inputs(product):
            is_factor = product.kind == "mul" and other.array.shape == array.shape
            if not is_factor or other.value == step_input.value:
                continue
            if compute_residual(other.array, sigmoid(array)) <= _SIGMOID_DISTANCE:
                return f"sigmoid of {step_input.name}, not silu"
            if compute_residual(array, sigmoid(other.array)) <= _SIGMOID_DISTANCE:
                return f"no activation of {other.name}, without {step_input.name}"
    return ""


def _find_bias(case: FaultCase, step: Step, step_input: StepInput) -> str:
    """Return the name of the bias that an input is, or of which it holds a part; '' if none."""
    if step_input.is_parameter and step_input.array.ndim == 1 and step.kind != "mul":
        return step_input.name
    return _find_repeated_bias(case, step_input.array) if step.kind in ("add", "sub") else ""


def _find_repeated_bias(case: FaultCase, array: AnyArray) -> str:
    """Return the bias of which an array holds a part, the same in every row; '' if none."""
    if array.ndim < 2 or np.any(array != array.reshape(-1, array.shape[-1])[0]):
        return ""
    row = array.reshape(-1, array.shape[-1])[0]
    for operand in case.list_shared_operands():
        n_parts, rest = divmod(int(np.prod(operand.shape)), row.size)
        if not operand.parameter or len(operand.shape) != 1 or rest or not n_parts:
            continue
        parts = operand.array.reshape(n_parts, row.size)
        if any(np.array_equal(part, row) for part in parts):
            return operand.parameter
    return ""


def _name_loss_term(
    case: FaultCase, region: Region, step: Step, step_input: StepInput
) -> tuple[str, str] | None:
    """Return (cause, description) of what is left out of a loss, if there is a word for it."""
    is_squared = step.kind in _SQUARE_KINDS and step_input.producer_kind == "logsumexp"
    if step.kind == "add" and step_input.array.size == 1:
        is_squared = _is_squared_logsumexp(region, step_input.value)
    if case.is_of_loss and is_squared:
        return "z-loss", "no z-loss: the square of the logsumexp of the logits is left out"
    is_given = not step_input.producer_kind and not step_input.is_parameter
    is_factor = step.kind == "mul" and is_given and step_input.array.size > 1
    if case.faithful.size == 1 and is_factor and not is_selection(step_input.array):
        return "loss-weight", f"no weights of the tokens ({step_input.name})"
    return None


def _is_squared_logsumexp(region: Region, value: int) -> bool:
    """Return whether the square of a logsumexp, which may be written out, leads to a value."""
    steps = {step.value: step for step in region.steps}
    upstream_values, kinds = [value], set()
    for upstream_value in upstream_values:  # grows while it is read
        if upstream_value not in steps:
            continue
        step = steps[upstream_value]
        kinds.add(step.kind)
        kinds.update(item.producer_kind for item in step.inputs)
        upstream_values += [item.value for item in step.inputs if item.value not in upstream_values]
    is_square = bool(kinds & {"square", "pow"})
    return is_square and ("logsumexp" in kinds or {"log", "exp"} <= kinds)


def _describe_skip(region: Region, step: Step, step_input: StepInput) -> str:
    """Return the name of an addend that bypasses what it is added to, '' of other inputs.

    'D times u' is that of a value times a vector of weights.
    """
    is_addend = step.kind in _ADDING_KINDS and step_input.array.ndim > 1
    is_skip = is_addend and step_input.agrees and not step_input.is_parameter
    if is_skip and step_input.array.shape == step.output.shape:
        return step_input.name
    for product in region.steps:
        if step.kind != "add" or product.value != step_input.value or product.kind != "mul":
            continue
        tensors = [item for _, item in list_floating_inputs(product)]
        weights = [item for item in tensors if item.is_parameter and item.array.ndim == 1]
        values = [item for item in tensors if not item.is_parameter]
        if len(weights) == len(values) == 1:
            return f"{weights[0].name} times {values[0].name}"
    return ""


def list_bypassed_steps(case: FaultCase, region: Region) -> Iterator[Change]:
    """Leave a step out: what follows reads one of its inputs in place of its output."""
    for number, step in enumerate(region.steps):
        for _, step_input in list_floating_inputs(step):
            if step_input.array.size != step.output.size or step.kind == "cast":
                continue
            if step.places is not None or belongs_to_formula(case, region, number):
                continue
            others = [other for _, other in list_floating_inputs(step) if other is not step_input]
            cause, description = name_bypass(case, region, number, others)
            yield Change(
                number,
                step_input.array.reshape(step.output.shape),
                cause,
                description,
                omitted_values=(step.value,),
                kept_value=step_input.value,
            )


def name_bypass(
    case: FaultCase, region: Region, number: int, others: Sequence[StepInput]
) -> tuple[str, str]:
    """Return (cause, description) of a step that is left out."""
    step = region.steps[number]
    if step.kind in FILLING_KINDS and feeds_softmax(case, region, number):
        cause = "cross-mask" if is_cross_attention(case.finding.scope) else "mask-missing"
        return cause, f"no mask ({step.name})"
    if len(others) > 1 and step.kind == "add" and case.phase == BACKWARD:
        names = " and ".join(other.name for other in others)
        return "gradient-stopped", f"the gradients through {names} missing"
    if others and not step.kind.endswith("norm") and step.kind not in _PRODUCT_OPS:
        return _name_missing_input(case, region, number, others[0])
    function = _name_missing_function(case, region, number)
    if function is not None:
        return function
    numbers = [
        float(item.array.item())
        for item in step.inputs
        if item.array.size == 1 and not item.is_parameter and not item.producer_kind
    ]
    if step.kind in (*_SCALING_KINDS, *_OFFSET_KINDS):
        complement = _describe_complement(step, numbers)
        return complement or _name_number(case, region, number, numbers)
    return "missing-step", f"without {step.name} ({step.kind})"


def _name_missing_function(case: FaultCase, region: Region, number: int) -> tuple[str, str] | None:
    """Return (cause, description) of a function of one tensor that is left out; else None."""
    step = region.steps[number]
    description = f"without {step.name} ({step.kind})"
    if step.kind in ROUNDINGS:
        return "quantization-missing", description
    if step.kind.endswith("norm"):
        return "norm-missing", description
    if is_soft_cap(region, number):
        return "soft-cap", f"no soft cap ({step.name} of a quotient, times the same number)"
    if step.kind in ACTIVATION_KINDS:
        is_rectifier = step.kind != "clamp" or not any(_list_limits(step))
        bypassed = f"no activation in place of {step.kind} ({step.name})"
        return ("activation-kind", bypassed) if is_rectifier else ("clamp", description)
    if step.kind == "exp":
        return _name_exponential(case, region, number), description
    return None


def _list_limits(step: Step) -> list[float]:
    """Return the numbers that a clamp gets; of a rectifier it is 0."""
    arrays = [*(item.array for item in step.inputs), *step.keywords.values()]
    return [float(array.item()) for array in arrays if array.size == 1]


def _name_exponential(case: FaultCase, region: Region, number: int) -> str:
    """Return the cause of an exponential that is left out: of a parameter, before another one.

    Models keep rates of decay as logarithms: the decay of a step is exp(-exp(A) dt), so only
    products lead from the one exponential to the other. That of a softmax is another one: the
    largest score is subtracted before. API records do not name all parameters.
    """
    inputs = region.steps[number].inputs
    is_of_parameter = any(item.is_parameter or not item.producer_kind for item in inputs)
    return (
        "decay-exponent" if is_of_parameter and _is_rate(case, region, number) else "missing-step"
    )


def _is_rate(case: FaultCase, region: Region, number: int) -> bool:
    """Return whether an exponential is taken of a step's output, or of products with it."""
    front = [number]
    for step_number in front:  # grows while it is read
        consumers = region.consumers[step_number]
        kinds = {region.steps[consumer].kind for consumer in consumers}
        if "exp" in kinds or (not consumers and "exp" in case.consumer_kinds):
            return True
        front += [
            consumer
            for consumer in consumers
            if region.steps[consumer].kind in _PRODUCT_KINDS and consumer not in front
        ]
    return False


def _describe_complement(step: Step, numbers: Sequence[float]) -> tuple[str, str] | None:
    """Return (cause, description) of x in place of a number minus x; None for other steps."""
    inputs = list_floating_inputs(step)
    if step.kind != "sub" or len(inputs) != 1 or len(numbers) != 1:
        return None
    x = inputs[0][1]
    if compute_residual(numbers[0] - x.array, step.output) > _SAME_DISTANCE:
        return None
    cause = "gate-order" if x.producer_kind in _GATE_KINDS else "input-source"
    return cause, f"{x.name} itself in place of {numbers[0]:.6g} minus it ({step.name})"


def _name_number(
    case: FaultCase, region: Region, number: int, numbers: Sequence[float]
) -> tuple[str, str]:
    """Return (cause, description) of a number that is not added, or by which nothing is scaled."""
    step = region.steps[number]
    if step.kind in _SCALING_KINDS:
        masks = [item for item in step.inputs if item.array.dtype.kind in "iub" and item.array.ndim]
        if masks:
            return "mask-missing", f"no mask ({masks[0].name} in {step.name})"
        cause = "scale" if feeds_softmax(case, region, number) else "constant-factor"
        factor = numbers[0] if numbers else 1.0
        return cause, f"without the factor of {step.name} ({step.kind} {factor:.6g})"
    addend = numbers[0] if numbers else 0.0
    if feeds_gate(case, region, number):
        return "forget-bias", f"without the {addend:.6g} that {step.name} adds to a gate"
    return "constant-offset", f"without the number of {step.name} ({step.kind} {addend:.6g})"


def name_score_term(case: FaultCase, step_input: StepInput) -> tuple[str, str]:
    """Return (cause, description) of a term of attention scores that is left out or replaced."""
    if is_mask(step_input.array):
        cause = "cross-mask" if is_cross_attention(case.finding.scope) else "mask-missing"
        return cause, f"no mask ({step_input.name})"
    if not case.consumer_kinds & _WEIGHING_KINDS and not is_attention(case.finding.scope):
        return "missing-term", f"scores without {step_input.name}"
    return "relative-bias", f"scores without the bias {step_input.name}"


def is_mask(array: AnyArray) -> bool:
    """Return whether an array to be added holds zeros and masking constants only."""
    is_masked = find_masked(array)
    return bool(is_masked.any() and not array[~is_masked].any())


def is_selection(array: AnyArray) -> bool:
    """Return whether a factor holds zeros and ones, of both some: it selects elements."""
    return bool(array.ndim and np.isin(array, (0, 1)).all() and array.min() < array.max())
